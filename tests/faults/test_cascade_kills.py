"""A cascade while workers die: each second judging is made once, and all verdicts are in the share once."""

import random
import time
from collections import Counter

import pytest
from experiment import JUDGE_MODEL, Experiment, number
from support.decision_endpoint import DecisionEndpoint
from support.processes import bounded_s, wait_until

from judges.core.verdict import repeat_id
from worker.base.monitor.counts import step_of
from worker.features.cascades.shares import read_shares

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
        of_judge = [(value, step) for value, step in steps if value.judge == judge]
        assert sum(not step.first for _, step in of_judge) == TRACES
        weights = [(1 / step.rate, bool(value.scores[0].passed)) for value, step in of_judge if step.first]
        expected = (TRACES, len(weights), sum(u for u, _ in weights), sum(u for u, passes in weights if passes), 0)

        def is_counted(judge: str = judge, required: object = pytest.approx(expected, rel=1e-5)) -> bool:
            # The hours of the verdicts are in the window once they ended an hour ago.
            shares = read_shares(experiment.pipeline.store, time.time() + 2 * 3600)
            return [
                (sums.first, sums.second, sums.second_weight, sums.passed, sums.waiting)
                for sums in (share.sums for share in shares if share.series.judge == judge)
            ] == [required]

        wait_until(is_counted, bounded_s(30), f"all verdicts of {judge} to be counted")
