"""The completion hook, called as OpenTelemetry's GenAI utilities call it."""

from importlib.metadata import entry_points
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
from opentelemetry.util.genai.completion_hook import CompletionHook, load_completion_hook
from opentelemetry.util.genai.types import (
    InputMessage,
    OutputMessage,
    TextPart,
    ToolCallRequestPart,
    ToolCallResponsePart,
)

import tracejudge
from tracejudge.otel import TraceJudgeCompletionHook

ASKED = [InputMessage("user", [TextPart("Is it open?")])]
SAID = [OutputMessage("assistant", [TextPart("Yes, until six.")], finish_reason="stop")]


def completed(sdk: Any, **value: Any) -> dict[str, Any]:
    hook = TraceJudgeCompletionHook()
    hook.on_completion(**{"inputs": ASKED, "outputs": SAID, "system_instruction": [], **value})
    assert tracejudge.flush(60)
    (trace,) = sdk.traces()
    return trace


def test_it_is_found_under_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_COMPLETION_HOOK", "tracejudge")
    (entry,) = entry_points(group="opentelemetry_genai_completion_hook", name="tracejudge")
    assert isinstance(entry.load()(), CompletionHook)
    assert isinstance(load_completion_hook()._wrapped, TraceJudgeCompletionHook)  # type: ignore[attr-defined]


def test_it_publishes_content_with_the_ids_and_facts_of_the_span(sdk: Any) -> None:
    facts = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.response.model": "small",
        "gen_ai.response.id": "r1",
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3,
    }
    span = TracerProvider(shutdown_on_exit=False).get_tracer("shop").start_span("chat small", attributes=facts)
    ids = span.get_span_context()
    trace = completed(sdk, span=span, system_instruction=[TextPart("Be kind.")])
    assert len(trace.pop("id")) == 16
    assert trace.pop("started_at") <= trace.pop("ended_at")
    assert trace == {
        "trace_id": f"{ids.trace_id:032x}",
        "span_id": f"{ids.span_id:016x}",
        "service": "shop",
        "name": "chat small",
        "input": "Is it open?",
        "output": "Yes, until six.",
        "messages": [{"role": "system", "content": "Be kind."}],
        "provider": "openai",
        "model": "small",
        "response_id": "r1",
        "usage": {"input_tokens": 7, "output_tokens": 3},
    }


def test_a_span_that_is_not_sampled_gives_its_ids(sdk: Any) -> None:
    span = NonRecordingSpan(SpanContext(0xA1, 0xB2, is_remote=False, trace_flags=TraceFlags(0)))
    trace = completed(sdk, span=span)
    assert (trace["trace_id"], trace["span_id"]) == (f"{0xA1:032x}", f"{0xB2:016x}")


def test_without_a_span_the_ids_are_fresh(sdk: Any) -> None:
    trace = completed(sdk)
    assert (len(trace["trace_id"]), len(trace["span_id"]), trace["output"]) == (32, 16, "Yes, until six.")


def test_tools_are_called_and_answer(sdk: Any) -> None:
    inputs = [
        *ASKED,
        InputMessage("assistant", [ToolCallRequestPart({"day": 1}, "hours", "c1")]),
        InputMessage("tool", [ToolCallResponsePart("9-18", "c1")]),
    ]
    outputs = [OutputMessage("assistant", [ToolCallRequestPart({}, "holidays", "c2")], finish_reason="tool_call")]
    trace = completed(sdk, inputs=inputs, outputs=outputs)
    assert (trace["input"], trace["output"]) == ("Is it open?", "")
    assert trace["tool_calls"] == [
        {"name": "hours", "arguments": {"day": 1}, "result": "9-18"},
        {"name": "holidays", "arguments": {}},
    ]


def test_facts_may_stand_in_the_log_record(sdk: Any) -> None:
    class Record:
        attributes = {"gen_ai.request.model": "small"}  # noqa: RUF012 - as the SDK's record has it

    assert completed(sdk, log_record=Record())["model"] == "small"


def test_an_evaluation_is_not_published(sdk: Any) -> None:
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("shop")
    span = tracer.start_span("judge", attributes={"gen_ai.operation.name": "evaluation"})
    TraceJudgeCompletionHook().on_completion(inputs=ASKED, outputs=SAID, system_instruction=[], span=span)
    assert tracejudge.flush(60)
    assert sdk.traces() == []


@pytest.mark.swallows
def test_nothing_raises_into_the_host(sdk: Any) -> None:
    strange: Any = object()
    TraceJudgeCompletionHook().on_completion(inputs=ASKED, outputs=SAID, system_instruction=[], span=strange)
    assert tracejudge.flush(60)
    assert sdk.traces() == []
