"""AutoGen through OpenInference: its agents, and the calls of OpenAI's client."""

from typing import Any

import harness
from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ModelFamily
from autogen_ext.models.openai import OpenAIChatCompletionClient
from openinference.instrumentation.autogen_agentchat import AutogenAgentChatInstrumentor
from openinference.instrumentation.openai import OpenAIInstrumentor
from stay import Stay

AutogenAgentChatInstrumentor().instrument(tracer_provider=harness.provider)
OpenAIInstrumentor().instrument(tracer_provider=harness.provider)
ABILITIES = {"vision": False, "function_calling": True, "json_output": True, "structured_output": True}


async def talk(questions: list[str], *, stream: bool = False, **options: Any) -> None:
    """Ask an agent of these options, each question within the span of a request."""
    model = OpenAIChatCompletionClient(
        model=harness.MODEL,
        base_url=harness.BASE_URL,
        api_key="none",
        max_retries=0,
        include_name_in_message=False,
        model_info={**ABILITIES, "family": ModelFamily.UNKNOWN},
    )
    options |= {"reflect_on_tool_use": True} if "tools" in options else {}
    agent = AssistantAgent("support", model, system_message=harness.SYSTEM, model_client_stream=stream, **options)
    for question in questions:
        with harness.request():
            if stream:
                async for _ in agent.run_stream(task=question):
                    pass
            else:
                await agent.run(task=question)


harness.run(harness.asked(harness.synchronous(talk), tools=harness.same, typed={"output_content_type": Stay}))
