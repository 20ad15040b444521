"""Verdicts on what late feedback pulled in: weight 0, counted apart, and in no series of quality."""

import pytest
from support.feedback_parts import Passes, complain, take
from support.stage_parts import Keyspace, make_trace, make_verdict, samples, settings_of

from judges.core.verdict import Assessment, Score
from worker.core.export.prometheus import VerdictCounter
from worker.core.queue.batch import make_verdict as join
from worker.core.queue.ledger import OutboxEntry
from worker.core.telemetry.metrics import Metrics


def test_a_verdict_on_it_has_no_weight(keyspace: Keyspace) -> None:
    keyspace.add(make_trace(1))
    complain(keyspace, make_trace(1).trace_id)
    take(keyspace)
    Passes(keyspace).make()
    (batch,) = keyspace.batches().values()
    (item,) = batch.items
    verdicts = [
        join(
            Assessment("abstained"),
            item,
            evaluation,
            metrics=("safety",),
            judge_model="lexical",
            price=None,
            user_key="",
            started_at=1.0,
            duration_s=0.1,
        )
        for evaluation in item.evaluations
    ]
    assert [(verdict.origin, verdict.weight, verdict.probability) for verdict, _ in verdicts] == [
        ("late_feedback", 0.0, 1.0)
    ] * 2


LATE = {"origin": "late_feedback", "metrics": ("a", "b", "c"), "weight": 0.0}
SCORES = (Score("a", 1.0, passed=True), Score("b", 0.0, passed=False), Score("c", 0.5))


@pytest.mark.parametrize(
    ("fields", "kind", "expected"),
    [
        ({"outcome": "scored", "scores": SCORES}, "j", {("a", "pass"), ("b", "fail"), ("c", "unrated")}),
        ({"outcome": "scored", "scores": SCORES[1:2]}, "j", {("b", "fail")}),
        ({"outcome": "abstained"}, "j", {("a", "abstained"), ("b", "abstained"), ("c", "abstained")}),
        ({"outcome": "unscored", "reason": "refusal"}, "j", {(name, "unscored") for name in "abc"}),
        ({"outcome": "unscored", "reason": "timeout"}, "d", set()),
        ({"outcome": "abstained", "origin": "replay"}, "j", set()),
    ],
    ids=["scored", "some metrics", "abstained", "unscored", "dead letter", "another origin"],
)
def test_late_feedback_is_counted_by_judge_metric_and_outcome_only(
    keyspace: Keyspace, fields: dict[str, object], kind: str, expected: set[tuple[str, str]]
) -> None:
    metrics = Metrics(settings_of(keyspace))
    VerdictCounter(settings_of(keyspace), metrics).count(
        OutboxEntry("1-0", kind, make_verdict(1, **{**LATE, **fields}))
    )
    assert samples(metrics) == {
        ("late_feedback_verdicts_total", "judge=safety", f"metric={metric}", f"outcome={outcome}", "service=shop"): 1
        for metric, outcome in expected
    }


def test_other_outcomes_of_late_feedback_are_zero(keyspace: Keyspace) -> None:
    metrics = Metrics(settings_of(keyspace))
    verdict = make_verdict(1, origin="late_feedback")
    VerdictCounter(settings_of(keyspace), metrics).count(OutboxEntry("1-0", "j", verdict))
    (family,) = (each for each in metrics.registry.collect() if each.name == "tracejudge_late_feedback_verdicts")
    by_outcome = {sample.labels["outcome"]: sample.value for sample in family.samples if sample.name.endswith("_total")}
    assert by_outcome == {"pass": 0, "fail": 0, "unrated": 0, "abstained": 1, "unscored": 0}
