"""Sends verdicts to an OTLP receiver as spans and events.

A receiver that is down delays them; they wait in the outbox, up to its cap. Redelivered verdicts are the same spans.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from typing import Final

import structlog
from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.logs.v1.logs_pb2 import ResourceLogs, ScopeLogs
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans
from opentelemetry.sdk.environment_variables import OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_TIMEOUT
from opentelemetry.sdk.resources import OTELResourceDetector
from opentelemetry.util.re import parse_env_headers

from judges.core.verdict import Verdict
from judges.models.credentials import is_endpoint
from tracejudge.redis_url import mask_url
from worker.base.delivery.channel import Answer, Channel, Item
from worker.base.delivery.http_exporter import CHECK_TIMEOUT_S, HttpExporter, describe_reply
from worker.base.delivery.otlp_encoding import (
    SCHEMA_URL,
    SCOPE,
    VerdictEncoder,
    encode_field,
    encode_repeated,
    key_values,
)
from worker.base.delivery.receiver_client import ABSENT, Destination, ReceiverClient, Reply, Request
from worker.base.delivery.settings import OtlpSettings, all_receivers, base_url
from worker.base.doctor.finding import Finding, ok
from worker.core.config.graders import find_providers
from worker.core.config.settings import Settings, SettingsError
from worker.core.storage.client import Store
from worker.core.telemetry.metrics import Metrics


class RequestEncoder:
    """Encodes OTLP requests of one resource."""

    def __init__(self, resource: Mapping[str, str]) -> None:
        sender, scope = Resource(attributes=key_values(resource)), InstrumentationScope(name=SCOPE)
        self._resource_spans = ResourceSpans(resource=sender, schema_url=SCHEMA_URL).SerializeToString()
        self._scope_spans = ScopeSpans(scope=scope, schema_url=SCHEMA_URL).SerializeToString()
        self._resource_logs = ResourceLogs(resource=sender, schema_url=SCHEMA_URL).SerializeToString()
        self._scope_logs = ScopeLogs(scope=scope, schema_url=SCHEMA_URL).SerializeToString()

    def traces(self, spans: bytes) -> bytes:
        """Encode an `ExportTraceServiceRequest` from the fields that ``span_fields`` makes."""
        scope = self._scope_spans + spans
        resource = self._resource_spans + encode_field(ResourceSpans.SCOPE_SPANS_FIELD_NUMBER, scope)
        return encode_field(ExportTraceServiceRequest.RESOURCE_SPANS_FIELD_NUMBER, resource)

    def logs(self, records: bytes) -> bytes:
        """Encode an `ExportLogsServiceRequest` from the fields that ``record_fields`` makes."""
        scope = self._scope_logs + records
        resource = self._resource_logs + encode_field(ResourceLogs.SCOPE_LOGS_FIELD_NUMBER, scope)
        return encode_field(ExportLogsServiceRequest.RESOURCE_LOGS_FIELD_NUMBER, resource)


span_fields = partial(encode_repeated, ScopeSpans.SPANS_FIELD_NUMBER)
record_fields = partial(encode_repeated, ScopeLogs.LOG_RECORDS_FIELD_NUMBER)
log = structlog.get_logger("tracejudge.export")
_REQUEST_HEADERS: Final = {"content-type": "application/x-protobuf"}
_RESOURCE: Final = {"service.name": "tracejudge", "service.version": version("tracejudge-worker")}
_OUR_PROTOCOL: Final = "http/protobuf"
_LEAST_CHECK_S: Final = 0.5


class _Signal(Channel):
    """One signal: its path, the encoder of its requests, and the type of its answer. Items are whole verdicts."""

    def __init__(self, path: str, encode: Callable[[bytes], bytes], response: type[Message]) -> None:
        self.path = path
        self._encode = encode
        self._response = response

    def request(self, items: Sequence[Item]) -> Request:
        return Request(self.path, self._encode(b"".join([item.body for item in items])), _REQUEST_HEADERS)

    def answer(self, items: Sequence[Item], reply: Reply) -> Answer | None:
        """Read how many items of an accepted request the receiver rejected."""
        if reply.kind != "accepted":
            return None
        if reply.body is None:
            return Answer(is_read=False)
        answer = self._response()
        try:
            if "json" in reply.headers.get("content-type", ""):
                json_format.Parse(reply.body, answer, ignore_unknown_fields=True)
            else:
                answer.ParseFromString(reply.body)
        except (DecodeError, json_format.ParseError, ValueError, RecursionError):
            return Answer(is_read=False)
        # rejected_spans or rejected_log_records, by the signal
        counts = {field.name: value for field, value in answer.partial_success.ListFields()}  # type: ignore[attr-defined]
        rejected = sum(value for name, value in counts.items() if name.startswith("rejected_"))
        possible = 0 <= rejected <= sum(item.size for item in items)
        # The receiver does not say which were rejected, and each may be of another verdict.
        return Answer(min(rejected, len(items))) if possible else Answer(is_read=False)


class OtlpExporter(HttpExporter):
    """Spans and events of evaluations. The receiver of `otlp_endpoint` reads the group `otel`."""

    expected = "an OTLP/HTTP receiver that takes protobuf, without /v1/traces"
    keeps_there = "the spans and events that were sent: erase them there, by trace id"
    protocol = "OTLP"
    drop_reasons = ("unreadable", "rejected", "server_error", "partial_success")
    content = "protobuf"
    probe = Request("/v1/traces", b"", _REQUEST_HEADERS)

    def __init__(self, settings: Settings, store: Store, metrics: Metrics, name: str) -> None:
        super().__init__(settings, store, metrics, name)
        options = all_receivers(settings)[name]
        assert isinstance(options, OtlpSettings)  # noqa: S101 - by its kind
        self._encoder = VerdictEncoder(
            find_providers(settings),
            models={model.judge_model: model.model for model in settings.models.values() if model.model is not None},
            explain=self.explanation,
            is_child=options.placement == "child",
        )
        self._logs_wanted = options.logs
        # The variables of OpenTelemetry name the resource of the whole process.
        detected = {name: str(value) for name, value in OTELResourceDetector().detect().attributes.items()}
        encoder = RequestEncoder({**_RESOURCE, **detected, **options.resource})
        self._traces = _Signal("/v1/traces", encoder.traces, ExportTraceServiceResponse)
        self._logs = _Signal("/v1/logs", encoder.logs, ExportLogsServiceResponse)
        self._logs.is_optional = True
        self.channels = (self._traces, self._logs)
        self._sends_events = options.logs != "off"

    @classmethod
    def destination_of(cls, settings: Settings, name: str) -> Destination:
        """Return where requests go, by `url` or OpenTelemetry's variables, or raise ``SettingsError``."""
        destination = super().destination_of(settings, name)
        if destination.url:
            return destination
        here, env = f"receivers.{name}.url", _variables()
        if not env.get("ENDPOINT"):
            raise SettingsError(f"{here}: is missing; set it, or the variable {OTEL_EXPORTER_OTLP_ENDPOINT}")
        url = base_url(env["ENDPOINT"], OtlpSettings.paths)
        if not is_endpoint(url):
            raise SettingsError(f"{here}: the variable {OTEL_EXPORTER_OTLP_ENDPOINT} must be http://host:port")
        if env.get("PROTOCOL", _OUR_PROTOCOL) != _OUR_PROTOCOL:
            fix = f"set url to a receiver of {_OUR_PROTOCOL}, usually at port 4318"
            raise SettingsError(f"{here}: the variables ask for {env['PROTOCOL']}, which is not spoken here; {fix}")
        try:
            timeout_s = float(env.get("TIMEOUT", destination.timeout_s))
        except ValueError:
            raise SettingsError(f"{here}: the variable {OTEL_EXPORTER_OTLP_TIMEOUT} is no number of seconds") from None
        return destination._replace(
            url=url,
            setting=OTEL_EXPORTER_OTLP_ENDPOINT,
            headers={**parse_env_headers(env.get("HEADERS", ""), liberal=True), **destination.headers},
            timeout_s=timeout_s,
            ca_file=destination.ca_file or env.get("CERTIFICATE"),
            client_cert=destination.client_cert or env.get("CLIENT_CERTIFICATE"),
            client_key=destination.client_key or env.get("CLIENT_KEY"),
        )

    @classmethod
    def ask(cls, part: str, client: ReceiverClient, url: str, request: Request) -> Finding:
        """Post an export without spans, then one without events: they leave nothing in the receiver."""
        began = time.monotonic()
        finding = super().ask(part, client, url, request)
        if finding.result != "ok":
            return finding
        client.deadline_s = max(_LEAST_CHECK_S, began + CHECK_TIMEOUT_S - time.monotonic())
        logs = mask_url(f"{url}/v1/logs")
        reply = client.send(Request("/v1/logs", b"", _REQUEST_HEADERS))
        if reply.status in ABSENT:
            return ok(
                part, f"{mask_url(url)}/v1/traces takes spans; events are not sent, since {logs} answers {reply.reason}"
            )
        of_logs = describe_reply(part, logs, reply)
        return finding if of_logs.result == "ok" else of_logs

    @classmethod
    def retained_data(cls, settings: Settings, name: str) -> str:
        """Name the receiver, also if a variable of OpenTelemetry has its address."""
        options = all_receivers(settings)[name]
        assert isinstance(options, OtlpSettings)  # noqa: S101 - by its kind
        where = options.url or _variables().get("ENDPOINT")
        return f"{mask_url(where) if where else f'the receiver {name}'} keeps {cls.keeps_there}"

    def items(self, verdict: Verdict) -> Iterator[tuple[Channel, Item]]:
        """Encode the verdict's spans, and its events while the receiver takes them."""
        messages = self._encoder.encode(verdict)
        yield self._traces, Item(verdict, span_fields(messages.spans), size=len(messages.spans))
        if self._sends_events and messages.events:
            yield self._logs, Item(verdict, record_fields(messages.events), size=len(messages.events))

    def lacks(self, channel: Channel, reply: Reply) -> bool:
        """Return whether only the path of events is absent; during a deployment both may be."""
        if channel is not self._logs or reply.status not in ABSENT or self._logs_wanted == "on":
            return False
        if self.send(self._traces.request(())).kind not in {"accepted", "rejected"}:
            return False
        self._sends_events = False
        fix = "none needed for spans; if it is to take events, enable /v1/logs there and restart the worker"
        log.warning("events switched off", exporter=self.exporter, receiver=self.address, status=reply.status, fix=fix)
        return True


def _variables() -> dict[str, str]:
    """Read `OTEL_EXPORTER_OTLP_*` by the last part of their names; variables of traces win over general ones."""
    prefix, of_traces = "OTEL_EXPORTER_OTLP_", "OTEL_EXPORTER_OTLP_TRACES_"
    env = {name: value.strip() for name, value in os.environ.items() if name.startswith(prefix) and value.strip()}
    general = {name.removeprefix(prefix): value for name, value in env.items() if not name.startswith(of_traces)}
    return general | {name.removeprefix(of_traces): value for name, value in env.items() if name.startswith(of_traces)}
