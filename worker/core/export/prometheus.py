"""Counts verdicts for Prometheus: each exactly when its own acknowledgement was the first.

A kill can lose a count that was not scraped yet; no verdict is counted twice.
"""

import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple

from prometheus_client import Counter, Histogram

from judges.core.verdict import W3C_SPAN_ID, W3C_TRACE_ID, Score, Verdict
from judges.registry import load_judges
from worker.core.config.graders import is_panel
from worker.core.config.settings import Settings
from worker.core.export.consumer import ExportConsumer
from worker.core.queue.ledger import OutboxEntry
from worker.core.storage.client import Store
from worker.core.telemetry.metrics import EXPLORATION_ENDS, OUTCOMES, Metrics

# Enough to tell versions of one judge apart, and short enough for a legend.
_VERSION_DIGITS: Final = 8
# Other workers may claim an entry a little earlier by Redis' clock than by this one.
_MARGIN_S: Final = 3.0


class _OutcomeCounters:
    """The counters of one series, metric and outcome, with sums that are not published yet."""

    def __init__(self, metrics: Metrics, labels: tuple[str, ...]) -> None:
        self._verdicts: Counter = metrics.verdicts.labels(*labels)
        self._weight: Counter = metrics.verdict_weight.labels(*labels)
        self._weight_squared: Counter = metrics.verdict_weight_squared.labels(*labels)
        self._count, self._sum, self._sum_squared = 0, 0.0, 0.0
        self._exemplar: dict[str, str] | None = None

    def add(self, weight: float, example: Verdict | None = None) -> None:
        # One exemplar is exported at a time, so the first verdict of a read is enough.
        if example is not None and self._exemplar is None:
            self._exemplar = _exemplar(example)
        self._count += 1
        self._sum += weight
        self._sum_squared += weight * weight

    def publish(self) -> None:
        if self._count:
            self._verdicts.inc(self._count, self._exemplar)
            self._weight.inc(self._sum)
            self._weight_squared.inc(self._sum_squared)
            self._count, self._sum, self._sum_squared = 0, 0.0, 0.0
            self._exemplar = None


class _MetricCounters:
    """The counters of one series and metric; all outcomes exist from the start, at zero."""

    def __init__(self, metrics: Metrics, labels: tuple[str, ...], *, is_yes_no: bool) -> None:
        self.outcomes = {outcome: _OutcomeCounters(metrics, (*labels, outcome)) for outcome in OUTCOMES}
        # A histogram of passes would repeat two counters, and its fourteen series would be most of the page.
        self._score: Histogram | None = None if is_yes_no else metrics.score.labels(*labels)
        self._weighted: Counter = metrics.score_weighted.labels(*labels)
        self._weighted_sum = 0.0
        self._with_exemplar: set[float] = set()

    def add_score(self, score: Score, verdict: Verdict) -> None:
        # Without a histogram the counter of failures leads to an example.
        is_example = self._score is None and score.passed is False
        self.outcomes[_outcome(score)].add(verdict.weight, verdict if is_example else None)
        self._weighted_sum += verdict.weight * score.value
        if self._score is None:
            return
        # One exemplar for each value is enough, because a bucket has room for one, and each costs more than the count.
        exemplar = None if score.value in self._with_exemplar else _exemplar(verdict)
        self._with_exemplar.add(score.value)
        self._score.observe(score.value, exemplar)

    def publish(self) -> None:
        for counters in self.outcomes.values():
            counters.publish()
        if self._weighted_sum:
            self._weighted.inc(self._weighted_sum)
            self._weighted_sum = 0.0
        self._with_exemplar.clear()


class _SeriesCounters:
    def __init__(self, metrics: Metrics, labels: tuple[str, ...], yes_no: frozenset[str]) -> None:
        self._metrics = metrics
        self._labels = labels
        self._yes_no = yes_no
        self._by_metric: dict[str, _MetricCounters] = {}
        self._age: Histogram = metrics.score_age.labels(labels[0])

    @cached_property
    def _detail_counters(self) -> Mapping[str, Counter]:
        """The counters of details, at zero from the first scored verdict on, so that a rate over them is not silent."""
        names = ("fabricated_evidence", "check_differs")
        return {name: getattr(self._metrics, name).labels(*self._labels) for name in names}

    def count(self, verdict: Verdict) -> None:
        is_scored = verdict.outcome == "scored"
        if is_scored:
            for name, counter in self._detail_counters.items():
                if times := _count_in(verdict.details, name):
                    counter.inc(times)
        scores = {score.metric: score for score in verdict.scores}
        for metric in verdict.metrics:
            counters = self._by_metric.get(metric)
            if counters is None:
                counters = self._by_metric[metric] = _MetricCounters(
                    self._metrics, (*self._labels, metric), is_yes_no=metric in self._yes_no
                )
            if metric in scores:
                counters.add_score(scores[metric], verdict)
            elif not is_scored:
                counters.outcomes[verdict.outcome].add(verdict.weight)
            elif not verdict.scores:
                # The result is a text, list or object, which has no value and neither passes nor fails.
                counters.outcomes["unrated"].add(verdict.weight)
        # A conversation is judged after a pause, which is no delay of the pipeline.
        if verdict.scores and verdict.trace_ended_at is not None and "session" not in verdict.details:
            age_s = verdict.started_at + verdict.duration_s - verdict.trace_ended_at
            self._age.observe(max(0.0, age_s))

    def count_unscored(self, reason: str) -> None:
        self._metrics.unscored.labels(*self._labels, reason).inc()

    def publish(self) -> None:
        for counters in self._by_metric.values():
            counters.publish()


