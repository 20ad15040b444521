"""Dead letters: a retry judges them under the same id, once, some by themselves; found by filters, and bounded."""

import threading
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.fixtures import one_redis
from support.judging import Workers, assert_settled, choose, failing, judged, letters
from support.passes import (
    OLD_S,
    add_dead_letter,
    dead,
    dead_bytes,
    give_up,
    make_letter,
    make_retryable,
    marks,
    read_balanced_account,
    retry_all,
    scheduled,
)
from support.stages import HOUR, Keyspace, make_trace, make_verdict, rules_of, settings_of

from judges.core.model import ModelRejectedError, ModelSettings
from judges.core.verdict import Score, Verdict
from worker.base.accounting import read_account
from worker.base.dead_letters import store as store_module
from worker.base.dead_letters.retry import MAX_PACE, MIN_PACE, AutoRetry, RetryPace, retry
from worker.base.dead_letters.store import DeadLetterStore, prune
from worker.base.forget.forget import ForgetTarget, Forgetting
from worker.base.lookup.verdict_filter import VerdictFilter
from worker.core.queue.ledger import AUTO_RETRY_DELAYS_S, FinalVerdict, Ledger
from worker.core.storage.client import StoreError

any_redis_server = one_redis  # test_cli_dead.py runs the scripts on the newest
Stages = Callable[..., AutoRetry]
MODELS = {"default": ModelSettings(provider="scripted", model="scripted")}
REJECTED = ModelRejectedError("no")


def test_a_retry_is_judged_once_under_the_same_id(keyspace: Keyspace, new_worker: Workers) -> None:
    ids = give_up(keyspace, new_worker, 3)
    assert {letter.attempts for letter in letters(keyspace).values()} == {1}
    assert read_balanced_account(keyspace).dead == 3
    # However long they are dead they are not chosen again: the ledger may have forgotten them by then.
    keyspace.client.delete(*keyspace.client.keys(f"{keyspace.keys.evaluations}:*"))
    choose(keyspace, 3)
    assert (keyspace.ledger(), sorted(dead(keyspace))) == ({}, sorted(ids))
    read_before = list(DeadLetterStore(keyspace.store).read(ids))
    (retried,) = retry_all(keyspace)
    assert sorted(retried.chosen) == sorted(ids)
    account = read_balanced_account(keyspace)
    assert (account.dead, account.waiting, account.chosen) == (3, 0, 3), "dead until the verdicts are there"
    # While one is under way a second retry chooses nothing, nor one that read the letters before.
    before = keyspace.everything()
    (again,) = retry_all(keyspace)
    late = retry(keyspace.store, settings_of(keyspace), read_before)
    for each in (again, late):
        assert (each.chosen, sorted(each.under_way)) == ([], sorted(ids))
    assert keyspace.everything() == before
    worker = new_worker()
    worker.sweep()
    assert len(worker.judged_texts) == 3
    assert sorted(entry["evaluation_id"] for entry in keyspace.outbox("j")) == sorted(ids)
    assert {entry["attempts"] for entry in keyspace.outbox("j")} == {2}, "calls of all rounds add up"
    assert (dead(keyspace), marks(keyspace)) == ([], {})
    assert len(keyspace.outbox("d")) == 3
    assert_settled(keyspace, scored=3)
    gone = retry(keyspace.store, settings_of(keyspace), read_before)
    assert (gone.chosen, len(gone.gone), keyspace.batches()) == ([], 3, {})


def test_of_many_at_once_each_letter_goes_into_one_batch(keyspace: Keyspace, new_worker: Workers) -> None:
    ids = give_up(keyspace, new_worker, 60)
    chosen: list[str] = []

    def run() -> None:
        chosen.extend(name for retried in retry_all(keyspace) for name in retried.chosen)

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(chosen) == sorted(ids)
    worker = new_worker()
    worker.sweep()
    assert len(worker.judged_texts) == 60
    assert_settled(keyspace, scored=60)
    keyspace.next_case("a batch holds each trace once and the letters of one model")
    give_up(keyspace, new_worker, 40)
    assert [len(retried.chosen) for retried in retry_all(keyspace)] == [32, 8]
    batches = keyspace.batches()
    assert sorted(len(batch.items) for batch in batches.values()) == [8, 32]
    assert {(batch.grader, batch.judge_model) for batch in batches.values()} == {("default", "scripted")}
    sizes = [keyspace.client.strlen(keyspace.keys.batch(name)) for name in batches]
    assert keyspace.waiting()["scripted"] == sum(sizes)


