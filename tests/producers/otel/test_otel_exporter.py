"""Exporter and completion hook in OpenTelemetry's real SDK and in programs; the traces are read from a real Redis."""

import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from lookalikes import table
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    TraceFlags,
    Tracer,
    set_span_in_context,
)
from opentelemetry.util.genai import types as genai
from sdk_rig import Host, StartedSdk
from support.processes import PATIENCE_S, wait_until

from tracejudge.log import Once
from tracejudge.otel import TraceJudgeCompletionHook, TraceJudgeExporter
from tracejudge.otel.span_buffer import Loss

Exporters = Callable[..., TraceJudgeExporter]
CHAT = {
    "gen_ai.operation.name": "chat",
    "gen_ai.input.messages": '[{"role": "user", "content": "Is it open?"}]',
    "gen_ai.output.messages": '[{"role": "assistant", "content": "Yes, until six."}]',
}
SEARCH = {
    "gen_ai.operation.name": "retrieval",
    "gen_ai.retrieval.documents": '[{"id": "d1", "content": "Open until six."}]',
}


@pytest.fixture
def exporters() -> Iterator[Exporters]:
    """Make exporters that end with the test."""
    made: list[TraceJudgeExporter] = []

    def make(**bounds: Any) -> TraceJudgeExporter:
        made.append(TraceJudgeExporter(**bounds))
        return made[-1]

    yield make
    for exporter in made:
        exporter.shutdown()


def tracer_of(exporter: TraceJudgeExporter, scope: str = "shop") -> Tracer:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider.get_tracer(scope)


def losses(exporter: TraceJudgeExporter) -> dict[str, int]:
    return {reason: count for reason, count in exporter.losses().items() if count}


def chat(tracer: Tracer) -> None:
    tracer.start_span("chat small", attributes=CHAT).end()


def ask(tracer: Tracer, context: Context | None = None) -> tuple[str, str]:
    """Answer one request; gives the ids of the trace and of the call of the model in it."""
    with tracer.start_as_current_span("POST /ask", context=context):
        tracer.start_span("search", attributes=SEARCH).end()
        with tracer.start_as_current_span("chat small", attributes=CHAT) as call:
            ids = call.get_span_context()
    return f"{ids.trace_id:032x}", f"{ids.span_id:016x}"


def ids_of(sdk: StartedSdk) -> list[tuple[str, str]]:
    return [(trace["trace_id"], trace["span_id"]) for trace in sdk.traces()]


def test_a_request_arrives_by_itself(sdk: StartedSdk, exporters: Exporters) -> None:
    """With nothing flushed: the exporter's own thread publishes when the wait is over, or a bound is passed."""
    trace_id, span_id = ask(tracer_of(exporters(late_span_wait_s=0)))
    wait_until(lambda: sdk.traces() != [])
    (trace,) = sdk.traces()
    expected = {"trace_id": trace_id, "span_id": span_id, "input": "Is it open?", "output": "Yes, until six."}
    expected |= {"name": "POST /ask", "service": "shop", "context": [{"text": "Open until six.", "id": "d1"}]}
    assert {name: trace[name] for name in expected} == expected
    assert [span["name"] for span in trace["spans"]] == ["POST /ask", "search", "chat small"]
    exporter = exporters(late_span_wait_s=600, max_open_traces=3)
    for _ in range(6):
        ask(tracer_of(exporter))
        wait_until(lambda: len(exporter._spans._open) <= 3)
    assert exporter.force_flush()
    assert len(sdk.traces()) == 7


