"""Google's Agent Development Kit with its own spans, which hold the content if two variables say so."""

import os
from typing import Any

import harness

os.environ |= {"GOOGLE_API_KEY": "none", "GOOGLE_GEMINI_BASE_URL": harness.ROOT_URL}
os.environ.setdefault("OTEL_SEMCONV_STABILITY_OPT_IN", "gen_ai_latest_experimental")
os.environ.setdefault("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY")

from google.adk.agents import LlmAgent, RunConfig
from google.adk.agents.run_config import StreamingMode
from google.adk.models import Gemini
from google.adk.runners import InMemoryRunner
from google.genai import types
from stay import Stay


async def talk(questions: list[str], *, stream: bool = False, **options: Any) -> None:
    """Ask an agent of these options, each question within the span of a request."""
    agent = LlmAgent(name="support", model=Gemini(model=harness.MODEL), instruction=harness.SYSTEM, **options)
    runner = InMemoryRunner(agent, app_name="shop")
    who = {"user_id": harness.USER, "session_id": harness.SESSION}
    await runner.session_service.create_session(app_name="shop", **who)
    mode = RunConfig(streaming_mode=StreamingMode.SSE if stream else StreamingMode.NONE)
    for question in questions:
        message = types.Content(role="user", parts=[types.Part(text=question)])
        with harness.request():
            async for _ in runner.run_async(**who, new_message=message, run_config=mode):
                pass


harness.run(harness.asked(harness.synchronous(talk), tools=harness.same, typed={"output_schema": Stay}))
