"""Several askings of each judge while workers die: each evaluation counts once, with all votes of one attempt."""

import random
import time
from collections import Counter

import pytest
from experiment import Experiment, number
from support.processes import bounded_s, wait_until
from support.replies import Call, Reply, slow, yes_no

from worker.base.monitor.votes import read_votes

TRACES = number(3_000, least=200)
KILLS = number(20, least=3)
SAMPLES = 3


@pytest.mark.slow("each kill is recovered from after the lease of 15 s")
def test_samples_survive_kills(experiment: Experiment) -> None:
    chance = random.Random(39)
    rule = {"name": "all", "judges": list(experiment.judges), "samples": SAMPLES}

    def behaviour(_: Call) -> Reply:
        return yes_no("yes" if chance.random() < 0.8 else "no")

    experiment.endpoint.behaviour = slow(0.05, behaviour)
    experiment.start(rules=[rule])
    with experiment.load(TRACES / (KILLS * 2.5), TRACES):
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.1, 1.5))
            experiment.kill()
            experiment.start(rules=[rule])
    account = experiment.assert_all_scored(spans=False)
    verdicts = [entry.verdict for entry in experiment.pipeline.outbox() if entry.kind == "j"]
    evaluations = len(experiment.judges) * TRACES
    assert (account.chosen, len({verdict.evaluation_id for verdict in verdicts})) == (evaluations, len(verdicts))
    assert Counter(len(verdict.details["samples"]) for verdict in verdicts) == {SAMPLES: evaluations}  # type: ignore[arg-type]
    # A kill loses the answers of what was under way, at most the 48 calls in flight and those not yet recorded.
    calls = len(experiment.endpoint.calls)
    assert sum(verdict.attempts for verdict in verdicts) == SAMPLES * evaluations <= calls
    assert calls <= SAMPLES * evaluations + KILLS * SAMPLES * 2 * 48
    split = sum(len({str(vote) for vote in verdict.details["samples"]}) > 1 for verdict in verdicts)  # type: ignore[attr-defined]

    def counted() -> tuple[int, int]:
        votes = read_votes(experiment.pipeline.store, time.time() - 86_400, time.time(), lambda _: True)
        return sum(each.verdicts for each in votes), round(sum(each.split.value * each.verdicts for each in votes))

    wait_until(lambda: counted() == (evaluations, split), bounded_s(30), "all votes to be counted once")
