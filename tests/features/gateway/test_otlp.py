"""OTLP through a real gateway: by the real encoder of OpenTelemetry and by bytes of our own."""

import base64
import json
import secrets
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from gateway_parts import Call, GatewayProcess, Start, Stored, gzipped, request_of
from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import set_span_in_context
from support.processes import Program, wait_until
from support.tables import read_table

from worker.base.input.unusable import read_unread
from worker.core.storage.client import Store
from worker.core.storage.keys import Keys

AGENT, SPANS, RESOURCE = (read_table(__file__, "otlp_agent")[name] for name in ("trace", "spans", "resource"))
PROTOBUF = "application/x-protobuf"
TOO_LARGE = "trace_too_large 3: the trace is over max_trace_bytes"
FAST = {"gather_s": 0.3, "gather_max_s": 3.0}


def agent_spans(resource: dict[str, str] | None = None) -> Sequence[ReadableSpan]:
    """Record a request with a retrieval and a call of a model, by OpenTelemetry's own SDK."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource(RESOURCE if resource is None else resource))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    root = tracer.start_span("POST /chat")
    for name, attributes in SPANS.items():
        span = tracer.start_span(name, context=set_span_in_context(root))
        span.set_attributes(attributes)
        span.end()
    root.end()
    return exporter.get_finished_spans()


def as_json(request: Any) -> bytes:
    """Write a request in OTLP's JSON: protobuf's, but for ids in hex and kinds as numbers."""
    document = MessageToDict(request, use_integers_for_enums=True)
    for resource in document.get("resourceSpans", []):
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for name in ("traceId", "spanId", "parentSpanId"):
                    if name in span:
                        span[name] = base64.b64decode(span[name]).hex().upper()
    return json.dumps(document).encode()


def check_agent(trace: dict[str, Any], spans: Sequence[ReadableSpan], *, service: str | None = None) -> None:
    call = next(span for span in spans if span.name == "chat gpt")
    expected = AGENT | {"trace_id": f"{call.context.trace_id:032x}", "span_id": f"{call.context.span_id:016x}"}
    if service is not None:
        expected = {name: expected[name] for name in ("input", "output", "trace_id", "span_id")} | {"service": service}
    assert {name: trace.get(name) for name in expected} == expected
    assert {span["name"] for span in trace["spans"]} == {"POST /chat", "retrieval kb", "chat gpt"}


def test_a_trace_arrives_whole_from_either_encoding_and_a_token_names_its_service(start: Start, stored: Stored) -> None:
    secret = "0123456789abcdef"  # noqa: S105 - of this test
    tokens = {"a": {"token_env": "PYTEST_A"}, "b": {"token_env": "PYTEST_B", "service": "fixed"}}
    gateway = start(tokens=tokens, env={"PYTEST_A": secret, "PYTEST_B": f"{secret}-b"}, **FAST)
    for number, (media, token, resource) in enumerate(
        ((PROTOBUF, secret, None), ("application/json", secret, None), (PROTOBUF, f"{secret}-b", {}))
    ):
        spans = agent_spans(resource)
        request = encode_spans(spans)
        content = gzipped(request.SerializeToString() if media == PROTOBUF else as_json(request))
        named = {"Content_Encoding": "gzip", "Authorization": f"Bearer {token}"}
        reply = gateway.post("/v1/traces", content, media, **named)
        assert (reply.status_code, reply.headers["content-type"]) == (200, media)
        assert reply.content in (b"", b"{}")
        *_, trace = traces = stored.wait(number + 1)
        assert len(traces) == number + 1, media
        check_agent(trace, spans, service="fixed" if resource == {} else None)


def test_pieces_of_a_trace_to_two_gateways_are_one_trace(start: Start, stored: Stored) -> None:
    gateways = [start(gather_s=1.0, gather_max_s=20.0) for _ in range(2)]
    spans = agent_spans()
    for number, span in enumerate(spans):
        content = encode_spans([span]).SerializeToString()
        # The second time as a client that got no reply.
        for gateway in (gateways[number % 2], gateways[(number + 1) % 2]):
            assert _post(gateway, content).status_code == 200
    stored.wait(1)
    # Without gathered spans neither gateway has a second trace to publish.
    wait_until(lambda: not list(stored.redis.scan_iter(f"{stored.prefix}:gather:*")), what="all spans to be published")
    (entry,) = stored.entries()
    check_agent(entry, spans)
    assert stored.redis.hget(f"{stored.prefix}:gather", "bytes") == b"0"


COUNTS = (("kept", "items", "kind"), ("left_out", "fields_left_out", "field"), ("dropped", "dropped", "reason"))


def test_requests_of_spans_and_logs_become_traces(start: Start, stored: Stored) -> None:
    """Events in logs complete their span, also as JSON in a body; messages make a call; cut ones are counted."""
    gateway, count = start(**FAST), 0
    for name, case in read_table(__file__, "otlp").items():
        totals = [
            (partial(gateway.total, f"{metric}_total", **{label: value}), amount)
            for key, metric, label in COUNTS
            for value, amount in case.get(key, {}).items()
        ]
        expected_totals = [total() + amount for total, amount in totals]
        for path, body in case["sent"]:
            reply = gateway.post(path, json.dumps(body))
            assert (reply.status_code, reply.content) == (200, b"{}"), name
        count += len(case["traces"])
        traces = sorted(stored.wait(count)[-len(case["traces"]) :], key=lambda trace: str(trace["trace_id"]))
        for trace, expected in zip(traces, case["traces"], strict=True):
            assert {key: trace.get(key) for key in expected} == expected, name
        for (total, _), amount in zip(totals, expected_totals, strict=True):
            wait_until(lambda total=total, amount=amount: total() == amount, what=name)


def test_refusals_are_in_the_encoding_of_the_request_and_parts_are_told(start: Start, stored: Stored) -> None:
    gateway = start(max_body_bytes=300_000, max_trace_bytes=2_000, **FAST)
    for path, content, media, status in (
        ("/v1/traces", b"\xff\xff\xff", PROTOBUF, 400),
        ("/v1/traces", b"{bro", "application/json", 400),
        ("/v1/traces", b"{}", "text/plain", 415),
        ("/v1/traces", bytes(300_001), PROTOBUF, 413),
    ):
        reply = gateway.post(path, content, media)
        assert reply.status_code == status, content[:10]
        is_json = media == "application/json"
        assert reply.headers["content-type"] == ("application/json" if is_json else PROTOBUF)
        assert json.loads(reply.content)["code"] == 3 if is_json else reply.content.startswith(b"\x08\x03\x12")
    for path, content, words in read_table(__file__, "otlp_refusals"):
        reply = gateway.post(path, content)
        assert (reply.status_code, words in reply.json()["message"]) == (400, True), content
    assert gateway.post("/v1/traces", "{}").status_code == 200
    nameless = encode_spans(agent_spans({"service.name": ""})).SerializeToString()
    reply = _post(gateway, nameless)
    assert (reply.status_code, _partial(reply)) == (200, (3, "no_service 3: the resource has no service.name"))
    request = encode_spans(agent_spans())
    request.resource_spans[0].scope_spans[0].spans[0].attributes.add(key="x").value.string_value = "y" * 2_000
    reply = gateway.post("/v1/traces", as_json(request), "application/json")
    assert reply.json()["partialSuccess"] == {"rejectedSpans": "3", "errorMessage": TOO_LARGE}
    assert stored.entries() == []
    listed = [(entry.reason, entry.detail) for entry in stored.invalid(2)]
    assert listed == [
        ("no_service", "the resource has no service.name (3 items)"),
        ("trace_too_large", "the trace is over max_trace_bytes (3 items)"),
    ]
    assert "service.name" in stored.invalid(2)[0].keys
    dropped = [gateway.total("dropped_total", reason=reason) for reason, _ in listed]
    totals = [gateway.total(f"{name}_total") for name in ("items", "rejected")]
    assert (dropped, totals) == ([3, 3], [0, 9])
    # A span that is no message costs no other.
    request = encode_spans(agent_spans())
    name = request.resource_spans[0].scope_spans[0].spans.add(name="XXXXXXXX", trace_id=b"t" * 16).name
    content = request.SerializeToString()
    place = content.index(name.encode())
    reply = _post(gateway, content[: place - 1] + b"\x7f" + content[place:])
    assert (reply.status_code, _partial(reply)) == (200, (1, "unreadable 1: not readable as OTLP"))
    assert stored.wait(1)[0]["output"] == "At nine."
    # Fields of later versions of OTLP are skipped, and no field has the number 0.
    for content, status in ((b"", 200), (b"\x98\x06\x01", 200), (b"\x9a\x06\x01a", 200), (b"\x02\x00", 400)):
        assert _post(gateway, content).status_code == status, content
    assert gateway.post("/v1/traces", b"{}", "application/json").status_code == 200


def _marked(mark: str) -> ExportTraceServiceRequest:
    """Make a trace, and write a mark into every text of it."""
    request = encode_spans(agent_spans())
    (resource,) = request.resource_spans
    resource.resource.attributes.add(key=f"name {mark}").value.string_value = mark
    resource.scope_spans[0].scope.name = f"scope {mark}"
    for span in resource.scope_spans[0].spans:
        span.name += mark
        span.status.message = mark
        span.attributes.add(key=f"key {mark}").value.array_value.values.add().string_value = mark
        span.attributes.add(key="kv").value.kvlist_value.values.add(key=mark).value.string_value = mark
        span.attributes.add(key="bytes").value.bytes_value = b"\xff"
        span.events.add(name=mark).attributes.add(key=mark).value.string_value = mark
        span.links.add(trace_id=b"t" * 16, span_id=b"s" * 8, trace_state=mark)
    return request


def test_texts_that_are_no_utf8_cost_no_span(start: Start, stored: Stored) -> None:
    gateway = start(**FAST)
    texts = [(PROTOBUF, b"\xed\xa0\xbd"), (PROTOBUF, b"\xff\xff\xff")]
    texts += [("application/json", text) for text in (b"\xff\xff\xff", b"\\ud83d", b"\\udc00x")]
    for count, (media, broken) in enumerate(texts, 1):
        content = _marked("XXX").SerializeToString() if media == PROTOBUF else as_json(_marked("XXX"))
        reply = gateway.post("/v1/traces", content.replace(b"XXX", broken), media)
        assert (reply.status_code, reply.content) in ((200, b""), (200, b"{}")), (broken, media)
        *_, trace = stored.wait(count)
        assert (trace["input"], trace["output"]) == ("When does it open?", "At nine."), (broken, media)
        assert len(trace["spans"]) == 3
    logs = ExportLogsServiceRequest()
    resource = logs.resource_logs.add()
    resource.resource.attributes.add(key="service.name").value.string_value = "go-bot"
    record = resource.scope_logs.add().log_records.add(trace_id=b"t" * 16, span_id=b"s" * 8, event_name="gen_ai.choice")
    record.body.string_value = record.severity_text = "XXX"
    reply = gateway.post("/v1/logs", logs.SerializeToString().replace(b"XXX", b"\xed\xa0\xbd"), PROTOBUF)
    assert (reply.status_code, reply.content) == (200, b"")
    assert gateway.total("dropped_total") == 0


def _unknown_call(scope: str, **attributes: str) -> ExportTraceServiceRequest:
    named = {name.replace("__", "."): text for name, text in attributes.items()}
    return request_of([Call(secrets.token_bytes(16), attributes=named)], scope=scope)


def _post(gateway: GatewayProcess, request: ExportTraceServiceRequest | bytes) -> httpx.Response:
    content = request if isinstance(request, bytes) else request.SerializeToString()
    return gateway.post("/v1/traces", content, PROTOBUF)


def _partial(reply: httpx.Response) -> tuple[int, str]:
    """Return how many spans were rejected, and why."""
    partial = ExportTraceServiceResponse.FromString(reply.content).partial_success
    return partial.rejected_spans, partial.error_message


def test_spans_that_no_dialect_reads_are_told_and_listed(start: Start, stored: Stored) -> None:
    gateway = start(gather_s=0.1, gather_max_s=1.0)
    secret = "Where is my parcel?"  # noqa: S105 - a text
    for scope in ("acme.sdk", "bot:tracer"):
        request = _unknown_call(scope, acme__prompt=secret, http__route="/a", **{secret: secret})
        rejected, words = _partial(_post(gateway, request))
        assert rejected == 0
        assert words.startswith(f"spans of {scope!r}: no dialect reads acme.prompt; add a table, see ")
        # Once a minute: a client may log it each time.
        assert _post(gateway, request).content == b""
    web = _unknown_call("web", http__route="/a", url__query=secret).SerializeToString()
    for content in (web, encode_spans(agent_spans()).SerializeToString()):
        assert _post(gateway, content).content == b""
    listed = {entry.detail.removeprefix("spans of ").partition(": ")[0]: entry for entry in stored.invalid(3)}
    assert listed.keys() == {"acme.sdk", "bot:tracer", "web"}
    assert [listed[name].keys for name in sorted(listed)] == [("acme.prompt",), ("acme.prompt",), ()]
    assert "add a table" in listed["acme.sdk"].detail
    assert secret not in repr(listed)
    stored.wait(1)
    for content in [_unknown_call("acme.sdk", acme__prompt=secret).SerializeToString() for _ in range(4)]:
        _post(gateway, content)

    def kinds() -> list[tuple[str, tuple[str, ...], int]]:
        with closing(Store(stored.redis_url, Keys(stored.prefix))) as store:
            return [(kind.instrumentation, kind.names, kind.spans) for kind in read_unread(store)]

    wait_until(lambda: sum(spans for *_, spans in kinds()) == 6, what="all spans to be counted")
    assert kinds() == [("acme.sdk", ("acme.prompt",), 5), ("bot:tracer", ("acme.prompt",), 1)]
    assert len(stored.invalid(3)) == 3
    assert gateway.total("dropped_total", reason="no_model_call") == 7


def test_a_table_of_a_user_is_read_beside_the_configuration(start: Start, stored: Stored, tmp_path: Path) -> None:
    table = tmp_path / "dialects.d" / "acme.toml"
    table.parent.mkdir()
    text = """
        name = "acme"
        prefixes = ["acme."]
        calls = ["acme.prompt"]
        input = { "acme.prompt" = "text" }
        output = { "acme.reply" = "text" }
    """
    table.write_text(text)
    # The attribute of its calls is there, and those of their content are named wrong.
    misnamed = text.replace("acme", "beta").replace('{ "beta.prompt"', '{ "beta.ask"')
    table.with_name("beta.toml").write_text(misnamed)
    gateway = start(**FAST)
    request = _unknown_call("acme.sdk", acme__prompt="Where?", acme__reply="Here.")
    assert _post(gateway, request).content == b""
    (trace,) = stored.wait(1)
    assert (trace["input"], trace["output"]) == ("Where?", "Here.")
    request = _unknown_call("misnamed", beta__prompt="Where?", beta__answer="Here.", gen_ai__system="x")
    words = "spans of {}: table beta reads these spans, but not beta.answer; name them in its input and output"
    reply = _post(gateway, request)
    assert _partial(reply) == (0, words.format("'misnamed'"))
    stored.wait(2)
    (record,) = stored.invalid(1)
    assert (record.reason, record.detail, record.keys) == ("no_content", words.format("misnamed"), ("beta.answer",))
    table.write_text(text.replace("calls", "cals"))
    variables = {"TRACEJUDGE_REDIS_URL": stored.redis_url}
    with Program("-m", "worker.cli", "gateway", folder=tmp_path, env=variables) as program:
        assert program.wait() == 2
        assert "dialects.d/acme.toml: cals: no part of a table has this name" in program.output


def test_an_instrumentation_without_content_is_told_once_with_its_setting(start: Start, stored: Stored) -> None:
    gateway = start(gather_s=0.1, gather_max_s=1.0)
    scopes = ("gen:ai", "g" * 118)
    for number, scope in enumerate(2 * scopes, start=1):
        request = _unknown_call(scope, gen_ai__operation__name="chat", gen_ai__request__model="m")
        assert _post(gateway, request).content == b""
        stored.wait(number)
    setting = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=SPAN_ONLY"
    told = {("no_content", f"spans of {scope}: they hold no content; set {setting}") for scope in scopes}
    records = stored.invalid(2)
    assert ({(record.reason, record.detail) for record in records}, len(records)) == (told, 2)


def test_a_full_gathering_refuses_until_there_is_room(start: Start, stored: Stored) -> None:
    gateway = start(max_gather_bytes=6_000, **FAST)
    contents = [encode_spans(agent_spans()).SerializeToString() for _ in range(10)]
    replies = [_post(gateway, content) for content in contents]
    refused = [content for content, reply in zip(contents, replies, strict=True) if reply.status_code == 429]
    assert refused
    assert all(int(reply.headers["Retry-After"]) >= 1 for reply in replies if reply.status_code == 429)
    for content in refused:
        wait_until(lambda content=content: _post(gateway, content).status_code == 200, what="room for the next trace")
    assert len({trace["trace_id"] for trace in stored.wait(10)}) == 10
