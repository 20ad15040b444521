"""Semantic Kernel with its own spans, and its log records for the content."""

import logging
import os
from typing import Any

import harness

os.environ["SEMANTICKERNEL_EXPERIMENTAL_GENAI_ENABLE_OTEL_DIAGNOSTICS_SENSITIVE"] = "true"

from openai import AsyncOpenAI
from opentelemetry.sdk._logs import LoggingHandler
from semantic_kernel.agents import ChatCompletionAgent, ChatHistoryAgentThread
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion, OpenAIChatPromptExecutionSettings
from semantic_kernel.functions import KernelArguments, kernel_function
from stay import Stay

logs = harness.export_logs()
diagnostics = logging.getLogger("semantic_kernel")
diagnostics.addHandler(LoggingHandler(logger_provider=logs))
diagnostics.setLevel(logging.INFO)


class Plugin:
    """The tools of an agent."""

    def __init__(self, tool: Any) -> None:
        setattr(self, tool.__name__, kernel_function(tool))


async def talk(questions: list[str], *, tools: Any = (), stream: bool = False, typed: bool = False) -> None:
    """Ask an agent, each question within the span of a request."""
    client = AsyncOpenAI(base_url=harness.BASE_URL, api_key="none", max_retries=0)
    settings = OpenAIChatPromptExecutionSettings(response_format=Stay) if typed else None
    agent = ChatCompletionAgent(
        service=OpenAIChatCompletion(ai_model_id=harness.MODEL, async_client=client),
        name="support",
        instructions=harness.SYSTEM,
        plugins=[*map(Plugin, tools)],
        arguments=KernelArguments(settings) if settings else None,
    )
    thread = ChatHistoryAgentThread()
    for question in questions:
        with harness.request():
            if stream:
                async for _ in agent.invoke_stream(messages=question, thread=thread):
                    pass
            else:
                await agent.get_response(messages=question, thread=thread)


scenarios = harness.asked(harness.synchronous(talk), tools=harness.same, typed={"typed": True})
harness.run(scenarios, lambda: (harness.provider.force_flush(), logs.force_flush()))
