"""Redis is restarted or paused under load."""

import time

import pytest
from experiment import Experiment, number, seconds
from redis_faults import frozen, restarts

TRACES = number(5_000, least=300)
FROZEN_S = seconds(20, least=6)


@pytest.mark.slow("five restarts one after the other")
def test_redis_is_restarted_under_load(experiment: Experiment) -> None:
    times = number(5, least=2)
    experiment.start("a")
    experiment.start("b")
    every_s = seconds(5, least=1.5)
    with experiment.load(TRACES / (times * (every_s + 1.5)), TRACES):
        restarts(experiment.redis, times, every_s=every_s, most_away_s=seconds(5, least=1))
    experiment.assert_all_scored()


@pytest.mark.slow("pauses one after the other")
def test_redis_is_paused_under_load(experiment: Experiment) -> None:
    experiment.start("a")
    experiment.start("b")
    with experiment.load(TRACES / (FROZEN_S + 4), TRACES):
        experiment.wait_finished(TRACES // 10)
        with frozen(experiment.redis):
            time.sleep(FROZEN_S)
    experiment.assert_all_scored()
    calls = len(experiment.endpoint.calls)
    assert calls <= experiment.evaluations + 2 * 2 * 128, "what was answered and not written may be asked again"
