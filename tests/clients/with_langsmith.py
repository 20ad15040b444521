"""LangSmith's SDK with spans instead of its own export: its decorator, and its wrapper of OpenAI's client."""

import os
from typing import Any

os.environ |= {"LANGSMITH_TRACING": "true", "LANGSMITH_OTEL_ENABLED": "true", "LANGSMITH_OTEL_ONLY": "true"}

import harness
import openai_scenarios
from decorated_scenarios import scenarios
from langsmith import Client, traceable, tracing_context
from langsmith.wrappers import wrap_openai

langsmith = Client(api_key="none", otel_tracer_provider=harness.provider)
wrap_openai(openai_scenarios.client)
KINDS = {"agent": "chain"}


def observe(kind: str, name: str) -> Any:
    return traceable(KINDS.get(kind, kind), name=name, client=langsmith)


def request() -> Any:
    return tracing_context(metadata={"session_id": harness.SESSION, "user_id": harness.USER}, client=langsmith)


documents = [
    {"page_content": one["text"], "id": one["id"], "metadata": {"score": one["score"], "source": one["source"]}}
    for one in harness.DOCUMENTS
]
harness.run(scenarios(observe, request, documents), lambda: (langsmith.flush(), harness.provider.force_flush()))
