"""Clients that are SDKs for tracing, whose decorators are around OpenAI's client or LangChain: a function each."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import harness
from harness import DOCUMENTS, QUESTION, RETRIEVAL_QUESTION, SESSION, TOOL_QUESTION, USER

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def scenarios(
    observe: Callable[[str, str], Decorator],
    request: Callable[[], AbstractContextManager[Any]] = harness.request,
    documents: list[Any] = DOCUMENTS,
) -> dict[str, Callable[[], None]]:
    """Build the scenarios of OpenAI's client below functions that a tracing SDK decorates, whichever SDK.

    Args:
        observe: Gives the decorator of a step by its kind, `agent`, `chain`, `tool` or `retriever`, and its name.
        request: Opens the span of a request, or what else names the session and the user.
        documents: What the retriever finds.
    """
    import openai_scenarios
    from openai_scenarios import ask

    @observe("chain", "answer")
    def answer(question: str, history: Sequence[dict[str, str]] = ()) -> str:
        return str(ask(question, *history).choices[0].message.content)

    track = observe("tool", "track")(harness.track)

    @observe("agent", "support")
    def support(question: str) -> str:
        return openai_scenarios.use_tool(question, track)

    @observe("retriever", "search")
    def search(query: str) -> list[Any]:
        return documents if query else []

    @observe("chain", "answer")
    def answer_from_documents(question: str) -> str:
        search(question)
        return str(ask(harness.stuffed(question)).choices[0].message.content)

    @observe("agent", "support")
    def choose(question: str) -> dict[str, Any]:
        answer = ask(question, response_format=openai_scenarios.STAY_FORMAT).choices[0].message.content
        return dict(json.loads(answer))

    works: dict[str, list[tuple[Any, ...]]] = {
        "single": [(answer, QUESTION)],
        "stream": [(partial(ask, stream=True), QUESTION)],
        "two_turns": [(answer, QUESTION), (answer, QUESTION, harness.TURNS)],
        "tool": [(support, TOOL_QUESTION)],
        "retrieval": [(answer_from_documents, RETRIEVAL_QUESTION)],
        "typed": [(choose, harness.TYPED_QUESTION)],
        "error": [(answer, harness.ERROR_QUESTION)],
    }

    def run(name: str) -> None:
        for work, *arguments in works[name]:
            with request():
                work(*arguments)

    return {name: partial(run, name) for name in works}


def laminar() -> None:
    """Laminar, exported where the variables of OpenTelemetry say: its decorator, and its tracing of OpenAI's client."""
    from lmnr import Laminar
    from lmnr import observe as laminar_observe

    Laminar.initialize(set_global_tracer_provider=False)

    kinds = {"tool": "TOOL"}

    def observe(kind: str, name: str) -> Any:
        return laminar_observe(name=name, span_type=kinds.get(kind, "DEFAULT"))

    @contextmanager
    def request() -> Iterator[None]:
        with Laminar.start_as_current_span("POST /ask"):
            Laminar.set_trace_session_id(SESSION)
            Laminar.set_trace_user_id(USER)
            yield

    harness.run(scenarios(observe, request), Laminar.force_flush)


def langchain_langsmith() -> None:
    """LangChain and LangGraph by LangSmith, with spans instead of its own export."""
    from langchain_core.tracers.langchain import get_client, wait_for_all_tracers
    from model_clients import langchain_scenarios

    harness.run(
        langchain_scenarios(), lambda: (wait_for_all_tracers(), get_client().flush(), harness.provider.force_flush())
    )


def langfuse() -> None:
    """Langfuse's SDK beside an exporter of one's own: decorator, wrapper of OpenAI's client, and typed steps."""
    from langfuse import Langfuse, propagate_attributes
    from langfuse import observe as langfuse_observe

    # Langfuse's own processor sends to an address where nobody listens; the harness exports the same spans.
    os.environ |= {"LANGFUSE_PUBLIC_KEY": "pk", "LANGFUSE_SECRET_KEY": "sk", "LANGFUSE_BASE_URL": "http://127.0.0.1:9"}
    Langfuse(tracer_provider=harness.provider)

    import langfuse.openai  # noqa: F401 - it wraps the client

    def observe(kind: Any, name: str) -> Any:
        return langfuse_observe(as_type=kind, name=name)

    def request() -> Any:
        return propagate_attributes(session_id=SESSION, user_id=USER)

    harness.run(scenarios(observe, request))


def langsmith() -> None:
    """LangSmith's SDK with spans instead of its own export: its decorator, and its wrapper of OpenAI's client."""
    import openai_scenarios
    from langsmith import Client, traceable, tracing_context
    from langsmith.wrappers import wrap_openai

    langsmith = Client(api_key="none", otel_tracer_provider=harness.provider)
    wrap_openai(openai_scenarios.client)
    kinds = {"agent": "chain"}

    def observe(kind: str, name: str) -> Any:
        return traceable(kinds.get(kind, kind), name=name, client=langsmith)

    def request() -> Any:
        return tracing_context(metadata={"session_id": SESSION, "user_id": USER}, client=langsmith)

    documents = [
        {"page_content": one["text"], "id": one["id"], "metadata": {"score": one["score"], "source": one["source"]}}
        for one in DOCUMENTS
    ]
    harness.run(scenarios(observe, request, documents), lambda: (langsmith.flush(), harness.provider.force_flush()))


def mlflow() -> None:
    """MLflow's tracing, exported by itself: its decorator, and its automatic tracing of OpenAI's client."""
    # MLflow exports traces where this is set; by the endpoint of all signals it would export metrics too.
    os.environ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = f"{os.environ.pop('OTEL_EXPORTER_OTLP_ENDPOINT')}/v1/traces"
    os.environ["MLFLOW_TRACKING_URI"] = "http://127.0.0.1:9"  # nobody listens there

    import mlflow
    from mlflow.entities import Document
    from mlflow.tracing.provider import provider

    mlflow.openai.autolog()

    def request() -> Any:
        return mlflow.start_span("POST /ask", attributes={"session.id": SESSION, "user.id": USER})

    def observe(kind: str, name: str) -> Any:
        return mlflow.trace(name=name, span_type=kind.upper())

    documents = [
        Document(page_content=one["text"], id=one["id"], metadata={"score": one["score"], "doc_uri": one["source"]})
        for one in DOCUMENTS
    ]
    harness.run(scenarios(observe, request, documents), lambda: provider.get().force_flush())
