"""The OTLP receiver reads what the SDK's encoder writes, and refuses as it is told."""

import gzip
import time

import httpx
import pytest
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk._logs import ReadWriteLogRecord
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link as OtelLink
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags, set_span_in_context
from support import otlp as collector
from support.otlp import Link, OtlpReceiver, Status

TRACE, SPAN, TARGET = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "00f067aa0ba902b7"


def context(span_id: str) -> SpanContext:
    return SpanContext(int(TRACE, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(1))


def encoded_spans(*names: str) -> bytes:
    spans = [
        ReadableSpan(
            name,
            context(SPAN),
            resource=Resource({"service.name": "tracejudge"}, "https://resource"),
            attributes={"s": "x", "i": 1, "f": 0.5, "b": True, "l": ("a", "b")},
            links=[OtelLink(context(TARGET))],
            kind=SpanKind.CLIENT,
            instrumentation_scope=InstrumentationScope("judge", "1.0", "https://scope"),
            start_time=1,
            end_time=2,
        )
        for name in names
    ]
    return encode_spans(spans).SerializeToString()


def encoded_log() -> bytes:
    record = LogRecord(
        timestamp=5,
        context=set_span_in_context(NonRecordingSpan(context(TARGET))),
        severity_number=SeverityNumber.INFO,
        severity_text="INFO",
        body={"a": [1, None]},
        attributes={"gen_ai.evaluation.score.value": 1.0},
        event_name="gen_ai.evaluation.result",
    )
    data = ReadWriteLogRecord(record, Resource({"k": "v"}), InstrumentationScope("judge"))
    return encode_logs([data]).SerializeToString()


def export(otlp: OtlpReceiver, body: bytes, path: str = "/v1/traces", **headers: str) -> httpx.Response:
    headers = {"Content-Type": "application/x-protobuf", **headers}
    return httpx.post(f"{otlp.endpoint}{path}", content=body, headers=headers, trust_env=False, timeout=60)


@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "gzip"])
def test_spans_are_read(otlp: OtlpReceiver, *, compressed: bool) -> None:
    body = encoded_spans("evaluate safety")
    headers = {"Content-Encoding": "gzip"} if compressed else {}
    assert export(otlp, gzip.compress(body) if compressed else body, **headers).status_code == 200
    assert otlp.spans == (
        collector.Span(
            trace_id=TRACE,
            span_id=SPAN,
            parent_span_id="",
            name="evaluate safety",
            kind="CLIENT",
            attributes={"s": "x", "i": 1, "f": 0.5, "b": True, "l": ["a", "b"]},
            links=[Link(TRACE, TARGET)],
            status=Status("UNSET", ""),
            start_ns=1,
            end_ns=2,
            resource={"service.name": "tracejudge"},
            scope_name="judge",
            scope_version="1.0",
            schema_url="https://scope",
        ),
    )
    assert otlp.exports[0].headers.get("content-encoding") == ("gzip" if compressed else None)


def test_log_events_are_read(otlp: OtlpReceiver) -> None:
    assert export(otlp, encoded_log(), "/v1/logs").status_code == 200
    (log,) = otlp.logs
    assert (log.event_name, log.trace_id, log.span_id) == ("gen_ai.evaluation.result", TRACE, TARGET)
    assert log.attributes == {"gen_ai.evaluation.score.value": 1.0}
    assert (log.body, log.severity, log.time_ns) == ({"a": [1, None]}, "INFO", 5)
    assert (log.resource, log.scope_name) == ({"k": "v"}, "judge")


@pytest.mark.parametrize("status", [400, 413, 429, 500])
def test_what_is_refused_is_seen_but_not_kept(otlp: OtlpReceiver, status: int) -> None:
    otlp.behaviour = collector.sequence(collector.failing(status, retry_after=2), collector.Accept())
    refused = export(otlp, encoded_spans("a"))
    assert (refused.status_code, refused.headers["Retry-After"]) == (status, "2")
    assert export(otlp, encoded_spans("b")).status_code == 200
    assert [span.name for span in otlp.spans] == ["b"]
    assert [seen.status for seen in otlp.exports] == [status, 200]


def test_partial_success_says_how_many(otlp: OtlpReceiver) -> None:
    otlp.behaviour = collector.slow(0.05, collector.partial(1, "too old"))
    began = time.monotonic()
    response = export(otlp, encoded_spans("a", "b"))
    partial = ExportTraceServiceResponse.FromString(response.content).partial_success
    assert (response.status_code, partial.rejected_spans, partial.error_message) == (200, 1, "too old")
    assert [span.name for span in otlp.spans] == ["a"]
    assert time.monotonic() - began >= 0.05


def test_one_poisoned_item_refuses_its_request(otlp: OtlpReceiver) -> None:
    otlp.behaviour = collector.refuses_items(lambda item: item.name == "bad", status=413)
    assert export(otlp, encoded_spans("a", "bad")).status_code == 413
    assert export(otlp, encoded_spans("a")).status_code == 200


def test_what_is_no_protobuf_is_a_bad_request(otlp: OtlpReceiver) -> None:
    assert export(otlp, b"\xff\xff").status_code == 400
    assert export(otlp, b"", **{"Content-Type": "application/json"}).status_code == 415