def test_a_retry_that_fails_renews_the_letter(keyspace: Keyspace, new_worker: Workers) -> None:
    (name,) = give_up(keyspace, new_worker, 1)
    first = letters(keyspace)[name]
    retry_all(keyspace)
    worker = new_worker(failing(0, error=REJECTED), give_up_after=0.001)
    worker.sweep()
    renewed = letters(keyspace)[name]
    assert (renewed.reason, renewed.attempts, renewed.chosen_at) == ("judge_rejected", 2, first.chosen_at)
    assert renewed.given_up_at > first.given_up_at
    assert renewed.item == first.item
    account, reasons = read_balanced_account(keyspace), {"dead:judge_rejected": 1, "dead:judge_unavailable": 0}
    assert (account.dead, account.chosen, account.reasons) == (1, 1, reasons)
    assert [entry["reason"] for entry in keyspace.outbox("d")] == ["judge_unavailable"], "told of once"
    assert keyspace.batches() == {}
    assert marks(keyspace)[name] == (0, "")
    (retried,) = retry_all(keyspace)
    assert retried.chosen == [name]
    new_worker().sweep()
    assert_settled(keyspace, scored=1)
    keyspace.next_case("a batch from before, judged again since its end was not written, renews nothing")
    (batch_id,) = choose(keyspace, 1, age_s=OLD_S)
    payload = keyspace.client.get(keyspace.keys.batch(batch_id))
    worker = new_worker(failing(0))
    worker.run(batch_id)
    (name,) = dead(keyspace)
    retry_all(keyspace)
    before, mark = letters(keyspace), marks(keyspace)
    (retry_batch,) = keyspace.batches()
    keyspace.client.set(keyspace.keys.batch(batch_id), payload)
    keyspace.client.zadd(keyspace.keys.leases, {batch_id: 0})
    keyspace.make_due(retry_batch, in_s=100)
    keyspace.client.zrem(keyspace.keys.ready("scripted"), retry_batch)
    worker.sweep()
    assert (letters(keyspace), marks(keyspace)) == (before, mark)
    assert marks(keyspace)[name].batch_id == retry_batch


def test_a_retry_interrupted_by_a_kill_is_judged_once(keyspace: Keyspace, new_worker: Workers) -> None:
    give_up(keyspace, new_worker, 4)
    retry_all(keyspace)
    killed = new_worker(failing(2, 3))
    killed.sweep()
    assert read_balanced_account(keyspace).dead == 2, "two are judged, two are parked"
    killed.judging.stop(0.0)
    keyspace.make_due()
    new_worker().sweep()
    assert_settled(keyspace, scored=4)
    keyspace.next_case("a mark without its batch does not prevent a retry")
    ids = give_up(keyspace, new_worker, 1)
    retry_all(keyspace)
    for name in keyspace.batches():
        keyspace.client.delete(keyspace.keys.batch(name))
    (again,) = retry_all(keyspace)
    assert again.chosen == ids
    worker = new_worker()
    worker.sweep()
    worker.sweep()
    assert len(judged(keyspace)) == 1
    assert read_balanced_account(keyspace).scored == 1


# --- taken up by itself once the cause is gone: few at first, more while they succeed ---
@pytest.fixture
def auto_retry(keyspace: Keyspace) -> Stages:
    """Make the stage of one worker, whose thread does not run."""

    def make(healthy: Collection[str] = ("scripted",), options: Any = None, **configured: Any) -> AutoRetry:
        config = settings_of(keyspace, **{"models": MODELS, **configured})
        return AutoRetry(config, keyspace.store, rules=rules_of(config), healthy=lambda: healthy, **(options or {}))

    return make


def under_way(keyspace: Keyspace) -> list[str]:
    return sorted(name for name, retry in marks(keyspace).items() if retry.batch_id)


