"""The watch of the active monitor that shows pass shares corrected by labels."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import structlog

from worker.base.lookup.feature import LookupKeys
from worker.base.lookup.label_store import OutboxMatcher, read_labels
from worker.base.monitor.gauges import MonitorParts, QualityMetrics, Sample, Watch
from worker.base.monitor.series import Series, read_series
from worker.features.labels.correction import LABELS_S, Correction, LabelIndex, newest_corrections

log = structlog.get_logger("tracejudge.labels")
# Of up to 500 entries each: a worker that becomes active reads the whole outbox once, and must not pause its sums.
_STEPS_AT_ONCE: Final = 20


class CorrectionWatch(Watch):
    """Matches labels with verdicts once a minute, and computes the gauges of corrected shares every five minutes."""

    def __init__(self, parts: MonitorParts, clock: Callable[[], float] = time.time) -> None:
        super().__init__(parts.store, clock)
        own = parts.metrics.table(QualityMetrics)
        self._gauges = (
            own.quality_corrected_share,
            own.quality_corrected_lower,
            own.quality_corrected_upper,
            own.quality_corrected_window,
        )
        self._matcher = OutboxMatcher(parts.store)
        self._next_round = 0.0
        self._index = LabelIndex((), 0.0)
        self._left: list[Series] = []
        self._samples: list[Sample] = []
        self._said: set[tuple[str, ...]] = set()

    def run(self, now: float) -> bool:
        """Match what has come, and compute a part of the gauges if their time has come."""
        has_labels = self._store.call(lambda client: client.hlen(LookupKeys(self._store.keys.prefix).labels)) > 0
        may_be_more = has_labels and all(self._matcher.step() for _ in range(_STEPS_AT_ONCE))
        attached = self._matcher.attached
        for reason, count in (("too large", attached.too_large), ("too many", attached.too_many)):
            if count and (reason,) not in self._said:
                self._said.add((reason,))
                log.warning("verdicts not stored with labels", reason=reason, verdicts=count)
        if now >= self._next_round and not self._left:
            labels = read_labels(self._store)
            self._index = LabelIndex(labels, now - LABELS_S)
            self._left = list(read_series(self._store).values()) if labels else []
            self._samples = []
            self._next_round = now + 300.0
            if not self._left:
                self.show(())
        # A part at a time: the lock of the active monitor lasts for seconds only.
        if self._left:
            some = self._left[:100]
            for series, results in newest_corrections(self._store, some, now, self._index).items():
                self._samples += self._samples_of(series, results)
            del self._left[: len(some)]
            if not self._left:
                self.show(self._samples)
        return may_be_more or bool(self._left)

    def clear(self) -> None:
        """Begin anew."""
        super().clear()
        self._matcher = OutboxMatcher(self._store)
        self._next_round = 0.0
        self._left.clear()
        self._said.clear()

    def _samples_of(self, series: Series, results: Sequence[Correction]) -> Iterator[Sample]:
        """Yield the gauges of a series; log why others have none."""
        for correction in results:
            if correction.corrected is None:
                self._log_refusal(series, correction)
                continue
            labels = (series.metric, series.segment_name, *series.labels, correction.corrected.method)
            values = (*correction.corrected.interval, correction.until - correction.since)
            for gauge, value in zip(self._gauges, values, strict=True):
                yield gauge, labels, value

    def _log_refusal(self, series: Series, correction: Correction) -> None:
        """Log once why labels correct nothing; segments are left out, whose labels are often too few."""
        # A golden set measures the judge, so that its refusal is the same for all services.
        service = series.service if correction.method == "ppi" else ""
        key = (series.judge, series.version, series.judge_model, series.metric, correction.method or "", service)
        if series.segment or key in self._said:
            return
        self._said.add(key)
        log.warning(
            "share not corrected by labels",
            reason=correction.refused,
            labels=correction.labels,
            service=service or None,
            judge=series.judge,
            version=series.version,
            judge_model=series.judge_model,
            metric=series.metric,
        )
