"""OpenAI's Agents SDK through OpenInference, over the Responses API."""

import asyncio
from typing import Any

import harness
from agents import Agent, Runner, function_tool
from openinference.instrumentation.openai_agents import OpenAIAgentsInstrumentor
from stay import Stay

OpenAIAgentsInstrumentor().instrument(tracer_provider=harness.provider, exclusive_processor=True)
loop = asyncio.new_event_loop()


def agent(**options: Any) -> Agent:
    return Agent(name="support", instructions=harness.SYSTEM, model=harness.MODEL, **options)


def ask(question: Any, **options: Any) -> Any:
    """Run an agent of these options within a request."""
    with harness.request():
        return loop.run_until_complete(Runner.run(agent(**options), question))


def stream() -> None:
    async def consume() -> None:
        with harness.request():
            async for _ in Runner.run_streamed(agent(), harness.QUESTION).stream_events():
                pass

    loop.run_until_complete(consume())


def two_turns() -> None:
    first = ask(harness.QUESTION)
    ask([*first.to_input_list(), {"role": "user", "content": harness.QUESTION}])


typed = {"output_type": Stay}
harness.run(harness.asked(ask, stream=stream, two_turns=two_turns, tools=function_tool, typed=typed))