def test_due_letters_that_may_pass_are_judged_once(keyspace: Keyspace, new_worker: Workers, auto_retry: Stages) -> None:
    ids, now = give_up(keyspace, new_worker, 3), [100.0]
    fault = give_up(keyspace, new_worker, 1, first=5, error=RuntimeError("a fault of ours"))
    assert {letter.reason for letter in letters(keyspace).values()} == {"judge_unavailable", "internal_error"}
    assert scheduled(keyspace) == dict.fromkeys(ids, keyspace.soon(60))
    stage = auto_retry(options={"clock": lambda: now[0]})
    stage.look()
    assert keyspace.batches() == {}, "a minute has not passed"
    make_retryable(keyspace)
    for healthy in ((), ("other",)):
        auto_retry(healthy=healthy).look()
        assert keyspace.batches() == {}, healthy
    stage.stopping.set()
    for later_s, count in ((59, 0), (1, 1)):
        now[0] += later_s
        stage.run_once()
        assert len(keyspace.batches()) == count, "it looks once a minute"
    assert under_way(keyspace) == sorted(ids)
    assert {retry.times for retry in marks(keyspace).values()} == {1}
    stage.look()
    assert len(keyspace.batches()) == 1
    new_worker().sweep()
    assert_settled(keyspace, scored=3, dead=1)
    assert dead(keyspace) == fault


def test_few_at_first_and_twice_as_many_later(keyspace: Keyspace, new_worker: Workers, auto_retry: Stages) -> None:
    give_up(keyspace, new_worker, 75)
    make_retryable(keyspace)
    stage, worker = auto_retry(), new_worker()
    for each in (stage, auto_retry(), auto_retry(), stage):
        each.look()
        assert len(under_way(keyspace)) == MIN_PACE, "what is under way takes its place, of whichever worker"
    worker.sweep()
    stage.look()
    assert len(under_way(keyspace)) == 2 * MIN_PACE
    worker.sweep()
    stage.look()
    worker.sweep()
    assert_settled(keyspace, scored=75)
    keyspace.next_case("few again once one dies")
    give_up(keyspace, new_worker, 90)
    make_retryable(keyspace)
    stage = auto_retry()
    stage.look()
    new_worker().sweep()
    stage.look()
    assert len(under_way(keyspace)) == 2 * MIN_PACE
    new_worker(failing(*range(90)), give_up_after=0.001).sweep()
    stage.look()
    assert len(under_way(keyspace)) == MIN_PACE
    assert read_balanced_account(keyspace).dead == 90 - MIN_PACE
    keyspace.next_case("for a probe one is taken up")
    give_up(keyspace, new_worker, 30)
    make_retryable(keyspace)
    healthy: list[str] = []
    stage = auto_retry(healthy, {"probed": lambda: ("scripted",)})
    stage.look()
    stage.look()
    assert len(under_way(keyspace)) == 1
    new_worker().sweep()
    stage.look()
    assert (read_balanced_account(keyspace).scored, len(under_way(keyspace))) == (1, 1)
    healthy.append("scripted")
    stage.look()
    assert len(under_way(keyspace)) > MIN_PACE


def test_each_five_times_with_growing_waits(keyspace: Keyspace, new_worker: Workers, auto_retry: Stages) -> None:
    (name,) = give_up(keyspace, new_worker, 1)
    stage, waits = auto_retry(), []
    for _ in range(len(AUTO_RETRY_DELAYS_S)):
        waits.append(scheduled(keyspace)[name])
        make_retryable(keyspace)
        stage.look()
        worker = new_worker(failing(0, error=REJECTED), give_up_after=0.001)
        worker.sweep()
        worker.judging.stop(0.0)
    assert waits == [keyspace.soon(wait_s) for wait_s in AUTO_RETRY_DELAYS_S]
    assert (scheduled(keyspace), marks(keyspace)[name].times) == ({}, len(AUTO_RETRY_DELAYS_S))
    stage.look()
    assert keyspace.batches() == {}
    (retried,) = retry_all(keyspace)
    assert retried.chosen == [name], "who asks for it gets it"
    worker = new_worker(failing(0), give_up_after=0.001)
    worker.sweep()
    assert (scheduled(keyspace), read_balanced_account(keyspace).dead) == ({}, 1)


