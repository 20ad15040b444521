"""Dead letters are taken up again once their cause is gone: few at first, more while they succeed, never endlessly."""

from collections.abc import Callable, Collection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cases import each_case
from support.dead_parts import dead, give_up, make_retryable, marks, read_balanced_account, retry_all, scheduled
from support.judging_parts import Workers, assert_settled, failing
from support.stage_parts import Keyspace, rules_of, settings_of

from judges.core.model import ModelRejectedError, ModelSettings
from worker.base.dead_letters.retry import MAX_PACE, MIN_PACE, AutoRetry, RetryPace
from worker.core.queue.ledger import AUTO_RETRY_DELAYS_S

MODELS = {"default": ModelSettings(provider="scripted", model="scripted")}


@pytest.fixture
def auto_retry(keyspace: Keyspace) -> Callable[..., AutoRetry]:
    """Make the stage of one worker, whose thread does not run."""

    def make(healthy: Collection[str] = ("scripted",), **settings: Any) -> AutoRetry:
        config = settings_of(keyspace, **{"models": MODELS, **settings})
        return AutoRetry(config, keyspace.store, rules=rules_of(config), healthy=lambda: healthy)

    return make


def under_way(keyspace: Keyspace) -> list[str]:
    return sorted(name for name, retry in marks(keyspace).items() if retry.batch_id)


def test_due_dead_letters_are_retried_and_judged_once(
    keyspace: Keyspace, new_worker: Workers, auto_retry: Callable[..., AutoRetry]
) -> None:
    ids = give_up(keyspace, new_worker, 3)
    stage = auto_retry()
    stage.look()
    assert keyspace.batches() == {}, "a minute has not passed"
    make_retryable(keyspace)
    stage.look()
    assert under_way(keyspace) == sorted(ids)
    assert {retry.times for retry in marks(keyspace).values()} == {1}
    stage.look()
    assert len(keyspace.batches()) == 1
    new_worker().sweep()
    assert_settled(keyspace, scored=3)


def test_only_of_judge_models_that_are_healthy(
    keyspace: Keyspace, new_worker: Workers, auto_retry: Callable[..., AutoRetry]
) -> None:
    give_up(keyspace, new_worker, 1)
    make_retryable(keyspace)
    auto_retry(healthy=()).look()
    assert keyspace.batches() == {}
    auto_retry(healthy=("other",)).look()
    assert keyspace.batches() == {}


def test_where_a_probe_may_be_made_one_is_taken_up(keyspace: Keyspace, new_worker: Workers) -> None:
    give_up(keyspace, new_worker, 30)
    make_retryable(keyspace)
    healthy: list[str] = []
    config = settings_of(keyspace, models=MODELS)
    probed = lambda: ("scripted",)  # noqa: E731 - a name for one expression
    stage = AutoRetry(*(config, keyspace.store), rules=rules_of(config), healthy=lambda: healthy, probed=probed)
    stage.look()
    stage.look()
    assert len(under_way(keyspace)) == 1
    new_worker().sweep()
    stage.look()
    assert (read_balanced_account(keyspace).scored, len(under_way(keyspace))) == (1, 1)
    healthy.append("scripted")
    stage.look()
    assert len(under_way(keyspace)) > MIN_PACE


def test_a_fault_of_ours_is_never_taken_up(
    keyspace: Keyspace, new_worker: Workers, auto_retry: Callable[..., AutoRetry]
) -> None:
    give_up(keyspace, new_worker, 2, error=RuntimeError("a fault"))
    make_retryable(keyspace)
    auto_retry().look()
    assert (keyspace.batches(), len(dead(keyspace))) == ({}, 2)


def test_few_at_first_and_twice_as_many_while_they_succeed(
    keyspace: Keyspace, new_worker: Workers, auto_retry: Callable[..., AutoRetry]
) -> None:
    give_up(keyspace, new_worker, 75)
    make_retryable(keyspace)
    stage, worker = auto_retry(), new_worker()
    stage.look()
    assert len(under_way(keyspace)) == MIN_PACE
    stage.look()
    assert len(under_way(keyspace)) == MIN_PACE, "what is under way takes its place"
    worker.sweep()
    stage.look()
    assert len(under_way(keyspace)) == 2 * MIN_PACE
    worker.sweep()
    stage.look()
    worker.sweep()
    assert_settled(keyspace, scored=75)


