"""Second verdicts on a trace: repeats of a judging, and second steps of cascades, as the outbox has them."""

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from judges.core.verdict import Verdict
from worker.base.monitor.series import VERSION_DIGITS, Series, series_of
from worker.core.queue.batch import CascadeStep, First

Failure = Literal["failed", "confirmed", "cleared"]


def step_of(verdict: Verdict) -> CascadeStep | None:
    """Return the part of a verdict of live traffic in a cascade, None where it has none."""
    known = verdict.details.get("cascade") if verdict.origin == "live" and verdict.weight > 0 else None
    try:
        return None if known is None else msgspec.convert(known, CascadeStep)
    except msgspec.ValidationError:
        return None


def first_of(verdict: Verdict) -> First | None:
    """Return the first verdict of a repeat, None where a verdict repeats nothing."""
    known = verdict.details.get("repeat") if verdict.origin == "repeat" else None
    try:
        return None if known is None else msgspec.convert(known, First)
    except msgspec.ValidationError:
        return None


def series_of_first(series: Series, first: First) -> Series:
    """Return the series of the first verdict, from that of its repeat by whichever model."""
    version = first.version[:VERSION_DIGITS] or series.version
    return msgspec.structs.replace(series, judge_model=first.judge_model, version=version)


def failures_of(verdict: Verdict, segments: Sequence[str]) -> Iterator[tuple[Series, Failure]]:
    """Yield the series in which a verdict is a failure, or the second judging of one, each with which of them it is.

    A second judging without a score does not clear the failure: endpoints withhold answers about unsafe texts.
    """
    first, passed = first_of(verdict), {score.metric: score.passed for score in verdict.scores}
    for series in series_of(verdict, segments):
        if first is not None:
            if first.is_failure and first.passed.get(series.metric) is False:
                yield series_of_first(series, first), "cleared" if passed.get(series.metric) else "confirmed"
        elif verdict.origin == "live" and passed.get(series.metric) is False:
            yield series, "failed"
