"""Pydantic AI with its own instrumentation, as it is written by default."""

from harness import (
    BASE_URL,
    DOCUMENTS,
    ERROR_QUESTION,
    MODEL,
    QUESTION,
    RETRIEVAL_QUESTION,
    SEARCH_QUESTION,
    SYSTEM,
    TOOL_QUESTION,
    TYPED_QUESTION,
    request,
    run,
    stuffed,
    track,
)
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

Agent.instrument_all()
model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=BASE_URL, api_key="none"))
agent = Agent(model, instructions=SYSTEM, name="support")


class Stay(BaseModel):
    """An answer of two fields."""

    city: str
    days: int


def stream() -> None:
    with agent.run_stream_sync(QUESTION) as streamed:
        for _ in streamed.stream_text():
            pass


def two_turns() -> None:
    first = agent.run_sync(QUESTION)
    agent.run_sync(QUESTION, message_history=first.all_messages())


def tool() -> None:
    Agent(model, instructions=SYSTEM, name="support", tools=[track]).run_sync(TOOL_QUESTION)


def kb_search(query: str) -> list[str]:
    """Search the handbook."""
    assert query == RETRIEVAL_QUESTION
    return [one["text"] for one in DOCUMENTS]


def retrieval() -> None:
    Agent(model, instructions=SYSTEM, name="support", tools=[kb_search]).run_sync(SEARCH_QUESTION)


def typed() -> None:
    with request():
        Agent(model, instructions=SYSTEM, name="support", output_type=Stay).run_sync(TYPED_QUESTION)


def typed_with_tool() -> None:
    Agent(model, instructions=SYSTEM, name="support", output_type=Stay, tools=[track]).run_sync(TOOL_QUESTION)


run(
    {
        "single": lambda: agent.run_sync(QUESTION),
        "stream": stream,
        "two_turns": two_turns,
        "tool": tool,
        "retrieval": retrieval,
        "stuffed": lambda: agent.run_sync(stuffed(RETRIEVAL_QUESTION)),
        "typed": typed,
        "typed_with_tool": typed_with_tool,
        "error": lambda: agent.run_sync(ERROR_QUESTION),
    }
)
