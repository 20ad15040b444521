"""Every Prometheus metric of the worker, declared once in the body of ``Metrics``.

Registration, the reference page and the checks of rules and dashboards are made from that table. Label values come
from the configuration or from closed sets; what is not bounded by nature is bounded by ``BoundedLabel``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final, Generic, Literal, TypeVar, get_args, overload

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from judges.core.exploration import End
from worker.core.config.settings import Settings

SERIES: Final = ("service", "environment", "judge", "version", "judge_model")
OUTCOMES: Final = ("pass", "fail", "unrated", "abstained", "unscored")
TRACE_OUTCOMES: Final = ("sampled", "not_sampled", "shed", "no_rule", "invalid", "duplicate")
INVALID_REASONS: Final = ("no_payload", "not_json", "wrong_type", "unknown_version", "too_large")
LATE_FEEDBACK_OUTCOMES: Final = ("pulled", "already_judged", "not_found", "no_rule", "not_negative", "overflow")
SESSION_OUTCOMES: Final = ("judged", "updated", "dropped", "expired")
"""Judged for the first time, judged again, dropped without a judging, expired in Redis."""
EXPLORATION_ENDS: Final = (*get_args(End), "nothing")
_RATED: Final = (*SERIES, "metric")
_ENDED: Final = (*_RATED, "outcome")
# Not SERIES first: the monitor's series have segments in place of the configured `series_labels`.
_QUALITY: Final = ("metric", "segment", *SERIES)
_CORRECTED: Final = (*_QUALITY, "method")
_JUDGE: Final = ("judge", "version", "judge_model")
_REPEATS: Final = ("judge", "version", "judge_model", "second_model")
_SPENDING: Final = ("judge_model", "judge", "direction")
_SCORE_BUCKETS: Final = tuple(step / 10 for step in range(11))
# Up to the longest timeout of a request.
_REQUEST_BUCKETS: Final = tuple(0.01 * 2**step for step in range(14))
_ROUND_BUCKETS: Final = (0, 1, 2, 3, 5, 8, 13, 20, 30, 50, 100)
# Up to the default of `give_up_after`.
_AGE_BUCKETS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900, 3600, 21600)
_MAX_EXTRA_VALUES: Final = 50
# Service names come from outside: a text sent as a name must not become a series.
_MAX_LABEL_CHARS: Final = 200
_SUFFIXES: Final = ("_bucket", "_sum", "_count")
_STABLE: Final = "stable"
M = TypeVar("M", Counter, Gauge, Histogram)


@dataclass(frozen=True)
class Metric(Generic[M]):
    """One row of the table of metrics.

    Attributes:
        kind: ``Counter``, ``Gauge`` or ``Histogram``.
        name: The name after ``tracejudge_``, with the ``_total`` of a counter.
        unit: What one is, for the reference page.
        labels: Labels that begin with ``SERIES`` are followed there by the configured ``series_labels``.
        values: Every value of the only label; all of them exist at zero from the start.
        stability: ``stable`` where the public contract fixes name, type and labels.
    """

    kind: type[M]
    name: str
    unit: str
    labels: tuple[str, ...]
    help: str
    values: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    stability: Literal["stable", "experimental"] = "experimental"

    # No `__set__`: a registered metric in the instance's own dictionary is found first, at no further cost.
    @overload
    def __get__(self, instance: None, owner: object) -> "Metric[M]": ...
    @overload
    def __get__(self, instance: object, owner: object) -> M: ...
    def __get__(self, instance: object, owner: object) -> "Metric[M] | M":
        return self

    @property
    def full_name(self) -> str:
        """The name as rules and dashboards write it; a histogram's samples add a suffix."""
        return f"tracejudge_{self.name}"

    @property
    def samples(self) -> tuple[str, ...]:
        """The names of the metric's samples."""
        return tuple(self.full_name + suffix for suffix in (_SUFFIXES if self.kind is Histogram else ("",)))

    def register(self, registry: CollectorRegistry, series_labels: Sequence[str]) -> M:
        """Make the metric in a registry."""
        labels: tuple[str, ...] = self.labels
        if labels[: len(SERIES)] == SERIES:
            labels = (*SERIES, *series_labels, *labels[len(SERIES) :])
        options: dict[str, Any] = {"buckets": self.buckets} if self.buckets else {}
        made = self.kind(self.full_name, self.help, labels, registry=registry, **options)
        for value in self.values:
            made.labels(value)
        return made


