"""Computes gauges from the sums of the monitor: pass shares with their intervals, and drops."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from judges.agreement.intervals import wilson
from judges.agreement.shares import (
    UNKNOWN_MENTIONED,
    Sums,
    Unjudged,
    estimate_share,
    merge_sums,
    sum_unjudged,
    unknown_part,
)
from worker.base.monitor.detection import Detection, Detector
from worker.base.monitor.failing import read_examples
from worker.base.monitor.feature import MONITOR, OBJECTIVES
from worker.base.monitor.gauges import QualityMetrics, Sample, Watch
from worker.base.monitor.series import (
    DAY_S,
    FIVE_MINUTES_S,
    HOUR_S,
    Bucket,
    Series,
    read_buckets,
    read_series,
    utc_minute,
)
from worker.base.monitor.silence import Silence
from worker.core.config.settings import Settings
from worker.core.storage.client import Store
from worker.core.telemetry.metrics import Metrics

_LEAST_VERDICTS: Final = 50
"""Verdicts of the last hour from which the window is that hour; with fewer it is the last day."""


class Window(NamedTuple):
    """The verdicts of one series in its window, which is ``length_s`` long."""

    length_s: int
    sums: Sums
    abstained: Unjudged
    unscored: Unjudged
    newest_s: float
    """When the newest bucket ends."""

    @classmethod
    def from_buckets(cls, buckets: Sequence[Bucket], length_s: int) -> "Window":
        """Add up buckets."""
        return cls(
            length_s,
            merge_sums(bucket.sums for bucket in buckets),
            sum_unjudged(bucket.abstained for bucket in buckets),
            sum_unjudged(bucket.unscored for bucket in buckets),
            buckets[-1].begins_at + (FIVE_MINUTES_S if length_s == HOUR_S else HOUR_S) if buckets else 0.0,
        )

    @property
    def verdicts(self) -> int:
        """The number of all verdicts."""
        return self.sums.total.judgements + self.abstained.verdicts + self.unscored.verdicts

    @property
    def weight(self) -> float:
        """The weight of all verdicts."""
        return self.sums.total.weight + self.abstained.weight + self.unscored.weight

    def lower(self, part: Unjudged, effect: float) -> float:
        """Return the lower 95 % limit of the share of abstained or unscored verdicts, with a design effect."""
        squares = self.sums.total.squares + self.abstained.squares + self.unscored.squares
        return wilson(part.weight / self.weight, self.weight**2 / (effect * squares)).low


class QualityWatch(Watch):
    """Computes the gauges of all series, once a minute."""

    def __init__(
        self, store: Store, settings: Settings, metrics: Metrics, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(store, clock)
        self._detection = Detection(store, MONITOR.read(settings), OBJECTIVES.read(settings), clock)
        self._silence = Silence(store, clock)
        self._metrics = metrics.table(QualityMetrics)
        self._days: dict[str, tuple[float, Window]] = {}

    def run(self, now: float) -> None:
        """Compute the gauges."""
        all_series = read_series(self._store)
        windows = self.windows(all_series, now)
        detectors = self._detection.step({series.id: series for series in windows})
        newest: dict[tuple[str, str], float] = {}
        for series, window in windows.items():
            service = series.service, series.environment
            newest[service] = max(newest.get(service, 0.0), window.newest_s)
        examples = read_examples(self._store, "drop")
        silent = self._silence.step(all_series, newest)
        gauge = self._metrics.quality_silent
        samples: list[Sample] = [(gauge, service, float(is_silent)) for service, is_silent in silent.items()]
        for series, window in windows.items():
            samples += self._samples(series, window, detectors[series.id], examples.get(series.id, ()), now)
        self.show(samples)

    def clear(self) -> None:
        """Forget everything."""
        super().clear()
        self._detection.clear()
        self._silence.clear()
        self._days.clear()

    def windows(self, series: Mapping[str, Series], now: float) -> dict[Series, Window]:
        """Read the windows of those series that have verdicts in the last day."""
        hours = read_buckets(self._store, series, now - HOUR_S, now + HOUR_S, fine=True)
        windows = {series_id: Window.from_buckets(hour, HOUR_S) for series_id, hour in zip(series, hours, strict=True)}
        few = [series for series, window in windows.items() if window.verdicts < _LEAST_VERDICTS]
        former = self._days
        self._days = {series: former[series] for series in few if series in former and former[series][0] > now}
        stale = [series for series in few if series not in self._days]
        days = read_buckets(self._store, stale, now - DAY_S, now + HOUR_S, fine=False)
        for series_id, day in zip(stale, days, strict=True):
            # A few minutes do not change the window of a day.
            self._days[series_id] = now + 300.0, Window.from_buckets(day, DAY_S)
        windows |= {series_id: day for series_id, (_, day) in self._days.items()}
        return {series[series_id]: window for series_id, window in windows.items() if window.weight > 0}

    def _samples(
        self, series: Series, window: Window, detector: Detector, examples: Sequence[str], now: float
    ) -> Iterator[Sample]:
        """Yield the gauges of one series with their values."""
        metrics = self._metrics
        labels: tuple[str, ...] = (series.metric, series.segment_name, *series.labels)
        share = estimate_share(window.sums, detector.history)
        effect = 1.0
        # A share exists only if something passes or fails.
        if share is not None:
            effect = share.design_effect
            yield metrics.quality_share, labels, share.share
            yield metrics.quality_lower, labels, share.low
            yield metrics.quality_upper, labels, share.high
            yield metrics.quality_effective_n, labels, share.effective
        # A metric without a pass rule never has a judgement, and no share that could be unknown.
        if share is not None or (detector.history is not None and detector.history.classes):
            lowest, highest = (0.0, 1.0) if share is None else (share.lowest, share.highest)
            unknown = unknown_part(window.sums)
            yield from metrics.unknown_samples(labels, unknown, lowest, highest, UNKNOWN_MENTIONED)
        yield metrics.quality_judgements, labels, window.sums.total.judgements
        yield metrics.quality_window, labels, window.length_s
        yield metrics.quality_abstained_share, labels, window.abstained.weight / window.weight
        yield metrics.quality_unscored_share, labels, window.unscored.weight / window.weight
        yield metrics.quality_abstained_lower, labels, window.lower(window.abstained, effect)
        yield metrics.quality_unscored_lower, labels, window.lower(window.unscored, effect)
        if detector.norm is not None:
            expected = detector.norm.cells[int(now // HOUR_S) % len(detector.norm.cells)]
            yield metrics.quality_baseline, labels, expected
            yield metrics.quality_drop, labels, float(detector.state.since is not None)
            yield metrics.quality_drop_unknown, labels, float(detector.is_drop_unknown)
            if (least := detector.norm.least_drop) is not None:
                yield metrics.quality_least_drop, labels, least
        if (decline := detector.decline) is not None:
            yield metrics.quality_slope, labels, decline.slope
            yield metrics.quality_slope_lower, labels, decline.low
            yield metrics.quality_slope_upper, labels, decline.high
            yield metrics.quality_slope_since, labels, decline.since_day * float(DAY_S)
        if (since := detector.state.since) is not None:
            yield metrics.quality_drop_since, labels, since * float(FIVE_MINUTES_S)
        if (objective := self._detection.objective(series)) is not None:
            yield metrics.quality_objective, labels, objective
        for against, reference in detector.references.items():
            is_below = float(reference.state.since is not None)
            yield metrics.quality_below_objective, (*labels, against), is_below
        if (incident := detector.incident) is not None:
            times = (utc_minute(at * FIVE_MINUTES_S) for at in (incident.since, incident.low, incident.high))
            further = (incident.cause, *times, ",".join(incident.changed) or "nothing", " ".join(examples))
            yield metrics.quality_incident, (series.metric, incident.segment, *series.labels, *further), 1.0
