"""Strands Agents with their own spans, whose content is in events."""

import asyncio
from typing import Any

import harness
from stay import Stay
from strands import Agent, tool
from strands.models.openai import OpenAIModel

model = OpenAIModel(client_args={"base_url": harness.BASE_URL, "api_key": "none", "max_retries": 0}, model_id="small")


def agent(tools: Any = (), messages: Any = ()) -> Agent:
    return Agent(
        model=model,
        name="support",
        system_prompt=harness.SYSTEM,
        messages=list(messages),
        tools=[*map(tool, tools)],
        trace_attributes=harness.IDS,
        callback_handler=None,
    )


def stream() -> None:
    async def consume() -> None:
        async for _ in agent().stream_async(harness.QUESTION):
            pass

    asyncio.run(consume())


def two_turns() -> None:
    ask(harness.QUESTION)
    turns = [{"role": one["role"], "content": [{"text": one["content"]}]} for one in harness.TURNS]
    agent(messages=turns)(harness.QUESTION)


def ask(question: str, tools: Any = (), **options: Any) -> None:
    agent(tools)(question, **options)


typed = {"structured_output_model": Stay}
harness.run(harness.asked(ask, stream=stream, two_turns=two_turns, tools=harness.same, typed=typed))
