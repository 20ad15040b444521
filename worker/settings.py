"""The configuration: one typed, frozen object, built once at the start; nothing else reads the environment.

SettingsError is the one error: its text is one line that names the place, the key and the mend. No value of a
key is repeated in it where that value could be a secret.
"""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from judges.combine import Combine
from judges.models.model import ModelSettings
from worker.addresses import address

__all__ = ["Redact", "Rule", "Settings", "SettingsError", "Where"]

Always = Literal["error", "negative_feedback"]
Has = Literal[
    "input", "messages", "context", "expected_response", "expected_facts", "guidelines", "tool_calls", "spans"
]
SeriesLabel = Literal["name", "model", "release"]
LogLevel = Literal["debug", "info", "warning", "error"]
Share = Annotated[float, Meta(ge=0, le=1)]
AtLeastOne = Annotated[int, Meta(ge=1)]
Size = Annotated[int, Meta(ge=1, le=1 << 50)]
Seconds = Annotated[float, Meta(gt=0, le=10 * 365 * 86_400)]

HOUR_S: Final = 3600.0
MIB: Final = 1024 * 1024


class SettingsError(ValueError):
    """The configuration cannot serve."""

    def __init__(self, message: str) -> None:
        """Keep the message on one line, whatever names it quotes."""
        super().__init__("".join(sign if sign.isprintable() else "?" for sign in message))


