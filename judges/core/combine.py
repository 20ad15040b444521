"""Combine the assessments of several judge models into one, and measure their disagreement.

The disagreement about a metric is the mean absolute difference of its values over all pairs of models: Gini's mean
difference (C. Gini, Variabilità e mutabilità, 1912). It is 0 if all agree; for yes and no it is the share of pairs
that differ.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Final, Literal

from judges.core.judge import Judge, Metric, Reading
from judges.core.verdict import Assessment, Score

Combine = Literal["majority", "mean", "min", "max", "all"]
DISAGREEMENT: Final = "disagreement"
_MIN_SCORED: Final = 2
Ratings = Mapping[str, Score]  # The score of one metric by judge model, in the order of their names.

# The judges whose verdicts GROUNDED_AND_RELEVANT joins, each with the metric that decides; no model is asked for it.
JUDGE_PAIR: Final = {"facts_grounding": "grounded", "relevance_to_query": "relevance_to_query"}
GROUNDED_AND_RELEVANT: Final = Judge(
    name="grounded_and_relevant",
    asks="Is each sentence of the answer supported, and does the answer deal with what was asked?",
    metrics=(Metric("grounded_and_relevant", "0 or 1", "facts_grounding and relevance_to_query pass"),),
    needs=(),
    fixed_parts=(),
    schema={},
    prompts=lambda _trace: (),
    read=lambda text: text,
    score=lambda _trace, _answered: Reading(()),
    heuristic=lambda _trace, _prompt: "",
    scoring="grounded_and_relevant/1",
)


def join(parts: Mapping[str, Assessment]) -> Assessment:
    """Combine an assessment of each judge of ``JUDGE_PAIR``: passed if both pass, unscored if either is."""
    passed = {
        judge: any(each.passed for each in parts[judge].scores if each.metric == decides)
        for judge, decides in JUDGE_PAIR.items()
    }
    shown = {judge: {"outcome": part.outcome, "passed": passed[judge]} for judge, part in parts.items()}
    for judge, part in sorted(parts.items(), key=lambda item: item[1].outcome != "unscored"):
        if part.outcome != "scored":
            return Assessment(part.outcome, part.reason, details={"judges": shown}, note=f"{judge} is {part.outcome}")
    rationale = "; ".join(f"{judge} {'passes' if passed[judge] else 'fails'}" for judge in JUDGE_PAIR)
    score = _verdict(GROUNDED_AND_RELEVANT.metrics[0], passed=all(passed.values()))
    return Assessment("scored", scores=(score,), rationale=f"{rationale}.", details={"judges": shown})


def metrics_of(metrics: Sequence[Metric]) -> tuple[Metric, ...]:
    """Return the metrics of a combined verdict: the judge's own, then the disagreement about each."""
    names = (DISAGREEMENT if len(metrics) == 1 else f"{metric.name}_{DISAGREEMENT}" for metric in metrics)
    return (*metrics, *(Metric(name, "0..1", None, descriptive=True) for name in names))


def is_disagreement(metric: str) -> bool:
    """Return whether a metric has the name of a disagreement, which no metric of a combined judge may have."""
    return metric == DISAGREEMENT or metric.endswith(f"_{DISAGREEMENT}")


