"""The books balance in every state on the way, and show what is missing and what counts twice."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from stage_parts import Chosen, Ground, make_trace, make_traces, make_verdict, settings_of

import tracejudge
from judges.verdict import Score
from tracejudge import api
from worker.batches import Batch, Evaluation, Item
from worker.books import Account, read_account
from worker.leases import Leases
from worker.ledger import DeadLetter, Finished, Ledger
from worker.settings import Rule, Where

RULES = (Rule(name="shops", judges=("safety", "relevance_to_query"), where=Where(service="shop*")),)
EMPTY = Account(*[0] * 18, reasons={})
Start = Callable[..., None]


@pytest.fixture
def start(ground: Ground, _plain_environment: None) -> Iterator[Start]:
    """Start the SDK on the test's Redis; started anew, it is another producer."""

    def started(service: str = "shop", **options: Any) -> None:
        tracejudge.init(service=service, redis_url=ground.url, prefix=ground.prefix, **options)

    yield started
    tracejudge.shutdown(timeout=2)
    api._Current.client = None


def publish(count: int, **fields: Any) -> None:
    for number in range(count):
        tracejudge.publish(input="Is it warm?", output=f"It is {number}.", **fields)


def balanced(ground: Ground) -> Account:
    """Read the books, whose two sums hold without anything lost."""
    account = read_account(ground.store)
    ends = (account.dropped, account.cut_off, account.invalid, account.duplicate, account.no_rule)
    ends = (*ends, account.not_sampled, account.shed, account.sampled, account.unread)
    assert account.published == sum(ends)
    judged = (account.scored, account.abstained, account.unscored, account.dead, account.waiting, account.removed)
    assert account.chosen == sum(judged)
    assert account.lost == 0
    assert min(*ends, *judged) >= 0
    return account


def changed(**parts: Any) -> Account:
    return msgspec.structs.replace(EMPTY, **parts)


def work(ground: Ground) -> list[tuple[Batch, Item, Evaluation]]:
    """List all chosen evaluations in a fixed order."""
    batches = sorted(ground.batches().values(), key=lambda batch: batch.id)
    return [(batch, item, evaluation) for batch in batches for item in batch.items for evaluation in item.evaluations]


def judge(ground: Ground, chosen: list[tuple[Batch, Item, Evaluation]], **fields: Any) -> None:
    """Write final verdicts."""
    ledger = Ledger(ground.store, settings_of(ground))
    verdicts = [make_verdict(evaluation_id=evaluation.id, **fields) for _, _, evaluation in chosen]
    assert all(ledger.record([Finished.of(verdict) for verdict in verdicts]))


def bury(ground: Ground, chosen: list[tuple[Batch, Item, Evaluation]]) -> None:
    """Give evaluations up."""
    for batch, item, evaluation in chosen:
        verdict = make_verdict(evaluation_id=evaluation.id, outcome="unscored", reason="timeout")
        letter = DeadLetter(1, evaluation, batch.model, batch.judge_model, item, "timeout", 2, 1.0, 2.0)
        assert Ledger(ground.store, settings_of(ground)).bury([(letter, verdict)]) == [True]


SCORED = {"outcome": "scored", "scores": (Score("safety", 1.0),)}


def test_before_anything_happens_all_is_zero(ground: Ground) -> None:
    assert read_account(ground.store) == EMPTY
    ground.client.delete(ground.keys.traces)
    assert read_account(ground.store) == EMPTY
    assert EMPTY.settled


def test_every_state_from_publication_to_the_last_verdict_balances(ground: Ground, start: Start) -> None:
    chosen = Chosen(ground, rules=RULES, batch_size=8)
    start()
    publish(12)
    publish(3, service="lab")
    assert tracejudge.flush(60)
    assert balanced(ground) == changed(published=15, unread=15)
    entries = ground.read(5)
    assert balanced(ground) == changed(published=15, unread=15), "read, but not yet dealt with"
    chosen.take(entries)
    # The producer's report stands wherever a batch ended.
    taken = sum(b"t" in (fields or {}) for _, fields in entries)
    some = {"unread": 15 - taken, "sampled": taken, "chosen": 2 * taken, "waiting": 2 * taken}
    assert balanced(ground) == changed(published=15, **some)
    chosen.take()
    done = {"published": 15, "no_rule": 3, "sampled": 12, "chosen": 24}
    assert balanced(ground) == changed(**done, waiting=24)
    first, *others = work(ground)
    judge(ground, [first], **SCORED)
    judge(ground, others[:2])
    judge(ground, others[2:5], outcome="unscored", reason="refusal")
    reasons = {"unscored:refusal": 3}
    some = {"scored": 1, "abstained": 2, "unscored": 3}
    assert balanced(ground) == changed(**done, **some, waiting=18, reasons=reasons)
    bury(ground, others[5:9])
    reasons["dead:timeout"] = 4
    some["dead"] = 4
    assert balanced(ground) == changed(**done, **some, waiting=14, reasons=reasons)
    judge(ground, others[9:], **SCORED)
    some["scored"] = 15
    assert not balanced(ground).waiting
    for batch in ground.batches().values():
        Leases(ground.store, tries_ttl_s=60).finish(batch.id, batch.judge_model)
    assert balanced(ground) == changed(**done, **some, reasons=reasons)
    assert balanced(ground).settled


def test_several_producers_living_and_ended_add_up(ground: Ground, start: Start) -> None:
    chosen = Chosen(ground, rules=RULES)
    for round_ in range(3):
        start(f"shop-{round_}")
        publish(10)
        tracejudge.feedback("1", score=1)
        tracejudge.shutdown(60)
        chosen.take(ground.read(4))
        balanced(ground)
    chosen.take()
    account = balanced(ground)
    assert (account.published, account.sampled, account.unread) == (30, 30, 0)