def test_few_again_once_one_dies_again(
    keyspace: Keyspace, new_worker: Workers, auto_retry: Callable[..., AutoRetry]
) -> None:
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


def test_each_at_most_five_times_with_growing_waits(
    keyspace: Keyspace, new_worker: Workers, auto_retry: Callable[..., AutoRetry]
) -> None:
    (name,) = give_up(keyspace, new_worker, 1)
    stage, waits = auto_retry(), []
    for _ in range(len(AUTO_RETRY_DELAYS_S)):
        waits.append(scheduled(keyspace)[name])
        make_retryable(keyspace)
        stage.look()
        worker = new_worker(failing(0, error=ModelRejectedError("no")), give_up_after=0.001)
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


def test_dead_letters_without_a_judge_here_are_postponed(
    keyspace: Keyspace, new_worker: Workers, auto_retry: Callable[..., AutoRetry]
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


def test_live_traces_go_first(keyspace: Keyspace, new_worker: Workers, auto_retry: Callable[..., AutoRetry]) -> None:
    give_up(keyspace, new_worker, 1)
    make_retryable(keyspace)
    stage = auto_retry(max_waiting_bytes=1000)
    keyspace.client.hset(keyspace.keys.waiting, "scripted", 501)
    stage.look()
    assert keyspace.batches() == {}
    keyspace.client.hset(keyspace.keys.waiting, "scripted", 500)
    stage.look()
    assert len(keyspace.batches()) == 1


def test_one_of_several_workers_retries(
    keyspace: Keyspace, new_worker: Workers, auto_retry: Callable[..., AutoRetry]
) -> None:
    give_up(keyspace, new_worker, 50)
    make_retryable(keyspace)
    for stage in [auto_retry() for _ in range(3)]:
        stage.look()
    assert len(under_way(keyspace)) == MIN_PACE


def test_removed_dead_letters_leave_the_schedule(
    keyspace: Keyspace, new_worker: Workers, auto_retry: Callable[..., AutoRetry]
) -> None:
    first, second, third = give_up(keyspace, new_worker, 3)
    worker = new_worker()
    worker.ledger.remove([first])
    make_retryable(keyspace)
    retry_all(keyspace, ids=[second])
    assert scheduled(keyspace).keys() == {first, third}
    auto_retry().look()
    assert scheduled(keyspace) == {}
    assert under_way(keyspace) == sorted([second, third])


def test_it_looks_once_a_minute(keyspace: Keyspace, new_worker: Workers) -> None:
    give_up(keyspace, new_worker, 1)
    make_retryable(keyspace)
    now = [100.0]
    settings = settings_of(keyspace, models=MODELS)
    stage = AutoRetry(
        settings, keyspace.store, rules=rules_of(settings), healthy=lambda: ("scripted",), clock=lambda: now[0]
    )
    stage.stopping.set()
    now[0] += 59
    stage.run_once()
    assert keyspace.batches() == {}
    now[0] += 1
    stage.run_once()
    assert len(keyspace.batches()) == 1


ENDS = {
    "all end well": (0, 20, 40),
    "half end well": (0, 10, 40),
    "few end well": (0, 9, 20),
    "none ends": (0, 0, 20),
    "one dies": (1, 19, 40),
    "some die": (2, 18, 20),
    "all die": (20, 0, 20),
}


@each_case(("died", "ended", "allowed"), ENDS.values(), ids=ENDS.keys())
def test_the_pace_goes_by_how_the_last_ones_ended(died: int, ended: int, allowed: int) -> None:
    pace = RetryPace()
    pace.watch([str(number) for number in range(MIN_PACE)])
    watched = pace.watched
    pace.observe(watched[:died], watched[died : died + ended])
    assert (pace.allowed, pace.capacity()) == (allowed, allowed - (MIN_PACE - died - ended))


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
