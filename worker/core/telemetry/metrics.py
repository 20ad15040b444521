"""Prometheus metrics: the tables in which they are declared, and the table of the core.

Registration, the reference page and the checks of rules and dashboards are made from the tables. Label values come
from the configuration or from closed sets; ``BoundedLabel`` bounds all others.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar, cast, get_args, overload

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.samples import Sample

from judges.core.judge import End
from judges.core.model import REPLY_FIELDS, CallObserver, Direction
from worker.core.config.settings import Settings
from worker.core.features import import_attribute, installed

if TYPE_CHECKING:
    from judges.endpoints.limiter import EndpointLimiter

SERIES: Final = ("service", "environment", "judge", "version", "judge_model")
OUTCOMES: Final = ("pass", "fail", "unrated", "abstained", "unscored")
TRACE_OUTCOMES: Final = ("sampled", "not_sampled", "shed", "no_rule", "invalid", "duplicate")
INVALID_REASONS: Final = ("no_payload", "not_json", "wrong_type", "unknown_version", "too_large")
LATE_FEEDBACK_OUTCOMES: Final = ("pulled", "already_judged", "not_found", "no_rule", "not_negative", "overflow")
EXPLORATION_ENDS: Final = (*get_args(End), "nothing")
_RATED: Final = (*SERIES, "metric")
_ENDED: Final = (*_RATED, "outcome")
_SPENDING: Final = ("judge_model", "judge", "direction")
_SCORE_BUCKETS: Final = tuple(step / 10 for step in range(11))
# Up to the longest timeout of a request.
_REQUEST_BUCKETS: Final = tuple(0.01 * 2**step for step in range(14))
_ROUND_BUCKETS: Final = (0, 1, 2, 3, 5, 8, 13, 20, 30, 50, 100)
# Up to the default of `give_up_after`.
_AGE_BUCKETS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900, 3600, 21600)
_MAX_EXTRA_VALUES: Final = 50
# Service names come from outside, and a text sent as a name must not become a series.
_MAX_LABEL_CHARS: Final = 200
_STABLE: Final = "stable"
# Slices of a millisecond, with pauses that are long enough for another thread to wake up in. A pause lasts up to 5 ms
# beside threads that are never idle: with smaller slices the page of a thousand services would take too long.
_SLICE_SAMPLES: Final = 100
_PAUSE_S: Final = 0.0005
_read: Final = count()
M = TypeVar("M", Counter, Gauge, Histogram)
T = TypeVar("T", bound="MetricTable")


@dataclass(frozen=True)
class Metric(Generic[M]):
    """One row of the table of metrics."""

    kind: type[M]  # ``Counter``, ``Gauge`` or ``Histogram``.
    name: str  # The name after ``tracejudge_``, with the ``_total`` of a counter.
    unit: str  # What one is, for the reference page.
    labels: tuple[str, ...]  # Labels that begin with ``SERIES`` are followed there by the configured ``series_labels``.
    help: str
    values: tuple[str, ...] = ()  # Every value of the only label; all of them exist at zero from the start.
    buckets: tuple[float, ...] = ()
    # ``stable`` if the public contract fixes name, type and labels.
    stability: Literal["stable", "experimental"] = "experimental"

    # There is no `__set__`, so that a metric in the instance's own dictionary is found first, at no further cost.
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

    def register(self, registry: CollectorRegistry, series_labels: Sequence[str]) -> M:
        """Make the metric in a registry."""
        labels: tuple[str, ...] = self.labels
        if labels[: len(SERIES)] == SERIES:
            labels = (*SERIES, *series_labels, *labels[len(SERIES) :])
        options: dict[str, Any] = {"buckets": self.buckets} if self.buckets else {}
        made = self.kind(self.full_name, self.help, labels, registry=registry, **options)
        made.collect = partial(_collect, made)  # type: ignore[method-assign]
        for value in self.values:
            made.labels(value)
        return made


def _collect(metric: Counter | Gauge | Histogram) -> Iterator[Any]:
    """Yield the family of a metric, whose samples are made one by one, as the encoder writes them, and with pauses."""
    # A page of a thousand services takes half a second, in which other threads judge. They get the interpreter whenever
    # this one pauses. Without pauses each of them would wait five milliseconds for every turn.

    def samples() -> Iterator[Sample]:
        # The library's public way makes them all at once.
        for suffix, *values in metric._samples():  # noqa: SLF001
            if next(_read) % _SLICE_SAMPLES == 0:
                time.sleep(_PAUSE_S)
            yield Sample(family.name + suffix, *values)  # type: ignore[arg-type]

    (family,) = metric.describe()
    family.samples = samples()  # type: ignore[assignment]
    yield family


class BoundedLabel:
    """Passes the first ``limit`` values and replaces further ones, and those too long for a name, by ``other``."""

    def __init__(self, limit: int, values: Sequence[str] = ()) -> None:
        self._limit = limit
        self._seen = set(values)

    def __call__(self, value: str) -> str:
        """Return the value, or ``other``."""
        if value in self._seen:
            return value
        if len(self._seen) >= self._limit or len(value) > _MAX_LABEL_CHARS:
            return "other"
        self._seen.add(value)
        return value


class MetricTable:
    """Metrics of one part: each row is an attribute, and registered when the table is made."""

    def __init__(self, registry: CollectorRegistry, series_labels: Sequence[str]) -> None:
        for attribute, metric in self.rows().items():
            self.__dict__[attribute] = metric.register(registry, series_labels)

    @classmethod
    def rows(cls) -> dict[str, Metric[Any]]:
        """Return the rows by attribute."""
        members = (member for table in reversed(cls.__mro__) for member in vars(table).items())
        return {attribute: metric for attribute, metric in members if isinstance(metric, Metric)}


class ProcessMetrics(MetricTable):
    """The metrics of one process, in a registry of their own."""

    # fmt: off
    # Keep this a table, because the formatter would put each argument on a line of its own.
    build_info = Metric(Gauge, "build_info", "boolean", ("version", "config_hash"),
        "1, with the version and a hash of the configuration: two hashes are two configurations", stability=_STABLE)
    # fmt: on

    def __init__(self, settings: Settings, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        # Rules compare the start of the process with a counter's first sample, to tell new counts from late scrapes.
        ProcessCollector(registry=self.registry)
        super().__init__(self.registry, settings.series_labels)
        self.build_info.labels(version("tracejudge-worker"), settings.config_hash).set(1)


class Metrics(ProcessMetrics):
    """The metrics of one worker process: the table of the core, and ``tables`` of installed parts by their class."""

    # fmt: off
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
    unknown_fields = Metric(Counter, "unknown_fields_total", "fields", ("service",), "Unknown fields of sampled traces")
    fields_left_out = Metric(Counter, "fields_left_out_total", "fields", ("service", "field"),
        "Fields of sampled traces with an unusable value, such as a time before 2000 or after 2100")
    shed = Metric(Counter, "shed_total", "evaluations", ("judge_model",),
        "Evaluations not created because their judge model is unavailable and its backlog is full", stability=_STABLE)
    late_feedback = Metric(Counter, "late_feedback_total", "feedback", ("outcome",),
        f"Feedback that arrived after its trace, by outcome: {', '.join(LATE_FEEDBACK_OUTCOMES)}",
        values=LATE_FEEDBACK_OUTCOMES)
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
    stored_bytes = Metric(Gauge, "stored_bytes", "bytes", ("what",),
        "Bytes in Redis of traces, outbox, batches, dead_letters, sessions")
    stored_max_bytes = Metric(Gauge, "stored_max_bytes", "bytes", ("what",),
        "Configured maximum of stored_bytes; for batches the maximum of each judge model")
    redis_used_bytes = Metric(Gauge, "redis_used_bytes", "bytes", (), "Memory that Redis uses")
    redis_max_bytes = Metric(Gauge, "redis_max_bytes", "bytes", (), "Redis' maxmemory; 0 where it has no bound")
    ready = Metric(Gauge, "ready", "boolean", ("role",),
        "1 while the role makes progress, as on /readyz", stability=_STABLE)
    partition_up = Metric(Gauge, "partition_up", "boolean", ("partition",),
        "1 while the Redis of this number answers the worker, 0 while it does not; the only one has the number 0")
    # fmt: on

    def __init__(self, settings: Settings, registry: CollectorRegistry | None = None) -> None:
        super().__init__(settings, registry)
        self.tables = {table: table(self.registry, settings.series_labels) for table in further_tables()}
        named = [rule.where.service for rule in settings.rules if rule.where.service]
        known_services = sorted({name for name in named if not set(name) & set("*?[")})
        self.service = BoundedLabel(settings.max_services, known_services)
        self.environment = BoundedLabel(_MAX_EXTRA_VALUES)
        self.extra = {name: BoundedLabel(_MAX_EXTRA_VALUES) for name in settings.series_labels}
        for service in known_services:
            self.touch_service(service)
        for model in settings.models.values():
            self.shed.labels(model.judge_model)

    def table(self, table: type[T]) -> T:
        """Return the metrics of an installed part."""
        return cast("T", self.tables[table])

    def touch_service(self, service: str) -> None:
        """Create all outcomes of a service at zero, so that a ratio over them never lacks a series."""
        for outcome in TRACE_OUTCOMES:
            self.traces.labels(service, outcome)


def further_tables() -> list[type[MetricTable]]:
    """Import the tables of the parts of base and the features that are installed."""
    return [import_attribute(feature.metrics) for feature in installed() if feature.metrics]


class CallMetrics(CallObserver):
    """The metrics of one judge model: its calls, tokens and cost, and the state of its limiter."""

    def __init__(self, metrics: Metrics, judge_model: str, limiter: "EndpointLimiter") -> None:
        # Each child is looked up once, because a lookup takes a lock and a hash of all values.
        self._durations = cache(partial(metrics.request_duration.labels, judge_model))
        self._tokens = cache(partial(metrics.tokens.labels, judge_model))
        self._cost = cache(partial(metrics.cost.labels, judge_model))
        # Read at each scrape, which costs the calls nothing.
        metrics.in_flight.labels(judge_model).set_function(lambda: limiter.in_flight)
        metrics.concurrency_limit.labels(judge_model).set_function(lambda: limiter.limit)
        metrics.circuit_open.labels(judge_model).set_function(lambda: limiter.circuit_open)
        self._ignored = {field: metrics.reply_invalid.labels(judge_model, field) for field in REPLY_FIELDS}

    def ended(self, status: str, took_s: float) -> None:
        """Observe the duration of a call by its status."""
        self._durations(status).observe(took_s)

    def spent(self, judge: str, direction: Direction, tokens: int, cost_usd: float | None) -> None:
        """Count tokens and their cost."""
        self._tokens(judge, direction).inc(tokens)
        if cost_usd is not None:
            self._cost(judge, direction).inc(cost_usd)

    def dropped(self, field: str) -> None:
        """Count a field of a reply that was out of bounds."""
        self._ignored[field].inc()