def test_a_flush_does_not_wait_for_late_spans_and_leaves_open_traces_open(
    sdk: StartedSdk, exporters: Exporters, caplog: pytest.LogCaptureFixture
) -> None:
    exporter = exporters(late_span_wait_s=600)
    tracer = tracer_of(exporter)
    done = ask(tracer)
    with tracer.start_as_current_span("POST /slow"):
        chat(tracer)
        assert exporter.force_flush()
        assert ids_of(sdk) == [done]
    # A span that ends after its root joins within the wait; one that ends later still is counted and said.
    for is_late in (False, True):
        with tracer.start_as_current_span("POST /stream"):
            streaming = tracer.start_span("chat small", attributes=CHAT)
        if is_late:
            assert exporter.force_flush()
        streaming.end()
        assert exporter.force_flush()
    assert sdk.outputs() == ["Yes, until six."] * 3
    with caplog.at_level(logging.WARNING, "tracejudge"):
        exporter.shutdown()
    assert len(sdk.traces()) == 3
    assert losses(exporter) == {"no_model_call": 1, "late": 1}
    wait_until(lambda: caplog.messages, what="the exporter's own thread, should that be the one that says it")
    assert caplog.messages == ["OpenTelemetry spans left out since the start, by reason: late 1"]


def test_losses_that_two_threads_would_say_are_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[int] = [0]

    def note(_: object, count: int) -> None:
        """Make another thread report between the check of the first thread and its note."""
        if count and other.ident is None:
            other.start()
            other.join(0.2)  # it has to wait for the lock
        noted.append(count)

    exporter = TraceJudgeExporter()
    exporter._minute = Once(itertools.count(step=3600).__next__)  # else the second would not be said so soon
    exporter._lose(Loss.LATE)
    del exporter._reported
    monkeypatch.setattr(TraceJudgeExporter, "_reported", property(lambda _: noted[-1], note), raising=False)
    other = threading.Thread(target=exporter._report)
    with caplog.at_level(logging.WARNING, "tracejudge"):
        exporter._report()
        other.join(PATIENCE_S)
        exporter.shutdown()
    assert caplog.messages == ["OpenTelemetry spans left out since the start, by reason: late 1"]


