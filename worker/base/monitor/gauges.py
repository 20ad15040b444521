"""Base of the watches, parts of the active monitor that run at an interval and show gauges; the gauges of quality."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final, NamedTuple

from prometheus_client import Gauge

from judges.core.verdict import Verdict
from worker.base.monitor.counts import Increment
from worker.core.config.settings import Settings
from worker.core.selection.sampling import Rules
from worker.core.storage.client import Store
from worker.core.telemetry.metrics import SERIES, Metric, Metrics, MetricTable

Sample = tuple[Gauge, tuple[str, ...], float]  # A gauge with its labels and its value.
# SERIES does not come first, because series of the monitor have segments in place of `series_labels`.
QUALITY: Final = ("metric", "segment", *SERIES)
_CORRECTED: Final = (*QUALITY, "method")


class QualityMetrics(MetricTable):
    """The gauges of quality; features set the gauges of corrected shares."""

    # fmt: off
    quality_share = Metric(Gauge, "quality_share", "ratio", QUALITY,
        "Weighted share of passing verdicts in the last hour, or in the last day where that has few",
        stability="stable")
    quality_lower = Metric(Gauge, "quality_lower", "ratio", QUALITY,
        "Lower limit of the 95 % interval of quality_share", stability="stable")
    quality_upper = Metric(Gauge, "quality_upper", "ratio", QUALITY,
        "Upper limit of the 95 % interval of quality_share", stability="stable")
    quality_effective_n = Metric(Gauge, "quality_effective_n", "verdicts", QUALITY,
        "Independent, equally weighted verdicts that would be as precise", stability="stable")
    quality_judgements = Metric(Gauge, "quality_judgements", "verdicts", QUALITY,
        "Passing and failing verdicts behind quality_share", stability="stable")
    quality_window = Metric(Gauge, "quality_window_seconds", "seconds", QUALITY,
        "Length of the window of quality_share")
    quality_abstained_share = Metric(Gauge, "quality_abstained_share", "ratio", QUALITY,
        "Weighted share of verdicts of that window that abstained", stability="stable")
    quality_unscored_share = Metric(Gauge, "quality_unscored_share", "ratio", QUALITY,
        "Weighted share of verdicts of that window without a score", stability="stable")
    quality_baseline = Metric(Gauge, "quality_baseline", "ratio", QUALITY,
        "Usual share of this hour of the week, from the last 28 days without incidents", stability="stable")
    quality_least_drop = Metric(Gauge, "quality_least_drop", "ratio", QUALITY,
        "Drop below which none is told yet, of a series with 7 to 13 days of verdicts")
    quality_slope = Metric(Gauge, "quality_slope", "ratio", QUALITY,
        "Change of the share in a week, for 28 days after the notice of a slow decline", stability="stable")
    quality_slope_lower = Metric(Gauge, "quality_slope_lower", "ratio", QUALITY,
        "Lower limit of the 95 % interval of quality_slope")
    quality_slope_upper = Metric(Gauge, "quality_slope_upper", "ratio", QUALITY,
        "Upper limit of the 95 % interval of quality_slope")
    quality_slope_since = Metric(Gauge, "quality_slope_since_seconds", "seconds", QUALITY,
        "Begin of the weeks of quality_slope, in seconds since the epoch")
    quality_drop = Metric(Gauge, "quality_drop", "boolean", QUALITY,
        "1 from the detection of a drop below the usual share until its recovery", stability="stable")
    quality_drop_since = Metric(Gauge, "quality_drop_since_seconds", "seconds", QUALITY,
        "When the open drop began, in seconds since the epoch", stability="stable")
    quality_corrected_share = Metric(Gauge, "quality_corrected_share", "ratio", _CORRECTED,
        "Share of verdicts that should pass, corrected by labels with the method", stability="stable")
    quality_corrected_lower = Metric(Gauge, "quality_corrected_lower", "ratio", _CORRECTED,
        "Lower limit of the 95 % interval of quality_corrected_share", stability="stable")
    quality_corrected_upper = Metric(Gauge, "quality_corrected_upper", "ratio", _CORRECTED,
        "Upper limit of the 95 % interval of quality_corrected_share", stability="stable")
    quality_corrected_window = Metric(Gauge, "quality_corrected_window_seconds", "seconds", _CORRECTED,
        "Length of the time that quality_corrected_share is about")
    quality_abstained_lower = Metric(Gauge, "quality_abstained_lower", "ratio", QUALITY,
        "Lower limit of the 95 % interval of quality_abstained_share")
    quality_unscored_lower = Metric(Gauge, "quality_unscored_lower", "ratio", QUALITY,
        "Lower limit of the 95 % interval of quality_unscored_share")
    quality_unknown_ratio = Metric(Gauge, "quality_unknown_ratio", "ratio", QUALITY,
        "Weighted part of the verdicts of a share that was asked for and not given; above 0.1 the share is not known",
        stability="stable")
    quality_lowest = Metric(Gauge, "quality_lowest", "ratio", QUALITY,
        "Lower limit of the share if all unknown verdicts failed; only where more than 0.02 are unknown",
        stability="stable")
    quality_highest = Metric(Gauge, "quality_highest", "ratio", QUALITY,
        "Upper limit of the share if all unknown verdicts passed; only where more than 0.02 are unknown",
        stability="stable")
    quality_drop_unknown = Metric(Gauge, "quality_drop_unknown", "boolean", QUALITY,
        "1 while the detector finds a drop that would be none if all unknown verdicts had passed")
    quality_objective = Metric(Gauge, "quality_objective", "ratio", QUALITY,
        "Share that should pass, from the file of objectives")
    quality_below_objective = Metric(Gauge, "quality_below_objective", "boolean", (*QUALITY, "reference"),
        "1 while the detector finds the share below its objective, or that of a new service below its environment's")
    quality_incident = Metric(Gauge, "quality_incident_info", "boolean",
        (*QUALITY, "cause", "since", "since_low", "since_high", "changed", "examples"),
        "1 while a drop is open, with what is known of it")
    quality_silent = Metric(Gauge, "quality_silent", "boolean", ("service", "environment"),
        "1 while a service has no verdicts although 20 or more are usual by now")
    # fmt: on

    def unknown_samples(
        self, labels: tuple[str, ...], unknown: float, lowest: float, highest: float, least: float = 0.0
    ) -> Iterator[Sample]:
        """Yield the part of verdicts that is unknown, and what they allow where it is more than ``least``."""
        yield self.quality_unknown_ratio, labels, unknown
        if unknown > least:
            yield self.quality_lowest, labels, lowest
            yield self.quality_highest, labels, highest


class MonitorParts(NamedTuple):
    """The parts from which watches of features are made."""

    settings: Settings  # The configuration.
    store: Store  # The first partition, which has the sums.
    metrics: Metrics  # The metrics of the process.
    rules: Rules  # The rules, and through them judges and models.
    # Whether the monitor keeps sums for a series, by its id; called in the thread that adds them.
    is_listed: Callable[[str], bool] = lambda _: False


class Watch(ABC):
    """Runs when it is due, and shows gauges whose label sets come and go; a label set belongs to one watch.

    The sums call ``count`` for each verdict with ``detail`` in its details, of ``origin``, or of one of ``judges``, and
    if ``counts_dead`` also for those of dead letters.
    """

    every_s: float = 60.0  # The interval.
    detail: str | None = None
    counts_dead: bool = False
    origin: str | None = None
    judges: Collection[str] = ()

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._next_run = 0.0
        self._shown: set[tuple[Gauge, tuple[str, ...]]] = set()

    def run_due(self) -> None:
        """Run if the interval has passed; called every second or two. If Redis does not answer, the gauges stay."""
        now = self._clock()
        if now >= self._next_run:
            # A run that fails waits as well, because it must not keep the watches behind it from theirs.
            self._next_run = now + min(60.0, self.every_s)
            self._next_run = now if self.run(now) else now + self.every_s

    @abstractmethod
    def run(self, now: float) -> bool | None:
        """Do the work and show the gauges; return True if the rest of the work is for a run that follows at once."""

    def count(self, verdict: Verdict, at: float) -> Iterable[Increment]:  # noqa: ARG002 - for those that count
        """Return the increments of a verdict of any version, whose entry is of that time.

        Called under a lock in the thread that adds the verdict. After an exception the same entries are read again.
        """
        return ()

    def show(self, samples: Iterable[Sample]) -> None:
        """Set these gauges, and remove all label sets that were shown before and are not among them."""
        shown = set()
        for gauge, labels, value in samples:
            gauge.labels(*labels).set(value)
            shown.add((gauge, labels))
        for gauge, labels in self._shown - shown:
            gauge.remove(*labels)
        self._shown = shown

    def clear(self) -> None:
        """Remove all gauges, and be due at once: another worker is the active monitor."""
        self._next_run = 0.0
        self.show(())
