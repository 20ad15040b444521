"""Pydantic AI with its own instrumentation, as it is written by default."""

from typing import Any

import harness
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from stay import Stay

Agent.instrument_all()
model = OpenAIChatModel(harness.MODEL, provider=OpenAIProvider(base_url=harness.BASE_URL, api_key="none"))
WHO: Any = {"conversation_id": harness.SESSION, "metadata": {"user_id": harness.USER}}


def agent(**options: Any) -> Agent[None, Any]:
    return Agent(model, instructions=harness.SYSTEM, name="support", **options)


def ask(question: str, messages: Any = None, **options: Any) -> Any:
    """Run an agent of these options."""
    return agent(**options).run_sync(question, message_history=messages, **WHO)


def stream() -> None:
    for _ in agent().run_stream_sync(harness.QUESTION, **WHO).stream_text():
        pass


def two_turns() -> None:
    ask(harness.QUESTION, ask(harness.QUESTION).all_messages())


harness.run(
    harness.asked(
        ask,
        stream=stream,
        two_turns=two_turns,
        tools=harness.same,
        typed={"output_type": Stay},
        typed_with_tool={"output_type": Stay, "tools": [harness.track]},
    )
)
