"""Strands Agents with their own spans, whose content is in events."""

import asyncio
from typing import Any

import harness
from stay import Stay
from strands import Agent, tool
from strands.models.openai import OpenAIModel

model = OpenAIModel(client_args={"base_url": harness.BASE_URL, "api_key": "none", "max_retries": 0}, model_id="small")
IDS = {"session.id": harness.SESSION, "user.id": harness.USER}


def agent(*tools: Any, messages: Any = ()) -> Agent:
    return Agent(
        model=model,
        name="support",
        system_prompt=harness.SYSTEM,
        messages=list(messages),
        tools=[*map(tool, tools)],
        trace_attributes=IDS,
        callback_handler=None,
    )


def stream() -> None:
    async def consume() -> None:
        async for _ in agent().stream_async(harness.QUESTION):
            pass

    asyncio.run(consume())


def two_turns() -> None:
    agent()(harness.QUESTION)
    agent(messages=[{"role": one["role"], "content": [{"text": one["content"]}]} for one in harness.TURNS])(
        harness.QUESTION
    )


harness.run(
    {
        "single": lambda: agent()(harness.QUESTION),
        "stream": stream,
        "two_turns": two_turns,
        "tool": lambda: agent(harness.track)(harness.TOOL_QUESTION),
        "search": lambda: agent(harness.kb_search)(harness.SEARCH_QUESTION),
        "typed": lambda: agent()(harness.TYPED_QUESTION, structured_output_model=Stay),
        "error": lambda: agent()(harness.ERROR_QUESTION),
    }
)
