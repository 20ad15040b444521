"""Clocks that jump by an hour: of Redis, by which leases and ages go, and of a worker, by which nothing must go."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from experiment import Experiment, number, seconds
from experiment_clock import HOUR_S, Clock
from redis import Redis

TRACES = number(2_000, least=300)
LOAD_S = seconds(30, least=2)


@pytest.fixture
def redis_clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path, "redis")


@pytest.fixture
def timed(tmp_path: Path, redis_clock: Clock) -> Iterator[Experiment]:
    """An experiment whose Redis has a clock that can be moved."""
    with ExitStack() as stack:
        with redis_clock.applied():
            made = stack.enter_context(Experiment(tmp_path))
        yield made


@pytest.mark.slow("each death is recovered from after the lease of 15 s")
def test_redis_clock_steps_while_workers_die(timed: Experiment, redis_clock: Clock) -> None:
    """Leases, and entries that the dead had read, go by that clock: nothing may wait for an hour."""
    timed.start("a")
    timed.start("b")
    with timed.load(TRACES / LOAD_S, TRACES):
        timed.wait_finished(TRACES // 5)
        timed.kill("a")
        redis_clock.move(HOUR_S)
    assert abs(_wrong_by_s(timed) - HOUR_S) < 60
    timed.assert_all_scored()
    timed.start("a")
    with timed.load(TRACES / LOAD_S, TRACES):
        timed.wait_finished(timed.evaluations)
        timed.kill("b")
        redis_clock.move(-HOUR_S)
    assert abs(_wrong_by_s(timed) + HOUR_S) < 60
    timed.assert_all_scored()


def test_worker_clock_steps(experiment: Experiment, tmp_path: Path) -> None:
    """Nothing is trimmed, given up or held for longer."""
    clock = Clock(tmp_path, "worker")
    with clock.applied():
        experiment.start("stepping")
    experiment.start("right")
    for step_s in (HOUR_S, -HOUR_S):
        with experiment.load(TRACES / LOAD_S, TRACES):
            experiment.wait_finished(experiment.evaluations // 5)
            clock.move(step_s)
    experiment.assert_all_scored()
    assert len(experiment.endpoint.calls) == experiment.evaluations
    experiment.assert_each_counted()


def _wrong_by_s(experiment: Experiment) -> float:
    with Redis.from_url(experiment.redis.url) as client:
        return client.time()[0] - time.time()
