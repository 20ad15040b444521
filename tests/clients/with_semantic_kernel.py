"""Semantic Kernel with its own spans, and its log records for the content."""

import asyncio
import logging
import os
from typing import Any

import harness

os.environ["SEMANTICKERNEL_EXPERIMENTAL_GENAI_ENABLE_OTEL_DIAGNOSTICS_SENSITIVE"] = "true"

from openai import AsyncOpenAI
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import LoggerProvider, LoggingHandler
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from semantic_kernel.agents import ChatCompletionAgent, ChatHistoryAgentThread
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion, OpenAIChatPromptExecutionSettings
from semantic_kernel.functions import KernelArguments, kernel_function
from stay import Stay

logs = LoggerProvider()
logs.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter()))
diagnostics = logging.getLogger("semantic_kernel")
diagnostics.addHandler(LoggingHandler(logger_provider=logs))
diagnostics.setLevel(logging.INFO)


class Plugin:
    """The tools of an agent."""

    def __init__(self, tool: Any) -> None:
        setattr(self, tool.__name__, kernel_function(tool))


async def talk(questions: list[str], tool: Any = None, *, stream: bool = False, typed: bool = False) -> None:
    """Ask an agent, each question within the span of a request."""
    client = AsyncOpenAI(base_url=harness.BASE_URL, api_key="none", max_retries=0)
    settings = OpenAIChatPromptExecutionSettings(response_format=Stay) if typed else None
    agent = ChatCompletionAgent(
        service=OpenAIChatCompletion(ai_model_id=harness.MODEL, async_client=client),
        name="support",
        instructions=harness.SYSTEM,
        plugins=[Plugin(tool)] if tool else [],
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


def ask(*questions: str, **options: Any) -> None:
    asyncio.run(talk([*questions], **options))


harness.run(
    {
        "single": lambda: ask(harness.QUESTION),
        "stream": lambda: ask(harness.QUESTION, stream=True),
        "two_turns": lambda: ask(harness.QUESTION, harness.QUESTION),
        "tool": lambda: ask(harness.TOOL_QUESTION, tool=harness.track),
        "search": lambda: ask(harness.SEARCH_QUESTION, tool=harness.kb_search),
        "typed": lambda: ask(harness.TYPED_QUESTION, typed=True),
        "error": lambda: ask(harness.ERROR_QUESTION),
    },
    lambda: (harness.provider.force_flush(), logs.force_flush()),
)
