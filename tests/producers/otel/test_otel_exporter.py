"""The exporter in OpenTelemetry's real SDK, with the traces read back from a real Redis."""

import itertools
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExportResult
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    set_span_in_context,
)
from support.cases import each_case
from support.processes import PATIENCE_S, wait_until

import tracejudge
from tracejudge.log import Once
from tracejudge.otel import TraceJudgeExporter
from tracejudge.otel.span_buffer import Loss

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
def exporters() -> Iterator[Callable[..., TraceJudgeExporter]]:
    """Make exporters that end with the test."""
    made: list[TraceJudgeExporter] = []

    def make(**bounds: Any) -> TraceJudgeExporter:
        made.append(TraceJudgeExporter(**bounds))
        return made[-1]

    yield make
    for exporter in made:
        exporter.shutdown()


def provider_of(exporter: TraceJudgeExporter) -> TracerProvider:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


def tracer_of(exporter: TraceJudgeExporter) -> Tracer:
    return provider_of(exporter).get_tracer("shop")


def ask(tracer: Tracer, context: Context | None = None) -> tuple[str, str]:
    """Answer one request; gives the ids of the trace and of the call of the model in it."""
    with tracer.start_as_current_span("POST /ask", context=context):
        with tracer.start_as_current_span("search", attributes=SEARCH):
            pass
        with tracer.start_as_current_span("chat small", attributes=CHAT) as call:
            ids = call.get_span_context()
    return f"{ids.trace_id:032x}", f"{ids.span_id:016x}"


def test_a_request_arrives_by_itself(sdk: Any, exporters: Any) -> None:
    """With nothing flushed: the exporter's own thread publishes when the wait is over."""
    trace_id, span_id = ask(tracer_of(exporters(late_span_wait_s=0)))
    wait_until(lambda: sdk.traces() != [])
    (trace,) = sdk.traces()
    expected = {"trace_id": trace_id, "span_id": span_id, "input": "Is it open?", "output": "Yes, until six."}
    expected |= {"name": "POST /ask", "service": "shop", "context": [{"text": "Open until six.", "id": "d1"}]}
    assert {name: trace[name] for name in expected} == expected
    assert [span["name"] for span in trace["spans"]] == ["POST /ask", "search", "chat small"]


def test_a_batch_processor_hands_everything_over_when_the_provider_ends(sdk: Any) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(TraceJudgeExporter()))
    ids = [ask(provider.get_tracer("shop")) for _ in range(20)]
    provider.shutdown()
    assert tracejudge.flush(60)
    assert [(trace["trace_id"], trace["span_id"]) for trace in sdk.traces()] == ids


def test_a_flush_does_not_wait_for_late_spans_and_leaves_open_traces_open(sdk: Any, exporters: Any) -> None:
    exporter = exporters(late_span_wait_s=600)
    tracer = tracer_of(exporter)
    done = ask(tracer)
    with tracer.start_as_current_span("POST /slow"):
        with tracer.start_as_current_span("chat small", attributes=CHAT):
            pass
        assert exporter.force_flush()
        assert [(trace["trace_id"], trace["span_id"]) for trace in sdk.traces()] == [done]


def test_a_span_that_ends_after_its_root_joins_within_the_wait(sdk: Any, exporters: Any) -> None:
    exporter = exporters(late_span_wait_s=600)
    tracer = tracer_of(exporter)
    with tracer.start_as_current_span("POST /stream"):
        streaming = tracer.start_span("chat small", attributes=CHAT)
    streaming.end()
    assert exporter.force_flush()
    assert [trace["output"] for trace in sdk.traces()] == ["Yes, until six."]