def test_what_a_full_buffer_dropped_is_explained(ground: Ground, start: Start) -> None:
    chosen = Chosen(ground, rules=RULES)
    start(max_items=4)
    for _ in range(3):
        publish(50)
        tracejudge.flush(60)
        tracejudge.publish(unknown=True)
        tracejudge.flush(60)
        chosen.take(ground.read(3))
        balanced(ground)
    chosen.take()
    account = balanced(ground)
    assert (account.published, account.unread) == (153, 0)
    assert account.reasons == {"dropped:buffer_full": account.dropped - 3, "dropped:invalid": 3}
    assert account.dropped + account.sampled == 153
    publish(2)
    assert tracejudge.flush(60)
    assert balanced(ground).unread == 2


def test_what_the_cap_cut_off_unread_is_explained(ground: Ground, start: Start) -> None:
    chosen = Chosen(ground, rules=RULES)
    start(max_stream=10)
    publish(40, context=["x" * 4100])
    assert tracejudge.flush(60)
    assert 9 <= balanced(ground).unread <= 10, "before anybody has read"
    chosen.take()
    account = balanced(ground)
    assert account == changed(published=40, cut_off=31, sampled=9, chosen=18, waiting=18), (
        "nine traces and a report are ten entries"
    )


def test_what_a_producer_trimmed_is_explained_though_its_own_entries_are_gone(ground: Ground) -> None:
    chosen = Chosen(ground, rules=RULES)
    for place, producer in enumerate(("p1", "p2", "p3")):
        ground.append(producer, make_traces(range(10 * place, 10 * place + 10), context=["x" * 4100]), cap=10)
    chosen.take()
    assert balanced(ground) == changed(published=30, cut_off=20, sampled=10, chosen=20, waiting=20)


def test_bare_traces_are_published_when_they_are_read(ground: Ground) -> None:
    chosen = Chosen(ground, rules=RULES)
    for trace in make_traces(range(6)):
        ground.add(trace)
    ground.append("p1", make_traces(range(6, 8)))
    assert balanced(ground) == changed(published=2, unread=2)
    chosen.take(ground.read(4))
    assert balanced(ground) == changed(published=6, unread=2, sampled=4, chosen=8, waiting=8)
    chosen.take()
    assert balanced(ground) == changed(published=8, sampled=8, chosen=16, waiting=16)


def test_what_a_producer_reports_and_did_not_send_yet_is_in_its_buffer(ground: Ground) -> None:
    chosen = Chosen(ground, rules=RULES)
    ground.append("p1", make_traces(range(4)))
    ground.report("p1", 10, buffer_full=1)
    chosen.take()
    account = balanced(ground)
    assert (account.published, account.dropped, account.sampled, account.unread) == (10, 1, 4, 5)
    ground.append("p1", make_traces(range(4, 9)))
    assert balanced(ground).unread == 5, "now in the stream"
    chosen.take()
    assert balanced(ground) == changed(
        published=10, dropped=1, sampled=9, chosen=18, waiting=18, reasons={"dropped:buffer_full": 1}
    )


def test_a_duplicate_is_an_end_of_its_own(ground: Ground) -> None:
    chosen = Chosen(ground, rules=RULES)
    ground.append("p1", [make_trace(1), make_trace(1), make_trace(2)])
    chosen.take()
    account = balanced(ground)
    assert (account.published, account.sampled, account.duplicate, account.chosen) == (3, 2, 1, 4)


def test_a_batch_that_vanished_is_lost(ground: Ground) -> None:
    chosen = Chosen(ground, rules=RULES, batch_size=6)
    ground.append("p1", make_traces(range(9)))
    chosen.take()
    judge(ground, work(ground)[:2], **SCORED)
    whole = max(ground.batches())
    ground.client.delete(ground.keys.batch(whole))
    assert read_account(ground.store).lost == 6
    ground.client.delete(ground.keys.leases)
    assert read_account(ground.store).lost == 16


def test_a_verdict_that_counts_twice_makes_the_lost_negative(ground: Ground) -> None:
    chosen = Chosen(ground, rules=RULES)
    ground.append("p1", make_traces(range(3)))
    chosen.take()
    first = work(ground)[:1]
    judge(ground, first, **SCORED)
    ground.client.delete(ground.keys.ledger(first[0][2].id))
    judge(ground, first, **SCORED)
    assert read_account(ground.store).lost == -1


def test_a_trace_that_vanished_from_the_stream_counts_as_cut_off_and_from_the_books_as_lost(ground: Ground) -> None:
    chosen = Chosen(ground, rules=RULES)
    ground.append("p1", make_traces(range(5)))
    chosen.take()
    ground.client.hincrby(ground.keys.books, "sampled", -2)
    assert read_account(ground.store).lost == 2
    ground.client.hincrby(ground.keys.books, "sampled", 5)
    assert read_account(ground.store).lost == -3


def test_what_is_lost_is_not_evened_out_by_what_is_there_twice(ground: Ground) -> None:
    chosen = Chosen(ground, rules=RULES)
    ground.append("p1", make_traces(range(5)))
    chosen.take()
    ground.client.hincrby(ground.keys.books, "sampled", 2)
    ground.client.hincrby(ground.keys.books, "chosen", 2)
    assert read_account(ground.store).lost == 2
    ground.client.hincrby(ground.keys.books, "chosen", -5)
    assert read_account(ground.store).lost == -5
