"""Every Prometheus metric of the worker: names, labels and buckets, in one bundle with its registry injected.

Labels come from the configuration or from closed sets; what is not bounded by nature is bounded here.
"""

from collections.abc import Sequence
from typing import Final, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from judges.exploring.course import End
from worker.settings import Settings

__all__ = ["EXPLORATION_ENDS", "OUTCOMES", "SERIES", "BoundedLabel", "Metrics"]

SERIES: Final = ("service", "environment", "judge", "version", "judge_model")
OUTCOMES: Final = ("pass", "fail", "unrated", "abstained", "unscored")
TRACE_OUTCOMES: Final = ("sampled", "not_sampled", "shed", "no_rule", "invalid", "duplicate")
INVALID_REASONS: Final = ("no_payload", "not_json", "wrong_type", "unknown_version", "too_large")
LATE_FEEDBACK_OUTCOMES: Final = ("pulled", "already_judged", "not_found", "no_rule", "not_negative", "overflow")
EXPLORATION_ENDS: Final = (*get_args(End), "nothing")
_SCORE_BUCKETS: Final = tuple(step / 10 for step in range(11))
_REQUEST_BUCKETS: Final = tuple(0.01 * 2**step for step in range(14))
_ROUND_BUCKETS: Final = (0, 1, 2, 3, 5, 8, 13, 20, 30, 50, 100)
_AGE_BUCKETS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900, 3600, 21600)
_MAX_EXTRA_VALUES: Final = 50
_MAX_LABEL_CHARS: Final = 200


class BoundedLabel:
    """Lets the first ``limit`` values through and calls the rest ``other``, and so what is no name but a text."""

    def __init__(self, limit: int, known: Sequence[str] = ()) -> None:
        """Reserve places for values that are known to come."""
        self._limit = limit
        self._seen = set(known)

    def __call__(self, value: str) -> str:
        """Return the value, or ``other`` when its place is taken."""
        if value in self._seen:
            return value
        if len(self._seen) >= self._limit or len(value) > _MAX_LABEL_CHARS:
            return "other"
        self._seen.add(value)
        return value


