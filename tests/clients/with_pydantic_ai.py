"""Pydantic AI with its own instrumentation, as it is written by default."""

from typing import Any

from harness import (
    BASE_URL,
    DOCUMENTS,
    ERROR_QUESTION,
    MODEL,
    QUESTION,
    SEARCH_QUESTION,
    SESSION,
    SYSTEM,
    TOOL_QUESTION,
    TYPED_QUESTION,
    USER,
    run,
    track,
)
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

Agent.instrument_all()
model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=BASE_URL, api_key="none"))


class Stay(BaseModel):
    """An answer of two fields."""

    city: str
    days: int


def ask(question: str, messages: Any = None, **options: Any) -> Any:
    """Run an agent of these options."""
    agent: Agent[None, Any] = Agent(model, instructions=SYSTEM, name="support", **options)
    who = {"conversation_id": SESSION, "metadata": {"user_id": USER}}
    return agent.run_sync(question, message_history=messages, **who)


def stream() -> None:
    agent = Agent(model, instructions=SYSTEM, name="support")
    streamed = agent.run_stream_sync(QUESTION, conversation_id=SESSION, metadata={"user_id": USER})
    for _ in streamed.stream_text():
        pass


def kb_search(query: str) -> list[str]:
    """Search the handbook."""
    return [one["text"] for one in DOCUMENTS if query]


run(
    {
        "single": lambda: ask(QUESTION),
        "stream": stream,
        "two_turns": lambda: ask(QUESTION, ask(QUESTION).all_messages()),
        "tool": lambda: ask(TOOL_QUESTION, tools=[track]),
        "search": lambda: ask(SEARCH_QUESTION, tools=[kb_search]),
        "typed": lambda: ask(TYPED_QUESTION, output_type=Stay),
        "typed_with_tool": lambda: ask(TOOL_QUESTION, output_type=Stay, tools=[track]),
        "error": lambda: ask(ERROR_QUESTION),
    }
)