def test_a_span_that_ends_later_still_is_counted_and_said(
    sdk: Any, exporters: Any, caplog: pytest.LogCaptureFixture
) -> None:
    exporter = exporters(late_span_wait_s=600)
    tracer = tracer_of(exporter)
    with tracer.start_as_current_span("POST /stream"):
        streaming = tracer.start_span("chat small", attributes=CHAT)
    assert exporter.force_flush()
    streaming.end()
    with caplog.at_level(logging.WARNING, "tracejudge"):
        exporter.shutdown()
    assert sdk.traces() == []
    assert {reason: count for reason, count in exporter.losses().items() if count} == {"no_model_call": 1, "late": 1}
    wait_until(lambda: caplog.messages, what="the exporter's own thread, should that be the one that says it")
    assert caplog.messages == ["OpenTelemetry spans left out since the start, by reason: late 1"]


class Watched:
    """A lock that tells when somebody has to wait for it."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.keeps_waiting = threading.Event()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.keeps_waiting.set()
            self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


class Hesitating(TraceJudgeExporter):
    """Stands still where it notes for the first time what it says."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = Watched(self._lock)
        self._minute = Once(itertools.count(step=3600).__next__)  # else the second would not be said so soon
        self.hesitates, self.goes_on = threading.Event(), threading.Event()

    @property
    def _reported(self) -> int:
        return self._noted

    @_reported.setter
    def _reported(self, count: int) -> None:
        if count and not self.hesitates.is_set():
            self.hesitates.set()
            assert self.goes_on.wait(PATIENCE_S)
        self._noted = count


def test_losses_that_two_threads_would_say_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    exporter = Hesitating()
    exporter._lose(Loss.LATE)
    first, other = threading.Thread(target=exporter._report), threading.Thread(target=exporter._report)
    with caplog.at_level(logging.WARNING, "tracejudge"):
        first.start()
        assert exporter.hesitates.wait(PATIENCE_S)
        other.start()
        wait_until(lambda: exporter._lock.keeps_waiting.is_set() or not other.is_alive())
        exporter.goes_on.set()
        first.join(PATIENCE_S)
        other.join(PATIENCE_S)
        exporter.shutdown()
    assert caplog.messages == ["OpenTelemetry spans left out since the start, by reason: late 1"]


