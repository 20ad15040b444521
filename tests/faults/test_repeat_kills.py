"""Second judgings while workers die: each that is due is made once, and its pair is counted once."""

import random
import time
from collections import Counter

import pytest
from experiment import JUDGE_MODEL, Experiment, number
from support.processes import bounded_s, wait_until

from judges.core.verdict import repeat_id
from worker.base.monitor.counts import read_counts
from worker.core.selection.sampling import position

TRACES = number(4_000, least=200)
KILLS = number(20, least=4)
SHARE = 0.5
SECOND = "second-judge"


@pytest.mark.slow("each kill is recovered from after the lease of 15 s")
def test_repeats_survive_kills(experiment: Experiment) -> None:
    model = {"provider": "openai", "base_url": experiment.endpoint.base_url, "model": JUDGE_MODEL, "max_in_flight": 48}
    rule = {"name": "all", "judges": list(experiment.judges), "repeat": SHARE, "second_model": "second"}
    settings = {"models": {"default": model, "second": model | {"model": SECOND}}, "rules": [rule]}
    chance = random.Random(18)
    experiment.start(**settings)
    with experiment.load(TRACES / (KILLS * 2.5), TRACES):
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.1, 1.5))
            experiment.kill()
            experiment.start(**settings)
    # Verdicts of repeats have no spans.
    experiment.assert_accounting(spans=False)
    verdicts = [entry.verdict for entry in experiment.pipeline.outbox() if entry.kind == "j"]
    drawn = [
        verdict
        for verdict in verdicts
        if verdict.origin == "live" and position(verdict.evaluation_id, "repeat") < SHARE
    ]
    due = {repeat_id(verdict.evaluation_id, name) for verdict in drawn for name in (JUDGE_MODEL, SECOND)}
    assert {verdict.evaluation_id for verdict in verdicts if verdict.origin == "repeat"} == due
    pairs = Counter((verdict.judge, verdict.judge_model) for verdict in verdicts if verdict.origin == "repeat")

    def counted() -> Counter[tuple[str, str]]:
        counts: Counter[tuple[str, str]] = Counter()
        span = time.time() - 86_400, time.time() + 86_400
        for (judge, _, first, second, _), amount in read_counts(experiment.pipeline.store, "repeats", *span).items():
            assert first == JUDGE_MODEL
            counts[judge, second] += amount
        return counts

    wait_until(lambda: counted() == pairs, bounded_s(30), "all pairs to be counted")
    assert pairs.total() > 100