def test_letters_without_a_judge_here_are_postponed(
    keyspace: Keyspace, new_worker: Workers, auto_retry: Stages
) -> None:
    ids = give_up(keyspace, new_worker, 2)
    make_retryable(keyspace)
    auto_retry(judges={"safety": {"parts": ["input", "output"]}}).look()
    auto_retry_elsewhere = auto_retry(models={"other": MODELS["default"]})
    assert keyspace.batches() == {}
    assert scheduled(keyspace) == dict.fromkeys(ids, keyspace.soon(600))
    make_retryable(keyspace)
    auto_retry_elsewhere.look()
    assert keyspace.batches() == {}
    keyspace.next_case("live traces go first")
    give_up(keyspace, new_worker, 1)
    make_retryable(keyspace)
    stage = auto_retry(max_waiting_bytes=1000)
    for waiting, count in ((501, 0), (500, 1)):
        keyspace.client.hset(keyspace.keys.waiting, "scripted", waiting)
        stage.look()
        assert len(keyspace.batches()) == count, waiting
    keyspace.next_case("removed letters leave the schedule")
    first, second, third = give_up(keyspace, new_worker, 3)
    new_worker().ledger.remove([first])
    make_retryable(keyspace)
    retry_all(keyspace, ids=[second])
    assert scheduled(keyspace).keys() == {first, third}
    auto_retry().look()
    assert scheduled(keyspace) == {}
    assert under_way(keyspace) == sorted([second, third])


def test_the_pace_goes_by_how_the_last_ones_ended() -> None:
    ends = {(0, 20): 40, (0, 10): 40, (0, 9): 20, (0, 0): 20, (1, 19): 40, (2, 18): 20, (20, 0): 20}
    for (died, ended), allowed in ends.items():
        pace = RetryPace()
        pace.watch([str(number) for number in range(MIN_PACE)])
        watched = pace.watched
        pace.observe(watched[:died], watched[died : died + ended])
        expected = allowed, allowed - (MIN_PACE - died - ended)
        assert (pace.allowed, pace.capacity()) == expected, (died, ended)


@given(shares=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=30))
def test_the_pace_stays_between_its_bounds(shares: list[tuple[float, float]]) -> None:
    pace = RetryPace()
    for number, (died, ended) in enumerate(shares):
        pace.watch([f"{number}-{place}" for place in range(pace.capacity())])
        watched = pace.watched
        gone = int(len(watched) * died)
        pace.observe(watched[:gone], watched[gone : gone + int(len(watched) * ended)])
        assert MIN_PACE <= pace.allowed <= MAX_PACE
        assert 0 <= pace.capacity() <= pace.allowed


# --- whatever happens in whatever order, an evaluation is in one place, and the accounting shows which ---
STEP_NAMES = ("record", "give up", "give up the retry", "retry", "drop", "forget", "lose")
STEPS = st.tuples(st.sampled_from(STEP_NAMES), st.sampled_from((0, 1, 2)), st.sampled_from(["timeout", "rate_limited"]))


def verdict(number: int) -> Verdict:
    return make_verdict(number, outcome="scored", scores=(Score("safety", 1.0),))


def do(keyspace: Keyspace, doing: str, number: int, reason: str) -> None:
    config, name = settings_of(keyspace), verdict(number).evaluation_id
    batches = {batch_id: batch for batch_id, batch in keyspace.batches().items() if name in str(batch)}
    match doing:
        case "record":
            Ledger(keyspace.store, config).record([FinalVerdict.encode(verdict(number), HOUR)])
        case "give up":
            Ledger(keyspace.store, config).add_dead_letter([make_letter(number, reason=reason)])
        case "give up the retry":
            for batch in batches.values():
                letter = make_letter(number, reason=reason, chosen_at=batch.created_at)
                Ledger(keyspace.store, config).add_dead_letter([letter])
        case "retry":
            retry_all(keyspace, ids=[name])
        case "drop":
            Ledger(keyspace.store, config).remove([name])
        case "forget":
            Forgetting(keyspace.store, config, ForgetTarget(trace_id=make_trace(number).trace_id)).run()
        case "lose":  # as an operator could
            for batch_id in batches:
                keyspace.client.delete(keyspace.keys.batch(batch_id))
                keyspace.client.zrem(keyspace.keys.leases, batch_id)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, max_size=14))
