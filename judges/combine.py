"""Combine what several models found on one question into one verdict, and say how far they disagree.

The disagreement of a metric is the mean absolute difference of its values over all pairs of models: Gini's mean
difference (C. Gini, Variabilità e mutabilità, 1912). It is 0 where all agree; for yes and no it is the share of pairs
that do not.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Final, Literal

from judges.judge import Metric
from judges.verdict import Assessment, Score

__all__ = ["DISAGREEMENT", "Combine", "combine", "is_disagreement", "metrics_of"]

Combine = Literal["majority", "mean", "min", "max", "all"]

DISAGREEMENT: Final = "disagreement"
_NEEDS_ALL: Final = frozenset({"all", "min"})
_ROUNDING: Final = 1e-9
"""A mean of equal values may come out less than each of them."""
_MIN_SCORED: Final = 2

Ratings = Mapping[str, Score]
"""What each model that has scored a metric gave it, by judge model, in the order of their names."""


def metrics_of(metrics: Sequence[Metric]) -> tuple[Metric, ...]:
    """List what a combined verdict gives: the judge's own metrics, then the disagreement about each."""
    return (*metrics, *(_disagreement_of(metric, metrics) for metric in metrics))


def is_disagreement(metric: str) -> bool:
    """Tell whether a metric bears the name of a disagreement: no judge may have one that is combined."""
    return metric == DISAGREEMENT or metric.endswith(f"_{DISAGREEMENT}")


def combine(mode: Combine, found: Mapping[str, Assessment], metrics: Sequence[Metric]) -> Assessment:
    """Combine the assessments of several models; the order in which they are given changes nothing.

    ``majority`` passes when more than half of the ratings pass, and where nothing passes or fails gives their mean.
    ``mean`` passes when the mean reaches the pass mark, and without a mark as ``majority`` does. ``min`` and ``max``
    give the lowest and the highest score as it is. ``all`` passes when every model's rating passes.

    More than half of the models, and at least two, must have scored a metric; for ``all`` and ``min`` every model,
    though one that fails is enough for ``all`` to fail.

    Args:
        found: By judge model.
        metrics: Those of the judge.

    Returns:
        Scores for each metric that can be combined, and its disagreement. Without any: abstained where as many models
        abstained as are unscored, or more; else unscored for the reason most of them have.
    """
    by_model = {model: found[model] for model in sorted(found)}
    scored = {model: one for model, one in by_model.items() if one.outcome == "scored"}
    scores: list[Score] = []
    disagreements: list[Score] = []
    for metric in metrics:
        ratings = _ratings(scored, metric.name)
        score = _score(mode, metric, ratings, len(found))
        if score is not None:
            scores.append(score)
        if score is not None and len(ratings) >= _MIN_SCORED:
            value = _mean_difference([each.value for each in ratings.values()])
            disagreements.append(Score(_disagreement_of(metric, metrics).name, value, value))
    details = {"models": {model: _told(one) for model, one in by_model.items()}}
    if not scores:
        return _without_score(by_model, details)
    rationale = "\n".join(_in_words(score, _ratings(scored, score.metric), metrics) for score in scores)
    return Assessment("scored", scores=(*scores, *disagreements), rationale=rationale, details=details)


def _disagreement_of(metric: Metric, metrics: Sequence[Metric]) -> Metric:
    name = DISAGREEMENT if len(metrics) == 1 else f"{metric.name}_{DISAGREEMENT}"
    return Metric(name, "0..1", None, descriptive=True)


def _ratings(scored: Mapping[str, Assessment], metric: str) -> Ratings:
    # The last of a metric's scores stands for it.
    given = {model: {score.metric: score for score in one.scores} for model, one in scored.items()}
    return {model: scores[metric] for model, scores in given.items() if metric in scores}


