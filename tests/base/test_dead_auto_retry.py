"""Dead letters are taken up again once their cause is gone: few at first, more while they succeed, never endlessly."""

from collections.abc import Callable, Collection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.dead_parts import balanced, dead, give_up, make_retryable, marks, retry_all, scheduled
from support.judging_parts import Desks, assert_settled, failing
from support.stage_parts import Ground, rules_of, settings_of

from judges.core.model import ModelRejectedError, ModelSettings
from worker.base.dead_letters.retry import MAX_PACE, MIN_PACE, AutoRetry, RetryPace
from worker.core.queue.ledger import AUTO_RETRY_DELAYS_S

MODELS = {"default": ModelSettings(provider="scripted", model="scripted")}


@pytest.fixture
def auto_retry(ground: Ground) -> Callable[..., AutoRetry]:
    """Make the stage of one worker, whose thread does not run."""

    def make(healthy: Collection[str] = ("scripted",), **settings: Any) -> AutoRetry:
        known = settings_of(ground, **{"models": MODELS, **settings})
        return AutoRetry(known, ground.store, rules=rules_of(known), healthy=lambda: healthy)

    return make


def under_way(ground: Ground) -> list[str]:
    return sorted(name for name, retry in marks(ground).items() if retry.batch_id)


def test_what_is_due_is_taken_up_and_judged_once(
    ground: Ground, desk: Desks, auto_retry: Callable[..., AutoRetry]
) -> None:
    ids = give_up(ground, desk, 3)
    stage = auto_retry()
    stage.look()
    assert ground.batches() == {}, "a minute has not passed"
    make_retryable(ground)
    stage.look()
    assert under_way(ground) == sorted(ids)
    assert {retry.times for retry in marks(ground).values()} == {1}
    stage.look()
    assert len(ground.batches()) == 1
    desk().sweep()
    assert_settled(ground, scored=3)


def test_only_of_judge_models_that_are_healthy(
    ground: Ground, desk: Desks, auto_retry: Callable[..., AutoRetry]
) -> None:
    give_up(ground, desk, 1)
    make_retryable(ground)
    auto_retry(healthy=()).look()
    assert ground.batches() == {}
    auto_retry(healthy=("other",)).look()
    assert ground.batches() == {}


def test_where_a_probe_may_be_made_one_is_taken_up(ground: Ground, desk: Desks) -> None:
    give_up(ground, desk, 30)
    make_retryable(ground)
    healthy: list[str] = []
    known = settings_of(ground, models=MODELS)
    probed = lambda: ("scripted",)  # noqa: E731 - a name for one expression
    stage = AutoRetry(*(known, ground.store), rules=rules_of(known), healthy=lambda: healthy, probed=probed)
    stage.look()
    stage.look()
    assert len(under_way(ground)) == 1
    desk().sweep()
    stage.look()
    assert (balanced(ground).scored, len(under_way(ground))) == (1, 1)
    healthy.append("scripted")
    stage.look()
    assert len(under_way(ground)) > MIN_PACE


def test_a_fault_of_ours_is_never_taken_up(ground: Ground, desk: Desks, auto_retry: Callable[..., AutoRetry]) -> None:
    give_up(ground, desk, 2, error=RuntimeError("a fault"))
    make_retryable(ground)
    auto_retry().look()
    assert (ground.batches(), len(dead(ground))) == ({}, 2)


def test_few_at_first_and_twice_as_many_while_they_succeed(
    ground: Ground, desk: Desks, auto_retry: Callable[..., AutoRetry]
) -> None:
    give_up(ground, desk, 75)
    make_retryable(ground)
    stage, worker = auto_retry(), desk()
    stage.look()
    assert len(under_way(ground)) == MIN_PACE
    stage.look()
    assert len(under_way(ground)) == MIN_PACE, "what is under way takes its place"
    worker.sweep()
    stage.look()
    assert len(under_way(ground)) == 2 * MIN_PACE
    worker.sweep()
    stage.look()
    worker.sweep()
    assert_settled(ground, scored=75)


def test_few_again_once_one_dies_again(ground: Ground, desk: Desks, auto_retry: Callable[..., AutoRetry]) -> None:
    give_up(ground, desk, 90)
    make_retryable(ground)
    stage = auto_retry()
    stage.look()
    desk().sweep()
    stage.look()
    assert len(under_way(ground)) == 2 * MIN_PACE
    desk(failing(*range(90)), give_up_after=0.001).sweep()
    stage.look()
    assert len(under_way(ground)) == MIN_PACE
    assert balanced(ground).dead == 90 - MIN_PACE


