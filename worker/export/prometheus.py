"""Count verdicts for Prometheus: each exactly when its own acknowledgement was the first.

A kill can lose a count that was not scraped yet; no count is ever doubled.
"""

import time
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from prometheus_client import Counter, Histogram

from judges.verdict import Score, Verdict
from worker.export.conventions import W3C_SPAN_ID, W3C_TRACE_ID
from worker.export.explorations import Explorations
from worker.export.outbox import OutboxEntry, OutboxReader
from worker.metrics import OUTCOMES, Metrics
from worker.seats import is_panel
from worker.settings import Settings
from worker.store import Store

__all__ = ["PrometheusExporter", "Scorekeeper"]

_VERSION_DIGITS: Final = 8
_MARGIN_S: Final = 3.0


class _Ending:
    """The counters of one series, metric and outcome, and what is to be added to them."""

    def __init__(self, metrics: Metrics, labels: tuple[str, ...]) -> None:
        self._verdicts: Counter = metrics.verdicts.labels(*labels)
        self._weight: Counter = metrics.verdict_weight.labels(*labels)
        self._weight_squared: Counter = metrics.verdict_weight_squared.labels(*labels)
        self._sums = (0, 0.0, 0.0)

    def add(self, weight: float) -> None:
        verdicts, total, squared = self._sums
        self._sums = (verdicts + 1, total + weight, squared + weight * weight)

    def publish(self) -> None:
        verdicts, weight, weight_squared = self._sums
        if verdicts:
            self._verdicts.inc(verdicts)
            self._weight.inc(weight)
            self._weight_squared.inc(weight_squared)
            self._sums = (0, 0.0, 0.0)


class _Rated:
    """The metrics of one series and metric; all its outcomes exist from the first moment, at zero."""

    def __init__(self, metrics: Metrics, labels: tuple[str, ...]) -> None:
        self._endings = {outcome: _Ending(metrics, (*labels, outcome)) for outcome in OUTCOMES}
        self._score: Histogram = metrics.score.labels(*labels)
        self._weighted: Counter = metrics.score_weighted.labels(*labels)
        self._weighted_sum = 0.0
        self._pointed: set[float] = set()

    def end(self, outcome: str, weight: float) -> None:
        self._endings[outcome].add(weight)

    def rate(self, score: Score, verdict: Verdict) -> None:
        self.end(_ending(score), verdict.weight)
        self._weighted_sum += verdict.weight * score.value
        if score.value in self._pointed:
            self._score.observe(score.value)
        else:
            # Once a value is enough: a bucket has room for one exemplar, and each costs more than the count.
            self._pointed.add(score.value)
            self._score.observe(score.value, _exemplar(verdict))

    def publish(self) -> None:
        for ending in self._endings.values():
            ending.publish()
        if self._weighted_sum:
            self._weighted.inc(self._weighted_sum)
            self._weighted_sum = 0.0
        self._pointed.clear()


class _Series:
    """The metrics of one series."""

    def __init__(self, metrics: Metrics, labels: tuple[str, ...]) -> None:
        self._metrics = metrics
        self._labels = labels
        self._rated: dict[str, _Rated] = {}
        self._fabricated: Counter | None = None
        self._age: Histogram = metrics.score_age.labels(labels[0])

    def count(self, verdict: Verdict) -> None:
        if verdict.outcome == "scored":
            self._count_fabricated(verdict)
        scored = {score.metric: score for score in verdict.scores}
        for metric in verdict.metrics:
            if metric in scored:
                self._of(metric).rate(scored[metric], verdict)
            elif verdict.outcome == "scored":
                self._of(metric)
            else:
                self._of(metric).end(verdict.outcome, verdict.weight)
        if verdict.scores and verdict.trace_ended_at is not None:
            age_s = verdict.started_at + verdict.duration_s - verdict.trace_ended_at
            self._age.observe(max(0.0, age_s))

    def count_unscored(self, reason: str) -> None:
        self._metrics.unscored.labels(*self._labels, reason).inc()

    def publish(self) -> None:
        for rated in self._rated.values():
            rated.publish()

    def _of(self, metric: str) -> _Rated:
        rated = self._rated.get(metric)
        if rated is None:
            rated = self._rated[metric] = _Rated(self._metrics, (*self._labels, metric))
        return rated

    def _count_fabricated(self, verdict: Verdict) -> None:
        if self._fabricated is None:
            self._fabricated = self._metrics.fabricated_evidence.labels(*self._labels)
        if fabricated := _fabricated(verdict):
            self._fabricated.inc(fabricated)


