"""OpenLLMetry's instrumentation of OpenAI; the documents and the tool as its vector stores and decorators write."""

import json
from collections.abc import Callable
from typing import Any

from opentelemetry import trace
from opentelemetry.instrumentation.openai import OpenAIInstrumentor

exports = True


def instrument() -> None:
    OpenAIInstrumentor().instrument()


def retrieve(question: str, documents: list[dict[str, Any]]) -> None:
    with trace.get_tracer("shop").start_as_current_span("chroma.query") as span:
        span.set_attribute("db.system", "chroma")
        span.add_event("db.query.embeddings", {"db.query.embeddings.vector": f"({len(question)})"})
        for document in documents:
            result = {"id": document["id"], "score": document["score"], "document": document["text"]}
            span.add_event("db.query.result", {f"db.query.result.{key}": value for key, value in result.items()})


def run_tool(call_id: str, name: str, arguments: str, tool: Callable[[], str]) -> str:
    with trace.get_tracer("shop").start_as_current_span(f"{name}.tool") as span:
        span.set_attributes({"traceloop.span.kind": "tool", "traceloop.entity.name": name})
        span.add_event("call", {"id": call_id})
        fields = {"args": [], "kwargs": json.loads(arguments)}
        span.set_attribute("traceloop.entity.input", json.dumps(fields))
        result = tool()
        span.set_attribute("traceloop.entity.output", json.dumps(result))
    return result