def test_each_at_most_five_times_with_growing_waits(
    ground: Ground, desk: Desks, auto_retry: Callable[..., AutoRetry]
) -> None:
    (name,) = give_up(ground, desk, 1)
    stage, waits = auto_retry(), []
    for _ in range(len(AUTO_RETRY_DELAYS_S)):
        waits.append(scheduled(ground)[name])
        make_retryable(ground)
        stage.look()
        worker = desk(failing(0, error=ModelRejectedError("no")), give_up_after=0.001)
        worker.sweep()
        worker.judging.stop(0.0)
    assert waits == [ground.soon(wait_s) for wait_s in AUTO_RETRY_DELAYS_S]
    assert (scheduled(ground), marks(ground)[name].times) == ({}, len(AUTO_RETRY_DELAYS_S))
    stage.look()
    assert ground.batches() == {}
    (retried,) = retry_all(ground)
    assert retried.chosen == [name], "who asks for it gets it"
    worker = desk(failing(0), give_up_after=0.001)
    worker.sweep()
    assert (scheduled(ground), balanced(ground).dead) == ({}, 1)


def test_what_no_worker_here_can_judge_lets_others_pass(
    ground: Ground, desk: Desks, auto_retry: Callable[..., AutoRetry]
) -> None:
    ids = give_up(ground, desk, 2)
    make_retryable(ground)
    auto_retry(judges={"safety": {"parts": ["input", "output"]}}).look()
    auto_retry_elsewhere = auto_retry(models={"other": MODELS["default"]})
    assert ground.batches() == {}
    assert scheduled(ground) == dict.fromkeys(ids, ground.soon(600))
    make_retryable(ground)
    auto_retry_elsewhere.look()
    assert ground.batches() == {}


def test_live_traces_go_first(ground: Ground, desk: Desks, auto_retry: Callable[..., AutoRetry]) -> None:
    give_up(ground, desk, 1)
    make_retryable(ground)
    stage = auto_retry(max_waiting_bytes=1000)
    ground.client.hset(ground.keys.waiting, "scripted", 501)
    stage.look()
    assert ground.batches() == {}
    ground.client.hset(ground.keys.waiting, "scripted", 500)
    stage.look()
    assert len(ground.batches()) == 1


def test_one_of_several_workers_retries(ground: Ground, desk: Desks, auto_retry: Callable[..., AutoRetry]) -> None:
    give_up(ground, desk, 50)
    make_retryable(ground)
    for stage in [auto_retry() for _ in range(3)]:
        stage.look()
    assert len(under_way(ground)) == MIN_PACE


def test_what_is_no_letter_any_more_is_forgotten(
    ground: Ground, desk: Desks, auto_retry: Callable[..., AutoRetry]
) -> None:
    first, second, third = give_up(ground, desk, 3)
    worker = desk()
    worker.ledger.remove([first])
    make_retryable(ground)
    retry_all(ground, ids=[second])
    assert scheduled(ground).keys() == {first, third}
    auto_retry().look()
    assert scheduled(ground) == {}
    assert under_way(ground) == sorted([second, third])


def test_it_looks_once_a_minute(ground: Ground, desk: Desks) -> None:
    give_up(ground, desk, 1)
    make_retryable(ground)
    now = [100.0]
    settings = settings_of(ground, models=MODELS)
    stage = AutoRetry(
        settings,
        ground.store,
        rules=rules_of(settings),
        healthy=lambda: ("scripted",),
        clock=lambda: now[0],
    )
    stage.stopping.set()
    now[0] += 59
    stage.run_once()
    assert ground.batches() == {}
    now[0] += 1
    stage.run_once()
    assert len(ground.batches()) == 1


ENDS = {
    "all end well": (0, 20, 40),
    "half end well": (0, 10, 40),
    "few end well": (0, 9, 20),
    "none ends": (0, 0, 20),
    "one dies": (1, 19, 40),
    "some die": (2, 18, 20),
    "all die": (20, 0, 20),
}


@pytest.mark.parametrize(("died", "ended", "allowed"), ENDS.values(), ids=ENDS.keys())
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
