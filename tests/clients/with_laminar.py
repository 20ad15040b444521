"""Laminar, exported where the variables of OpenTelemetry say: its decorator, and its tracing of OpenAI's client."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import harness
from lmnr import Laminar
from lmnr import observe as laminar_observe

Laminar.initialize(set_global_tracer_provider=False)

from decorated_scenarios import scenarios

KINDS = {"tool": "TOOL"}


def observe(kind: str, name: str) -> Any:
    return laminar_observe(name=name, span_type=KINDS.get(kind, "DEFAULT"))


@contextmanager
def request() -> Iterator[None]:
    with Laminar.start_as_current_span("POST /ask"):
        Laminar.set_trace_session_id(harness.SESSION)
        Laminar.set_trace_user_id(harness.USER)
        yield


harness.run(scenarios(observe, request), Laminar.force_flush)
