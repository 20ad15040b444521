"""Agno through OpenInference."""

from typing import Any

import harness
from agno.agent import Agent
from agno.db.in_memory import InMemoryDb
from agno.models.openai import OpenAIChat
from openinference.instrumentation.agno import AgnoInstrumentor
from stay import Stay

AgnoInstrumentor().instrument(tracer_provider=harness.provider)


def agent(**options: Any) -> Agent:
    model = OpenAIChat(id=harness.MODEL, base_url=harness.BASE_URL, api_key="none", max_retries=0)
    return Agent(name="support", model=model, system_message=harness.SYSTEM, telemetry=False, **options)


def ask(question: str, *, stream: bool = False, **options: Any) -> None:
    done = agent(**options).run(question, session_id=harness.SESSION, user_id=harness.USER, stream=stream)
    for _ in done if stream else ():
        pass


def two_turns() -> None:
    database = InMemoryDb()
    for _ in range(2):
        ask(harness.QUESTION, db=database, add_history_to_context=True)


harness.run(
    {
        "single": lambda: ask(harness.QUESTION),
        "stream": lambda: ask(harness.QUESTION, stream=True),
        "two_turns": two_turns,
        "tool": lambda: ask(harness.TOOL_QUESTION, tools=[harness.track]),
        "search": lambda: ask(harness.SEARCH_QUESTION, tools=[harness.kb_search]),
        "typed": lambda: ask(harness.TYPED_QUESTION, output_schema=Stay),
        "error": lambda: ask(harness.ERROR_QUESTION),
    }
)
