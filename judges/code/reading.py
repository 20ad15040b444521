"""Turn what a judge in code returned into scores, or say what is wrong with it. Nothing is clamped or guessed.

No message holds a value: a value may be a piece of the trace.
"""

import math
from collections.abc import Sequence
from numbers import Real

import msgspec

from judges import verdict
from judges.code.api import Score
from judges.judge import JudgeFailedError, Metric, Reading

__all__ = ["reading_of"]


def reading_of(result: object, metrics: Sequence[Metric]) -> Reading:
    """Read the result of a judge.

    Args:
        metrics: What the judge declares.

    Raises:
        JudgeFailedError: It is no result; the message says why.
    """
    scores = tuple(_score(found, metrics) for found in _found(result))
    named = [score.metric for score in scores]
    if len(set(named)) < len(named):
        raise JudgeFailedError("gave two scores for one metric")
    if len(scores) == 1:
        # As the other judges have it: the reasons for a single score are those of the verdict.
        return Reading((msgspec.structs.replace(scores[0], rationale=None),), scores[0].rationale)
    return Reading(scores)


def _found(result: object) -> Sequence[Score]:
    if result is None:
        return ()
    if isinstance(result, Score):
        return (result,)
    if isinstance(result, Real):
        return (Score(result),)  # type: ignore[arg-type] # the value is looked at later
    if not isinstance(result, Sequence) or isinstance(result, str | bytes):
        raise JudgeFailedError(f"gave {_kind(result)}, where true, false, a number, a Score or None is wanted")
    for one in result:
        if not isinstance(one, Score):
            raise JudgeFailedError(f"gave a list that holds {_kind(one)}, where each is to be a Score")
    return result


def _score(found: Score, metrics: Sequence[Metric]) -> verdict.Score:
    metric = _metric(found.metric, metrics)
    value = _value(found.value, metric)
    raw = value if found.raw is None else found.raw
    if isinstance(raw, float) and not math.isfinite(raw):
        raise JudgeFailedError(f"gave no finite number as the raw value of {metric.name}")
    passed = _passed(found, value, metric)
    made = verdict.Score(metric.name, value, raw, found.label, passed, found.rationale)
    try:
        return msgspec.convert(msgspec.structs.asdict(made), verdict.Score)
    except msgspec.ValidationError as error:
        raise JudgeFailedError(f"gave a score of a wrong type: {error}") from error


def _metric(name: str | None, metrics: Sequence[Metric]) -> Metric:
    if name is None:
        if len(metrics) > 1:
            raise JudgeFailedError("gave a score that names no metric, where it has several")
        return metrics[0]
    for metric in metrics:
        if metric.name == name:
            return metric
    raise JudgeFailedError("gave a score for a metric that it does not declare")


def _value(value: object, metric: Metric) -> float:
    if not isinstance(value, Real):
        raise JudgeFailedError(f"gave {_kind(value)} as the value of {metric.name}, where a number is wanted")
    number = float(value)
    if math.isnan(number):
        raise JudgeFailedError(f"gave no number (NaN) as the value of {metric.name}")
    if not 0 <= number <= 1:
        raise JudgeFailedError(f"gave a value of {metric.name} outside 0..1")
    return number


def _passed(found: Score, value: float, metric: Metric) -> bool | None:
    if metric.pass_rule is None:
        if found.passed is not None:
            raise JudgeFailedError(f"says whether {metric.name} passed, for which it declares no pass rule")
        return None
    if found.passed is not None:
        return found.passed
    if metric.pass_at is not None:
        return value >= metric.pass_at
    return found.value if isinstance(found.value, bool) else None


def _kind(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