class Where(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which traces a rule is for; what is left out matches everything.

    Attributes:
        service: Pattern of the publishing service, with `*`, `?` and `[...]`.
        environment: Pattern of the deployment.
        name: Pattern of the operation.
        release: Pattern of the service's version.
        model: Pattern of the model that answered.
        has: Fields that must hold something, as `["context"]`.
    """

    service: str | None = None
    environment: str | None = None
    name: str | None = None
    release: str | None = None
    model: str | None = None
    has: tuple[Has, ...] = ()


class Rule(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One `[[rules]]`: which judges look at which traces, and at what share of them.

    Attributes:
        name: What the rule is for; it names the rule in metrics and errors.
        judges: Names of judges, as `tracejudge judges` lists them.
        where: Which traces it is for; all unless given.
        rate: Share of matching traces that is judged, 0..1.
        always: What is judged whatever the rate: `error`, `negative_feedback`.
        model: Name of the `[models.NAME]` that judges, or a list of several: each gives a verdict of its own, and a
            combined one is added.
        combine: How the verdicts of several models are combined: `majority`, `mean`, `min`, `max` or `all`.
        egress: The only `[models.NAME]` that matching traces may be sent to, whichever rule wants it and whether this
            one chooses them or not; of several such rules what all allow. Any unless given.
    """

    name: str
    judges: tuple[str, ...]
    where: Where = Where()
    rate: Share = 1.0
    always: tuple[Always, ...] = ()
    model: str | tuple[str, ...] = "default"
    combine: Combine | None = None
    egress: tuple[str, ...] | None = None

    @property
    def models(self) -> tuple[str, ...]:
        """The names of all models that judge."""
        return (self.model,) if isinstance(self.model, str) else self.model


class Redact(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`[redact]`: what is taken out of texts before a judge model, or a span with explanations, gets them.

    Attributes:
        builtin: Take out what has a form of its own: keys and tokens of well-known providers, private keys,
            passwords in URLs, e-mail addresses, card numbers, IBANs.
        patterns: Regular expressions of Python; what fits one is taken out, up to 1,024 signs at once. One that
            could run away on a hostile text stops the start.
        sign: What stands in place of what fits a pattern.
    """

    builtin: bool = False
    patterns: tuple[str, ...] = ()
    sign: str = "[redacted]"


class Settings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that can be configured.

    Attributes:
        redis_url: Where traces, batches, verdicts and the books live: `redis://`, `rediss://` (TLS), `unix://`, or
            `redis+sentinel://host1:26379,host2:26379/master-name`.
        broker_url: Where wake-up messages go; the same Redis unless set.
        prefix: First part of every Redis key, and of the queue's name.
        metrics_host: Address of the metrics page; 0.0.0.0 lets other machines read it.
        metrics_port: 0 takes any free one, which is then logged.
        metrics_token_env: Name of the variable with the bearer token that `/metrics` asks for; the token itself is
            refused here. `/healthz` and `/readyz` ask for nothing.
        metrics_token_file: A file that holds the bearer token instead.
        metrics_user: The user of basic authentication for `/metrics`, in place of a token.
        metrics_password_env: Name of the variable with that user's password.
        metrics_password_file: A file that holds the password instead.
        metrics_tls_cert: Certificate (PEM, with its chain) by which all these pages are served over TLS.
        metrics_tls_key: Its private key (PEM, without a passphrase).
        otlp_endpoint: An OTLP/HTTP receiver, without `/v1/traces`; without it nothing is sent.
        export_explanations: Put rationales, which may quote traces, on spans and events.
        sampling_key: Changes which traces a rate chooses; the same for all workers.
        retention: Seconds a trace stays in the stream, also after it was read.
        max_stream: Entries in the stream of traces.
        max_stream_bytes: Memory of the stream of traces.
        max_trace_bytes: A longer entry is invalid.
        max_outbox: Entries in the outbox.
        max_waiting_bytes: Chosen and unfinished work of one judge model. Past it reading pauses; for a model whose
            circuit is open, choosing for it stops.
        give_up_after: Seconds until an evaluation that cannot be made becomes a dead letter.
        max_dead: Dead letters that are kept; the oldest go first.
        dead_retention: Seconds a dead letter is kept after it was given up.
        evaluation_timeout: How long one evaluation may take with its retries; then it is put back and tried again.
        late_feedback_wait: How long feedback on earlier traces is gathered before these are sought in the stream.
        grace_s: How long a stopping worker lets running evaluations finish.
        threads: Size of Celery's pool, whose threads hear wake-ups; calls in flight are bounded by `max_in_flight`.
        batch_size: Evaluations in one batch.
        series_labels: Further labels of quality series.
        max_services: Services that get a label of their own.
        log_level: What is logged.
        roles: Stages that run in this worker.
        redact: What is taken out of texts before judging, as `[redact]`; nothing unless given.
        models: The models that judge, as `[models.NAME]`; without any the built-in lexical heuristic.
        judges: Settings of judges, as `[judges.NAME]`, and judges of your own, each with what it asks.
        judges_folder: A folder with further judges of your own, each a file `NAME.toml` that holds what a
            `[judges.NAME]` would; relative to the file that says so.
        rules: What is judged, as `[[rules]]`; without any every trace, for groundedness (with context), relevance
            and safety.
    """

    redis_url: str = "redis://localhost:6379/0"
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
    otlp_endpoint: str | None = None
    export_explanations: bool = False
    sampling_key: Annotated[str, Meta(max_length=64)] = "tracejudge"
    retention: Seconds = 24 * HOUR_S
    max_stream: AtLeastOne = 200_000
    max_stream_bytes: Size = 1024 * MIB
    max_trace_bytes: Size = 4 * MIB
    max_outbox: AtLeastOne = 200_000
    max_waiting_bytes: Size = 256 * MIB
    give_up_after: Seconds = 6 * HOUR_S
    max_dead: AtLeastOne = 100_000
    dead_retention: Seconds = 7 * 24 * HOUR_S
    evaluation_timeout: Seconds = 600.0
    late_feedback_wait: Seconds = 60.0
    grace_s: Seconds = 20.0
    threads: AtLeastOne = 64
    batch_size: AtLeastOne = 32
    series_labels: tuple[SeriesLabel, ...] = ()
    max_services: AtLeastOne = 200
    log_level: LogLevel = "info"
    roles: tuple[Literal["ingest", "judge", "export"], ...] = ("ingest", "judge", "export")
    redact: Redact = Redact()
    models: Mapping[str, ModelSettings] = msgspec.field(
        default_factory=lambda: {"default": ModelSettings(provider="lexical")}
    )
    judges: Mapping[str, Mapping[str, object]] = msgspec.field(default_factory=dict)
    judges_folder: Annotated[str, Meta(pattern=r"\S")] | None = None
    rules: tuple[Rule, ...] = (
        Rule(name="default, with context", judges=("groundedness",), where=Where(has=("context",))),
        Rule(name="default", judges=("relevance_to_query", "safety")),
    )

    def __repr__(self) -> str:
        # URLs may hold passwords, and the sampling key tells which user stands behind a hash.
        return f"Settings(prefix={self.prefix!r}, redis={address(self.redis_url)!r}, roles={self.roles!r})"

    @property
    def queue(self) -> str:
        """Name of the Celery queue."""
        return f"{self.prefix}.judge"

    @property
    def ledger_ttl_s(self) -> int:
        """How long a finished evaluation is remembered: a day longer than its trace can come back."""
        return int(self.retention + 24 * HOUR_S)