def _score(mode: Combine, metric: Metric, ratings: Ratings, models: int) -> Score | None:
    """Combine the ratings of one metric; None where too few models have given one."""
    if mode == "all" and any(score.passed is False for score in ratings.values()):
        return _verdict(metric, passed=False)
    needed = models if mode in _NEEDS_ALL else models // 2 + 1
    if len(ratings) < max(_MIN_SCORED, needed):
        return None
    return _WAYS[mode](metric, ratings)


def _majority(metric: Metric, ratings: Ratings) -> Score:
    passed = _most_pass(ratings)
    return Score(metric.name, _mean(ratings)) if passed is None else _verdict(metric, passed=passed)


def _by_mean(metric: Metric, ratings: Ratings) -> Score:
    value, passed = _mean(ratings), _most_pass(ratings)
    if passed is not None and metric.pass_at is not None:
        passed = value >= metric.pass_at - _ROUNDING
    return Score(metric.name, value, passed=passed)


def _lowest(_metric: Metric, ratings: Ratings) -> Score:
    return _as_it_is(min(ratings.values(), key=_rank))


def _highest(metric: Metric, ratings: Ratings) -> Score:
    best = max(score.value for score in ratings.values())
    return _lowest(metric, {model: score for model, score in ratings.items() if score.value == best})


def _all(metric: Metric, ratings: Ratings) -> Score:
    """Only asked where no rating fails."""
    return _lowest(metric, ratings) if _most_pass(ratings) is None else _verdict(metric, passed=True)


_WAYS: Final[Mapping[Combine, Callable[[Metric, Ratings], Score]]] = {
    "majority": _majority,
    "mean": _by_mean,
    "min": _lowest,
    "max": _highest,
    "all": _all,
}


def _verdict(metric: Metric, *, passed: bool) -> Score:
    return Score(metric.name, float(passed), label="pass" if passed else "fail", passed=passed)


def _as_it_is(score: Score) -> Score:
    """Leave the rationale out: it stands in the verdict of its model."""
    return Score(score.metric, score.value, score.raw, score.label, score.passed)


def _rank(score: Score) -> tuple[float, bool, str]:
    """Order ratings by value, and equal ones so that a tie does not pass; the rest keeps chance out of the order."""
    return score.value, score.passed is True, f"{score.label} {score.raw}"


def _most_pass(ratings: Ratings) -> bool | None:
    """Tell whether more than half of the ratings pass; None where nothing passes or fails."""
    rated = [score.passed for score in ratings.values() if score.passed is not None]
    return sum(rated) * 2 > len(rated) if rated else None


def _mean(ratings: Ratings) -> float:
    return math.fsum(score.value for score in ratings.values()) / len(ratings)


def _mean_difference(values: Sequence[float]) -> float:
    pairs = list(combinations(sorted(values), 2))
    return math.fsum(high - low for low, high in pairs) / len(pairs)


def _told(one: Assessment) -> Mapping[str, object]:
    told: dict[str, object] = {"outcome": one.outcome}
    if one.reason is not None:
        told["reason"] = one.reason
    if one.scores:
        told["scores"] = {score.metric: {"value": score.value, "passed": score.passed} for score in one.scores}
    return told


def _without_score(by_model: Mapping[str, Assessment], details: Mapping[str, object]) -> Assessment:
    outcomes = Counter(one.outcome for one in by_model.values())
    note = f"{outcomes['scored']} of {len(by_model)} models gave a score, which are too few to combine"
    if outcomes["abstained"] >= outcomes["unscored"]:
        return Assessment("abstained", details=details, note=note)
    reasons = Counter(one.reason for one in by_model.values() if one.reason is not None)
    most = min(reasons, key=lambda reason: (-reasons[reason], reason))
    return Assessment("unscored", most, details=details, note=note)


def _in_words(score: Score, ratings: Ratings, metrics: Sequence[Metric]) -> str:
    passing = sum(each.passed is True for each in ratings.values())
    said = f"{passing} of {len(ratings)} models pass" if score.passed is not None else f"{len(ratings)} models rate"
    return said if len(metrics) == 1 else f"{score.metric}: {said}"
