"""OpenTelemetry's own instrumentation of OpenAI, with the documents and the tool through its GenAI utilities."""

import json
import os
from collections.abc import Callable
from typing import Any

os.environ["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = "SPAN_ONLY"

from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor
from opentelemetry.util.genai.handler import get_telemetry_handler

exports = True


def instrument() -> None:
    OpenAIInstrumentor().instrument()


def retrieve(question: str, documents: list[dict[str, Any]]) -> None:
    retrieval = get_telemetry_handler().retrieval(data_source_id="faq")
    retrieval.query_text = question
    retrieval.documents = [
        {"id": document["id"], "score": document["score"], "content": document["text"]} for document in documents
    ]
    retrieval.stop()


def run_tool(call_id: str, name: str, arguments: str, tool: Callable[[], str]) -> str:
    invocation = get_telemetry_handler().tool(name)
    invocation.tool_call_id = call_id
    invocation.arguments = json.loads(arguments)
    invocation.tool_result = tool()
    invocation.stop()
    return invocation.tool_result
