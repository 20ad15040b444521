"""Settings of receivers, `[receivers.NAME]`: what all kinds have, and OpenTelemetry; features add further kinds."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, ClassVar, Final, Literal
from urllib.parse import urlsplit

from msgspec import Meta, Struct, structs

from judges.core.faults import Fault, fault_of
from judges.core.model import HeaderSource
from judges.models.credentials import HEADER_NAME, ProxyRefusedError, is_endpoint, proxy_for
from tracejudge.redis_url import has_misplaced_login
from worker.core.config.checks import table_name_faults
from worker.core.config.serving import QUOTING, Secret
from worker.core.config.settings import Settings
from worker.core.features import Table, installed_tables

_Timeout = Annotated[float, Meta(gt=0, le=600)]


def base_url(url: str, paths: tuple[str, ...]) -> str:
    """Return an address without the path that requests add to it, and without a slash at its end."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/")
    own = max((own for own in paths if path.endswith(own)), key=len, default="")
    return parts._replace(path=path.removesuffix(own).rstrip("/")).geturl()


def url_fault(key: str, url: str) -> Fault | None:
    """Check the address of an HTTP server; the URL, which may hold a password, is never repeated."""
    if has_misplaced_login(url):
        return fault_of(key, QUOTING)
    if "://" not in url:
        return Fault(key, "has no scheme", "write http:// or https:// before the host")
    return None if is_endpoint(url) else Fault(key, "must be http://host:port or https://host:port")


class ReceiverSettings(
    Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True, tag_field="kind"
):
    """Settings of every receiver.

    Attributes:
        services: Patterns of the services whose verdicts it gets, with `*`; all unless given.
        judges: Patterns of the judges whose verdicts it gets; all unless given.
        only: `all` verdicts, or only `failed` ones.
        export_explanations: Send rationales, which may quote traces; as the setting of the same name unless given.
    """

    exporter: ClassVar[str]
    """The ``ReceiverExporter`` by its full name; it is imported if a receiver of the kind is configured."""
    trace_tag: ClassVar[str | None] = None  # The tag of a trace by which the receiver knows it.
    services: tuple[str, ...] = ()
    judges: tuple[str, ...] = ()
    only: Literal["all", "failed"] = "all"
    export_explanations: bool | None = None

    def faults(self, key: str) -> Iterator[Fault]:
        """Check rules that no type expresses; ``key`` is the table with a dot."""
        for name in self.__struct_fields__:
            if name.endswith("_env"):
                yield from Secret.from_table(self, f"{key}{name.removesuffix('env')}").faults()

    @property
    def kind(self) -> str:
        """The kind, as the configuration names it."""
        return str(self.__struct_config__.tag)


class HttpReceiver(ReceiverSettings, frozen=True, kw_only=True):
    """Settings of every receiver that is reached by HTTP.

    Attributes:
        url: Its address.
        api_key_env: Name of the variable that holds the key; the key itself is refused here.
        api_key_file: A file that holds the key instead.
        headers: Further headers, as `{ x-team = { env = "TEAM" } }` or `{ x-team = { file = "/run/secrets/team" } }`.
        timeout: Seconds one request may take.
        ca_file: Certificates (PEM) of the authorities that are trusted, in place of those that the environment names.
        client_cert: Certificate (PEM) by which the worker identifies itself.
        client_key: Its private key (PEM, without a passphrase).
    """

    needs_url: ClassVar[bool] = True
    paths: ClassVar[tuple[str, ...]] = ()
    """Ends of addresses that belong to the API of the kind, and that requests add."""
    url: str | None = None
    api_key_env: str | None = None
    api_key_file: str | None = None
    headers: Mapping[str, HeaderSource] = {}
    timeout: _Timeout = 30.0
    ca_file: str | None = None
    client_cert: str | None = None
    client_key: str | None = None

    def secrets(self, key: str) -> dict[str, Secret]:
        """Return where the values of the headers are kept."""
        sources = self.headers.items()
        return {name: Secret(f"{key}headers.{name}.", source.env, source.file) for name, source in sources}

    def faults(self, key: str) -> Iterator[Fault]:
        """Check rules that no type expresses."""
        yield from super().faults(key)
        if self.url is None and self.needs_url:
            fix = "set the address of the receiver, as http://host:port"
            yield Fault(f"{key}url", "is missing", fix, "missing-key")
        if self.url is not None:
            fault = url_fault(f"{key}url", self.url)
            yield from (fault,) if fault is not None else self._path_faults(f"{key}url", self.url)
        for name, secret in self.secrets(key).items():
            if HEADER_NAME.fullmatch(name) is None:
                yield Fault(f"{key}headers", f"{name!r} is no name of a header", "use letters, digits and -")
            yield from secret.faults(is_needed=True)
        if self.client_key is not None and self.client_cert is None:
            yield Fault(f"{key}client_key", "goes with client_cert", "set it as well", "conflict")

    def _path_faults(self, key: str, url: str) -> Iterator[Fault]:
        path = urlsplit(base_url(url, self.paths)).path if self.paths else ""
        for other, kind in _apis().items():
            if kind != self.kind and path.endswith(other):
                fix = f"set the kind {kind}, or leave the path out" if kind else "leave the path out"
                yield Fault(key, f"ends in {other}, the path of another API", fix, "conflict")