def test_the_root_may_be_a_request_of_another_service(sdk: Any, exporters: Any) -> None:
    exporter = exporters()
    caller = SpanContext(0xA1, 0xB2, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    ask(tracer_of(exporter), set_span_in_context(NonRecordingSpan(caller)))
    assert exporter.force_flush()
    (trace,) = sdk.traces()
    assert (trace["trace_id"], trace["spans"][0]["parent_id"]) == (f"{0xA1:032x}", f"{0xB2:016x}")


def test_requests_without_a_model_are_forgotten(sdk: Any, exporters: Any) -> None:
    exporter = exporters()
    with tracer_of(exporter).start_as_current_span("GET /health"):
        pass
    assert exporter.force_flush()
    losses = {reason: count for reason, count in exporter.losses().items() if count}
    assert (sdk.traces(), losses) == ([], {"no_model_call": 1})


def test_an_exception_in_the_call_is_the_error_of_the_trace(sdk: Any, exporters: Any) -> None:
    exporter = exporters()
    call = tracer_of(exporter).start_span("chat small", attributes={"gen_ai.operation.name": "chat"})
    call.record_exception(TimeoutError("took too long"))
    call.set_status(Status(StatusCode.ERROR))
    call.end()
    assert exporter.force_flush()
    (trace,) = sdk.traces()
    assert (trace["error"], trace["output"]) == ("TimeoutError: took too long", "")


def test_more_open_traces_than_allowed_go_before_their_time(sdk: Any, exporters: Any) -> None:
    exporter = exporters(late_span_wait_s=600, max_open_traces=3)
    tracer = tracer_of(exporter)
    ids = []
    for _ in range(6):
        ids.append(ask(tracer)[0])
        wait_until(lambda: len(exporter._spans._open) <= 3)
    assert exporter.force_flush()
    assert [trace["trace_id"] for trace in sdk.traces()] == ids


def test_the_end_publishes_what_is_unfinished_and_refuses_what_comes(sdk: Any, exporters: Any) -> None:
    exporter = exporters()
    tracer = tracer_of(exporter)
    with tracer.start_as_current_span("POST /ask"):
        with tracer.start_as_current_span("chat small", attributes=CHAT):
            pass
        exporter.shutdown()
        assert exporter.export(()) is SpanExportResult.SUCCESS
    assert tracejudge.flush(60)
    assert [trace["name"] for trace in sdk.traces()] == ["chat small"]
    assert {reason: count for reason, count in exporter.losses().items() if count} == {"shutdown": 1}


def test_before_init_nothing_happens(exporters: Any) -> None:
    exporter = exporters()
    ask(tracer_of(exporter))
    assert exporter.force_flush()
    assert sum(exporter.losses().values()) == 0


@pytest.mark.swallows
def test_a_strange_span_costs_only_itself(sdk: Any, exporters: Any) -> None:
    exporter = exporters()
    call = provider_of(exporter).get_tracer("shop").start_span("chat small", attributes=CHAT)
    strange: Any = object()
    assert exporter.export((strange,)) is SpanExportResult.SUCCESS
    call.end()
    assert exporter.force_flush()
    assert len(sdk.traces()) == 1
    assert exporter.losses()["unreadable"] == 1


def test_a_span_without_valid_ids_is_counted(exporters: Any) -> None:
    exporter = exporters()
    exporter.export((ReadableSpan("nameless"),))
    assert exporter.losses()["unreadable"] == 1


@each_case(
    "bounds",
    [{"late_span_wait_s": -1}, {"late_span_wait_s": float("nan")}, {"max_open_traces": 0}, {"max_bytes": -1}],
    ids=lambda bounds: next(iter(bounds)),
)
def test_wrong_bounds_are_refused_at_once(bounds: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="TraceJudgeExporter: late_span_wait_s must be 0 or more"):
        TraceJudgeExporter(**bounds)  # type: ignore[arg-type]


def test_the_dialects_need_no_opentelemetry() -> None:
    program = "import sys, tracejudge.dialects; print('opentelemetry' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_spans_that_no_dialect_reads_are_counted_and_told_once(
    exporters: Any, sdk: Any, caplog: pytest.LogCaptureFixture
) -> None:
    exporter = exporters(late_span_wait_s=0)
    provider = provider_of(exporter)
    secret = "Where is my parcel?"  # noqa: S105 - a text
    with caplog.at_level(logging.INFO, "tracejudge"):
        for _ in range(3):
            for scope, attributes in (
                ("acme", {"acme.prompt": secret, "http.route": secret, secret: secret}),
                ("web", {"http.route": secret}),
                ("cart", {"cart.total": 3}),
                ("genai", {"gen_ai.operation.name": "chat"}),
                ("adk", {"gen_ai.operation.name": "generate_content", "gcp.vertex.agent.event_id": "e1"}),
            ):
                provider.get_tracer(scope).start_span("call", attributes=attributes).end()
            exporter.force_flush()
    assert {reason: count for reason, count in exporter.losses().items() if count} == {"no_model_call": 9}
    advice = "add a table, see `A dialect of your own` in docs/opentelemetry.md"
    setting = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=SPAN_ONLY"
    older = ", or of older spans ADK_CAPTURE_MESSAGE_CONTENT_IN_SPANS=true"
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", f"OpenTelemetry spans of 'acme' are no traces: no dialect reads acme.prompt; {advice}"),
        ("INFO", "OpenTelemetry spans of 'cart' are no traces: no dialect reads cart.total"),
        ("WARNING", f"OpenTelemetry spans of 'genai' have no answer: they hold no content; set {setting}"),
        ("WARNING", f"OpenTelemetry spans of 'adk' have no answer: they hold no content; set {setting}{older}"),
    ]
    assert len(sdk.traces()) == 6