def test_roots_and_errors_are_those_of_the_spans(sdk: StartedSdk, exporters: Exporters) -> None:
    exporter = exporters()
    tracer = tracer_of(exporter)
    tracer.start_span("GET /health").end()
    assert exporter.force_flush()
    assert (sdk.traces(), losses(exporter)) == ([], {"no_model_call": 1}), "a request without a model is forgotten"
    caller = SpanContext(0xA1, 0xB2, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    ask(tracer, set_span_in_context(NonRecordingSpan(caller)))
    with suppress(TimeoutError), tracer.start_as_current_span("chat", attributes={"gen_ai.operation.name": "chat"}):
        raise TimeoutError("took too long")
    assert exporter.force_flush()
    remote, failed = sdk.traces()
    assert (remote["trace_id"], remote["spans"][0]["parent_id"]) == (f"{0xA1:032x}", f"{0xB2:016x}")
    assert (failed["error"], failed["output"]) == ("TimeoutError: took too long", "")


@pytest.mark.swallows
def test_the_end_publishes_what_is_unfinished_refuses_what_comes_and_a_strange_span_costs_only_itself(
    sdk: StartedSdk, exporters: Exporters
) -> None:
    exporter = exporters()
    strange: Any = object()
    for spans in ((strange,), (ReadableSpan("nameless"),)):
        assert exporter.export(spans) is SpanExportResult.SUCCESS
    with tracer_of(exporter).start_as_current_span("POST /ask"):
        chat(tracer_of(exporter))
        exporter.shutdown()
        assert exporter.export(()) is SpanExportResult.SUCCESS
    assert [trace["name"] for trace in sdk.flushed()] == ["chat small"]
    assert losses(exporter) == {"unreadable": 2, "shutdown": 1}


def test_before_init_nothing_happens_and_wrong_bounds_are_refused_at_once(exporters: Exporters) -> None:
    exporter = exporters()
    ask(tracer_of(exporter))
    assert (exporter.force_flush(), losses(exporter)) == (True, {})
    wrong: list[dict[str, Any]] = [{"late_span_wait_s": -1}, {"late_span_wait_s": float("nan")}]
    for bounds in (*wrong, {"max_open_traces": 0}, {"max_bytes": -1}):
        with pytest.raises(ValueError, match="TraceJudgeExporter: late_span_wait_s must be 0 or more"):
            TraceJudgeExporter(**bounds)


def test_spans_that_no_dialect_reads_are_counted_and_told_once(
    exporters: Exporters, sdk: StartedSdk, caplog: pytest.LogCaptureFixture
) -> None:
    exporter = exporters(late_span_wait_s=0)
    with caplog.at_level(logging.INFO, "tracejudge"):
        for _ in range(3):
            for scope, attributes in table("exporter")["unread spans"]:
                tracer_of(exporter, scope).start_span("call", attributes=attributes).end()
            exporter.force_flush()
    assert losses(exporter) == {"no_model_call": 9}
    messages = [[record.levelname, record.getMessage()] for record in caplog.records]
    assert messages == table("exporter")["messages"]
    assert len(sdk.traces()) == 6


# --- the completion hook, called as OpenTelemetry's GenAI utilities call it ------------------------------------------

ASKED = [genai.InputMessage("user", [genai.TextPart("Is it open?")])]
SAID = [genai.OutputMessage("assistant", [genai.TextPart("Yes, until six.")], finish_reason="stop")]


def completed(sdk: StartedSdk, **value: Any) -> list[dict[str, Any]]:
    hook = TraceJudgeCompletionHook()
    hook.on_completion(**{"inputs": ASKED, "outputs": SAID, "system_instruction": [], **value})
    return sdk.flushed()


def test_the_hook_publishes_content_with_the_ids_and_facts_of_the_span(sdk: StartedSdk) -> None:
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("shop")
    span = tracer.start_span("chat small", attributes=table("exporter")["facts"])
    (trace,) = completed(sdk, span=span, system_instruction=[genai.TextPart("Be kind.")])
    assert len(trace.pop("id")) == 16
    assert trace.pop("started_at") <= trace.pop("ended_at")
    ids = span.get_span_context()
    own = {"trace_id": f"{ids.trace_id:032x}", "span_id": f"{ids.span_id:016x}"}
    assert trace == {**own, **table("exporter")["trace of facts"]}
    span = NonRecordingSpan(SpanContext(0xA1, 0xB2, is_remote=False, trace_flags=TraceFlags(0)))
    (trace,) = completed(sdk, span=span)
    assert (trace["trace_id"], trace["span_id"]) == (f"{0xA1:032x}", f"{0xB2:016x}"), "not sampled"
    (trace,) = completed(sdk, log_record=SimpleNamespace(attributes={"gen_ai.request.model": "small"}))
    lengths = (len(trace["trace_id"]), len(trace["span_id"]))
    assert (*lengths, trace["output"], trace["model"]) == (32, 16, "Yes, until six.", "small"), "fresh without a span"
    judge = tracer.start_span("judge", attributes={"gen_ai.operation.name": "evaluation"})
    assert completed(sdk, span=judge) == [], "an evaluation"


@pytest.mark.swallows
def test_tools_of_the_hook_are_called_and_answer_and_nothing_raises_into_the_host(sdk: StartedSdk) -> None:
    inputs = [
        *ASKED,
        genai.InputMessage("assistant", [genai.ToolCallRequestPart({"day": 1}, "hours", "c1")]),
        genai.InputMessage("tool", [genai.ToolCallResponsePart("9-18", "c1")]),
    ]
    request = genai.ToolCallRequestPart({}, "holidays", "c2")
    outputs = [genai.OutputMessage("assistant", [request], finish_reason="tool_call")]
    (trace,) = completed(sdk, inputs=inputs, outputs=outputs)
    assert (trace["input"], trace["output"]) == ("Is it open?", "")
    assert trace["tool_calls"] == [
        {"name": "hours", "arguments": {"day": 1}, "result": "9-18"},
        {"name": "holidays", "arguments": {}},
    ]
    assert completed(sdk, span=object()) == []


# --- programs: how they end, how they fork, what gevent does to them -------------------------------------------------

PROGRAM = """
import os, sys, threading, tracejudge
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from tracejudge.otel import TraceJudgeExporter, exporter as module
CHAT = {"gen_ai.operation.name": "chat", "gen_ai.completion": "Yes."}
def provider(exporter, kind=SimpleSpanProcessor, **options):
    made = TracerProvider()
    made.add_span_processor(kind(exporter, **options))
    return made
def ask(tracer):
    tracer.start_span("chat", attributes=CHAT).end()
"""
ENDING = """
# A busy machine takes longer to load Redis, and to end, than a process has for that.
tracejudge.init.__kwdefaults__["exit_timeout_s"] = module._END_TIMEOUT_S = 60
module._TIMEOUT_MS = 60_000
for order in sys.argv[1:]:  # each in a process of its own, under a prefix of its own
    child = os.fork()
    if child == 0:
        break
    assert os.waitpid(child, 0)[1] == 0, order
else:
    sys.exit()
os.environ["TRACEJUDGE_PREFIX"] += f"-{order}"
if order == "automatic":
    from opentelemetry.sdk._configuration import _OTelSDKConfigurator
    _OTelSDKConfigurator().configure()
else:
    if order == "first":
        tracejudge.init()
    made = provider(TraceJudgeExporter(), BatchSpanProcessor, schedule_delay_millis=50)
    trace.set_tracer_provider(made)
if order == "last":
    tracejudge.init()
    ask(trace.get_tracer("shop"))
    made.force_flush()  # as the processor does by itself in time
ask(trace.get_tracer("shop"))
"""
# Forks while its exporter holds a span and another thread its locks, and prints how many spans each process holds.
FORKING = """
tracejudge.init(disabled=True)
exporter = TraceJudgeExporter(late_span_wait_s=600)
tracer = provider(exporter).get_tracer("shop")
held, enough = threading.Event(), threading.Event()
def hold():  # in the order of the exporter itself: the other way round the two could wait for each other
    with exporter._working, exporter._lock:
        held.set()
        enough.wait()
ask(tracer)
holder = threading.Thread(target=hold)
holder.start()
held.wait()
child = os.fork()
if child == 0:
    before = exporter._spans.held_spans
    ask(tracer)
    os.write(1, f"child {before} {exporter._spans.held_spans}\\n".encode())
    exporter.shutdown()
    os._exit(0)
_, status = os.waitpid(child, 0)
enough.set()
holder.join()
os.write(1, f"parent {status} {exporter._spans.held_spans}\\n".encode())
"""
GREENLETS = """
import gevent
tracejudge.init()
exporter = TraceJudgeExporter(late_span_wait_s=0)
tracer = provider(exporter).get_tracer("shop")
def request(number):
    with tracer.start_as_current_span(f"request {number}"):
        gevent.sleep(0.001)
        with tracer.start_as_current_span("chat", attributes=CHAT):
            gevent.sleep(0.001)
gevent.joinall([gevent.spawn(request, number) for number in range(20)], raise_error=True)
assert exporter.force_flush(60_000)
"""
AUTOMATIC = {"OTEL_TRACES_EXPORTER": "tracejudge", "OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}
QUIET = {"PYTHONWARNINGS": "ignore"}  # of libraries


@pytest.mark.slow("starts and ends many processes")
def test_a_short_script_loses_nothing_whoever_was_set_up_first_and_needs_no_line_of_code(host: Host) -> None:
    counts = {"first": 1, "last": 2, "automatic": 1}
    host.run(PROGRAM + ENDING, *counts, **QUIET, **AUTOMATIC)
    left = {order: Host(host.folder, host.url, f"{host.prefix}-{order}").left() for order in counts}
    assert {order: len(each.traces) for order, each in left.items()} == counts


def test_a_missing_variable_is_logged_and_breaks_nothing(host: Host) -> None:
    program = host.begin(PROGRAM + ENDING, "automatic", **QUIET, **AUTOMATIC, TRACEJUDGE_SERVICE="")
    _, errors = host.end(program)
    assert errors.startswith("OTEL_TRACES_EXPORTER=tracejudge publishes nothing: service is missing")


@pytest.mark.slow("starts and ends many processes")
def test_a_forked_child_begins_with_nothing_and_greenlets_go_on_while_the_exporter_waits(host: Host) -> None:
    assert host.run(PROGRAM + FORKING, **QUIET).splitlines() == ["child 0 1", "parent 0 1"]
    host.run("from gevent import monkey; monkey.patch_all()" + PROGRAM + GREENLETS, **QUIET)
    assert len(host.left().traces) == 20
