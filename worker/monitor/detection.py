"""Drops of all series: a detector each, stepped through the buckets of five minutes, with its state in Redis.

The active monitor steps a series only through buckets that are complete. A detector's state is written after each step,
so that another worker goes on where the last one stopped.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Final

import msgspec
import structlog

from worker.config.settings import Monitor
from worker.monitor.baseline import HISTORY_DAYS, LAG_HOURS, Baseline, Hour, baseline, hour_of
from worker.monitor.detector import Change, Limits, Moments, Session, State, limits_of, step
from worker.monitor.series import (
    CLUSTER_PARTS,
    CLUSTER_PERIOD_S,
    FINE_DAYS,
    FIVE_MINUTES_S,
    HOUR_S,
    Bucket,
    Series,
    read_buckets,
)
from worker.monitor.shares import merged
from worker.storage.client import Store

log = structlog.get_logger("tracejudge.monitor")
_DAY_S: Final = 24 * HOUR_S
_PER_HOUR: Final = HOUR_S // FIVE_MINUTES_S
_GRACE_S: Final = 60.0
"""Verdicts that another worker had read come this late into their bucket."""
_READ_AT_ONCE: Final = 100
_STATE_TTL_S: Final = 90 * _DAY_S
SESSIONS_KEPT: Final = 0.99
"""What is left of the moments of sessions after a period of six hours: half of them after 17 days."""


class Detector(msgspec.Struct, array_like=True):
    """What is stored of the detector of one series.

    Attributes:
        state: The sums.
        norm: The baseline; None until there are 7 days of verdicts.
        limits: The limits that belong to the baseline.
        learned_at: When both were computed, in seconds since the epoch.
        done: The last bucket that was counted, in buckets of five minutes since the epoch.
        moments: Those of the sessions of past periods.
        period: The last period whose sessions were counted.
    """

    state: State = msgspec.field(default_factory=State)
    norm: Baseline | None = None
    limits: Limits | None = None
    learned_at: float = 0.0
    done: int = 0
    moments: Moments = msgspec.field(default_factory=Moments)
    period: int = 0


class Detection:
    """The detectors of all series."""

    def __init__(self, store: Store, settings: Monitor, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._budget = settings.false_alarms_per_week
        self._clock = clock
        self._detectors: dict[str, Detector] = {}

    def clear(self) -> None:
        """Forget all detectors: another worker goes on with them."""
        self._detectors.clear()

    def step(self, series: Mapping[str, Series]) -> Mapping[str, Detector]:
        """Step the detectors of active series through all complete buckets; return all of them by series.

        Raises:
            StoreError: Redis did not answer; it is safe to call again.
        """
        now = self._clock()
        self._load([series_id for series_id in series if series_id not in self._detectors])
        ids = iter(series)
        while some := list(islice(ids, _READ_AT_ONCE)):
            self._count_sessions(some, int((now - _GRACE_S) // CLUSTER_PERIOD_S) - 1)
            self._learn([one for one in some if now - self._detectors[one].learned_at >= _DAY_S], now, len(series))
            last = int((now - _GRACE_S) // FIVE_MINUTES_S) - 1
            waiting = [one for one in some if self._detectors[one].done < last]
            self._count(waiting, series, last)
        return {series_id: self._detectors[series_id] for series_id in series}

    def _load(self, series_ids: Sequence[str]) -> None:
        names = [self._store.keys.quality_detector(series_id) for series_id in series_ids]
        found = self._store.pipeline(lambda pipe: [pipe.get(name) for name in names])
        for series_id, raw in zip(series_ids, found, strict=True):
            self._detectors[series_id] = msgspec.msgpack.decode(raw, type=Detector) if raw else Detector()

    def _learn(self, series_ids: Sequence[str], now: float, active: int) -> None:
        """Compute baselines and limits anew, once a day, from four weeks that end a day ago."""
        until = (now // HOUR_S - LAG_HOURS) * HOUR_S
        buckets = read_buckets(self._store, series_ids, until - HISTORY_DAYS * _DAY_S, until, fine=False)
        for series_id, hours in zip(series_ids, buckets, strict=True):
            detector = self._detectors[series_id]
            detector.learned_at = now
            # A long incident would leave too little: the last baseline stays.
            detector.norm = baseline(_unmasked(hours, detector.state)) or detector.norm
            if detector.norm is not None:
                detector.limits = limits_of(
                    detector.norm, detector.moments, series=active, false_alarms_per_week=self._budget
                )

    def _count_sessions(self, series_ids: Sequence[str], period: int) -> None:
        """Count the sessions of the newest complete period, of series whose sessions or weights matter.

        Redis keeps the sessions of two periods. Those of a period in which no monitor ran, or of an incident, are left
        out: the factor of the scores needs a sample of them, not all.
        """
        due = []
        first = period * CLUSTER_PERIOD_S // FIVE_MINUTES_S
        after = first + CLUSTER_PERIOD_S // FIVE_MINUTES_S
        for series_id in series_ids:
            detector = self._detectors[series_id]
            if detector.period < period and detector.norm is not None:
                detector.period = period
                if detector.norm.needs_sessions and not detector.state.is_masked(first, after):
                    due.append(series_id)
        if not due:
            return
        names = [
            self._store.keys.quality_clusters(series_id, period, part)
            for series_id in due
            for part in range(CLUSTER_PARTS)
        ]
        clusters = iter(self._store.pipeline(lambda pipe: [pipe.hvals(name) for name in names]))
        span = period * CLUSTER_PERIOD_S, (period + 1) * CLUSTER_PERIOD_S
        for series_id, hours in zip(due, read_buckets(self._store, due, *span, fine=False), strict=True):
            sessions = Counter(raw for _ in range(CLUSTER_PARTS) for raw in next(clusters))
            add_sessions(self._detectors[series_id], hours, sessions)

    def _count(self, series_ids: Sequence[str], series: Mapping[str, Series], last: int) -> None:
        """Count the buckets up to the last complete one, and store the detectors."""
        if not series_ids:
            return
        oldest = last - FINE_DAYS * 24 * _PER_HOUR
        first = max(oldest, min(self._detectors[series_id].done for series_id in series_ids)) + 1
        span = first * FIVE_MINUTES_S, (last + 1) * FIVE_MINUTES_S
        found = read_buckets(self._store, series_ids, *span, fine=True)
        for series_id, buckets in zip(series_ids, found, strict=True):
            detector = self._detectors[series_id]
            for bucket in buckets:
                number = int(bucket.begins_at) // FIVE_MINUTES_S
                if number > detector.done and (change := _step(detector, number, bucket)) is not None:
                    _report(series[series_id], change)
            detector.done = last
        self._store.pipeline(
            lambda pipe: [
                pipe.set(
                    self._store.keys.quality_detector(series_id),
                    msgspec.msgpack.encode(self._detectors[series_id]),
                    ex=_STATE_TTL_S,
                )
                for series_id in series_ids
            ]
        )


def add_sessions(detector: Detector, hours: Sequence[Bucket], sessions: Mapping[bytes, int]) -> None:
    """Add the sessions of a period to the moments; judgements without one are sessions of their own.

    Args:
        detector: The detector, which has a baseline.
        hours: The buckets of the period.
        sessions: Stored sums of sessions, W and K as msgpack, and how often each occurs.
    """
    if (norm := detector.norm) is None or not hours:
        return
    whole = merged(bucket.sums for bucket in hours)
    weight = whole.total.weight
    if weight <= 0:
        return
    # A session does not tell its hours.
    shares = ((norm.expected(int(bucket.begins_at) // HOUR_S), bucket.sums.total.weight) for bucket in hours)
    expected = sum(share * part for share, part in shares) / weight
    detector.moments.fade(SESSIONS_KEPT)
    unit, within = norm.mean_weight, 0.0
    for raw, number in sessions.items():
        total, passed = msgspec.msgpack.decode(raw, type=tuple[float, float])
        within += number * total
        detector.moments.add(Session(passed / unit, (total - passed) / unit, expected), number)
    alone = max(0.0, 1 - within / weight)
    for one in whole.classes.values():
        # Σw²y / Σwy is the mean weight of passes of a class; so many of them make up their sum.
        if one.passed > 0:
            size = one.passed_squares / one.passed
            detector.moments.add(Session(size / unit, 0.0, expected), alone * one.passed / size)
        if (failed := one.weight - one.passed) > 0:
            size = (one.squares - one.passed_squares) / failed
            detector.moments.add(Session(0.0, size / unit, expected), alone * failed / size)


def _step(detector: Detector, number: int, bucket: Bucket) -> Change | None:
    norm, limits, total = detector.norm, detector.limits, bucket.sums.total
    if norm is None or limits is None or total.weight <= 0:
        return None
    # Where rates fell since the baseline, one judgement must not count as many.
    unit = max(norm.mean_weight, total.squares / total.weight)
    passed = total.passed / unit
    failed = total.weight / unit - passed
    expected = norm.expected(number // _PER_HOUR)
    return step(detector.state, number, passed, failed, expected=expected, limits=limits)


def _unmasked(hours: Sequence[Bucket], state: State) -> list[Hour]:
    """Return the hours outside incidents."""
    numbered = [(int(bucket.begins_at) // HOUR_S, bucket) for bucket in hours]
    return [
        hour_of(hour, bucket.sums)
        for hour, bucket in numbered
        if not state.is_masked(hour * _PER_HOUR, (hour + 1) * _PER_HOUR)
    ]


def _report(series: Series, change: Change) -> None:
    log.warning(
        "quality dropped" if change.kind == "drop" else "quality recovered",
        since=change.since * FIVE_MINUTES_S,
        size=round(change.size, 3),
        service=series.service,
        environment=series.environment or None,
        judge=series.judge,
        version=series.version,
        judge_model=series.judge_model,
        metric=series.metric,
        segment=f"{series.segment}={series.value}" if series.segment else None,
    )
