"""AG2 with its middleware for OpenTelemetry."""

from typing import Any

import harness
from ag2 import Agent
from ag2.config import OpenAIConfig
from ag2.middleware import TelemetryMiddleware
from stay import Stay


async def talk(questions: list[str], *, stream: bool = False, **options: Any) -> None:
    """Ask an agent of these options; the later questions follow on the first answer."""
    config = OpenAIConfig(harness.MODEL, "none", harness.BASE_URL, streaming=stream, max_retries=0)
    telemetry = TelemetryMiddleware(agent_name="support", model_name=harness.MODEL, span_attributes=harness.IDS)
    asked: Any = Agent("support", harness.SYSTEM, config=config, middleware=[telemetry], **options)
    for question in questions:
        asked = await asked.ask(question)


harness.run(harness.asked(harness.synchronous(talk), tools=harness.same, typed={"response_schema": Stay}))
