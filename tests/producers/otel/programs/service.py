"""A service in a process of its own, instrumented as its argument says: instrumentations patch for good.

    python service.py NAME SCENARIO BASE_URL

It sets up OpenTelemetry with our exporter, or our completion hook, and answers one question from documents
(`rag`) or with a tool (`tools`), through the real client of OpenAI. TRACEJUDGE_* variables say where traces go.
"""

import importlib
import json
import sys
from collections.abc import Callable
from typing import Any, Protocol

from openai import OpenAI
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import tracejudge
from tracejudge.otel import TraceJudgeExporter

QUESTION = "Where is my parcel?"
DOCUMENTS = [
    {"id": "faq-1", "text": "Parcels leave on Mondays.", "score": 0.9},
    {"id": "faq-2", "text": "A parcel takes two days.", "score": 0.5},
]
HISTORY = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello."},
    {"role": "assistant", "content": "How can I help?"},
]
TOOLS = [{"type": "function", "function": {"name": "track", "parameters": {"type": "object", "properties": {}}}}]


class Dialect(Protocol):
    """What a module of this folder has to offer."""

    exports: bool
    instrument: Callable[[], None]
    retrieve: Callable[[str, list[dict[str, Any]]], None]
    run_tool: Callable[[str, str, str, Callable[[], str]], str]


def main(name: str, scenario: str, base_url: str) -> None:
    tracejudge.init()
    dialect: Dialect = importlib.import_module(name)  # type: ignore[assignment]
    provider = TracerProvider()
    if dialect.exports:
        provider.add_span_processor(BatchSpanProcessor(TraceJudgeExporter()))
    trace.set_tracer_provider(provider)
    dialect.instrument()
    client = OpenAI(base_url=base_url, api_key="none", max_retries=0)
    with trace.get_tracer("shop").start_as_current_span("POST /ask"):
        {"rag": answer_from_documents, "tools": answer_with_a_tool}[scenario](client, dialect)
    provider.shutdown()
    assert tracejudge.flush(60)


def answer_from_documents(client: OpenAI, dialect: Dialect) -> None:
    dialect.retrieve(QUESTION, DOCUMENTS)
    client.chat.completions.create(model="small", messages=[*HISTORY, {"role": "user", "content": QUESTION}])


def answer_with_a_tool(client: OpenAI, dialect: Dialect) -> None:
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]
    reply = client.chat.completions.create(model="small", messages=messages, tools=TOOLS)
    message = reply.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    for call in message.tool_calls or ():
        function = call.function
        result = dialect.run_tool(call.id, function.name, function.arguments, lambda: json.dumps({"place": "Bern"}))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    client.chat.completions.create(model="small", messages=messages, tools=TOOLS)


if __name__ == "__main__":
    main(*sys.argv[1:])
