"""Recorded OTLP, decoded into the groups that the joining reads."""

from collections.abc import Iterator

from msgspec.structs import replace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage

from support.otlp_read import attributes_of, read_logs
from tracejudge.dialects import RawEvent, RawSpan
from tracejudge.otel.span_buffer import SpanGroup

NANOSECONDS = 1e9
STATUS = {1: "ok", 2: "error"}


def decode_spans(body: bytes) -> Iterator[RawSpan]:
    """Decode an export request of traces, in its order."""
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield RawSpan(
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    name=span.name,
                    parent_id=span.parent_span_id.hex() or None,
                    is_local_root=not span.parent_span_id,
                    kind=SpanMessage.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
                    started_at=span.start_time_unix_nano / NANOSECONDS,
                    ended_at=span.end_time_unix_nano / NANOSECONDS,
                    status=STATUS.get(span.status.code),
                    description=span.status.message or None,
                    attributes=attributes_of(span.attributes),
                    events=tuple(RawEvent(event.name, attributes_of(event.attributes)) for event in span.events),
                    scope=scope.scope.name or None,
                )


def _log_events(body: bytes) -> dict[str, tuple[RawEvent, ...]]:
    """Decode an export request of logs into events by the span that they belong to."""
    found: dict[str, tuple[RawEvent, ...]] = {}
    for log in read_logs(body):
        content = {**log.attributes, **log.body} if isinstance(log.body, dict) else log.attributes
        found[log.span_id] = (*found.get(log.span_id, ()), RawEvent(log.event_name, content))
    return found


def groups(body: bytes, logs: bytes = b"") -> list[SpanGroup]:
    """Group the spans of an export request by trace, in the order the traces began, with their log events."""
    events = _log_events(logs)
    found: dict[str, list[RawSpan]] = {}
    for span in sorted(decode_spans(body), key=lambda span: span.ended_at or 0.0):
        whole = replace(span, events=(*span.events, *events.get(span.span_id, ())))
        found.setdefault(span.trace_id, []).append(whole)
    ordered = sorted(found.values(), key=lambda spans: min(span.started_at or 0.0 for span in spans))
    return [SpanGroup(next((span for span in spans if span.is_local_root), None), tuple(spans)) for spans in ordered]
