"""Pydantic AI with its own instrumentation, as it is written by default."""

from typing import Any

import harness
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from stay import Stay

Agent.instrument_all()
model = OpenAIChatModel(harness.MODEL, provider=OpenAIProvider(base_url=harness.BASE_URL, api_key="none"))


def ask(question: str, messages: Any = None, **options: Any) -> Any:
    """Run an agent of these options."""
    agent: Agent[None, Any] = Agent(model, instructions=harness.SYSTEM, name="support", **options)
    who = {"conversation_id": harness.SESSION, "metadata": {"user_id": harness.USER}}
    return agent.run_sync(question, message_history=messages, **who)


def stream() -> None:
    agent = Agent(model, instructions=harness.SYSTEM, name="support")
    streamed = agent.run_stream_sync(
        harness.QUESTION, conversation_id=harness.SESSION, metadata={"user_id": harness.USER}
    )
    for _ in streamed.stream_text():
        pass


harness.run(
    {
        "single": lambda: ask(harness.QUESTION),
        "stream": stream,
        "two_turns": lambda: ask(harness.QUESTION, ask(harness.QUESTION).all_messages()),
        "tool": lambda: ask(harness.TOOL_QUESTION, tools=[harness.track]),
        "search": lambda: ask(harness.SEARCH_QUESTION, tools=[harness.kb_search]),
        "typed": lambda: ask(harness.TYPED_QUESTION, output_type=Stay),
        "typed_with_tool": lambda: ask(harness.TOOL_QUESTION, output_type=Stay, tools=[harness.track]),
        "error": lambda: ask(harness.ERROR_QUESTION),
    }
)
