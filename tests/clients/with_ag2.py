"""AG2 with its middleware for OpenTelemetry."""

import asyncio
from typing import Any

import harness
from ag2 import Agent
from ag2.config import OpenAIConfig
from ag2.middleware import TelemetryMiddleware
from stay import Stay

IDS = {"session.id": harness.SESSION, "user.id": harness.USER}


async def talk(*questions: str, stream: bool = False, **options: Any) -> None:
    """Ask an agent of these options; the later questions follow on the first answer."""
    config = OpenAIConfig(harness.MODEL, "none", harness.BASE_URL, streaming=stream, max_retries=0)
    telemetry = TelemetryMiddleware(agent_name="support", model_name=harness.MODEL, span_attributes=IDS)
    asked: Any = Agent("support", harness.SYSTEM, config=config, middleware=[telemetry], **options)
    for question in questions:
        asked = await asked.ask(question)


def ask(*questions: str, **options: Any) -> None:
    asyncio.run(talk(*questions, **options))


harness.run(
    {
        "single": lambda: ask(harness.QUESTION),
        "stream": lambda: ask(harness.QUESTION, stream=True),
        "two_turns": lambda: ask(harness.QUESTION, harness.QUESTION),
        "tool": lambda: ask(harness.TOOL_QUESTION, tools=[harness.track]),
        "search": lambda: ask(harness.SEARCH_QUESTION, tools=[harness.kb_search]),
        "typed": lambda: ask(harness.TYPED_QUESTION, response_schema=Stay),
        "error": lambda: ask(harness.ERROR_QUESTION),
    }
)
