"""Several askings of each judge while workers die: each evaluation counts once, with all votes of one attempt."""

import random
import time
from typing import Any

import pytest
from experiment import Experiment, number
from support.processes import bounded_s, wait_until
from support.replies import Call, Reply, yes_no

from worker.base.monitor.votes import read_votes

TRACES = number(3_000, least=200)
KILLS = number(20, least=3)
SAMPLES = 3


@pytest.mark.slow("each kill is recovered from after the lease of 15 s")
def test_samples_survive_kills(experiment: Experiment) -> None:
    chance = random.Random(39)
    rule = {"name": "all", "judges": list(experiment.judges), "samples": SAMPLES}

    def behaviour(_: Call) -> Reply:
        return yes_no("yes" if chance.random() < 0.8 else "no", delay_s=chance.uniform(0.1, 0.4))

    def is_between() -> bool:
        under_way = experiment.endpoint.in_flight
        return under_way > 0 and (len(experiment.endpoint.calls) - under_way) % SAMPLES > 0

    experiment.endpoint.behaviour = behaviour
    experiment.start(rules=[rule])
    with experiment.load(TRACES / (KILLS * 2.5), TRACES):
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.1, 1.0))
            wait_until(is_between, what="an evaluation of which an answer has come and another has not")
            experiment.kill()
            experiment.start(rules=[rule])
    experiment.assert_all_scored(spans=False)
    verdicts = [entry.verdict for entry in experiment.pipeline.outbox() if entry.kind == "j"]
    evaluations = len(experiment.judges) * TRACES
    assert (len({verdict.evaluation_id for verdict in verdicts}), len(verdicts)) == (evaluations, evaluations)
    votes: list[Any] = [verdict.details["samples"] for verdict in verdicts]
    assert {*map(len, votes), *(verdict.attempts for verdict in verdicts)} == {SAMPLES}
    # Each kill loses the answers in flight, and those of verdicts that are not recorded yet.
    lost = len(experiment.endpoint.calls) - SAMPLES * evaluations
    assert KILLS <= lost <= KILLS * SAMPLES * 48

    def counted() -> int:
        every = read_votes(experiment.pipeline.store, time.time() - 86_400, time.time(), lambda _: True)
        return sum(each.verdicts for each in every)

    wait_until(lambda: counted() == evaluations, bounded_s(30), "all votes to be counted once")
