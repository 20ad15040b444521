"""A cascade while workers die: each second judging is made once, and all verdicts are in the share once."""

import random
import time
from collections import Counter

import pytest
from experiment import JUDGE_MODEL, Experiment, number
from support.decision_endpoint import DecisionEndpoint
from support.processes import bounded_s, wait_until

from judges.core.verdict import repeat_id
from worker.features.cascades.shares import read_sums, step_of

TRACES = number(3_000, least=300)
KILLS = number(20, least=3)


@pytest.mark.slow("each kill is recovered from after the lease of 15 s")
def test_second_judgings_survive_kills(experiment: Experiment) -> None:
    chance = random.Random(19)
    strong = {"provider": "openai", "base_url": experiment.endpoint.base_url, "model": JUDGE_MODEL, "max_in_flight": 48}
    with DecisionEndpoint() as endpoint:
        endpoint.answer = lambda _: [round(chance.uniform(0.02, 0.98), 3)]
        cheap = {"provider": "decisions", "base_url": endpoint.base_url, "model": "cheap"}
        settings = {
            "models": {"cheap": cheap, "strong": strong},
            "cascades": {"both": {"first": "cheap", "then": "strong", "rate": 0.5}},
            "rules": [{"name": "all", "judges": list(experiment.judges), "model": "both"}],
        }
        experiment.start(**settings)
        with experiment.load(TRACES / (KILLS * 2.5), TRACES):
            for _ in range(KILLS):
                time.sleep(chance.uniform(0.1, 1.5))
                experiment.kill()
                experiment.start(**settings)
        experiment.assert_accounting(spans=False)
    verdicts = [entry.verdict for entry in experiment.pipeline.outbox() if entry.kind == "j"]
    steps = [(verdict, step) for verdict in verdicts if (step := step_of(verdict)) is not None]
    assert len(steps) == len(verdicts) > len(experiment.judges) * TRACES
    due = {repeat_id(value.evaluation_id, JUDGE_MODEL, 0) for value, step in steps if step.is_chosen and not step.first}
    second = Counter(value.evaluation_id for value, step in steps if step.first)
    assert second == Counter(due), "each once"
    assert len(due) > TRACES / 4
    for judge in experiment.judges:
        first = sum(1 for value, step in steps if value.judge == judge and not step.first)
        expected = sum(
            value.scores[0].probability or 0.0 for value, step in steps if value.judge == judge and not step.first
        )
        correction = sum(
            (float(bool(value.scores[0].passed)) - step.probability[value.scores[0].metric]) / step.rate
            for value, step in steps
            if value.judge == judge and step.first
        )
        expected_values = (TRACES, pytest.approx(expected, abs=1e-3), pytest.approx(correction, abs=1e-3))
        assert first == TRACES

        def is_counted(judge: str = judge, required: object = expected_values) -> bool:
            of_judge = [
                sums for labels, sums in read_sums(experiment.pipeline.store, time.time()).items() if labels[2] == judge
            ]
            return [(sums.first, sums.expected, sums.correction) for sums in of_judge] == [required]

        wait_until(is_counted, bounded_s(30), f"all verdicts of {judge} to be counted")
