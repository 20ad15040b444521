"""OpenInference's instrumentation of OpenAI, with the documents and the tool through its tracer."""

from collections.abc import Callable
from typing import Any

from openinference.instrumentation import OITracer, TraceConfig, get_retriever_attributes
from openinference.instrumentation.openai import OpenAIInstrumentor
from opentelemetry import trace

exports = True


def instrument() -> None:
    OpenAIInstrumentor().instrument()


def _tracer() -> OITracer:
    return OITracer(trace.get_tracer("shop"), config=TraceConfig())


def retrieve(question: str, documents: list[dict[str, Any]]) -> None:
    with _tracer().start_as_current_span("search", openinference_span_kind="retriever") as span:
        span.set_input(question)
        values = [
            {"document.id": document["id"], "content": document["text"], "score": document["score"]}
            for document in documents
        ]
        span.set_attributes(
            get_retriever_attributes(documents=[{**value, "id": value["document.id"]} for value in values])
        )


def run_tool(call_id: str, name: str, arguments: str, tool: Callable[[], str]) -> str:
    with _tracer().start_as_current_span(name, openinference_span_kind="tool") as span:
        span.set_tool(name=name, description="", parameters={})
        span.set_input(arguments, mime_type="application/json")
        span.set_attribute("tool.id", call_id)
        result = tool()
        span.set_output(result, mime_type="application/json")
    return result
