"""OTLP protobuf messages, read into plain Python as a user of a collector sees them."""

from typing import Any, NamedTuple

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from opentelemetry.proto.trace.v1.trace_pb2 import Status as StatusMessage


class Origin(NamedTuple):
    """The origin of a span or log record. `schema_url` is that of the scope, else of the resource."""

    resource: dict[str, Any]
    scope_name: str
    scope_version: str
    schema_url: str


class Link(NamedTuple):
    trace_id: str
    span_id: str


class Status(NamedTuple):
    code: str  # UNSET, OK, ERROR
    message: str


class Span(NamedTuple):
    trace_id: str
    span_id: str
    parent_span_id: str  # "" for a root
    name: str
    kind: str  # INTERNAL, CLIENT, …
    attributes: dict[str, Any]
    links: list[Link]
    status: Status
    start_ns: int
    end_ns: int
    resource: dict[str, Any]
    scope_name: str
    scope_version: str
    schema_url: str


class Log(NamedTuple):
    event_name: str
    trace_id: str
    span_id: str
    attributes: dict[str, Any]
    body: Any
    severity: str
    time_ns: int
    resource: dict[str, Any]
    scope_name: str
    scope_version: str
    schema_url: str


def read_spans(body: bytes) -> list[Span]:
    """Decode an export request of traces; raises `google.protobuf.message.DecodeError`."""
    return [
        _span(span, _origin(resource, scope))
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def read_logs(body: bytes) -> list[Log]:
    """Decode an export request of logs; raises `google.protobuf.message.DecodeError`."""
    return [
        _log(record, _origin(resource, scope))
        for resource in ExportLogsServiceRequest.FromString(body).resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
    ]


def _origin(resource: Any, scope: Any) -> Origin:
    return Origin(
        resource=attributes_of(resource.resource.attributes),
        scope_name=scope.scope.name,
        scope_version=scope.scope.version,
        schema_url=scope.schema_url or resource.schema_url,
    )


def _span(span: Any, origin: Origin) -> Span:
    return Span(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_span_id=span.parent_span_id.hex(),
        name=span.name,
        kind=SpanMessage.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        attributes=attributes_of(span.attributes),
        links=[Link(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
        status=Status(
            StatusMessage.StatusCode.Name(span.status.code).removeprefix("STATUS_CODE_"), span.status.message
        ),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        **origin._asdict(),
    )


def _log(record: Any, origin: Origin) -> Log:
    return Log(
        event_name=record.event_name,
        trace_id=record.trace_id.hex(),
        span_id=record.span_id.hex(),
        attributes=attributes_of(record.attributes),
        body=_value(record.body),
        severity=record.severity_text,
        time_ns=record.time_unix_nano,
        **origin._asdict(),
    )


def attributes_of(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return attributes_of(value.kvlist_value.values)
    return getattr(value, kind)
