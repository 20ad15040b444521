"""What the active monitor computes from its sums: pass shares with their intervals, and drops, as gauges."""

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from prometheus_client import Gauge

from worker.config.settings import Monitor
from worker.monitor.detection import Detection, Detector
from worker.monitor.series import FIVE_MINUTES_S, HOUR_S, Bucket, Series, Unjudged, read_buckets, read_series
from worker.monitor.shares import PassShare, Sums, merged, pass_share
from worker.storage.client import Store
from worker.telemetry.metrics import Metrics

_EVERY_S: Final = 60.0
_DAY_S: Final = 24 * HOUR_S
_ENOUGH: Final = 50
"""Judgements of the last hour from which the window is that hour; with fewer it is the last day."""
_READ_AT_ONCE: Final = 200


class Window(NamedTuple):
    """The verdicts of one series in its window, which is ``length_s`` long."""

    length_s: int
    sums: Sums
    abstained: Unjudged
    unscored: Unjudged

    @classmethod
    def of(cls, buckets: Sequence[Bucket], length_s: int) -> "Window":
        """Add up buckets."""
        return cls(
            length_s,
            merged(bucket.sums for bucket in buckets),
            _added([bucket.abstained for bucket in buckets]),
            _added([bucket.unscored for bucket in buckets]),
        )

    @property
    def weight(self) -> float:
        """The weight of all verdicts."""
        return self.sums.total.weight + self.abstained.weight + self.unscored.weight


class QualityWatch:
    """Computes the gauges of all series, once a minute."""

    def __init__(
        self, store: Store, settings: Monitor, metrics: Metrics, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._detection = Detection(store, settings, clock)
        self._clock = clock
        self._next_look = 0.0
        self._metrics = metrics
        self._gauges = _gauges(metrics)
        self._shown: set[tuple[str, ...]] = set()

    def run_due(self) -> None:
        """Compute the gauges if a minute has passed.

        Raises:
            StoreError: Redis did not answer; the gauges stay as they are.
        """
        now = self._clock()
        if now >= self._next_look:
            self._next_look = now + _EVERY_S
            windows = self.windows(now)
            self._show(windows, self._detection.step({one.id: one for one in windows}), now)

    def clear(self) -> None:
        """Remove all gauges: another worker is the active monitor."""
        self._detection.clear()
        self._show({}, {}, 0.0)

    def windows(self, now: float) -> dict[Series, Window]:
        """Read the windows of all series that have verdicts in the last day."""
        series = read_series(self._store)
        ids, found = iter(series), {}
        while some := list(islice(ids, _READ_AT_ONCE)):
            hours = read_buckets(self._store, some, now - HOUR_S, now + HOUR_S, fine=True)
            days = read_buckets(self._store, some, now - _DAY_S, now + HOUR_S, fine=False)
            for series_id, hour, day in zip(some, hours, days, strict=True):
                window = Window.of(hour, HOUR_S)
                if window.sums.total.judgements < _ENOUGH:
                    window = Window.of(day, _DAY_S)
                if window.weight > 0:
                    found[series[series_id]] = window
        return found

    def _show(self, windows: Mapping[Series, Window], detectors: Mapping[str, Detector], now: float) -> None:
        """Set the gauges of these series, and remove those of all others."""
        shown: set[tuple[str, ...]] = set()
        for series, window in windows.items():
            segment = f"{series.segment}={series.value}" if series.segment else ""
            of_series = (series.service, series.environment, series.judge, series.version, series.judge_model)
            labels: tuple[str, ...] = (series.metric, segment, *of_series)
            shown.add(labels)
            values = (*_values(window, pass_share(window.sums)), *_drop_values(detectors[series.id], now))
            for gauge, value in zip(self._gauges, values, strict=True):
                if value is None:
                    gauge.remove(*labels)
                else:
                    gauge.labels(*labels).set(value)
        for labels in self._shown - shown:
            for gauge in self._gauges:
                gauge.remove(*labels)
        self._shown = shown


def _gauges(metrics: Metrics) -> tuple[Gauge, ...]:
    """List the gauges in the order of ``_values`` and ``_drop_values``."""
    return (
        metrics.quality_share,
        metrics.quality_lower,
        metrics.quality_upper,
        metrics.quality_effective_n,
        metrics.quality_judgements,
        metrics.quality_window,
        metrics.quality_abstained_share,
        metrics.quality_unscored_share,
        metrics.quality_baseline,
        metrics.quality_drop,
        metrics.quality_drop_since,
    )


def _values(window: Window, share: PassShare | None) -> tuple[float | None, ...]:
    """Compute the values of one series; a share exists only where something passes or fails."""
    others = (
        window.sums.total.judgements,
        window.length_s,
        window.abstained.weight / window.weight,
        window.unscored.weight / window.weight,
    )
    if share is None:
        return (None, None, None, None, *others)
    return (*share.interval, share.effective, *others)


def _drop_values(detector: Detector, now: float) -> tuple[float | None, ...]:
    """Compute the baseline of this hour, whether a drop is open, and when it began."""
    if detector.norm is None:
        return (None, None, None)
    expected = detector.norm.cells[int(now // HOUR_S) % len(detector.norm.cells)]
    since = detector.state.since
    return (expected, float(since is not None), None if since is None else since * float(FIVE_MINUTES_S))


def _added(every: Sequence[Unjudged]) -> Unjudged:
    return Unjudged(*map(sum, zip(*every, strict=True))) if every else Unjudged()
