"""The settings: one typed, frozen object, built once at the start; nothing else reads the environment.

``SettingsError`` is the only error of the configuration. Its text names the place, the key and how to fix it in one
line, and repeats no value that could be a secret.
"""

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, Self

import msgspec
from msgspec import Meta, Struct, structs

from judges.core.combine import Combine
from judges.core.decision import Calibration
from judges.core.faults import SettingsError as SettingsError  # noqa: PLC0414 - exported here
from judges.core.judge import Judge, Unit
from judges.core.model import ModelSettings
from judges.requests.redaction import Redact
from tracejudge.ids import CLUSTER_PARTITIONS, MAX_PARTITIONS
from tracejudge.redis_url import cluster_url, mask_url
from worker.core.features import Table, collect_all, installed, installed_tables

Always = Literal["error", "negative_feedback", "slow"]
Has = Literal[
    "input", "messages", "context", "expected_response", "expected_facts", "guidelines", "tool_calls", "tools",
    "expected_tools", "spans"
]  # fmt: skip
SeriesLabel = Literal["name", "model", "release"]
MAX_SEGMENT_VALUE_CHARS: Final = 100
Role = Literal["ingest", "judge", "export", "monitor"]
_PROCESS_SETTINGS: Final = ("roles", "served_partitions", "metrics_host", "metrics_port", "log_level", "log_verdicts")
_LISTEN: Final = {"host", "port", "metrics_port"}  # Keys of tables that options of a command change.
_SECRET: Final = ("user_key", "user_keys_former", "redis_url", "broker_url", "proxy")
LogLevel = Literal["debug", "info", "warning", "error"]
Share = Annotated[float, Meta(ge=0, le=1)]
AtLeastOne = Annotated[int, Meta(ge=1)]
BatchSize = Annotated[int, Meta(ge=1, le=1_000)]
"""Lua unpacks at most 8,000 values at once, and Redis serves no other client while a script runs."""
Size = Annotated[int, Meta(ge=1, le=1 << 50)]
Seconds = Annotated[float, Meta(gt=0, le=10 * 365 * 86_400)]
Amount = Annotated[float, Meta(gt=0, le=1_000_000)]  # Redis counts 10^-9 USD in whole numbers below 2^53.
HOUR_S: Final = 3600.0
MIB: Final = 1024 * 1024
MAX_KEY_BYTES: Final = 64
NANO: Final = 10**9  # Costs in USD are counted in whole parts of this size.
HashKey = Annotated[str, Meta(min_length=1, max_length=MAX_KEY_BYTES)]
"""A key of BLAKE2b, which takes none that is longer."""


class ExtensibleTable(Struct, frozen=True, kw_only=True):
    """A part of the configuration to which features add keys.

    Attributes:
        tables: Values of features by key, without those that are as by default; read them by ``Table.read``.
    """

    extension: ClassVar = "tables"
    tables: Mapping[str, Any] = {}

    @classmethod
    def from_keys(cls, **keys: Any) -> Self:
        """Build it from keys of the core and of features; values are neither converted nor checked."""
        known = installed_tables(cls.extension)
        changed = {key: keys.pop(key) for key in known if key in keys}
        return cls(**keys, tables={key: value for key, value in changed.items() if value != known[key].default})


