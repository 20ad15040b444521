"""Langfuse's SDK beside an exporter of one's own: its decorator, its wrapper of OpenAI's client, and typed steps."""

import os
from typing import Any

import harness
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
