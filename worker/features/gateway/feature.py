"""The gateway: traces over HTTP, as OTLP and as plain JSON. Its settings `[gateway]`, keys and command."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from judges.core.faults import Fault
from worker.core.config.serving import Secret, Tls
from worker.core.config.settings import MIB, AtLeastOne, Seconds, Settings, Size
from worker.core.features import Command, Feature, Table
from worker.core.storage.keys import Key, KeySpace


class Token(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`[gateway.tokens.NAME]`: a bearer token of the gateway, and what its clients may do.

    Attributes:
        token_env: Name of the variable with the token; the token itself is refused here.
        token_file: A file that holds the token instead.
        service: The service of everything that this token sends, whatever the data says. Unless set, the data names
            it: `service.name` of OpenTelemetry's resource, or `service` in JSON.
        rate: Maximum of spans, log records and JSON objects a second, in each process; above it the reply is 429.
            Unlimited unless set.
    """

    token_env: str | None = None
    token_file: str | None = None
    service: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    rate: Annotated[float, Meta(gt=0)] | None = None


class Gateway(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`[gateway]`: what `tracejudge gateway` listens to and accepts.

    Attributes:
        host: Address to listen on; 0.0.0.0 admits other machines, which requires tokens.
        port: Port of the intake; 0 takes any free one, which is then logged.
        metrics_port: Port of the gateway's metrics, health and readiness pages at `metrics_host`; 0 takes any free one.
        tls_cert: Certificate (PEM, with its chain) to serve the intake over TLS.
        tls_key: Its private key (PEM, without a passphrase).
        tokens: Bearer tokens, as `[gateway.tokens.NAME]`; required unless `host` is a loopback address.
        cors_origins: Origins of browsers that may send, as `["https://app.example.com"]`; none unless given.
        gather_s: Seconds without a further span after which a trace that has its root span is joined and published;
            four times as long without a root.
        gather_max_s: Seconds after its first span at which a trace is published in any case.
        max_body_bytes: Maximum of a request's body, decompressed; above it the reply is 413.
        max_trace_bytes: Maximum of the spans gathered of one trace; further ones are refused and counted.
        max_gather_bytes: Maximum of all gathered spans in Redis; above it the reply is 429.
        max_connections: Maximum of open connections in each process; further ones are refused.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 4318
    metrics_port: Annotated[int, Meta(ge=0, le=65535)] = 9809
    tls_cert: str | None = None
    tls_key: str | None = None
    tokens: Mapping[str, Token] = msgspec.field(default_factory=dict)
    cors_origins: tuple[str, ...] = ()
    gather_s: Seconds = 5.0
    gather_max_s: Seconds = 60.0
    max_body_bytes: Size = 20 * MIB
    max_trace_bytes: Size = 8 * MIB
    max_gather_bytes: Size = 256 * MIB
    max_connections: AtLeastOne = 4_000


GATEWAY: Final = Table("gateway", Gateway, Gateway(), "What `tracejudge gateway` accepts, as `[gateway]`.")


def _faults(settings: Settings) -> Iterator[Fault]:
    gateway = GATEWAY.read(settings)
    for name, token in gateway.tokens.items():
        yield from Secret.from_table(token, f"gateway.tokens.{name}.token_").faults(is_needed=True)
    yield from Tls.from_table(gateway, "gateway.tls_").faults()
    if gateway.gather_max_s < gateway.gather_s:
        yield Fault("gateway.gather_max_s", "must be at least gather_s", code="conflict")
    for origin in gateway.cors_origins:
        if re.fullmatch(r"https?://[^/\s*@?#]+", origin) is None:
            what = "each must be an origin without a path, as https://app.example.com"
            yield Fault("gateway.cors_origins", what)


class GatewayKeys(KeySpace):
    gather = Key("gather", "Hash of the bytes of all gathered spans; prefix of ``gather:<trace id>``. No TTL.")
    gather_due = Key(
        "gather:due",
        "Sorted set of traces whose spans are gathered by the time when they are joined, in milliseconds. No TTL.",
    )

    def gathered(self, trace_id: str) -> str:
        """Hash of the spans that the gateway gathers of one trace, see scripts/gather.lua; TTL of a day."""
        return f"{self.gather}:{trace_id}"


_COMMANDS: Final = {
    "gateway": Command("worker.features.gateway.command", "Accept traces over HTTP: OTLP and plain JSON")
}
FEATURE: Final = Feature(
    name="gateway",
    tables=(GATEWAY,),
    faults=_faults,
    keys=GatewayKeys,
    scripts=__package__,
    commands=_COMMANDS,
    page_metrics="worker.features.gateway.admission.GatewayMetrics",
    eraser="worker.features.gateway.command.SpanEraser",
)
