"""MLflow's tracing, exported by itself: its decorator, and its automatic tracing of OpenAI's client."""

import os
from typing import Any

import harness

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
