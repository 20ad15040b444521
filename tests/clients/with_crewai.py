"""CrewAI through OpenInference: its own spans, and those of OpenAI's client below them."""

import os
from typing import Any

os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_TRACING_ENABLED": "false"}

import harness
from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool
from openinference.instrumentation.crewai import CrewAIInstrumentor
from openinference.instrumentation.openai import OpenAIInstrumentor
from stay import Stay

CrewAIInstrumentor().instrument(tracer_provider=harness.provider)
OpenAIInstrumentor().instrument(tracer_provider=harness.provider)


def agent(*tools: Any, stream: bool = False) -> Agent:
    """Make an agent, whose system prompt CrewAI writes."""
    model = LLM(model=f"openai/{harness.MODEL}", base_url=harness.BASE_URL, api_key="none", stream=stream)
    role: dict[str, Any] = {"role": "support", "goal": "Help customers.", "backstory": harness.SYSTEM}
    return Agent(**role, llm=model, tools=list(tools), max_retry_limit=0)


def ask(question: str, *, tools: Any = (), stream: bool = False, **options: Any) -> None:
    """Run a task by a crew of one agent within a request."""
    who = agent(*tools, stream=stream)
    task = Task(description="{question}", expected_output="An answer.", agent=who, **options)
    with harness.request():
        Crew(name="support", agents=[who], tasks=[task]).kickoff(inputs={"question": question})


def two_turns() -> None:
    """Crews know no conversation, their agents do."""
    for messages in (harness.TURNS[:1], [*harness.TURNS, harness.TURNS[0]]):
        with harness.request():
            agent().kickoff(messages)


harness.run(harness.asked(ask, two_turns=two_turns, tools=tool, typed={"output_pydantic": Stay}))
