"""Whole numbers that the monitor counts by day: repeated judgings, agreement with canaries, safety failures.

Several are counts of second verdicts on a trace: repeats of a judging, and second steps of cascades. A verdict's
increments are added by the script that acknowledges it, so that each counts once. All counts of a kind and day are
fields of one hash, which is kept for 90 days or as its kind says.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeVar

import msgspec

from judges.core.verdict import Verdict
from worker.base.monitor.feature import MonitorKeys
from worker.base.monitor.series import COARSE_DAYS, VERSION_DIGITS, Series, series_of, utc_days
from worker.core.queue.batch import CascadeStep, FirstVerdict
from worker.core.storage.client import Store, StoreError
from worker.core.storage.keys import MONITOR_GROUP, Keys

T = TypeVar("T")
GRACE_S: Final = 60.0  # Verdicts that another worker had read come this late into their bucket.
Failure = Literal["failed", "confirmed", "cleared"]  # Second judgings confirm or clear a failure.


class Increment(NamedTuple):
    """An amount that is added to one count."""

    kind: str  # The name of the hash, as `repeats`.
    at: float  # The time whose day (UTC) it belongs to, in seconds since the epoch.
    labels: Sequence[str]  # The labels of the count.
    amount: int = 1  # A whole number.
    keep_days: int = COARSE_DAYS  # How long the counts of that kind and day are kept.
    once: str = ""  # If set, it counts only the first time that this text comes with the kind in a period of six hours.
    once_at: float | None = None  # The time whose period that is, unless it is ``at``.


def field_of(labels: Sequence[str]) -> str:
    """Return the field of a count."""
    return msgspec.json.encode(labels).decode()


def read_counts(store: Store, kind: str, since: float, until: float) -> Counter[tuple[str, ...]]:
    """Read the counts of a kind, added up over the days of two times and those between them, by labels."""
    key_of = MonitorKeys(store.keys.prefix).quality_counts
    names = [key_of(kind, day) for day in utc_days(since, until)]
    total: Counter[tuple[str, ...]] = Counter()
    for fields in store.read_hashes(names):
        for field, amount in fields.items():
            total[msgspec.json.decode(field, type=tuple[str, ...])] += int(amount)
    return total


def read_horizon(store: Store, now: float) -> float:
    """Return the time up to which all outboxes that answer are counted: now, unless verdicts wait there."""
    until = now
    for partition in store.reachable:

        def read(pipe: Any, keys: Keys = partition.keys) -> None:
            pipe.hget(keys.groups, f"verdicts:{MONITOR_GROUP}")
            pipe.xrevrange(keys.verdicts, count=1)

        try:
            acknowledged, newest = partition.pipeline(read)
        except StoreError:
            if partition is store:
                raise
            continue
        last = tuple(map(int, acknowledged.split(b"-"))) if acknowledged else (0, 0)
        # The newest entry is older than the acknowledged one if `forget` has removed that.
        if newest and last < tuple(map(int, newest[0][0].split(b"-"))):
            until = min(until, last[0] / 1000)
    return until


def step_of(verdict: Verdict) -> CascadeStep | None:
    """Return the part of a verdict of live traffic in a cascade, None if it has none."""
    return _part(verdict, "cascade", CascadeStep) if verdict.origin == "live" and verdict.weight > 0 else None


def first_of(verdict: Verdict) -> FirstVerdict | None:
    """Return the first verdict of a repeat, None if a verdict repeats nothing."""
    return _part(verdict, "repeat", FirstVerdict) if verdict.origin == "repeat" else None


def _part(verdict: Verdict, name: str, of_type: type[T]) -> T | None:
    """Read a part of the details of a verdict of any version; None if it is absent or cannot be read."""
    try:
        return msgspec.convert(verdict.details.get(name), of_type)
    except msgspec.ValidationError:
        return None


def series_of_first(series: Series, first: FirstVerdict) -> Series:
    """Return the series of the first verdict, given the series of its repeat, which another model may have made."""
    version = first.version[:VERSION_DIGITS] or series.version
    return msgspec.structs.replace(series, judge_model=first.judge_model, version=version)


def failures_of(verdict: Verdict, segments: Sequence[str]) -> Iterator[tuple[Series, Failure]]:
    """Yield the series in which a verdict is a failure, or the second judging of one, each with which of them it is."""
    # A second judging without a score does not clear the failure: endpoints withhold answers about unsafe texts.
    first, passed = first_of(verdict), {score.metric: score.passed for score in verdict.scores}
    for series in series_of(verdict, segments):
        if first is not None:
            if first.is_failure and first.passed.get(series.metric) is False:
                yield series_of_first(series, first), "cleared" if passed.get(series.metric) else "confirmed"
        elif verdict.origin == "live" and passed.get(series.metric) is False:
            yield series, "failed"