class VerdictCounter:
    """Counts verdicts in the metrics of one worker."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._metrics = metrics
        self._extra = settings.series_labels
        self._yes_no = {
            judge.name: frozenset(metric.name for metric in judge.metrics if metric.is_yes_no)
            for judge in load_judges(settings.judges).values()
        }
        self._by_labels: dict[tuple[str, ...], _SeriesCounters] = {}

    def count(self, *entries: OutboxEntry) -> None:
        """Count entries: sums are made first, then added once to each counter."""
        # Only live traffic feeds quality series: traces that were picked on purpose would bias them.
        touched: set[_SeriesCounters] = set()
        for entry in entries:
            verdict = entry.verdict
            if entry.kind == "j":
                self.count_exploration(verdict)
                # Without a label of the judge model a panel would count twice.
                if verdict.origin == "late_feedback" and not is_panel(verdict.judge_model):
                    self._count_late(verdict)
            if verdict.origin == "live":
                series = self._series(verdict)
                touched.add(series)
                if verdict.outcome == "unscored":
                    series.count_unscored(verdict.reason or "")
                if entry.kind == "j":
                    series.count(verdict)
        for series in touched:
            series.publish()

    def count_exploration(self, verdict: Verdict) -> None:
        """Count the exploration of a final verdict of any origin, if there was one."""
        course = verdict.details.get("exploration")
        if not isinstance(course, Mapping):
            return
        metrics = self._metrics
        counters = {end: metrics.explorations.labels(verdict.judge, end) for end in EXPLORATION_ENDS}
        ended_by = course.get("ended_by")
        counters[ended_by if isinstance(ended_by, str) and ended_by in counters else "nothing"].inc()
        metrics.exploration_rounds.labels(verdict.judge).observe(_count_in(course, "rounds"))
        metrics.exploration_tool_errors.labels(verdict.judge).inc(_count_in(course, "tool_errors"))

    def _count_late(self, verdict: Verdict) -> None:
        outcomes = {score.metric: _outcome(score) for score in verdict.scores}
        for metric in verdict.metrics:
            labels = (self._metrics.service(verdict.service), verdict.judge, metric)
            counters = {outcome: self._metrics.late_feedback_verdicts.labels(*labels, outcome) for outcome in OUTCOMES}
            outcome: str | None = verdict.outcome
            if outcome == "scored":
                outcome = outcomes.get(metric) if verdict.scores else "unrated"
            if outcome is not None:
                counters[outcome].inc()

    def _series(self, verdict: Verdict) -> _SeriesCounters:
        labels = (
            self._metrics.service(verdict.service),
            self._metrics.environment(verdict.environment or ""),
            verdict.judge,
            verdict.judge_version[:_VERSION_DIGITS],
            verdict.judge_model,
            *[self._metrics.extra[name](getattr(verdict, name) or "") for name in self._extra],
        )
        series = self._by_labels.get(labels)
        if series is None:
            series = self._by_labels[labels] = _SeriesCounters(
                self._metrics, labels, self._yes_no.get(verdict.judge, frozenset())
            )
        return series


class _Unanswered(NamedTuple):
    """Entries whose acknowledgement Redis has not answered; before ``ours_until`` no other worker can claim them."""

    entries: Sequence[OutboxEntry]
    ours_until: float


class PrometheusExporter(ExportConsumer):
    """Reads the group ``metrics``."""

    exporter = "metrics"
    read_count = 1000

    def __init__(self, settings: Settings, store: Store, metrics: Metrics) -> None:
        super().__init__(settings, store, metrics)
        self._counter = VerdictCounter(settings, metrics)
        self._unanswered: _Unanswered | None = None

    def run_once(self) -> None:
        """Repeat an acknowledgement that Redis did not answer; then read."""
        self._acknowledge_and_count(is_repeated=True)
        super().run_once()

    def deliver(self, entries: Sequence[OutboxEntry]) -> None:
        """Acknowledge, then count: only the worker whose acknowledgement was the first counts an entry."""
        self._unanswered = _Unanswered(entries, self.asked_at + self.stale_ms / 1000 - _MARGIN_S)
        self._acknowledge_and_count()

    def _acknowledge_and_count(self, *, is_repeated: bool = False) -> None:
        if self._unanswered is None:
            return
        entries, ours_until = self._unanswered
        fresh = self.acknowledge([entry.entry_id for entry in entries])
        self._unanswered = None
        # Before others could claim the entries, an acknowledgement found there is this worker's own.
        ours = is_repeated and time.monotonic() < ours_until
        self._counter.count(*(entry for entry, is_fresh in zip(entries, fresh, strict=True) if is_fresh or ours))


def _outcome(score: Score) -> str:
    return "unrated" if score.passed is None else "pass" if score.passed else "fail"


def _count_in(details: Mapping[str, object], name: str) -> int:
    """Read a count that another version of the worker may have written; 0 for anything else."""
    number = details.get(name)
    return number if isinstance(number, int) and number > 0 else 0


def _exemplar(verdict: Verdict) -> dict[str, str] | None:
    """Link a score to its trace, if its id is one that trace backends know."""
    if W3C_TRACE_ID.fullmatch(verdict.trace_id) is None:
        return None
    exemplar = {"trace_id": verdict.trace_id}
    if verdict.span_id and W3C_SPAN_ID.fullmatch(verdict.span_id):
        exemplar["span_id"] = verdict.span_id
    return exemplar
