"""Workers are killed, and replaced one after the other, under load."""

import random
import time

import pytest
from experiment import Experiment, number, seconds

TRACES = number(5_000, least=250)
KILLS = number(20, least=3)
PAUSE_S = seconds(5, least=1)


@pytest.mark.slow("each kill is recovered from after the lease of 15 s")
def test_workers_are_killed_at_random_moments(experiment: Experiment) -> None:
    chance = random.Random(6)
    experiment.start()
    # The load must last longer than all kills: a worker takes about two seconds to start.
    with experiment.load(TRACES / (KILLS * 2.5), TRACES):
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.1, 1.5))
            experiment.kill()
            experiment.start()
    experiment.assert_all_scored()
    assert experiment.recoveries.took_s, "each kill must hit work"


def test_rolling_restart_of_two_workers(experiment: Experiment) -> None:
    for name in ("a", "b"):
        experiment.start(name)
    rounds = number(4, least=1)
    with experiment.load(TRACES / (rounds * (2 * PAUSE_S + 3)), TRACES):
        for name in ("a", "b") * rounds:
            time.sleep(PAUSE_S)
            assert experiment.terminate(name) == 0
            experiment.start(name)
    experiment.assert_all_scored()
