"""Services in processes of their own, instrumented as an argument says: instrumentations patch for good.

    python service.py BASE_URL '[["official"|"arize"|"traceloop", {VARIABLE: VALUE}], …]'

They are forked one after the other, as all import the same. Each sets up OpenTelemetry with our exporter, unless a
variable names our completion hook, and answers one question from documents and one with a tool, through the real client
of OpenAI. TRACEJUDGE_* variables say where traces go. Documents and tool are written by OpenTelemetry's GenAI utilities
(official), by OpenInference's tracer (arize), and as OpenLLMetry's vector stores and decorators do (traceloop).
"""

import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from openai import OpenAI
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import tracejudge
from tracejudge.otel import TraceJudgeExporter

Documents = list[dict[str, Any]]
QUESTION = "Where is my parcel?"
DOCUMENTS: Documents = [
    {"id": "faq-1", "text": "Parcels leave on Mondays.", "score": 0.9},
    {"id": "faq-2", "text": "A parcel takes two days.", "score": 0.5},
]
HISTORY = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello."},
    {"role": "assistant", "content": "How can I help?"},
]
TOOLS = [{"type": "function", "function": {"name": "track", "parameters": {"type": "object", "properties": {}}}}]
INSTRUMENTORS = {"official": "opentelemetry.instrumentation.genai.openai"}
INSTRUMENTORS |= {"arize": "openinference.instrumentation.openai", "traceloop": "opentelemetry.instrumentation.openai"}

# What each would import by itself, later.
OF_ALL = ("openai.resources.chat", "openinference.instrumentation", "opentelemetry.util.genai.handler")
OF_ALL += ("tracejudge.delivery.encoding", "tracejudge.delivery.transport")


def handler() -> Any:
    return importlib.import_module("opentelemetry.util.genai.handler").get_telemetry_handler()


def openinference_span(name: str, kind: str) -> Any:
    library = importlib.import_module("openinference.instrumentation")
    tracer = library.OITracer(trace.get_tracer("shop"), config=library.TraceConfig())
    return tracer.start_as_current_span(name, openinference_span_kind=kind)


def retrieve_official(question: str, documents: Documents) -> None:
    retrieval = handler().retrieval(data_source_id="faq")
    retrieval.query_text = question
    retrieval.documents = [{"id": one["id"], "score": one["score"], "content": one["text"]} for one in documents]
    retrieval.stop()


def retrieve_arize(question: str, documents: Documents) -> None:
    library = importlib.import_module("openinference.instrumentation")
    values = [{"document.id": each["id"], "id": each["id"], "content": each["text"]} for each in documents]
    values = [{**value, "score": each["score"]} for value, each in zip(values, documents, strict=True)]
    with openinference_span("search", "retriever") as span:
        span.set_input(question)
        span.set_attributes(library.get_retriever_attributes(documents=values))


def retrieve_traceloop(question: str, documents: Documents) -> None:
    with trace.get_tracer("shop").start_as_current_span("chroma.query") as span:
        span.set_attribute("db.system", "chroma")
        span.add_event("db.query.embeddings", {"db.query.embeddings.vector": f"({len(question)})"})
        for document in documents:
            result = {"id": document["id"], "score": document["score"], "document": document["text"]}
            span.add_event("db.query.result", {f"db.query.result.{key}": value for key, value in result.items()})


def run_official(call_id: str, name: str, arguments: str, result: str) -> None:
    invocation = handler().tool(name)
    invocation.tool_call_id = call_id
    invocation.arguments = json.loads(arguments)
    invocation.tool_result = result
    invocation.stop()


def run_arize(call_id: str, name: str, arguments: str, result: str) -> None:
    with openinference_span(name, "tool") as span:
        span.set_tool(name=name, description="", parameters={})
        span.set_input(arguments, mime_type="application/json")
        span.set_attribute("tool.id", call_id)
        span.set_output(result, mime_type="application/json")


def run_traceloop(call_id: str, name: str, arguments: str, result: str) -> None:
    with trace.get_tracer("shop").start_as_current_span(f"{name}.tool") as span:
        span.set_attributes({"traceloop.span.kind": "tool", "traceloop.entity.name": name})
        span.add_event("call", {"id": call_id})
        span.set_attribute("traceloop.entity.input", json.dumps({"args": [], "kwargs": json.loads(arguments)}))
        span.set_attribute("traceloop.entity.output", json.dumps(result))


def answer_from_documents(client: OpenAI, name: str) -> None:
    retrieve: Callable[..., None] = globals()[f"retrieve_{name}"]
    retrieve(QUESTION, DOCUMENTS)
    client.chat.completions.create(model="small", messages=[*HISTORY, {"role": "user", "content": QUESTION}])


def answer_with_a_tool(client: OpenAI, name: str) -> None:
    run_tool: Callable[..., None] = globals()[f"run_{name}"]
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]
    reply = client.chat.completions.create(model="small", messages=messages, tools=TOOLS)
    message = reply.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    for call in message.tool_calls or ():
        result = json.dumps({"place": "Bern"})
        run_tool(call.id, call.function.name, call.function.arguments, result)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    client.chat.completions.create(model="small", messages=messages, tools=TOOLS)


def main(name: str, base_url: str) -> None:
    tracejudge.init()
    instrumentor = importlib.import_module(INSTRUMENTORS[name]).OpenAIInstrumentor()
    provider = TracerProvider()
    if "OTEL_INSTRUMENTATION_GENAI_COMPLETION_HOOK" not in os.environ:
        provider.add_span_processor(BatchSpanProcessor(TraceJudgeExporter()))
    trace.set_tracer_provider(provider)
    instrumentor.instrument()
    client = OpenAI(base_url=base_url, api_key="none", max_retries=0)
    for answer in (answer_from_documents, answer_with_a_tool):
        with trace.get_tracer("shop").start_as_current_span("POST /ask"):
            answer(client, name)
    provider.shutdown()
    assert tracejudge.flush(60)


if __name__ == "__main__":
    for module in (*INSTRUMENTORS.values(), *OF_ALL):
        importlib.import_module(module)
    for name, variables in json.loads(sys.argv[2]):
        child = os.fork()
        if child == 0:
            os.environ |= variables
            main(name, sys.argv[1])
            sys.exit()
        assert os.waitpid(child, 0)[1] == 0, (name, variables)
