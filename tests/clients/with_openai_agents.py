"""OpenAI's Agents SDK through OpenInference, over the Responses API."""

import asyncio
from typing import Any

from agents import Agent, Runner, function_tool
from harness import (
    ERROR_QUESTION,
    MODEL,
    QUESTION,
    SEARCH_QUESTION,
    SYSTEM,
    TOOL_QUESTION,
    TYPED_QUESTION,
    kb_search,
    provider,
    request,
    run,
    track,
)
from openinference.instrumentation.openai_agents import OpenAIAgentsInstrumentor
from stay import Stay

OpenAIAgentsInstrumentor().instrument(tracer_provider=provider, exclusive_processor=True)
loop = asyncio.new_event_loop()


def ask(question: Any, **options: Any) -> Any:
    """Run an agent of these options within a request."""
    with request():
        agent = Agent(name="support", instructions=SYSTEM, model=MODEL, **options)
        return loop.run_until_complete(Runner.run(agent, question))


def stream() -> None:
    async def consume() -> None:
        with request():
            streamed = Runner.run_streamed(Agent(name="support", instructions=SYSTEM, model=MODEL), QUESTION)
            async for _ in streamed.stream_events():
                pass

    loop.run_until_complete(consume())


def two_turns() -> None:
    first = ask(QUESTION)
    ask([*first.to_input_list(), {"role": "user", "content": QUESTION}])


run(
    {
        "single": lambda: ask(QUESTION),
        "stream": stream,
        "two_turns": two_turns,
        "tool": lambda: ask(TOOL_QUESTION, tools=[function_tool(track)]),
        "search": lambda: ask(SEARCH_QUESTION, tools=[function_tool(kb_search)]),
        "typed": lambda: ask(TYPED_QUESTION, output_type=Stay),
        "error": lambda: ask(ERROR_QUESTION),
    }
)
