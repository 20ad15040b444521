"""Settings of receivers, `[receivers.NAME]`: one class per kind; each key is checked for its kind."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Final, Literal, get_args
from urllib.parse import urlsplit

from msgspec import Meta, Struct

from judges.models.http import is_endpoint
from tracejudge.redis_url import has_misplaced_login

# A secret pasted in place of the variable's name has other characters, as a rule.
_VARIABLE_NAME: Final = re.compile(r"[A-Z_][A-Z0-9_]{0,100}")
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_AS_NAME: Final = "give the name of the variable that holds it, as PHOENIX_API_KEY, never the value itself"
HttpUrl = Annotated[str, Meta(extra={"schemes": ("http", "https")})]
_Timeout = Annotated[float, Meta(gt=0, le=600)]


def base_url(url: str, paths: tuple[str, ...]) -> str:
    """Return an address without the path that requests add to it, and without a slash at its end."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/")
    own = max((own for own in paths if path.endswith(own)), key=len, default="")
    return parts._replace(path=path.removesuffix(own).rstrip("/")).geturl()


class Secret(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where the value of a header is kept.

    Attributes:
        env: Name of a variable that holds it.
        file: A file that holds it and nothing else.
    """

    env: str | None = None
    file: str | None = None


class ReceiverSettings(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What every receiver has.

    Attributes:
        services: Patterns of the services whose verdicts it gets, with `*`; all unless given.
        judges: Patterns of the judges whose verdicts it gets; all unless given.
        only: `all` verdicts, or only `failed` ones.
        export_explanations: Send rationales, which may quote traces; as the setting of the same name unless given.
    """

    tag: ClassVar[str | None] = None
    """The tag of a trace by which the receiver knows it."""
    services: tuple[str, ...] = ()
    judges: tuple[str, ...] = ()
    only: Literal["all", "failed"] = "all"
    export_explanations: bool | None = None

    def faults(self) -> Iterator[tuple[bool, str]]:
        """Check what no type shows: whether something is wrong, and the text of the error from the key on."""
        keys = (key for key in self.__struct_fields__ if key.endswith("_env"))
        for key in keys:
            variable, file = getattr(self, key), key.replace("_env", "_file")
            yield variable is not None and _VARIABLE_NAME.fullmatch(variable) is None, f"{key}: {_AS_NAME}"
            both = variable is not None and getattr(self, file, None) is not None
            yield both, f"{file}: goes in place of {key}; take one of them out"

    @property
    def kind(self) -> str:
        """The kind, as the configuration names it."""
        return str(self.__struct_config__.tag)


class HttpReceiver(ReceiverSettings, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What every receiver that is reached by HTTP has.

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
    url: HttpUrl | None = None
    api_key_env: str | None = None
    api_key_file: str | None = None
    headers: Mapping[str, Secret] = {}
    timeout: _Timeout = 30.0
    ca_file: str | None = None
    client_cert: str | None = None
    client_key: str | None = None

    def faults(self) -> Iterator[tuple[bool, str]]:
        """Check what no type shows."""
        yield from super().faults()
        yield (
            self.url is None and self.needs_url,
            "url: is missing; set the address of the receiver, as http://host:port",
        )
        has_scheme = self.url is None or "://" in self.url
        yield not has_scheme, "url: has no scheme; write http:// or https:// before the host"
        is_wrong = self.url is not None and (has_misplaced_login(self.url) or not is_endpoint(self.url))
        yield is_wrong, "url: must be http://host:port or https://host:port"
        path = "" if is_wrong or not self.paths else urlsplit(base_url(self.url or "", self.paths)).path
        for other, kind in _APIS.items():
            fix = f"set the kind {kind}, or leave the path out" if kind else "leave the path out"
            yield kind != self.kind and path.endswith(other), f"url: ends in {other}, the path of another API; {fix}"
        for name, source in self.headers.items():
            is_name = _HEADER_NAME.fullmatch(name) is not None
            yield not is_name, f"headers: {name!r} is no name of a header; use letters, digits and -"
            yield (source.env is None) == (source.file is None), f"headers.{name}: set env or file, one of them"
            is_named = source.env is None or _VARIABLE_NAME.fullmatch(source.env) is not None
            yield not is_named, f"headers.{name}.env: {_AS_NAME}"
        yield (
            self.client_key is not None and self.client_cert is None,
            "client_key: goes with client_cert; set it as well",
        )


class OtlpSettings(
    HttpReceiver, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind", tag="otlp"
):
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

    placement: Literal["linked", "child"] = "linked"
    logs: Literal["auto", "on", "off"] = "auto"
    resource: Mapping[str, str] = {}
    needs_url: ClassVar[bool] = False
    paths = ("/v1/traces", "/v1/logs", "/v1/metrics")


class PhoenixSettings(
    HttpReceiver, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind", tag="phoenix"
):
    """Arize Phoenix: annotations of spans, traces, sessions and documents."""

    paths = tuple(f"/v1/{unit}_annotations" for unit in ("span", "trace", "session", "document"))


class LangfuseSettings(
    HttpReceiver, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind", tag="langfuse"
):
    """Langfuse: scores. `api_key_env` names the secret key.

    Attributes:
        public_key_env: Name of the variable that holds the public key.
    """

    paths = ("/api/public/ingestion", "/api/public")
    public_key_env: str | None = None


class MlflowSettings(
    HttpReceiver, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind", tag="mlflow"
):
    """MLflow: assessments of traces.

    Attributes:
        experiment: Id of the experiment that holds the traces.
    """

    paths = ("/api/3.0/mlflow/traces", "/api/3.0/mlflow")
    experiment: str | None = None


class OpikSettings(
    HttpReceiver, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind", tag="opik"
):
    """Opik: feedback scores of traces that `tags.opik_trace_id` names.

    Attributes:
        workspace: The workspace, of Opik's cloud.
        project: The project of the traces.
    """

    tag = "opik_trace_id"
    paths = ("/v1/private/traces/feedback-scores", "/v1/private/traces", "/v1/private")
    workspace: str | None = None
    project: str | None = None


class LangsmithSettings(
    HttpReceiver, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind", tag="langsmith"
):
    """LangSmith: feedback on runs that `tags.langsmith_run_id` names."""

    tag = "langsmith_run_id"
    paths = ("/feedback",)


class WebhookSettings(
    HttpReceiver, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind", tag="webhook"
):
    """Any server: signed JSON.

    Attributes:
        secret_env: Name of the variable that holds the key of the signature; unsigned without.
        secret_file: A file that holds it instead.
    """

    secret_env: str | None = None
    secret_file: str | None = None


class FileSettings(
    ReceiverSettings,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    kw_only=True,
    tag_field="kind",
    tag="file",
):
    """An archive: JSON lines by day.

    Attributes:
        path: The folder.
        compress: Compress the files of past days.
        keep_days: Days after which a file is deleted; never unless given.
    """

    path: str
    compress: bool = True
    keep_days: Annotated[int, Meta(ge=1)] | None = None


class StdoutSettings(
    ReceiverSettings, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind", tag="stdout"
):
    """JSON lines on standard output."""


Receiver = (
    OtlpSettings
    | PhoenixSettings
    | LangfuseSettings
    | MlflowSettings
    | OpikSettings
    | LangsmithSettings
    | WebhookSettings
    | FileSettings
    | StdoutSettings
)
KINDS: Final[Mapping[str, type[ReceiverSettings]]] = {
    str(kind.__struct_config__.tag): kind for kind in get_args(Receiver)
}
_APIS: Final[Mapping[str, str]] = {
    path: name for name, kind in KINDS.items() if issubclass(kind, HttpReceiver) for path in kind.paths
} | {"/otel": "otlp", **dict.fromkeys(("/api/2.0/mlflow", "/chat/completions", "/responses", "/v1/messages"), "")}
"""Ends of addresses by the kind of receiver that they belong to; empty for no receiver."""