class Metrics:
    """The metrics of one worker process."""

    def __init__(self, settings: Settings, registry: CollectorRegistry | None = None) -> None:
        """Declare them all on a registry of their own."""
        self.registry = registry or CollectorRegistry()
        # Rules tell by the start of the process which counters are news to a Prometheus that just found it.
        ProcessCollector(registry=self.registry)
        named = [rule.where.service for rule in settings.rules if rule.where.service]
        self.known_services: Final = tuple(sorted({name for name in named if not set(name) & set("*?[")}))
        self.service = BoundedLabel(settings.max_services, self.known_services)
        self.environment = BoundedLabel(_MAX_EXTRA_VALUES)
        self.extra = {name: BoundedLabel(_MAX_EXTRA_VALUES) for name in settings.series_labels}
        self._ingest()
        self._quality((*SERIES, *settings.series_labels))
        self._judging()
        self._exploring()
        self._pipeline()
        for service in self.known_services:
            self.touch_service(service)
        for reason in INVALID_REASONS:
            self.invalid_traces.labels(reason)
        for outcome in LATE_FEEDBACK_OUTCOMES:
            self.late_feedback.labels(outcome)
        for model in settings.models.values():
            self.shed.labels(model.judge_model)

    def touch_service(self, service: str) -> None:
        """Let all outcomes of a service exist at zero, so that a rate over them is never silent."""
        for outcome in TRACE_OUTCOMES:
            self.traces.labels(service, outcome)

    def _ingest(self) -> None:
        self.traces = self._counter("traces", "Traces read from the stream", ("service", "outcome"))
        self.invalid_traces = self._counter("invalid_traces", "Entries that are no trace", ("reason",))
        self.producer_published = self._counter("producer_published", "Traces that producers published", ("service",))
        self.producer_dropped = self._counter(
            "producer_dropped", "Traces that producers dropped, by their reports", ("service", "reason")
        )
        self.cut_off = self._counter("cut_off", "Traces that the caps removed before they were read")
        self.unknown_fields = self._counter("unknown_fields", "Fields of chosen traces that are not ours", ("service",))
        self.shed = self._counter(
            "shed", "Evaluations not chosen, since their judge model is away and too much work waits", ("judge_model",)
        )
        self.late_feedback = self._counter(
            "late_feedback",
            f"Feedback that came after its trace, by what became of it: {', '.join(LATE_FEEDBACK_OUTCOMES)}",
            ("outcome",),
        )
        self.sampling_ratio = self._gauge("effective_sampling_ratio", "Share of matching traces chosen", ("rule",))

    def _quality(self, series: tuple[str, ...]) -> None:
        rated, ended = (*series, "metric"), (*series, "metric", "outcome")
        self.score = Histogram(
            "tracejudge_score",
            "Scores, 0..1",
            rated,
            registry=self.registry,
            buckets=_SCORE_BUCKETS,
        )
        self.verdicts = self._counter("verdicts", "Final verdicts", ended)
        self.verdict_weight = self._counter("verdict_weight", "Sum of weights (1 / sampling probability)", ended)
        self.verdict_weight_squared = self._counter("verdict_weight_squared", "Sum of squared weights", ended)
        self.score_weighted = self._counter("score_weighted", "Sum of weight times score", rated)
        self.unscored = self._counter("unscored", "Evaluations without a score", (*series, "reason"))
        self.fabricated_evidence = self._counter(
            "fabricated_evidence", "Excerpts and sentence keys that a judge model named and that do not exist", series
        )
        self.late_feedback_verdicts = self._counter(
            "late_feedback_verdicts",
            "Final verdicts on traces that late feedback pulled in, those of panels aside; they are in no other series",
            ("service", "judge", "metric", "outcome"),
        )
        self.score_age = Histogram(
            "tracejudge_score_age_seconds",
            "From the end of the judged call to its score",
            ("service",),
            registry=self.registry,
            buckets=_AGE_BUCKETS,
        )

    def _judging(self) -> None:
        self.request_duration = Histogram(
            "tracejudge_judge_request_duration_seconds",
            "Requests to judge models, and traces with judges in code (`code`)",
            ("judge_model", "status"),
            registry=self.registry,
            buckets=_REQUEST_BUCKETS,
        )
        spending = ("judge_model", "judge", "direction")
        self.tokens = self._counter("judge_tokens", "Tokens that judge models used", spending)
        self.cost = self._counter("judge_cost_usd", "What judge models cost, in USD", spending)
        self.in_flight = self._gauge("judge_in_flight", "Requests under way", ("judge_model",))
        self.concurrency_limit = self._gauge(
            "judge_concurrency_limit", "Requests that may be under way", ("judge_model",)
        )
        self.circuit_open = self._gauge("judge_circuit_open", "1 while a judge model is left alone", ("judge_model",))
        self.panel_member = self._gauge(
            "panel_member", "1 where rules want a judge model's verdicts only for a panel", ("judge", "judge_model")
        )

    def _exploring(self) -> None:
        self.explorations = self._counter(
            "explorations",
            f"Final verdicts of judges that read by tools, by what asked for them: {', '.join(EXPLORATION_ENDS)}",
            ("judge", "ended_by"),
        )
        self.exploration_rounds = Histogram(
            "tracejudge_exploration_rounds",
            "Answers that asked for tools, in one exploration",
            ("judge",),
            registry=self.registry,
            buckets=_ROUND_BUCKETS,
        )
        self.exploration_tool_errors = self._counter(
            "exploration_tool_errors", "Calls of tools that gave nothing, in explorations", ("judge",)
        )

    def _pipeline(self) -> None:
        self.stream_lag = self._gauge("stream_lag", "Stream entries not yet read and acknowledged")
        self.stream_capacity = self._gauge("stream_capacity", "Stream entries before the caps cut")
        self.stream_oldest = self._gauge("stream_oldest_seconds", "Age of the oldest entry not yet acknowledged")
        self.batches_waiting = self._gauge("batches_waiting", "Batches not finished, the parked ones aside")
        self.batches_parked = self._gauge("batches_parked", "Batches that wait for a later time")
        self.outbox_lag = self._gauge("outbox_lag", "Verdicts an exporter has not sent yet", ("exporter",))
        self.dead_letters = self._gauge("dead_letters", "Evaluations given up")
        self.dead_cut_off = self._counter("dead_cut_off", "Dead letters that their caps of count and age removed")
        self.outbox_cut_off = self._counter(
            "outbox_cut_off", "Verdicts the outbox cut before they were sent", ("exporter",)
        )
        self.export_dropped = self._counter(
            "export_dropped", "Verdicts an exporter could not deliver", ("exporter", "reason")
        )
        self.ready = self._gauge("ready", "1 while the role makes progress, as /readyz tells", ("role",))

    def _counter(self, name: str, text: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(f"tracejudge_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, labels: Sequence[str] = ()) -> Gauge:
        return Gauge(f"tracejudge_{name}", text, labels, registry=self.registry)
