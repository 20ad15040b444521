"""A retry judges under the same id, once; until then the letter is dead. Some are taken up by themselves."""

import threading
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.dead_parts import OLD_S, dead, give_up, make_retryable, marks, read_balanced_account, retry_all, scheduled
from support.judging_parts import Workers, assert_settled, choose, failing, judged, letters
from support.stage_parts import HOUR, Keyspace, make_trace, make_verdict, rules_of, settings_of

from judges.core.model import ModelRejectedError, ModelSettings
from judges.core.verdict import Score, Verdict
from worker.base.accounting import read_account
from worker.base.dead_letters.retry import MAX_PACE, MIN_PACE, AutoRetry, RetryPace, retry
from worker.base.dead_letters.store import DeadLetterStore
from worker.base.forget.forget import ForgetTarget, Forgetting
from worker.core.queue.batch import Evaluation, Item
from worker.core.queue.ledger import AUTO_RETRY_DELAYS_S, DeadLetter, FinalVerdict, Ledger

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


def test_the_batch_holds_each_trace_once_and_the_letters_of_one_model(keyspace: Keyspace, new_worker: Workers) -> None:
    give_up(keyspace, new_worker, 40)
    assert [len(retried.chosen) for retried in retry_all(keyspace)] == [32, 8]
    batches = keyspace.batches()
    assert sorted(len(batch.items) for batch in batches.values()) == [8, 32]
    assert {(batch.grader, batch.judge_model) for batch in batches.values()} == {("default", "scripted")}
    sizes = [keyspace.client.strlen(keyspace.keys.batch(name)) for name in batches]
    assert keyspace.waiting()["scripted"] == sum(sizes)


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


def test_a_mark_without_its_batch_does_not_prevent_a_retry(keyspace: Keyspace, new_worker: Workers) -> None:
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


def test_only_the_batch_of_the_retry_renews(keyspace: Keyspace, new_worker: Workers) -> None:
    """A batch from before may be judged again when its end was not written."""
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


def test_for_a_probe_one_is_taken_up(keyspace: Keyspace, new_worker: Workers, auto_retry: Stages) -> None:
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


def test_few_again_once_one_dies(keyspace: Keyspace, new_worker: Workers, auto_retry: Stages) -> None:
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


def test_live_traces_go_first(keyspace: Keyspace, new_worker: Workers, auto_retry: Stages) -> None:
    give_up(keyspace, new_worker, 1)
    make_retryable(keyspace)
    stage = auto_retry(max_waiting_bytes=1000)
    for waiting, count in ((501, 0), (500, 1)):
        keyspace.client.hset(keyspace.keys.waiting, "scripted", waiting)
        stage.look()
        assert len(keyspace.batches()) == count, waiting


def test_removed_letters_leave_the_schedule(keyspace: Keyspace, new_worker: Workers, auto_retry: Stages) -> None:
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
CHOSEN_AT = 1_700_000_000.0
STEP_NAMES = ("record", "give up", "give up the retry", "retry", "drop", "forget", "lose")
STEPS = st.tuples(st.sampled_from(STEP_NAMES), st.sampled_from((0, 1, 2)), st.sampled_from(["timeout", "rate_limited"]))


def verdict(number: int) -> Verdict:
    return make_verdict(number, outcome="scored", scores=(Score("safety", 1.0),))


def add_dead_letter(keyspace: Keyspace, number: int, reason: str, chosen_at: float) -> None:
    unscored = make_verdict(number, outcome="unscored", reason=reason)
    evaluation = Evaluation(unscored.evaluation_id, HOUR, "safety", unscored.judge_version, 1.0)
    item = Item(make_trace(number), (evaluation,))
    letter = DeadLetter(1, evaluation, "default", "lexical", reason, 3, chosen_at, CHOSEN_AT, item=item)
    Ledger(keyspace.store, settings_of(keyspace)).add_dead_letter([(letter, unscored)])


def do(keyspace: Keyspace, doing: str, number: int, reason: str) -> None:
    config, name = settings_of(keyspace), verdict(number).evaluation_id
    batches = {batch_id: batch for batch_id, batch in keyspace.batches().items() if name in str(batch)}
    match doing:
        case "record":
            Ledger(keyspace.store, config).record([FinalVerdict.encode(verdict(number), HOUR)])
        case "give up":
            add_dead_letter(keyspace, number, reason, CHOSEN_AT)
        case "give up the retry":
            for batch in batches.values():
                add_dead_letter(keyspace, number, reason, batch.created_at)
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


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, max_size=14))
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


def test_an_evaluation_of_two_retries_is_judged_by_the_newest(fresh_keyspaces: Callable[[], Keyspace]) -> None:
    # A worker gave the retry up, and ended before it removed the batch.
    keyspace = fresh_keyspaces()
    for doing in ("give up", "retry", "give up the retry", "retry"):
        do(keyspace, doing, 0, "timeout")
    older, newest = sorted(keyspace.batches().values(), key=lambda batch: batch.created_at)
    ledger = Ledger(keyspace.store, settings_of(keyspace))
    assert ledger.already_finished([older, newest]) == [{verdict(0).evaluation_id}, set()]
