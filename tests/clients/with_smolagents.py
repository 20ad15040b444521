"""Smolagents through OpenInference, within the span of a request."""

from collections.abc import Sequence
from typing import Any

import harness
from openinference.instrumentation.smolagents import SmolagentsInstrumentor
from smolagents import OpenAIServerModel, Tool, ToolCallingAgent, tool

SmolagentsInstrumentor().instrument(tracer_provider=harness.provider)
model = OpenAIServerModel(harness.MODEL, api_base=harness.BASE_URL, api_key="none", client_kwargs={"max_retries": 0})


@tool
def track(number: int) -> str:
    """Find a parcel.

    Args:
        number: Its number.
    """
    return harness.track(number)


@tool
def kb_search(query: str) -> list[str]:
    """Search the handbook.

    Args:
        query: What to look for.
    """
    return harness.kb_search(query)


def agent(tools: Sequence[Tool] = (), *, stream: bool = False) -> ToolCallingAgent:
    options: Any = {"instructions": harness.SYSTEM, "verbosity_level": 0, "max_steps": 3}
    return ToolCallingAgent([*tools], model, stream_outputs=stream, **options)


def ask(question: str, **options: Any) -> None:
    with harness.request():
        agent(**options).run(question)


def two_turns() -> None:
    talking = agent()
    for reset in (True, False):
        with harness.request():
            talking.run(harness.QUESTION, reset=reset)


tools = {"tool": {"tools": [track]}, "search": {"tools": [kb_search]}}
harness.run(harness.asked(ask, two_turns=two_turns, **tools, typed={}))