class Where(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which traces a rule matches; an absent key matches everything.

    Attributes:
        service: Pattern of the publishing service, with `*`, `?` and `[...]`.
        environment: Pattern of the deployment.
        name: Pattern of the operation. No key selects by tag, user or session: give such traffic a name of its own.
        release: Pattern of the service's version.
        model: Pattern of the model that answered.
        has: Fields that must hold something, as `["context"]`. Retrieval spans, and results of the rule's
            `context_tools`, count as context.
    """

    service: str | None = None
    environment: str | None = None
    name: str | None = None
    release: str | None = None
    model: str | None = None
    has: tuple[Has, ...] = ()


class Rule(ExtensibleTable, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One `[[rules]]`: which judges evaluate which traces, and what share of them.

    Attributes:
        name: Name of the rule in metrics and errors.
        judges: Names of judges, as `tracejudge judges` lists them.
        where: Which traces it matches; all unless given.
        unit: What is judged and sampled: a `trace`, or a `session`, which is all traces of a service and environment
            with the same `session_id`. All judges of the rule judge this unit. A rule for sessions matches only traces
            with a `session_id`, and samples a conversation as a whole or not at all.
        rate: Share of matching traces, or of their sessions, that is judged, 0..1. Where several rules choose the same
            judge and model for a trace, it is judged once, at the highest of their rates.
        sample_by: What the rate chooses: each `trace` by itself, or all traces with the same `session_id` together; a
            trace without a session by itself.
        always: What is judged whatever the rate: `error`, `negative_feedback`, `slow`.
        slow_s: Seconds from start to end from which a trace is `slow`.
        model: Name of the `[models.NAME]` or `[cascades.NAME]` that judges, or a list of several models: each gives its
            own verdict, and a combined one is added.
        samples: How often each judge asks a model about a trace, at most 9, at temperature 1 unless the judge sets one.
            The majority, or the median of grades, is the verdict. Models that return probabilities are asked once.
        egress: The only `[models.NAME]` that matching traces may be sent to, by any rule and whether this one samples
            them or not; where several rules restrict it, those that all allow. Any unless given.
        context_tools: Names of tools whose results are the context of matching traces that have no context and no
            retrieval spans, as `["kb_search"]`.
    """

    extension = "rule_keys"
    name: str
    judges: tuple[str, ...]
    where: Where = Where()
    unit: Unit = "trace"
    rate: Share = 1.0
    sample_by: Unit = "trace"
    always: tuple[Always, ...] = ()
    slow_s: Seconds = 10.0
    model: str | tuple[str, ...] = "default"
    samples: Annotated[int, Meta(ge=1, le=9)] = 1
    egress: tuple[str, ...] | None = None
    context_tools: tuple[str, ...] = ()

    @property
    def models(self) -> tuple[str, ...]:
        """The names of all models that judge, or of the cascade."""
        return (self.model,) if isinstance(self.model, str) else self.model

    def first_models(self, aliases: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
        """Name the models that judge first, with the ``aliases`` of the settings."""
        return tuple(aliases.get(name, (name,))[0] for name in self.models)


class JudgeCalibration(Calibration, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One `[[calibrations]]`: how the probabilities of a judge from one model are corrected, and from where they pass.

    It applies to models that return probabilities (`provider = "decisions"` or `"classifier"`). `tracejudge calibrate`
    writes it. A changed calibration is another version of the judge, and begins new series.

    Attributes:
        judge: Name of the judge.
        model: The judge model, as verdicts name it: the `label` of its `[models.NAME]`, or else its `model`.
        metric: The metric; the first one with a pass rule unless given.
        threshold: The lowest corrected probability that passes.
        platt: Slope and intercept of a Platt map, as `[1.8, -0.4]`: logit(p') = slope * logit(p) + intercept.
        isotonic: Points `[p, p']` of an isotonic map with rising p, joined by straight lines.
        judge_version: Version of the judge without a calibration for which it was fitted.
    """

    judge: str
    model: str
    metric: str | None = None

    @property
    def calibration(self) -> Calibration:
        """The correction without the names of what it is for."""
        return Calibration(self.threshold, self.platt, self.isotonic, self.judge_version)

    def metric_of(self, judge: Judge) -> str:
        """Return the name of the metric that it corrects."""
        return self.metric or next(
            (metric.name for metric in judge.metrics if metric.pass_rule is not None), judge.metrics[0].name
        )


class Settings(ExtensibleTable, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that can be configured.

    Attributes:
        redis_url: Where traces, batches, verdicts and accounting are kept: `redis://`, `rediss://` (TLS), `unix://`,
            `redis+sentinel://host1:26379,host2:26379/master-name`, or a Redis Cluster by some of its nodes,
            `redis+cluster://host1:6379,host2:6379`.
        partitions: How many partitions a Redis Cluster has, 8 unless given; the same for all workers, and fixed once a
            worker has run. One Redis, also behind sentinels, has one.
        served_partitions: The partitions that this worker reads, judges and exports, as `0-3`; all unless given. The
            role `monitor` reads all in any case.
        broker_url: Celery's broker, which carries the judging tasks; the same Redis unless set. Required with a
            cluster, for which Celery has no transport.
        prefix: First part of every Redis key and queue name.
        metrics_host: Address of the metrics page; 0.0.0.0 lets other machines read it.
        metrics_port: Port of the metrics page; 0 takes any free one, which is then logged.
        metrics_token_env: Name of the variable with the bearer token that `/metrics` requires; the token itself is
            refused here. `/healthz` and `/readyz` require none.
        metrics_token_file: A file that holds the bearer token instead.
        metrics_user: The user of basic authentication for `/metrics`, in place of a token.
        metrics_password_env: Name of the variable with that user's password.
        metrics_password_file: A file that holds the password instead.
        metrics_tls_cert: Certificate (PEM, with its chain) to serve all these pages over TLS.
        metrics_tls_key: Its private key (PEM, without a passphrase).
        proxy: The HTTP proxy for judge endpoints and receivers, as `http://host:port`; `none` for no proxy.
            Unless set, the environment decides: HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY.
        export_explanations: Put rationales, which may quote traces, on spans and events.
        judge_duplicates: Judge an answer again that was published before with the same trace id and question, within a
            day, as where the SDK and OpenTelemetry tell of the same call.
        sampling_key: Changes which traces a rate samples; the same for all workers.
        user_key: Key of the hash that replaces an end user's id in verdicts; the same for all workers. Unless given,
            a random key is made once and kept in Redis.
        user_key_file: A file that holds the key instead.
        user_keys_former: Earlier keys, by which `forget` finds older verdicts of a person.
        retention: Seconds a trace stays in the stream, also after it was read.
        max_stream: Maximum of entries in the stream of traces.
        max_stream_bytes: Maximum memory of the stream of traces.
        max_trace_bytes: A longer entry is invalid.
        max_outbox: Maximum of entries in the outbox.
        max_outbox_bytes: Maximum memory of the outbox; the oldest entries are removed first, sent or not.
        max_waiting_bytes: Maximum of unfinished work of one judge model. Above it ingest pauses; for a model whose
            circuit is open, its evaluations are shed instead.
        give_up_after: Seconds until an evaluation that cannot be made becomes a dead letter.
        max_dead: Maximum of dead letters; the oldest are removed first.
        max_dead_bytes: Maximum memory of dead letters and their traces; the oldest are removed first. A trace counts
            once for all its dead letters.
        dead_retention: Seconds a dead letter is kept.
        evaluation_timeout: Seconds one evaluation may take with its retries; then it is put back and retried later.
        grace_s: Seconds a stopping worker lets running evaluations finish.
        shift_s: Seconds a Celery task fetches batches of its judge model before another task does.
        task_events: Send Celery's task events, for Flower or celery-exporter; costs about 0.5 ms of CPU a task.
        batch_size: Evaluations in one batch, at most 1,000.
        series_labels: Further labels of quality series.
        max_services: Maximum of services with a label value of their own; further ones are `other`. Each
            is 5 kB of `/metrics` with one judge, and half a millisecond of CPU a scrape.
        log_level: The lowest level that is logged.
        log_verdicts: Which verdicts have a log line: `all`, `failed` (a score did not pass) or `none`.
        roles: Roles that run in this worker.
        redact: What is redacted in texts before judging, as `[redact]`; nothing unless given.
        models: The models that judge, as `[models.NAME]`; without any the built-in lexical heuristic.
        judges: Settings of judges, as `[judges.NAME]`, and definitions of your own judges.
        judges_folder: A folder with further judges of your own, each a file `NAME.toml` with the keys of a
            `[judges.NAME]`; relative to the file that names it.
        calibrations: Corrections of probabilities, as `[[calibrations]]`, one for each judge, model and metric.
        rules: What is judged, as `[[rules]]`; without any every trace, for groundedness (with context), relevance
            and safety.
    """

    redis_url: str = "redis://localhost:6379/0"
    partitions: Annotated[int, Meta(ge=1, le=MAX_PARTITIONS)] | None = None
    served_partitions: str | None = None
    broker_url: str | None = None
    prefix: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]+\Z")] = "tracejudge"
    metrics_host: str = "127.0.0.1"
    metrics_port: Annotated[int, Meta(ge=0, le=65535)] = 9808
    metrics_token_env: str | None = None
    metrics_token_file: str | None = None
    metrics_user: str | None = None
    metrics_password_env: str | None = None
    metrics_password_file: str | None = None
    metrics_tls_cert: str | None = None
    metrics_tls_key: str | None = None
    proxy: str | None = None
    export_explanations: bool = False
    judge_duplicates: bool = False
    sampling_key: Annotated[str, Meta(max_length=MAX_KEY_BYTES)] = "tracejudge"
    user_key: HashKey | None = None
    user_key_file: str | None = None
    user_keys_former: tuple[HashKey, ...] = ()
    retention: Seconds = 24 * HOUR_S
    max_stream: AtLeastOne = 200_000
    max_stream_bytes: Size = 1024 * MIB
    max_trace_bytes: Size = 4 * MIB
    max_outbox: AtLeastOne = 200_000
    max_outbox_bytes: Size = 512 * MIB
    max_waiting_bytes: Size = 256 * MIB
    give_up_after: Seconds = 6 * HOUR_S
    max_dead: AtLeastOne = 100_000
    max_dead_bytes: Size = 512 * MIB
    dead_retention: Seconds = 7 * 24 * HOUR_S
    evaluation_timeout: Seconds = 600.0
    grace_s: Seconds = 20.0
    shift_s: Seconds = 5.0
    task_events: bool = False
    batch_size: BatchSize = 32
    series_labels: tuple[SeriesLabel, ...] = ()
    max_services: AtLeastOne = 200
    log_level: LogLevel = "info"
    log_verdicts: Literal["all", "failed", "none"] = "all"
    roles: tuple[Role, ...] = ("ingest", "judge", "export", "monitor")
    redact: Redact = Redact()
    models: Mapping[str, ModelSettings] = msgspec.field(
        default_factory=lambda: {"default": ModelSettings(provider="lexical")}
    )
    judges: Mapping[str, Mapping[str, object]] = msgspec.field(default_factory=dict)
    judges_folder: Annotated[str, Meta(pattern=r"\S")] | None = None
    calibrations: tuple[JudgeCalibration, ...] = ()
    rules: tuple[Rule, ...] = (
        Rule(name="default, with context", judges=("groundedness",), where=Where(has=("context",))),
        Rule(name="default", judges=("relevance_to_query", "safety")),
    )

    @property
    def is_cluster(self) -> bool:
        """Whether Redis is a cluster."""
        return cluster_url(self.redis_url) is not None

    @property
    def partition_count(self) -> int:
        """How many partitions there are."""
        return self.partitions or (CLUSTER_PARTITIONS if self.is_cluster else 1)

    @property
    def served(self) -> tuple[int, ...]:
        """The numbers of the partitions that this worker serves."""
        if self.served_partitions is None:
            return tuple(range(self.partition_count))
        ranges = (part.partition("-") for part in self.served_partitions.split(","))
        return tuple(sorted({n for first, _, last in ranges for n in range(int(first), int(last or first) + 1)}))

    def __repr__(self) -> str:
        # URLs may hold passwords, and the user key reveals the user behind a hash.
        return f"Settings(prefix={self.prefix!r}, redis={mask_url(self.redis_url)!r}, roles={self.roles!r})"

    @property
    def config_hash(self) -> str:
        """Eight digits that are the same in all processes with one configuration, whatever their roles and ports."""
        # Secrets, and addresses that may hold one, are left out: a hash of a short secret can be guessed.
        # Of the judges' folder the definitions count; its path may be relative.
        left_out = {"tables", "judges_folder", *_PROCESS_SETTINGS, *_SECRET}
        shared = {key: getattr(self, key) for key in self.__struct_fields__ if key not in left_out}
        shared["rules"] = [msgspec.to_builtins(structs.replace(rule, tables={})) | rule.tables for rule in self.rules]
        for table in installed_tables().values():
            value = msgspec.to_builtins(table.read(self), enc_hook=repr)
            own = {key: value[key] for key in value.keys() - _LISTEN} if isinstance(value, dict) else value
            shared |= {} if table.is_secret else {table.key: own}
        document = msgspec.json.encode(shared, enc_hook=repr, order="sorted")
        return hashlib.blake2b(document, digest_size=4).hexdigest()

    @property
    def verdict_tags(self) -> tuple[str, ...]:
        """The names of the tags that verdicts carry."""
        return tuple(dict.fromkeys(collect_all((feature.verdict_tags for feature in installed()), self)))

    @property
    def aliases(self) -> dict[str, tuple[str, ...]]:
        """Further names that a rule may write as `model`, each with its models in the order of judging."""
        named = (feature.aliases(self) for feature in installed() if feature.aliases is not None)
        return {name: models for aliases in named for name, models in aliases.items()}

    def queue(self, label: str) -> str:
        """Name the Celery queue of a judge model; `code` and `panel` have one each."""
        return f"{self.prefix}.judge.{label}"

    @property
    def ledger_ttl_s(self) -> int:
        """How long a finished evaluation is remembered: a day longer than its trace can come back."""
        return int(self.retention + 24 * HOUR_S)


# The core declares these keys of features, because its graders know panels, and it measures conversations.
# fmt: off
COMBINE: Final[Table[Combine | None]] = Table("combine", Combine | None, None,
    "How the verdicts of several models are combined: `majority`, `mean`, `min`, `max` or `all`.")
SESSION_MAX: Final = Table("session_max", Annotated[int, Meta(ge=1, le=1_000)], 50,
    "Traces after which a conversation is judged at once; of a longer one the newest as many are kept and shown to the "
    "judge.")
MAX_SESSION_BYTES: Final = Table("max_session_bytes", Size, 256 * MIB,
    "Maximum of gathered conversations; above it those with the earliest end of their waiting time are judged early "
    "and dropped.")
