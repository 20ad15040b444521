"""Clocks that jump by an hour: the clock of Redis, which leases and ages use, and of a worker, which nothing uses."""

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
    """An experiment whose Redis has a movable clock."""
    with ExitStack() as stack:
        with redis_clock.applied():
            made = stack.enter_context(Experiment(tmp_path))
        yield made


@pytest.mark.slow("each death is recovered from after the lease of 15 s")
def test_the_clock_of_redis_jumps_while_workers_are_killed(timed: Experiment, redis_clock: Clock) -> None:
    """Leases and claims of entries use the clock of Redis; nothing may wait for an hour."""
    timed.start("a")
    timed.start("b")
    with timed.load(TRACES / LOAD_S, TRACES):
        timed.wait_finished(TRACES // 5)
        timed.kill("a")
        redis_clock.move(HOUR_S)
    assert abs(_clock_offset_s(timed) - HOUR_S) < 60
    timed.assert_all_scored()
    timed.start("a")
    with timed.load(TRACES / LOAD_S, TRACES):
        timed.wait_finished(timed.evaluations)
        timed.kill("b")
        redis_clock.move(-HOUR_S)
    assert abs(_clock_offset_s(timed) + HOUR_S) < 60
    timed.assert_all_scored()


@pytest.mark.slow("steps of a clock under load")
def test_the_clock_of_a_worker_jumps(experiment: Experiment, tmp_path: Path) -> None:
    """Nothing is trimmed, given up or held longer because of the jump."""
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


def _clock_offset_s(experiment: Experiment) -> float:
    with Redis.from_url(experiment.redis.url) as client:
        return client.time()[0] - time.time()
