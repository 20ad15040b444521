"""Count verdicts for Prometheus: each exactly when its own acknowledgement was the first.

A kill can lose a count that was not scraped yet; no count is ever doubled.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from prometheus_client import Counter, Histogram

from judges.verdict import Score, Verdict
from worker.export.conventions import W3C_SPAN_ID, W3C_TRACE_ID
from worker.export.outbox import OutboxEntry, OutboxReader
from worker.metrics import OUTCOMES, Metrics
from worker.settings import Settings
from worker.store import Store

__all__ = ["PrometheusExporter", "Scorekeeper"]

_VERSION_DIGITS: Final = 8


class _Ending:
    """The counters of one series, metric and outcome."""

    def __init__(self, metrics: Metrics, labels: tuple[str, ...]) -> None:
        self._verdicts: Counter = metrics.verdicts.labels(*labels)
        self._weight: Counter = metrics.verdict_weight.labels(*labels)
        self._weight_squared: Counter = metrics.verdict_weight_squared.labels(*labels)

    def count(self, weight: float) -> None:
        self._verdicts.inc()
        self._weight.inc(weight)
        self._weight_squared.inc(weight * weight)


class _Rated:
    """The metrics of one series and metric; all its outcomes exist from the first moment, at zero."""

    def __init__(self, metrics: Metrics, labels: tuple[str, ...]) -> None:
        self._endings = {outcome: _Ending(metrics, (*labels, outcome)) for outcome in OUTCOMES}
        self._score: Histogram = metrics.score.labels(*labels)
        self._weighted: Counter = metrics.score_weighted.labels(*labels)

    def end(self, outcome: str, weight: float) -> None:
        self._endings[outcome].count(weight)

    def rate(self, score: Score, weight: float, exemplar: dict[str, str] | None) -> None:
        self.end(_ending(score), weight)
        self._score.observe(score.value, exemplar)
        self._weighted.inc(weight * score.value)


class Scorekeeper:
    """Turns verdicts into metrics."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        """Take which further labels a series bears."""
        self._metrics = metrics
        self._extra = settings.series_labels
        self._rated: dict[tuple[str, ...], _Rated] = {}

    def count(self, entry: OutboxEntry) -> None:
        """Count one entry. Only live traffic feeds quality series: what was picked by hand would bend them."""
        verdict = entry.verdict
        if verdict.origin == "late_feedback" and entry.kind == "j":
            self._count_late(verdict)
        if verdict.origin != "live":
            return
        series = self._series(verdict)
        if verdict.outcome == "unscored":
            self._metrics.unscored.labels(*series, verdict.reason or "").inc()
        if entry.kind == "d":
            return
        if verdict.outcome == "scored":
            self._metrics.fabricated_evidence.labels(*series).inc(_fabricated(verdict))
        scored = {score.metric: score for score in verdict.scores}
        for metric in verdict.metrics:
            rated = self._of((*series, metric))
            if metric in scored:
                rated.rate(scored[metric], verdict.weight, _exemplar(verdict))
            elif verdict.outcome != "scored":
                rated.end(verdict.outcome, verdict.weight)
        if verdict.scores and verdict.trace_ended_at is not None:
            age_s = verdict.started_at + verdict.duration_s - verdict.trace_ended_at
            self._metrics.score_age.labels(series[0]).observe(max(0.0, age_s))

    def _count_late(self, verdict: Verdict) -> None:
        """Count apart what late feedback has pulled in."""
        endings = {score.metric: _ending(score) for score in verdict.scores}
        for metric in verdict.metrics:
            labels = (self._metrics.service(verdict.service), verdict.judge, metric)
            counters = {outcome: self._metrics.late_feedback_verdicts.labels(*labels, outcome) for outcome in OUTCOMES}
            outcome = endings.get(metric) if verdict.outcome == "scored" else verdict.outcome
            if outcome is not None:
                counters[outcome].inc()

    def _series(self, verdict: Verdict) -> tuple[str, ...]:
        extra = (self._metrics.extra[name](getattr(verdict, name) or "") for name in self._extra)
        return (
            self._metrics.service(verdict.service),
            self._metrics.environment(verdict.environment or ""),
            verdict.judge,
            verdict.judge_version[:_VERSION_DIGITS],
            verdict.judge_model,
            *extra,
        )

    def _of(self, labels: tuple[str, ...]) -> _Rated:
        rated = self._rated.get(labels)
        if rated is None:
            rated = self._rated[labels] = _Rated(self._metrics, labels)
        return rated


class PrometheusExporter(OutboxReader):
    """Reads the group ``metrics``."""

    read_count = 1000

    def __init__(self, settings: Settings, store: Store, metrics: Metrics) -> None:
        """Prepare the thread; ``start`` begins."""
        super().__init__(store, "metrics")
        self._scorekeeper = Scorekeeper(settings, metrics)
        self._drop = partial(metrics.export_dropped.labels, self.exporter)
        self._drop("unreadable")

    def deliver(self, entries: Sequence[OutboxEntry]) -> None:
        """Acknowledge first, count then: whoever acknowledged an entry is the one that counts it."""
        fresh = self.acknowledge([entry.entry_id for entry in entries])
        for entry, counts in zip(entries, fresh, strict=True):
            if counts:
                self._scorekeeper.count(entry)

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
