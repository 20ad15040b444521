"""Common part of the clients: every scenario under its own name at the recorder, exported as OTLP over HTTP.

A client sets up its instrumentation on `provider` and calls `run` with its scenarios; see `client.py`.
"""

import asyncio
import json
import os
import sys
import urllib.request
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager
from functools import cache, partial
from typing import Any

ROOT_URL = sys.argv[1].rstrip("/")
BASE_URL = f"{ROOT_URL}/v1"
os.environ |= {
    "OTEL_EXPORTER_OTLP_ENDPOINT": ROOT_URL,
    "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    "OTEL_SERVICE_NAME": "shop",
    "OPENAI_BASE_URL": BASE_URL,
    "OPENAI_API_KEY": "none",
    "ANTHROPIC_BASE_URL": ROOT_URL,
    "ANTHROPIC_API_KEY": "none",
}

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

MODEL = "small"
SYSTEM = "Be brief."
QUESTION = "Where is my parcel?"
ANSWER = "It is in Bern."
TURNS = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]
TOOL_QUESTION = "Where is parcel 7?"
RETRIEVAL_QUESTION = "When do parcels leave?"
SEARCH_QUESTION = "Find out when parcels leave."
TYPED_QUESTION = "Which city, and for how many days?"
ERROR_QUESTION = "Please fail."
DOCUMENTS = [
    {"id": "faq-1", "text": "Parcels leave on Mondays.", "score": 0.9, "source": "faq.md"},
    {"id": "faq-2", "text": "A parcel takes two days.", "score": 0.5, "source": "faq.md"},
]
IMAGE_URL = "https://shop.example/parcel.png"
SESSION = "session-1"
USER = "user-1"
IDS = {"session.id": SESSION, "user.id": USER}
# The schemas of the tool `track` and of the typed answer.
PARAMETERS = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "track", "parameters": PARAMETERS}}]
STAY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
Scenarios = Mapping[str, Callable[[], object]]

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)


def export_logs() -> Any:
    """Set up the export of log records, and return their provider."""
    from opentelemetry._logs import set_logger_provider
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor

    logs = LoggerProvider()
    logs.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter()))
    set_logger_provider(logs)
    return logs


@cache
def stay() -> Any:
    """Make the class of the typed answer of the scenarios; not every environment has pydantic."""
    from pydantic import create_model

    return create_model("Stay", __doc__="An answer of two fields.", city=(str, ...), days=(int, ...))


def stuffed(question: str) -> str:
    """Build the prompt of a question with its documents."""
    return "Documents:\n" + "\n".join(one["text"] for one in DOCUMENTS) + f"\n\nQuestion: {question}"


def track(number: int) -> str:
    """Find a parcel."""
    return f"Parcel {number} is in Bern."


def kb_search(query: str) -> list[str]:
    """Search the handbook."""
    return [one["text"] for one in DOCUMENTS if query]


def with_result(message: Any, question: str, tool: Callable[..., str] = track) -> list[Any]:
    """Build the conversation in OpenAI's form that follows a model's call of the tool."""
    call = message.tool_calls[0]
    result = {"role": "tool", "tool_call_id": call.id, "content": tool(**json.loads(call.function.arguments))}
    asked = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    return [*asked, message.model_dump(exclude_none=True), result]


def request(name: str = "POST /ask") -> AbstractContextManager[trace.Span]:
    """Open the span of a web request, as a service does around a client; it names the user and the session."""
    return trace.get_tracer("web").start_as_current_span(name, attributes=IDS)


def synchronous(talk: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a function that asks questions of one that answers a list of them."""
    return lambda *questions, **options: asyncio.run(talk([*questions], **options))


def asked(ask: Callable[..., object], *, turns: bool = False, **scenarios: Any) -> dict[str, Callable[[], object]]:
    """Build the scenarios of a function that asks one question, or several of a conversation.

    Args:
        ask: Takes `stream` as an option, unless there is a function for this scenario.
        turns: Whether it takes the turns before a question.
        scenarios: A function, or the options of `ask`, each. `tools` makes an option of a function, for two of them.
    """
    questions = {"stream": [QUESTION], "two_turns": [QUESTION, QUESTION], "tool": [TOOL_QUESTION]}
    questions |= {"typed_with_tool": [TOOL_QUESTION], "search": [SEARCH_QUESTION], "typed": [TYPED_QUESTION]}
    questions |= {"stuffed": [stuffed(RETRIEVAL_QUESTION)]}
    defaults = {
        "stream": {"stream": True},
        "two_turns": (lambda: (ask(QUESTION), ask(QUESTION, *TURNS))) if turns else {},
    }
    if tools := scenarios.pop("tools", None):
        defaults |= {"tool": {"tools": [tools(track)]}, "search": {"tools": [tools(kb_search)]}}
    built: dict[str, Callable[[], object]] = {"single": partial(ask, QUESTION)}
    for name, scenario in {**defaults, **scenarios}.items():
        built[name] = scenario if callable(scenario) else partial(ask, *questions[name], **scenario)
    return {**built, "error": partial(ask, ERROR_QUESTION)}


def same(function: Any) -> Any:
    """Return a function as it is, for libraries that take any as a tool."""
    return function


def run(scenarios: Scenarios, flush: Callable[[], object] = provider.force_flush) -> None:
    """Run the scenarios in order; `error` is the only one that may raise."""
    for name, scenario in scenarios.items():
        urllib.request.urlopen(urllib.request.Request(f"{ROOT_URL}/scenario/{name}", method="POST")).close()
        try:
            scenario()
        except Exception:
            if name != "error":
                raise
        flush()
    provider.shutdown()
