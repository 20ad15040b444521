"""Agno through OpenInference."""

from typing import Any

import harness
from agno.agent import Agent
from agno.db.in_memory import InMemoryDb
from agno.models.openai import OpenAIChat
from openinference.instrumentation.agno import AgnoInstrumentor
from stay import Stay

AgnoInstrumentor().instrument(tracer_provider=harness.provider)


def ask(question: str, *, stream: bool = False, **options: Any) -> None:
    model = OpenAIChat(id=harness.MODEL, base_url=harness.BASE_URL, api_key="none", max_retries=0)
    agent = Agent(name="support", model=model, system_message=harness.SYSTEM, telemetry=False, **options)
    done = agent.run(question, session_id=harness.SESSION, user_id=harness.USER, stream=stream)
    for _ in done if stream else ():
        pass


def two_turns() -> None:
    database = InMemoryDb()
    for _ in range(2):
        ask(harness.QUESTION, db=database, add_history_to_context=True)


harness.run(harness.asked(ask, two_turns=two_turns, tools=harness.same, typed={"output_schema": Stay}))