# A worker gave the retry up, and ended before it removed the batch: the newest of both is judged.
@example(steps=[(doing, 0, "timeout") for doing in ("give up", "retry", "give up the retry", "retry")])
def test_it_is_in_one_place(fresh_keyspaces: Callable[[], Keyspace], steps: list[tuple[str, int, str]]) -> None:
    keyspace = fresh_keyspaces()
    for step in steps:
        do(keyspace, *step)
        ended, dead_letters = set(keyspace.ended()), dead(keyspace)
        assert not ended.intersection(dead_letters)
        keyspace.client.hset(keyspace.keys.account_all, "chosen", len(ended) + len(dead_letters))
        account = read_account(keyspace.store)
        reasons = Counter({name: amount for name, amount in account.reasons.items() if name.startswith("dead:")})
        assert (account.lost, account.dead, account.waiting) == (0, len(dead_letters), 0)
        assert reasons.total() == account.dead
        assert min(reasons.values(), default=0) >= 0
        assert account.scored + account.removed == len(ended)
        assert len(keyspace.outbox("j")) <= account.scored
        assert marks(keyspace).keys() <= set(dead_letters)
        assert not [name for name, size in keyspace.waiting().items() if size < 0]
        batches = list(keyspace.batches().values())
        finished = Ledger(keyspace.store, settings_of(keyspace)).already_finished(batches)
        left = Counter(
            evaluation.id
            for batch, over in zip(batches, finished, strict=True)
            for item in batch.items
            for evaluation in item.evaluations
            if evaluation.id not in over
        )
        assert max(left.values(), default=0) <= 1


# --- found, removed and bounded ---
DAY_MS = 86_400_000