def combine(mode: Combine, votes: Mapping[str, Assessment], metrics: Sequence[Metric]) -> Assessment:
    """Combine the assessments of several models, by judge model; their order does not matter.

    ``majority`` passes if more than half of the ratings pass; without a pass rule it is their mean. ``mean`` passes if
    the mean reaches the pass mark, or without a mark as ``majority`` does. ``min`` and ``max`` are the lowest and the
    highest score unchanged. ``all`` passes if every model's rating passes.

    More than half of the models, and at least two, must have scored a metric; for ``all`` and ``min`` every model,
    although one failing rating is enough for ``all`` to fail.

    If no metric can be combined, the result is abstained if at least as many models abstained as are unscored, and
    otherwise unscored for their most frequent reason.
    """
    by_model = {model: votes[model] for model in sorted(votes)}
    scored = [(model, score) for model, vote in by_model.items() if vote.outcome == "scored" for score in vote.scores]
    scores: list[Score] = []
    disagreements: list[Score] = []
    rationale: list[str] = []
    for metric, disagreement in zip(metrics, metrics_of(metrics)[len(metrics) :], strict=True):
        # The last of several scores of a metric counts.
        ratings = {model: score for model, score in scored if score.metric == metric.name}
        score = _score(mode, metric, ratings, len(votes))
        if score is None:
            continue
        scores.append(score)
        if len(ratings) >= _MIN_SCORED:
            pairs = list(combinations(sorted(each.value for each in ratings.values()), 2))
            value = math.fsum(high - low for low, high in pairs) / len(pairs)
            disagreements.append(Score(disagreement.name, value, value))
        passing = sum(each.passed is True for each in ratings.values())
        text = f"{passing} of {len(ratings)} models pass" if score.passed is not None else f"{len(ratings)} models rate"
        rationale.append(text if len(metrics) == 1 else f"{metric.name}: {text}")
    details = {"models": {model: describe_vote(vote) for model, vote in by_model.items()}}
    if not scores:
        return _without_score(by_model, details)
    return Assessment("scored", scores=(*scores, *disagreements), rationale="\n".join(rationale), details=details)


def describe_vote(vote: Assessment) -> dict[str, object]:
    """Return what the details of a verdict keep of one of the assessments that it joins."""
    values = {each.metric: {"value": each.value, "label": each.label, "passed": each.passed} for each in vote.scores}
    fields = (("reason", vote.reason), ("scores", values))
    return {"outcome": vote.outcome, **{key: value for key, value in fields if value}}


def _score(mode: Combine, metric: Metric, ratings: Ratings, models: int) -> Score | None:
    rated = [score.passed for score in ratings.values() if score.passed is not None]
    if mode == "all" and not all(rated):
        return _verdict(metric, passed=False)
    needed = models if mode in {"all", "min"} else models // 2 + 1
    if len(ratings) < max(_MIN_SCORED, needed):
        return None
    if mode == "all" and rated:
        return _verdict(metric, passed=True)
    values = [score.value for score in ratings.values()]
    if mode in {"min", "max", "all"}:
        chosen = max(values) if mode == "max" else min(values)
        # Of several with this value a failing one, whatever their order; its rationale stays in its model's verdict.
        equal = (score for score in ratings.values() if score.value == chosen)
        score = min(equal, key=lambda score: (score.passed is True, f"{score.label} {score.raw}"))
        return Score(score.metric, score.value, score.raw, score.label, score.passed)
    mean = math.fsum(values) / len(values)
    most_pass = sum(rated) * 2 > len(rated) if rated else None
    if mode == "majority" and most_pass is not None:
        return _verdict(metric, passed=most_pass)
    if mode == "mean" and rated and metric.pass_at is not None:
        most_pass = mean >= metric.pass_at - 1e-9  # A mean of equal values may be slightly below them.
    return Score(metric.name, mean, passed=most_pass)


def _verdict(metric: Metric, *, passed: bool) -> Score:
    return Score(metric.name, float(passed), label="pass" if passed else "fail", passed=passed)


def _without_score(by_model: Mapping[str, Assessment], details: Mapping[str, object]) -> Assessment:
    outcomes = Counter(vote.outcome for vote in by_model.values())
    note = f"{outcomes['scored']} of {len(by_model)} models gave a score, which are too few to combine"
    if outcomes["abstained"] >= outcomes["unscored"]:
        return Assessment("abstained", details=details, note=note)
    reasons = Counter(vote.reason for vote in by_model.values() if vote.reason is not None)
    most = min(reasons, key=lambda reason: (-reasons[reason], reason))
    return Assessment("unscored", most, details=details, note=note)
