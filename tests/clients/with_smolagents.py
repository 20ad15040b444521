"""Smolagents through OpenInference, within the span of a request."""

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


def agent(*tools: Tool, stream: bool = False) -> ToolCallingAgent:
    return ToolCallingAgent(
        list(tools), model, instructions=harness.SYSTEM, stream_outputs=stream, verbosity_level=0, max_steps=3
    )


def ask(question: str, *tools: Tool, stream: bool = False) -> None:
    with harness.request():
        agent(*tools, stream=stream).run(question)


def two_turns() -> None:
    talking = agent()
    for reset in (True, False):
        with harness.request():
            talking.run(harness.QUESTION, reset=reset)


tools = {
    "tool": lambda: ask(harness.TOOL_QUESTION, track),
    "search": lambda: ask(harness.SEARCH_QUESTION, kb_search),
}
harness.run(harness.asked(ask, two_turns=two_turns, **tools, typed={}))