class OtlpSettings(HttpReceiver, frozen=True, tag="otlp"):
    """An OTLP/HTTP receiver; `url` is without `/v1/traces`.

    Without `url` the variables of OpenTelemetry say where it is: `OTEL_EXPORTER_OTLP_ENDPOINT`, `_HEADERS`, `_TIMEOUT`,
    `_CERTIFICATE`, `_CLIENT_CERTIFICATE` and `_CLIENT_KEY`, each also as `OTEL_EXPORTER_OTLP_TRACES_…`.

    Attributes:
        resource: Attributes of the resource that sends spans, as `{ "openinference.project.name" = "judges" }`; they
            and `service.name = "tracejudge"` keep scores apart from the traces of services. `OTEL_RESOURCE_ATTRIBUTES`
            and `OTEL_SERVICE_NAME` add to them.
        placement: Where the spans of evaluations stand: `linked`, in traces of their own with a link to the judged
            span, or as its `child` in the user's own trace.
        logs: Whether events are sent to `/v1/logs`; `auto` until the receiver answers that it has no such path.
    """

    exporter = "worker.base.delivery.otlp_receiver.OtlpExporter"
    placement: Literal["linked", "child"] = "linked"
    logs: Literal["auto", "on", "off"] = "auto"
    resource: Mapping[str, str] = {}
    needs_url: ClassVar[bool] = False
    paths = ("/v1/traces", "/v1/logs", "/v1/metrics")


def kinds_of(*kinds: type[ReceiverSettings]) -> dict[str, type[ReceiverSettings]]:
    """Return kinds of receivers by their names."""
    return {str(kind.__struct_config__.tag): kind for kind in kinds}


OTLP_ENDPOINT: Final[Table[str | None]] = Table(
    "otlp_endpoint",
    str | None,
    None,
    "An OTLP/HTTP receiver, without `/v1/traces`; without it nothing is sent.",
    is_secret=True,
)
RECEIVERS: Final[Table[Mapping[str, ReceiverSettings]]] = Table(
    "receivers",
    ReceiverSettings,
    {},
    "Where verdicts are sent, as `[receivers.NAME]`.",
    is_named=True,
    kinds=kinds_of(OtlpSettings),
)


@cache
def _apis() -> Mapping[str, str]:
    """Return ends of addresses with the kind of receiver that they belong to; empty for no receiver."""
    kinds = installed_tables()[RECEIVERS.key].kinds.items()
    others = ("/api/2.0/mlflow", "/chat/completions", "/responses", "/v1/messages")
    paths = {path: name for name, kind in kinds if issubclass(kind, HttpReceiver) for path in kind.paths}
    return {**paths, "/otel": "otlp", **dict.fromkeys(others, "")}


def all_receivers(settings: Settings) -> dict[str, ReceiverSettings]:
    """Return the receivers by name; the receiver of `otlp_endpoint` is `otel`."""
    endpoint = OTLP_ENDPOINT.read(settings)
    return {**({} if endpoint is None else {"otel": OtlpSettings(url=endpoint)}), **RECEIVERS.read(settings)}


def receiver_faults(settings: Settings) -> Iterator[Fault]:
    """Check names, addresses and credentials of receivers, and `otlp_endpoint`, which is the address of one."""
    receivers, endpoint = RECEIVERS.read(settings), OTLP_ENDPOINT.read(settings)
    for name in receivers:
        if name == "otel":
            fix = "choose another name"
            yield Fault(f"receivers.{name}", "otel is the receiver of otlp_endpoint", fix, "conflict")
        yield from table_name_faults(f"receivers.{name}", name)
    tables = {f"receivers.{name}.": options for name, options in receivers.items()}
    if endpoint is not None:
        tables = {"": OtlpSettings(url=endpoint), **tables}
    for key, options in tables.items():
        faults = [*options.faults(key)]
        try:
            if not faults:
                proxy_for(getattr(options, "url", None) or "http://localhost", settings.proxy)
        except ProxyRefusedError as error:
            faults.append(fault_of(f"{key}url", str(error)))
        yield from (structs.replace(fault, key=fault.key if key else "otlp_endpoint") for fault in faults)
