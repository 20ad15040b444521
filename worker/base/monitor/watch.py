"""Computes gauges from the sums of the monitor: pass shares with their intervals, drops, and silent services."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
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
from worker.base.monitor.feature import MONITOR, OBJECTIVES
from worker.base.monitor.gauges import MonitorParts, QualityMetrics, Sample, Watch
from worker.base.monitor.incidents import read_examples
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
from worker.core.storage.client import Store

EXPECTED: Final = 20  # Verdicts that must be missing.
_LEAST_DAYS: Final = 7
_GONE_S: Final = 7 * DAY_S  # A service without verdicts for so long was switched off.
_WEEK: Final = 168
_LEARN_AT_ONCE: Final = 100
Service = tuple[str, str]
_LEAST_VERDICTS: Final = 50
"""Verdicts of the last hour from which the window is that hour; with fewer it is the last day."""


class Window(NamedTuple):
    """The verdicts of one series in its window, which is ``length_s`` long."""

    length_s: int
    sums: Sums
    abstained: Unjudged
    unscored: Unjudged
    newest_s: float  # When the newest bucket ends.

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

    def __init__(self, parts: MonitorParts, clock: Callable[[], float] = time.time) -> None:
        super().__init__(parts.store, clock)
        objectives = OBJECTIVES.read(parts.settings)
        self._detection = Detection(parts.store, MONITOR.read(parts.settings), objectives, clock)
        self._silence = Silence(parts.store, clock)
        self._metrics = parts.metrics.table(QualityMetrics)
        self._judge_form = parts.rules.graders.judge_form
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

    def _is_rated(self, series: Series) -> bool:
        """Return whether a metric has a pass rule, by the form of its judge."""
        form = self._judge_form(series.judge, series.judge_model)
        return form is not None and any(
            each.name == series.metric and each.pass_rule is not None for each in form.metrics
        )

    def _samples(
        self, series: Series, window: Window, detector: Detector, examples: Sequence[str], now: float
    ) -> Iterator[Sample]:
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
        if share is not None or self._is_rated(series):
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


class _Volume:
    """Usual verdicts of a service in each hour of the week, and the time of its newest one."""

    def __init__(self, learned_at: float) -> None:
        self.learned_at = learned_at
        self.newest = 0.0
        self.hours: list[float] | None = None

    def add(self, buckets: Iterable[Bucket], now: float) -> None:
        """Learn from the hours of all series of the service."""
        counts: dict[int, int] = {}
        for bucket in buckets:
            hour = int(bucket.begins_at) // HOUR_S
            counts[hour] = counts.get(hour, 0) + bucket.verdicts
        if not counts:
            return
        self.newest = max(self.newest, (max(counts) + 1.0) * HOUR_S)
        first, after = min(counts), int(now) // HOUR_S - DAY_S // HOUR_S
        if after - first < _LEAST_DAYS * 24:
            return
        self.hours = [0.0] * _WEEK
        occurrences = [0] * _WEEK
        # The newest day stays out, so that a silence does not become usual.
        for hour in range(first, after):
            occurrences[hour % _WEEK] += 1
            self.hours[hour % _WEEK] += counts.get(hour, 0)
        self.hours = [count / max(1, number) for count, number in zip(self.hours, occurrences, strict=True)]

    def is_silent(self, now: float) -> bool | None:
        """Return whether verdicts of a usual time (20, an hour to a day) are missing; None if unknown or long ago."""
        if self.hours is None or now - self.newest > _GONE_S:
            return None
        begin, end = self.newest / HOUR_S, now / HOUR_S
        expected = sum(
            self.hours[hour % _WEEK] * (min(end, hour + 1) - max(begin, hour))
            for hour in range(int(begin), math.ceil(end))
        )
        least = 24 if sum(self.hours) / _WEEK < EXPECTED else 1
        return expected >= EXPECTED and end - begin >= least


class Silence:
    """Finds the services that are silent."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._volumes: dict[Service, _Volume] = {}

    def clear(self) -> None:
        """Forget all volumes: another worker is the active monitor."""
        self._volumes.clear()

    def step(self, series: Mapping[str, Series], newest: Mapping[Service, float]) -> dict[Service, bool]:
        """Return for each service with a known volume whether it is silent, by the time of its newest verdict."""
        now = self._clock()
        ids: dict[Service, list[str]] = {}
        for series_id, labels in series.items():
            if not labels.segment:
                ids.setdefault((labels.service, labels.environment), []).append(series_id)
        self._volumes = {service: volume for service, volume in self._volumes.items() if service in ids}
        read = 0
        for service, members in ids.items():
            learned = self._volumes.get(service)
            if (learned is None or now - learned.learned_at >= DAY_S) and read < _LEARN_AT_ONCE:
                read += len(members)
                self._volumes[service] = volume = _Volume(now)
                history = read_buckets(self._store, members, now - 28 * DAY_S, now, fine=False)
                volume.add(chain.from_iterable(history), now)
        silent: dict[Service, bool] = {}
        for service, volume in self._volumes.items():
            volume.newest = max(volume.newest, newest.get(service, 0.0))
            if (is_silent := volume.is_silent(now)) is not None:
                silent[service] = is_silent
        return silent
