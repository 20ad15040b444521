"""CrewAI through OpenInference: its own spans, and those of OpenAI's client below them."""

import os
from typing import Any

os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_TRACING_ENABLED": "false"}

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool
from harness import (
    ANSWER,
    BASE_URL,
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
from openinference.instrumentation.crewai import CrewAIInstrumentor
from openinference.instrumentation.openai import OpenAIInstrumentor
from stay import Stay

CrewAIInstrumentor().instrument(tracer_provider=provider)
OpenAIInstrumentor().instrument(tracer_provider=provider)


def agent(*tools: Any, stream: bool = False) -> Agent:
    """Make an agent, whose system prompt CrewAI writes."""
    model = LLM(model=f"openai/{MODEL}", base_url=BASE_URL, api_key="none", stream=stream)
    return Agent(
        role="support", goal="Help customers.", backstory=SYSTEM, llm=model, tools=list(tools), max_retry_limit=0
    )


def ask(question: str, who: Agent | None = None, **options: Any) -> None:
    """Run a task by a crew of one agent within a request."""
    who = who or agent()
    task = Task(description="{question}", expected_output="An answer.", agent=who, **options)
    with request():
        Crew(name="support", agents=[who], tasks=[task]).kickoff(inputs={"question": question})


def two_turns() -> None:
    """Crews know no conversation, their agents do."""
    turns = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]
    for messages in ([turns[0]], [*turns, turns[0]]):
        with request():
            agent().kickoff(messages)


run(
    {
        "single": lambda: ask(QUESTION),
        "stream": lambda: ask(QUESTION, agent(stream=True)),
        "two_turns": two_turns,
        "tool": lambda: ask(TOOL_QUESTION, agent(tool(track))),
        "search": lambda: ask(SEARCH_QUESTION, agent(tool(kb_search))),
        "typed": lambda: ask(TYPED_QUESTION, output_pydantic=Stay),
        "error": lambda: ask(ERROR_QUESTION),
    }
)