def test_many_letters_are_read_in_chunks_and_others_are_skipped(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_FIRST_CHUNK_COUNT", 2)
    monkeypatch.setattr(store_module, "CHUNK_BYTES", 2000)
    ids = give_up(keyspace, new_worker, 20)
    store = DeadLetterStore(keyspace.store)
    assert sorted(stored.letter.evaluation.id for stored in store.find(VerdictFilter())) == sorted(ids)
    assert {stored.letter.evaluation.id: stored.letter for stored in store.read(ids)} == letters(keyspace)
    # One that is removed during the search is left out.
    first, second, third, *rest = ids
    new_worker().ledger.remove(rest)
    assert [stored.letter.evaluation.id for stored in store.read([rest[0], third])] == [third]
    assert sorted(dead(keyspace)) == sorted(ids[:3])
    newer = keyspace.client.hget(keyspace.keys.dead, first).replace(b'{"v":1', b'{"v":9')
    keyspace.client.hset(keyspace.keys.dead, mapping={first: newer, second: b"{"})
    assert [each.letter.evaluation.id for each in store.find(VerdictFilter())] == [third]
    assert store.unreadable == 2


def make_older(keyspace: Keyspace, ids: list[str], by_ms: int) -> None:
    for name in ids:
        keyspace.client.zincrby(keyspace.keys.dead_due, -by_ms, name)


def in_order(keyspace: Keyspace, ids: list[str]) -> list[str]:
    """Make each a second older than the next one."""
    for place, name in enumerate(ids):
        make_older(keyspace, [name], 1000 * (len(ids) - place))
    return ids


def test_too_many_and_too_old_ones_go(keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = in_order(keyspace, give_up(keyspace, new_worker, 5))
    make_older(keyspace, ids[:1], 7 * DAY_MS - 60_000)
    assert prune(keyspace.store, settings_of(keyspace, max_dead=5)) == 0, "within their bounds all stay"
    assert prune(keyspace.store, settings_of(keyspace, prefix="nothing")) == 0
    assert len(dead(keyspace)) == 5
    assert prune(keyspace.store, settings_of(keyspace, max_dead=2)) == 3
    assert dead(keyspace) == ids[3:]
    account = read_balanced_account(keyspace)
    assert (account.dead, account.removed, account.chosen) == (2, 3, 5)
    assert prune(keyspace.store, settings_of(keyspace, max_dead=2)) == 0
    make_older(keyspace, ids[3:4], 2 * DAY_MS)
    assert prune(keyspace.store, settings_of(keyspace, dead_retention=86_400)) == 1
    assert dead(keyspace) == ids[4:]
    assert read_balanced_account(keyspace).removed == 4
    keyspace.next_case("nothing goes while a key that is written has a wrong type")
    give_up(keyspace, new_worker, 2)
    for key in (keyspace.keys.account_all, keyspace.keys.dead_traces, keyspace.keys.dead_refs):
        keyspace.client.rename(key, f"{key}:kept")
        keyspace.client.set(key, "not ours")
        before = keyspace.everything()
        with pytest.raises(StoreError, match="rename it or delete it"):
            prune(keyspace.store, settings_of(keyspace, max_dead=1))
        assert keyspace.everything() == before, key
        keyspace.client.rename(f"{key}:kept", key)
    assert prune(keyspace.store, settings_of(keyspace, max_dead=1)) == 1
    keyspace.next_case("calls are bounded and go on")
    give_up(keyspace, new_worker, 10)
    monkeypatch.setattr(store_module, "_PRUNE_COUNT", 2)
    monkeypatch.setattr(store_module, "_MAX_PRUNE_CHUNKS", 3)
    settings = settings_of(keyspace, max_dead=1)
    assert [prune(keyspace.store, settings) for _ in range(3)] == [6, 3, 0]
    assert read_balanced_account(keyspace).removed == 9


def test_the_oldest_of_too_large_ones_go_and_no_more_than_must(keyspace: Keyspace, new_worker: Workers) -> None:
    ids = in_order(keyspace, give_up(keyspace, new_worker, 6))
    whole = dead_bytes(keyspace)
    assert prune(keyspace.store, settings_of(keyspace, max_dead_bytes=whole)) == 0
    assert prune(keyspace.store, settings_of(keyspace, max_dead_bytes=whole - 1)) == 1
    assert prune(keyspace.store, settings_of(keyspace, max_dead_bytes=whole * 11 // 20)) == 2
    assert dead(keyspace) == ids[3:]
    assert dead_bytes(keyspace) <= whole * 11 // 20
    assert prune(keyspace.store, settings_of(keyspace, max_dead_bytes=1)) == 3
    account = read_balanced_account(keyspace)
    assert (account.dead, account.removed, account.chosen) == (0, 6, 6)
    assert not keyspace.client.exists(*keyspace.keys.dead_letters)


def test_a_trace_of_several_dead_letters_counts_its_bytes_once(keyspace: Keyspace, new_worker: Workers) -> None:
    """A letter used to hold its trace: three judges of a trace of 100 kB took 300 kB when their model was away."""
    text, judges, ledger = "x" * 100_000, ("safety", "groundedness", "relevance_to_query"), new_worker().ledger
    names = [f"{number}" * 32 for number in range(3)]
    for name, judge in zip(names, judges, strict=True):
        add_dead_letter(keyspace, 1, judge=judge, name=name, judge_model="scripted", trace={"context": [text]})
    assert dead_bytes(keyspace) < 102_000 + 3 * 500
    assert sum(map(len, keyspace.client.hvals(keyspace.keys.dead))) < 3 * 500
    store = DeadLetterStore(keyspace.store)
    whole = {stored.letter.evaluation.id: stored.letter for stored in store.read(names)}
    assert {letter.item.trace.context[0] for letter in whole.values()} == {text}
    assert ledger.remove(names[1:]) == [True, True]
    assert [stored.letter.item.trace for stored in store.read(dead(keyspace))] == [whole[names[0]].item.trace]
    retry_all(keyspace)
    assert read_balanced_account(keyspace).dead == 1
    assert ledger.remove(names[:1]) == [True]
    assert dead(keyspace) == []
    keyspace.next_case("removing counts once")
    ids = give_up(keyspace, new_worker, 2)
    ledger = new_worker().ledger
    assert ledger.remove([*ids, "nothing"]) == [True, True, False]
    before = keyspace.everything()
    assert ledger.remove(ids) == [False, False]
    assert keyspace.everything() == before
    counts = {"removed": 2, "dead": 0, "dead:judge_unavailable": 0}
    assert keyspace.counted(*counts) == counts
    assert ledger.remove([]) == []
    keyspace.next_case("a verdict that comes after the cut counts no more")
    give_up(keyspace, new_worker, 2)
    retry_all(keyspace)
    worker = new_worker()
    worker.begin(next(iter(keyspace.batches())))
    make_older(keyspace, dead(keyspace), 8 * DAY_MS)
    assert prune(keyspace.store, settings_of(keyspace)) == 2
    worker.end()
    account = read_balanced_account(keyspace)
    assert (account.removed, account.scored, account.dead, keyspace.batches()) == (2, 0, 0, {})
    assert keyspace.outbox("j") == []
