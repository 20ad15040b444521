"""Drops of all series: a detector each, stepped through the buckets of five minutes, with its state in Redis.

The active monitor steps a series only through buckets that are complete. A detector's state is written after each step,
so that another worker goes on where the last one stopped.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Final

import msgspec
import structlog

from worker.config.settings import Monitor
from worker.monitor.baseline import HISTORY_DAYS, LAG_HOURS, Baseline, Hour, baseline, hour_of
from worker.monitor.detector import Change, Limits, State, limits_of, step
from worker.monitor.series import FINE_DAYS, FIVE_MINUTES_S, HOUR_S, Bucket, Series, read_buckets
from worker.storage.client import Store

log = structlog.get_logger("tracejudge.monitor")
_DAY_S: Final = 24 * HOUR_S
_PER_HOUR: Final = HOUR_S // FIVE_MINUTES_S
_GRACE_S: Final = 60.0
"""Verdicts that another worker had read come this late into their bucket."""
_READ_AT_ONCE: Final = 100
_STATE_TTL_S: Final = 90 * _DAY_S


class Detector(msgspec.Struct, array_like=True):
    """What is stored of the detector of one series.

    Attributes:
        state: The sums.
        norm: The baseline; None until there are 7 days of verdicts.
        limits: The limits that belong to the baseline.
        learned_at: When both were computed, in seconds since the epoch.
        done: The last bucket that was counted, in buckets of five minutes since the epoch.
    """

    state: State = msgspec.field(default_factory=State)
    norm: Baseline | None = None
    limits: Limits | None = None
    learned_at: float = 0.0
    done: int = 0


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
                detector.limits = limits_of(detector.norm, {}, series=active, false_alarms_per_week=self._budget)

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


def _step(detector: Detector, number: int, bucket: Bucket) -> Change | None:
    norm, limits, total = detector.norm, detector.limits, bucket.sums.total
    if norm is None or limits is None or total.weight <= 0:
        return None
    passed = total.passed / norm.mean_weight
    failed = total.weight / norm.mean_weight - passed
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