class BoundedLabel:
    """Passes the first ``limit`` values and replaces further ones, and those too long for a name, by ``other``."""

    def __init__(self, limit: int, known: Sequence[str] = ()) -> None:
        self._limit = limit
        self._seen = set(known)

    def __call__(self, value: str) -> str:
        """Return the value, or ``other``."""
        if value in self._seen:
            return value
        if len(self._seen) >= self._limit or len(value) > _MAX_LABEL_CHARS:
            return "other"
        self._seen.add(value)
        return value


class Metrics:
    """The metrics of one worker process, in a registry of their own."""

    # fmt: off
    # A table: the formatter would put each argument on a line of its own.
    traces = Metric(Counter, "traces_total", "traces", ("service", "outcome"),
        "Traces read from the stream", stability=_STABLE)
    invalid_traces = Metric(Counter, "invalid_traces_total", "entries", ("reason",),
        "Stream entries that are not a trace", values=INVALID_REASONS, stability=_STABLE)
    producer_published = Metric(Counter, "producer_published_total", "traces", ("service",),
        "Traces that producers published", stability=_STABLE)
    producer_dropped = Metric(Counter, "producer_dropped_total", "traces", ("service", "reason"),
        "Traces that producers dropped, by their own reports", stability=_STABLE)
    cut_off = Metric(Counter, "cut_off_total", "traces", (),
        "Traces that the stream's caps removed before they were read", stability=_STABLE)
    lost_by_redis = Metric(Counter, "lost_by_redis_total", "traces", (),
        "Traces that Redis had confirmed and lost with its last writes")
    unknown_fields = Metric(Counter, "unknown_fields_total", "fields", ("service",),
        "Unknown fields of sampled traces")
    fields_left_out = Metric(Counter, "fields_left_out_total", "fields", ("service", "field"),
        "Fields of sampled traces with an unusable value, such as a time before 2000 or after 2100")
    shed = Metric(Counter, "shed_total", "evaluations", ("judge_model",),
        "Evaluations not created because their judge model is unavailable and its backlog is full", stability=_STABLE)
    late_feedback = Metric(Counter, "late_feedback_total", "feedback", ("outcome",),
        f"Feedback that arrived after its trace, by outcome: {', '.join(LATE_FEEDBACK_OUTCOMES)}",
        values=LATE_FEEDBACK_OUTCOMES)
    sessions = Metric(Counter, "sessions_total", "conversations", ("outcome",),
        f"Conversations whose gathering ended, by outcome: {', '.join(SESSION_OUTCOMES)}",
        values=SESSION_OUTCOMES)
    sampling_ratio = Metric(Gauge, "effective_sampling_ratio", "ratio", ("rule",),
        "Share of matching traces that were sampled", stability=_STABLE)

    score = Metric(Histogram, "score", "score", _RATED,
        "Scores, 0..1, of all metrics but those of yes and no", buckets=_SCORE_BUCKETS, stability=_STABLE)
    verdicts = Metric(Counter, "verdicts_total", "verdicts", _ENDED, "Final verdicts", stability=_STABLE)
    verdict_weight = Metric(Counter, "verdict_weight_total", "weight", _ENDED,
        "Sum of weights (1 / sampling probability)", stability=_STABLE)
    verdict_weight_squared = Metric(Counter, "verdict_weight_squared_total", "weight²", _ENDED,
        "Sum of squared weights", stability=_STABLE)
    score_weighted = Metric(Counter, "score_weighted_total", "score", _RATED,
        "Sum of weight times score", stability=_STABLE)
    unscored = Metric(Counter, "unscored_total", "evaluations", (*SERIES, "reason"),
        "Evaluations without a score", stability=_STABLE)
    fabricated_evidence = Metric(Counter, "fabricated_evidence_total", "excerpts", SERIES,
        "Excerpts and sentence keys that a judge model cited and that do not exist")
    check_differs = Metric(Counter, "check_differs_total", "verdicts", SERIES,
        "Scored verdicts where the check of what a judge model cited comes to another result than its answer")
    late_feedback_verdicts = Metric(Counter, "late_feedback_verdicts_total", "verdicts",
        ("service", "judge", "metric", "outcome"),
        "Verdicts on traces selected by late feedback, without panels; in no other series")
    score_age = Metric(Histogram, "score_age_seconds", "seconds", ("service",),
        "Time from the end of the judged call to its score", buckets=_AGE_BUCKETS, stability=_STABLE)

    request_duration = Metric(Histogram, "judge_request_duration_seconds", "seconds", ("judge_model", "status"),
        "Duration of requests to judge models, and of traces judged in code (`code`)", buckets=_REQUEST_BUCKETS,
        stability=_STABLE)
    tokens = Metric(Counter, "judge_tokens_total", "tokens", _SPENDING,
        "Tokens that judge models used", stability=_STABLE)
    cost = Metric(Counter, "judge_cost_usd_total", "USD", _SPENDING, "Cost of judge models, in USD", stability=_STABLE)
    reply_invalid = Metric(Counter, "judge_reply_invalid_total", "fields", ("judge_model", "field"),
        "Fields of judge models' replies ignored as too long or not a count: id, model, usage")
    in_flight = Metric(Gauge, "judge_in_flight", "requests", ("judge_model",), "Requests in flight", stability=_STABLE)
    concurrency_limit = Metric(Gauge, "judge_concurrency_limit", "requests", ("judge_model",),
        "Requests that may be in flight", stability=_STABLE)
    circuit_open = Metric(Gauge, "judge_circuit_open", "boolean", ("judge_model",),
        "1 while the circuit is open", stability=_STABLE)
    panel_member = Metric(Gauge, "panel_member", "boolean", ("judge", "judge_model"),
        "1 where rules use a judge model's verdicts only as a member of a panel")

    explorations = Metric(Counter, "explorations_total", "verdicts", ("judge", "ended_by"),
        f"Final verdicts of judges that use tools, by what ended the exploration: {', '.join(EXPLORATION_ENDS)}")
    exploration_rounds = Metric(Histogram, "exploration_rounds", "answers", ("judge",),
        "Answers of one exploration that called tools", buckets=_ROUND_BUCKETS)
    exploration_tool_errors = Metric(Counter, "exploration_tool_errors_total", "calls", ("judge",),
        "Tool calls of explorations that returned nothing")

    stream_lag = Metric(Gauge, "stream_lag", "entries", (),
        "Stream entries not yet read and acknowledged", stability=_STABLE)
    stream_capacity = Metric(Gauge, "stream_capacity", "entries", (),
        "Stream entries at which the caps start to remove", stability=_STABLE)
    stream_oldest = Metric(Gauge, "stream_oldest_seconds", "seconds", (),
        "Age of the oldest entry not yet acknowledged", stability=_STABLE)
    batches_waiting = Metric(Gauge, "batches_waiting", "batches", (),
        "Unfinished batches that are not parked", stability=_STABLE)
    batches_parked = Metric(Gauge, "batches_parked", "batches", (),
        "Batches parked until a later time", stability=_STABLE)
    outbox_lag = Metric(Gauge, "outbox_lag", "verdicts", ("exporter",),
        "Verdicts an exporter has not sent yet", stability=_STABLE)
    dead_letters = Metric(Gauge, "dead_letters", "evaluations", (),
        "Dead letters: evaluations given up", stability=_STABLE)
    dead_cut_off = Metric(Counter, "dead_cut_off_total", "evaluations", (),
        "Dead letters that their caps of count, bytes and age removed", stability=_STABLE)
    outbox_cut_off = Metric(Counter, "outbox_cut_off_total", "verdicts", ("exporter",),
        "Verdicts that the outbox removed before they were sent", stability=_STABLE)
    export_dropped = Metric(Counter, "export_dropped_total", "verdicts", ("exporter", "reason"),
        "Verdicts an exporter could not deliver", stability=_STABLE)
    log_records_dropped = Metric(Counter, "log_records_dropped_total", "lines", (),
        "Log lines dropped because standard error blocked or refused them")
    export_parked = Metric(Gauge, "export_parked", "verdicts", ("exporter",),
        "Verdicts that wait until a receiver knows their traces")
    export_answers_ignored = Metric(Counter, "export_answers_ignored_total", "requests", ("exporter",),
        "Accepted requests whose answer was unreadable or impossible")
    quality_share = Metric(Gauge, "quality_share", "ratio", _QUALITY,
        "Weighted share of passing verdicts in the last hour, or in the last day where that has few", stability=_STABLE)
    quality_lower = Metric(Gauge, "quality_lower", "ratio", _QUALITY,
        "Lower limit of the 95 % interval of quality_share", stability=_STABLE)
    quality_upper = Metric(Gauge, "quality_upper", "ratio", _QUALITY,
        "Upper limit of the 95 % interval of quality_share", stability=_STABLE)
    quality_effective_n = Metric(Gauge, "quality_effective_n", "verdicts", _QUALITY,
        "Independent, equally weighted verdicts that would be as precise", stability=_STABLE)
    quality_judgements = Metric(Gauge, "quality_judgements", "verdicts", _QUALITY,
        "Passing and failing verdicts behind quality_share", stability=_STABLE)
    quality_window = Metric(Gauge, "quality_window_seconds", "seconds", _QUALITY,
        "Length of the window of quality_share")
    quality_abstained_share = Metric(Gauge, "quality_abstained_share", "ratio", _QUALITY,
        "Weighted share of verdicts of that window that abstained", stability=_STABLE)
    quality_unscored_share = Metric(Gauge, "quality_unscored_share", "ratio", _QUALITY,
        "Weighted share of verdicts of that window without a score", stability=_STABLE)
    quality_baseline = Metric(Gauge, "quality_baseline", "ratio", _QUALITY,
        "Usual share of this hour of the week, from the last 28 days without incidents", stability=_STABLE)
    quality_drop = Metric(Gauge, "quality_drop", "boolean", _QUALITY,
        "1 from the detection of a drop below the usual share until its recovery", stability=_STABLE)
    quality_drop_since = Metric(Gauge, "quality_drop_since_seconds", "seconds", _QUALITY,
        "When the open drop began, in seconds since the epoch", stability=_STABLE)
    quality_corrected_share = Metric(Gauge, "quality_corrected_share", "ratio", _CORRECTED,
        "Share of verdicts that should pass, corrected by labels with the method", stability=_STABLE)
    quality_corrected_lower = Metric(Gauge, "quality_corrected_lower", "ratio", _CORRECTED,
        "Lower limit of the 95 % interval of quality_corrected_share", stability=_STABLE)
    quality_corrected_upper = Metric(Gauge, "quality_corrected_upper", "ratio", _CORRECTED,
        "Upper limit of the 95 % interval of quality_corrected_share", stability=_STABLE)
    quality_corrected_window = Metric(Gauge, "quality_corrected_window_seconds", "seconds", _CORRECTED,
        "Length of the time that quality_corrected_share is about")
    cascade_first_share = Metric(Gauge, "cascade_first_share", "ratio", _QUALITY,
        "Weighted mean probability of passing by the first model of a cascade in the last day, not corrected")
    cascade_second = Metric(Gauge, "cascade_second_verdicts", "verdicts", (*_QUALITY, "state"),
        "Second judgings chosen in the last day: scored, which correct the share; no_score; waiting")
    judge_flip_ratio = Metric(Gauge, "judge_flip_ratio", "ratio", _REPEATS,
        "Share of repeated judgings of the last 90 days with another verdict than the first", stability=_STABLE)
    judge_flip_lower = Metric(Gauge, "judge_flip_ratio_lower", "ratio", _REPEATS,
        "Lower limit of the 95 % interval of judge_flip_ratio")
    judge_flip_upper = Metric(Gauge, "judge_flip_ratio_upper", "ratio", _REPEATS,
        "Upper limit of the 95 % interval of judge_flip_ratio")
    judge_kappa = Metric(Gauge, "judge_kappa", "ratio", _REPEATS,
        "Cohen's kappa of first and repeated judgings; absent while all verdicts are alike")
    judge_kappa_lower = Metric(Gauge, "judge_kappa_lower", "ratio", _REPEATS,
        "Lower limit of the 95 % interval of judge_kappa")
    judge_kappa_upper = Metric(Gauge, "judge_kappa_upper", "ratio", _REPEATS,
        "Upper limit of the 95 % interval of judge_kappa")
    safety_incident = Metric(Gauge, "safety_incident", "boolean", ("metric", *SERIES),
        "1 while a safety judge has more failures than its own errors explain")
    safety_incident_info = Metric(Gauge, "safety_incident_info", "boolean", ("metric", *SERIES, "since", "examples"),
        "1 for an open safety incident, with its begin and the ids of up to three failing traces")
    quality_abstained_lower = Metric(Gauge, "quality_abstained_lower", "ratio", _QUALITY,
        "Lower limit of the 95 % interval of quality_abstained_share")
    quality_unscored_lower = Metric(Gauge, "quality_unscored_lower", "ratio", _QUALITY,
        "Lower limit of the 95 % interval of quality_unscored_share")
    quality_objective = Metric(Gauge, "quality_objective", "ratio", _QUALITY,
        "Share that should pass, from the file of objectives")
    quality_below_objective = Metric(Gauge, "quality_below_objective", "boolean", (*_QUALITY, "reference"),
        "1 while the detector finds the share below its objective, or that of a new service below its environment's")
    quality_incident = Metric(Gauge, "quality_incident_info", "boolean",
        (*_QUALITY, "since", "since_low", "since_high", "changed", "examples"),
        "1 while a drop is open, with what is known of it")
    quality_silent = Metric(Gauge, "quality_silent", "boolean", ("service", "environment"),
        "1 while a service has no verdicts although 20 or more are usual by now")
    budget_spent = Metric(Gauge, "budget_spent_usd", "USD", ("budget",),
        "Cost of judge calls in the current day, or hour for a budget by the hour alone", stability=_STABLE)
    budget_limit = Metric(Gauge, "budget_limit_usd", "USD", ("budget",),
        "Limit of that day or hour", stability=_STABLE)
    budget_spent_ratio = Metric(Gauge, "budget_spent_ratio", "ratio", ("budget", "limit"),
        "Share of each limit of a budget, in USD or tokens, that is spent in the current day or hour")
    budget_factor = Metric(Gauge, "budget_rate_factor", "ratio", ("budget",),
        "Factor by which the budget reduces the rates of rules, the smallest of all priorities", stability=_STABLE)
    budget_refused = Metric(Counter, "budget_refused_total", "calls", ("budget",),
        "Judge calls that an exhausted budget refused")
    judge_canary_agreement = Metric(Gauge, "judge_canary_agreement", "ratio", _JUDGE,
        "Mean share of the last day's verdicts on each canary trace that agree with its labels", stability=_STABLE)
    judge_canary_lower = Metric(Gauge, "judge_canary_agreement_lower", "ratio", _JUDGE,
        "Lower limit of the 95 % interval of judge_canary_agreement, by the number of traces")
    judge_canary_upper = Metric(Gauge, "judge_canary_agreement_upper", "ratio", _JUDGE,
        "Upper limit of the 95 % interval of judge_canary_agreement, by the number of traces")
    judge_canary_drift = Metric(Gauge, "judge_canary_drift", "boolean", _JUDGE,
        "1 while a judge agrees with the canary's labels surely less than it did in the week before")
    judge_canary_drift_info = Metric(Gauge, "judge_canary_drift_info", "boolean", (*_JUDGE, "since", "examples"),
        "1 while a judge drifts: when that was found, and the names of up to three canary traces that fell most")
    stored_bytes = Metric(Gauge, "stored_bytes", "bytes", ("what",),
        "Bytes in Redis of traces, outbox, batches, dead_letters, sessions")
    stored_max_bytes = Metric(Gauge, "stored_max_bytes", "bytes", ("what",),
        "Configured maximum of stored_bytes; for batches that of each judge model")
    redis_used_bytes = Metric(Gauge, "redis_used_bytes", "bytes", (), "Memory that Redis uses")
    redis_max_bytes = Metric(Gauge, "redis_max_bytes", "bytes", (),
        "Redis' maxmemory; 0 where it has no bound")
    ready = Metric(Gauge, "ready", "boolean", ("role",),
        "1 while the role makes progress, as on /readyz", stability=_STABLE)
    build_info = Metric(Gauge, "build_info", "boolean", ("version", "config_hash"),
        "1, with the version and a hash of the configuration: two hashes are two configurations", stability=_STABLE)
    shard_up = Metric(Gauge, "shard_up", "boolean", ("shard",),
        "1 while the Redis of this number answers the worker, 0 while it does not; the only one has the number 0")
    # fmt: on

    def __init__(self, settings: Settings, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        # Rules compare the start of the process with a counter's first sample: it tells new counts from late scrapes.
        ProcessCollector(registry=self.registry)
        named = [rule.where.service for rule in settings.rules if rule.where.service]
        known_services = sorted({name for name in named if not set(name) & set("*?[")})
        self.service = BoundedLabel(settings.max_services, known_services)
        self.environment = BoundedLabel(_MAX_EXTRA_VALUES)
        self.extra = {name: BoundedLabel(_MAX_EXTRA_VALUES) for name in settings.series_labels}
        for attribute, metric in METRICS.items():
            self.__dict__[attribute] = metric.register(self.registry, settings.series_labels)
        for service in known_services:
            self.touch_service(service)
        for model in settings.models.values():
            self.shed.labels(model.judge_model)
        self.build_info.labels(version("tracejudge-worker"), settings.config_hash).set(1)

    def touch_service(self, service: str) -> None:
        """Create all outcomes of a service at zero, so that a ratio over them never lacks a series."""
        for outcome in TRACE_OUTCOMES:
            self.traces.labels(service, outcome)


def _rows(table: type) -> dict[str, Metric[Any]]:
    members = (member for one in reversed(table.__mro__) for member in vars(one).items())
    return {attribute: metric for attribute, metric in members if isinstance(metric, Metric)}


METRICS: Final = _rows(Metrics)
"""The table, by attribute of ``Metrics``."""


BOARD_PAGES: Final = ("overview", "verdicts", "funnel", "labels", "other")
GATEWAY_REJECTED: Final = (
    "content_type", "encoding", "malformed", "too_large", "unauthorized", "rate", "full", "unavailable", "slow",
)  # fmt: skip
"""Why the gateway refuses a whole request."""
GATEWAY_DROPPED: Final = (
    "no_service",
    "no_ids",
    "invalid",
    "trace_too_large",
    "expired",
    "redaction",
    "unreadable",
    "no_model_call",
)
"""Why an item of an accepted request reaches no published trace."""


class _ServerMetrics:
    """The metrics of one process that is no worker, on a page of its own; a row of the table is an attribute."""

    build_info = Metrics.build_info

    def __init__(self, settings: Settings, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        ProcessCollector(registry=self.registry)
        for attribute, metric in _rows(type(self)).items():
            self.__dict__[attribute] = metric.register(self.registry, ())
        self.build_info.labels(version("tracejudge-worker"), settings.config_hash).set(1)


class GatewayMetrics(_ServerMetrics):
    """The metrics of one gateway process."""

    # fmt: off
    requests = Metric(Counter, "gateway_requests_total", "requests", ("path", "status"),
        "Requests of the gateway by path and HTTP status; paths that do not exist are `other`")
    rejected = Metric(Counter, "gateway_rejected_total", "requests", ("reason",),
        f"Requests refused as a whole, by reason: {', '.join(GATEWAY_REJECTED)}", values=GATEWAY_REJECTED)
    items = Metric(Counter, "gateway_items_total", "items", ("kind",),
        "Accepted items by kind: span, log, json", values=("span", "log", "json"))
    dropped = Metric(Counter, "gateway_dropped_total", "items", ("reason",),
        f"Items of accepted requests that reach no published trace, by reason: {', '.join(GATEWAY_DROPPED)}",
        values=GATEWAY_DROPPED)
    left_out = Metric(Counter, "gateway_fields_left_out_total", "fields", ("field",),
        "Fields of traces that could not be used and were left out")
    published = Metric(Counter, "gateway_published_total", "entries", (),
        "Traces and feedback that this process wrote into the stream")
    gathered_bytes = Metric(Gauge, "gateway_gathered_bytes", "bytes", (),
        "Bytes of spans in Redis that wait for the rest of their trace")
    body_bytes = Metric(Gauge, "gateway_body_bytes", "bytes", (),
        "Bytes of request bodies in memory")
    connections = Metric(Gauge, "gateway_connections", "connections", (),
        "Open connections of the intake")
    # fmt: on


class BoardMetrics(_ServerMetrics):
    """The metrics of one board process."""

    # fmt: off
    requests = Metric(Counter, "board_requests_total", "requests", ("page", "status"),
        f"Requests of the board by page ({', '.join(BOARD_PAGES)}) and HTTP status")
    indexed = Metric(Gauge, "board_indexed_verdicts", "verdicts", (),
        "Verdicts of the outbox that the board can show")
    # fmt: on


GATEWAY_METRICS: Final = _rows(GatewayMetrics)
"""The gateway's table, by attribute of ``GatewayMetrics``."""
BOARD_METRICS: Final = _rows(BoardMetrics)
"""The board's table, by attribute of ``BoardMetrics``."""
