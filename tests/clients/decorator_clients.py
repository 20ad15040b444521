"""Clients that are SDKs for tracing, whose decorators are around OpenAI's client or LangChain: a function each."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import harness


def laminar() -> None:
    """Laminar, exported where the variables of OpenTelemetry say: its decorator, and its tracing of OpenAI's client."""
    from lmnr import Laminar
    from lmnr import observe as laminar_observe

    Laminar.initialize(set_global_tracer_provider=False)

    from decorated_scenarios import scenarios

    kinds = {"tool": "TOOL"}

    def observe(kind: str, name: str) -> Any:
        return laminar_observe(name=name, span_type=kinds.get(kind, "DEFAULT"))

    @contextmanager
    def request() -> Iterator[None]:
        with Laminar.start_as_current_span("POST /ask"):
            Laminar.set_trace_session_id(harness.SESSION)
            Laminar.set_trace_user_id(harness.USER)
            yield

    harness.run(scenarios(observe, request), Laminar.force_flush)


def langchain_langsmith() -> None:
    """LangChain and LangGraph by LangSmith, with spans instead of its own export."""
    from langchain_core.tracers.langchain import get_client, wait_for_all_tracers
    from langchain_scenarios import SCENARIOS

    harness.run(SCENARIOS, lambda: (wait_for_all_tracers(), get_client().flush(), harness.provider.force_flush()))


def langfuse() -> None:
    """Langfuse's SDK beside an exporter of one's own: decorator, wrapper of OpenAI's client, and typed steps."""
    from langfuse import Langfuse, propagate_attributes
    from langfuse import observe as langfuse_observe

    # Langfuse's own processor sends to an address where nobody listens; the harness exports the same spans.
    os.environ |= {"LANGFUSE_PUBLIC_KEY": "pk", "LANGFUSE_SECRET_KEY": "sk", "LANGFUSE_BASE_URL": "http://127.0.0.1:9"}
    Langfuse(tracer_provider=harness.provider)

    import langfuse.openai  # noqa: F401 - it wraps the client
    from decorated_scenarios import scenarios

    def observe(kind: Any, name: str) -> Any:
        return langfuse_observe(as_type=kind, name=name)

    def request() -> Any:
        return propagate_attributes(session_id=harness.SESSION, user_id=harness.USER)

    harness.run(scenarios(observe, request))


def langsmith() -> None:
    """LangSmith's SDK with spans instead of its own export: its decorator, and its wrapper of OpenAI's client."""
    import openai_scenarios
    from decorated_scenarios import scenarios
    from langsmith import Client, traceable, tracing_context
    from langsmith.wrappers import wrap_openai

    langsmith = Client(api_key="none", otel_tracer_provider=harness.provider)
    wrap_openai(openai_scenarios.client)
    kinds = {"agent": "chain"}

    def observe(kind: str, name: str) -> Any:
        return traceable(kinds.get(kind, kind), name=name, client=langsmith)

    def request() -> Any:
        return tracing_context(metadata={"session_id": harness.SESSION, "user_id": harness.USER}, client=langsmith)

    documents = [
        {"page_content": one["text"], "id": one["id"], "metadata": {"score": one["score"], "source": one["source"]}}
        for one in harness.DOCUMENTS
    ]
    harness.run(scenarios(observe, request, documents), lambda: (langsmith.flush(), harness.provider.force_flush()))


def mlflow() -> None:
    """MLflow's tracing, exported by itself: its decorator, and its automatic tracing of OpenAI's client."""
    # MLflow exports traces where this is set; by the endpoint of all signals it would export metrics too.
    os.environ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = f"{os.environ.pop('OTEL_EXPORTER_OTLP_ENDPOINT')}/v1/traces"
    os.environ["MLFLOW_TRACKING_URI"] = "http://127.0.0.1:9"  # nobody listens there

    import mlflow
    from decorated_scenarios import scenarios
    from mlflow.entities import Document
    from mlflow.tracing.provider import provider

    mlflow.openai.autolog()

    def request() -> Any:
        return mlflow.start_span("POST /ask", attributes={"session.id": harness.SESSION, "user.id": harness.USER})

    def observe(kind: str, name: str) -> Any:
        return mlflow.trace(name=name, span_type=kind.upper())

    documents = [
        Document(page_content=one["text"], id=one["id"], metadata={"score": one["score"], "doc_uri": one["source"]})
        for one in harness.DOCUMENTS
    ]
    harness.run(scenarios(observe, request, documents), lambda: provider.get().force_flush())