class Scorekeeper:
    """Turns verdicts into metrics."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        """Take which further labels a series bears."""
        self._metrics = metrics
        self._extra = settings.series_labels
        self._known: dict[tuple[str, ...], _Series] = {}
        self._explorations = Explorations(metrics)

    def count(self, *entries: OutboxEntry) -> None:
        """Count entries: sums first, which are then added once to each counter.

        Only live traffic feeds quality series: what was picked by hand would bend them.
        """
        touched: set[_Series] = set()
        for kind, verdict in ((entry.kind, entry.verdict) for entry in entries):
            if verdict.origin == "late_feedback" and kind == "j" and not is_panel(verdict.judge_model):
                self._count_late(verdict)
            if kind == "j":
                self._explorations.count(verdict)
            if verdict.origin == "live":
                touched.add(self._count(kind, verdict))
        for series in touched:
            series.publish()

    def _count(self, kind: str, verdict: Verdict) -> _Series:
        series = self._series(verdict)
        if verdict.outcome == "unscored":
            series.count_unscored(verdict.reason or "")
        if kind == "j":
            series.count(verdict)
        return series

    def _count_late(self, verdict: Verdict) -> None:
        """Count apart what late feedback has pulled in; where no label tells who judged, a panel would count twice."""
        endings = {score.metric: _ending(score) for score in verdict.scores}
        for metric in verdict.metrics:
            labels = (self._metrics.service(verdict.service), verdict.judge, metric)
            counters = {outcome: self._metrics.late_feedback_verdicts.labels(*labels, outcome) for outcome in OUTCOMES}
            outcome = endings.get(metric) if verdict.outcome == "scored" else verdict.outcome
            if outcome is not None:
                counters[outcome].inc()

    def _series(self, verdict: Verdict) -> _Series:
        labels = (
            self._metrics.service(verdict.service),
            self._metrics.environment(verdict.environment or ""),
            verdict.judge,
            verdict.judge_version[:_VERSION_DIGITS],
            verdict.judge_model,
            *[self._metrics.extra[name](getattr(verdict, name) or "") for name in self._extra],
        )
        series = self._known.get(labels)
        if series is None:
            series = self._known[labels] = _Series(self._metrics, labels)
        return series


class _Unanswered(NamedTuple):
    """Entries whose acknowledgement Redis has not answered, and until when nobody else can have made one."""

    entries: Sequence[OutboxEntry]
    ours_until: float


class PrometheusExporter(OutboxReader):
    """Reads the group ``metrics``."""

    read_count = 1000

    def __init__(self, settings: Settings, store: Store, metrics: Metrics) -> None:
        """Prepare the thread; ``start`` begins."""
        super().__init__(store, "metrics")
        self._scorekeeper = Scorekeeper(settings, metrics)
        self._drop = partial(metrics.export_dropped.labels, self.exporter)
        self._drop("unreadable")
        self._unanswered: _Unanswered | None = None

    def turn(self) -> None:
        """Find out first what became of an acknowledgement that Redis did not answer; then read."""
        self._finish_unanswered()
        super().turn()

    def deliver(self, entries: Sequence[OutboxEntry]) -> None:
        """Acknowledge first, count then: whoever acknowledged an entry is the one that counts it."""
        ours_until = time.monotonic() + self.stale_ms / 1000 - _MARGIN_S
        self._unanswered = _Unanswered(entries, ours_until)
        fresh = self.acknowledge([entry.entry_id for entry in entries])
        self._unanswered = None
        self._scorekeeper.count(*(entry for entry, counts in zip(entries, fresh, strict=True) if counts))

    def _finish_unanswered(self) -> None:
        """Acknowledge again; what was acknowledged before others could take it over was so by us, unheard."""
        if self._unanswered is None:
            return
        entries, ours_until = self._unanswered
        fresh = self.acknowledge([entry.entry_id for entry in entries])
        self._unanswered = None
        ours = time.monotonic() < ours_until
        self._scorekeeper.count(*(entry for entry, counts in zip(entries, fresh, strict=True) if counts or ours))

    def dropped(self, reason: str, amount: int) -> None:
        """Count what could not be read."""
        self._drop(reason).inc(amount)


def _ending(score: Score) -> str:
    return "unrated" if score.passed is None else "pass" if score.passed else "fail"


def _fabricated(verdict: Verdict) -> int:
    """Read how much of the evidence that the judge model named does not exist."""
    found = verdict.details.get("fabricated_evidence", 0)
    return found if isinstance(found, int) and found > 0 else 0


def _exemplar(verdict: Verdict) -> dict[str, str] | None:
    """Point from a score to its trace, where the id is one that trace backends know."""
    if W3C_TRACE_ID.fullmatch(verdict.trace_id) is None:
        return None
    exemplar = {"trace_id": verdict.trace_id}
    if verdict.span_id and W3C_SPAN_ID.fullmatch(verdict.span_id):
        exemplar["span_id"] = verdict.span_id
    return exemplar
