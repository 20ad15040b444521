"""How often a judge's second verdict differs from its first: flip ratio and kappa of repeated judgings, as gauges."""

import time
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import Gauge

from judges.core.verdict import Verdict
from worker.base.monitor.corrected import Confusion, flips
from worker.base.monitor.counts import Increment, first_of, read_counts, series_of_first
from worker.base.monitor.gauges import MonitorParts, Sample, Watch
from worker.base.monitor.series import COARSE_DAYS, DAY_S, series_of
from worker.core.telemetry.metrics import Metric, MetricTable

_KIND: Final = "repeats"
# First and second verdict, in the order of Confusion.
_CELLS: Final = ("pass-pass", "pass-fail", "fail-pass", "fail-fail")


_JUDGES: Final = ("judge", "version", "judge_model", "second_model")


class RepeatMetrics(MetricTable):
    """The gauges of repeated judgings."""

    # fmt: off
    judge_flip_ratio = Metric(Gauge, "judge_flip_ratio", "ratio", _JUDGES,
        "Share of repeated judgings of the last 90 days with another verdict than the first", stability="stable")
    judge_flip_lower = Metric(Gauge, "judge_flip_ratio_lower", "ratio", _JUDGES,
        "Lower limit of the 95 % interval of judge_flip_ratio")
    judge_flip_upper = Metric(Gauge, "judge_flip_ratio_upper", "ratio", _JUDGES,
        "Upper limit of the 95 % interval of judge_flip_ratio")
    judge_kappa = Metric(Gauge, "judge_kappa", "ratio", _JUDGES,
        "Cohen's kappa of first and repeated judgings; absent while all verdicts are alike")
    judge_kappa_lower = Metric(Gauge, "judge_kappa_lower", "ratio", _JUDGES,
        "Lower limit of the 95 % interval of judge_kappa")
    judge_kappa_upper = Metric(Gauge, "judge_kappa_upper", "ratio", _JUDGES,
        "Upper limit of the 95 % interval of judge_kappa")


class RepeatsWatch(Watch):
    """Computes the gauges of repeated judgings of the last 90 days, every five minutes."""

    every_s = 300.0
    detail = "repeat"

    def __init__(self, parts: MonitorParts, clock: Callable[[], float] = time.time) -> None:
        super().__init__(parts.store, clock)
        own = parts.metrics.of(RepeatMetrics)
        self._ratio = own.judge_flip_ratio, own.judge_flip_lower, own.judge_flip_upper
        self._kappa = own.judge_kappa, own.judge_kappa_lower, own.judge_kappa_upper

    def run(self, now: float) -> None:
        """Compute the gauges."""
        counts = read_counts(self._store, _KIND, now - (COARSE_DAYS - 1) * DAY_S, now)
        samples: list[Sample] = []
        for labels in {key[:-1] for key in counts}:
            ratio, kappa = flips(Confusion(*(counts[*labels, cell] for cell in _CELLS)))
            for gauges, interval in ((self._ratio, ratio), (self._kappa, kappa)):
                samples += [(gauge, labels, value) for gauge, value in zip(gauges, interval or (), strict=False)]
        self.show(samples)

    def count(self, verdict: Verdict, at: float) -> Iterator[Increment]:
        """Count the pair of a repeat that was drawn at random: whether all metrics passed, first and second."""
        first = first_of(verdict)
        if first is None or not first.is_drawn or verdict.outcome != "scored":
            return
        passes = all(first.passed.values()), all(score.passed for score in verdict.scores if score.passed is not None)
        for series in list(series_of(verdict, ()))[:1]:
            labels = (verdict.judge, series_of_first(series, first).version, first.judge_model, verdict.judge_model)
            yield Increment(_KIND, at, (*labels, "-".join("pass" if one else "fail" for one in passes)))
