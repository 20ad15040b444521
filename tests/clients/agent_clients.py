"""Clients that are frameworks of agents: a function each, which sets up its instrumentation and runs the scenarios."""

import asyncio
import logging
import os
from collections.abc import Sequence
from typing import Any

import harness
from harness import BASE_URL, MODEL, QUESTION, SESSION, SYSTEM, USER


def ag2() -> None:
    """AG2 with its middleware for OpenTelemetry."""
    from ag2 import Agent
    from ag2.config import OpenAIConfig
    from ag2.middleware import TelemetryMiddleware

    async def talk(questions: list[str], *, stream: bool = False, **options: Any) -> None:
        config = OpenAIConfig(MODEL, "none", BASE_URL, streaming=stream, max_retries=0)
        telemetry = TelemetryMiddleware(agent_name="support", model_name=MODEL, span_attributes=harness.IDS)
        asked: Any = Agent("support", SYSTEM, config=config, middleware=[telemetry], **options)
        for question in questions:
            asked = await asked.ask(question)

    harness.run(harness.asked(harness.synchronous(talk), tools=harness.same, typed={"response_schema": harness.stay()}))


def agno() -> None:
    """Agno through OpenInference."""
    from agno.agent import Agent
    from agno.db.in_memory import InMemoryDb
    from agno.models.openai import OpenAIChat
    from openinference.instrumentation.agno import AgnoInstrumentor

    AgnoInstrumentor().instrument(tracer_provider=harness.provider)

    def ask(question: str, *, stream: bool = False, **options: Any) -> None:
        model = OpenAIChat(id=MODEL, base_url=BASE_URL, api_key="none", max_retries=0)
        agent = Agent(name="support", model=model, system_message=SYSTEM, telemetry=False, **options)
        done = agent.run(question, session_id=SESSION, user_id=USER, stream=stream)
        for _ in done if stream else ():
            pass

    def two_turns() -> None:
        database = InMemoryDb()
        for _ in range(2):
            ask(QUESTION, db=database, add_history_to_context=True)

    harness.run(harness.asked(ask, two_turns=two_turns, tools=harness.same, typed={"output_schema": harness.stay()}))


def autogen() -> None:
    """AutoGen through OpenInference: its agents, and the calls of OpenAI's client."""
    from autogen_agentchat.agents import AssistantAgent
    from autogen_core.models import ModelFamily
    from autogen_ext.models.openai import OpenAIChatCompletionClient
    from openinference.instrumentation.autogen_agentchat import AutogenAgentChatInstrumentor
    from openinference.instrumentation.openai import OpenAIInstrumentor

    AutogenAgentChatInstrumentor().instrument(tracer_provider=harness.provider)
    OpenAIInstrumentor().instrument(tracer_provider=harness.provider)
    abilities = {"vision": False, "function_calling": True, "json_output": True, "structured_output": True}

    async def talk(questions: list[str], *, stream: bool = False, **options: Any) -> None:
        model = OpenAIChatCompletionClient(
            model=MODEL,
            base_url=BASE_URL,
            api_key="none",
            max_retries=0,
            include_name_in_message=False,
            model_info={**abilities, "family": ModelFamily.UNKNOWN},
        )
        options |= {"reflect_on_tool_use": True} if "tools" in options else {}
        agent = AssistantAgent("support", model, system_message=SYSTEM, model_client_stream=stream, **options)
        for question in questions:
            with harness.request():
                if stream:
                    async for _ in agent.run_stream(task=question):
                        pass
                else:
                    await agent.run(task=question)

    harness.run(
        harness.asked(harness.synchronous(talk), tools=harness.same, typed={"output_content_type": harness.stay()})
    )


def crewai() -> None:
    """CrewAI through OpenInference: its own spans, and those of OpenAI's client below them."""
    os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_TRACING_ENABLED": "false"}

    from crewai import LLM, Agent, Crew, Task
    from crewai.tools import tool
    from openinference.instrumentation.crewai import CrewAIInstrumentor
    from openinference.instrumentation.openai import OpenAIInstrumentor

    CrewAIInstrumentor().instrument(tracer_provider=harness.provider)
    OpenAIInstrumentor().instrument(tracer_provider=harness.provider)

    def agent(*tools: Any, stream: bool = False) -> Agent:
        """Make an agent, whose system prompt CrewAI writes."""
        model = LLM(model=f"openai/{MODEL}", base_url=BASE_URL, api_key="none", stream=stream)
        role: dict[str, Any] = {"role": "support", "goal": "Help customers.", "backstory": SYSTEM}
        return Agent(**role, llm=model, tools=list(tools), max_retry_limit=0)

    def ask(question: str, *, tools: Any = (), stream: bool = False, **options: Any) -> None:
        who = agent(*tools, stream=stream)
        task = Task(description="{question}", expected_output="An answer.", agent=who, **options)
        with harness.request():
            Crew(name="support", agents=[who], tasks=[task]).kickoff(inputs={"question": question})

    def two_turns() -> None:
        """Crews know no conversation, their agents do."""
        for messages in (harness.TURNS[:1], [*harness.TURNS, harness.TURNS[0]]):
            with harness.request():
                agent().kickoff(messages)

    harness.run(harness.asked(ask, two_turns=two_turns, tools=tool, typed={"output_pydantic": harness.stay()}))


def google_adk() -> None:
    """Google's Agent Development Kit with its own spans, which hold the content if two variables say so."""
    os.environ |= {"GOOGLE_API_KEY": "none", "GOOGLE_GEMINI_BASE_URL": harness.ROOT_URL}
    os.environ.setdefault("OTEL_SEMCONV_STABILITY_OPT_IN", "gen_ai_latest_experimental")
    os.environ.setdefault("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY")

    from google.adk.agents import LlmAgent, RunConfig
    from google.adk.agents.run_config import StreamingMode
    from google.adk.models import Gemini
    from google.adk.runners import InMemoryRunner
    from google.genai import types

    async def talk(questions: list[str], *, stream: bool = False, **options: Any) -> None:
        agent = LlmAgent(name="support", model=Gemini(model=MODEL), instruction=SYSTEM, **options)
        runner = InMemoryRunner(agent, app_name="shop")
        who = {"user_id": USER, "session_id": SESSION}
        await runner.session_service.create_session(app_name="shop", **who)
        mode = RunConfig(streaming_mode=StreamingMode.SSE if stream else StreamingMode.NONE)
        for question in questions:
            message = types.Content(role="user", parts=[types.Part(text=question)])
            with harness.request():
                async for _ in runner.run_async(**who, new_message=message, run_config=mode):
                    pass

    harness.run(harness.asked(harness.synchronous(talk), tools=harness.same, typed={"output_schema": harness.stay()}))


def openai_agents() -> None:
    """OpenAI's Agents SDK through OpenInference, over the Responses API."""
    from agents import Agent, Runner, function_tool
    from openinference.instrumentation.openai_agents import OpenAIAgentsInstrumentor

    OpenAIAgentsInstrumentor().instrument(tracer_provider=harness.provider, exclusive_processor=True)
    loop = asyncio.new_event_loop()

    def agent(**options: Any) -> Agent:
        return Agent(name="support", instructions=SYSTEM, model=MODEL, **options)

    def ask(question: Any, **options: Any) -> Any:
        with harness.request():
            return loop.run_until_complete(Runner.run(agent(**options), question))

    def stream() -> None:
        async def consume() -> None:
            with harness.request():
                async for _ in Runner.run_streamed(agent(), QUESTION).stream_events():
                    pass

        loop.run_until_complete(consume())

    def two_turns() -> None:
        first = ask(QUESTION)
        ask([*first.to_input_list(), {"role": "user", "content": QUESTION}])

    typed = {"output_type": harness.stay()}
    harness.run(harness.asked(ask, stream=stream, two_turns=two_turns, tools=function_tool, typed=typed))


def pydantic_ai() -> None:
    """Pydantic AI with its own instrumentation, as it is written by default."""
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    Agent.instrument_all()
    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=BASE_URL, api_key="none"))
    who: Any = {"conversation_id": SESSION, "metadata": {"user_id": USER}}

    def agent(**options: Any) -> Agent[None, Any]:
        return Agent(model, instructions=SYSTEM, name="support", **options)

    def ask(question: str, messages: Any = None, **options: Any) -> Any:
        return agent(**options).run_sync(question, message_history=messages, **who)

    def stream() -> None:
        for _ in agent().run_stream_sync(QUESTION, **who).stream_text():
            pass

    def two_turns() -> None:
        ask(QUESTION, ask(QUESTION).all_messages())

    harness.run(
        harness.asked(
            ask,
            stream=stream,
            two_turns=two_turns,
            tools=harness.same,
            typed={"output_type": harness.stay()},
            typed_with_tool={"output_type": harness.stay(), "tools": [harness.track]},
        )
    )


def semantic_kernel() -> None:
    """Semantic Kernel with its own spans, and its log records for the content."""
    os.environ["SEMANTICKERNEL_EXPERIMENTAL_GENAI_ENABLE_OTEL_DIAGNOSTICS_SENSITIVE"] = "true"

    from openai import AsyncOpenAI
    from opentelemetry.sdk._logs import LoggingHandler
    from semantic_kernel.agents import ChatCompletionAgent, ChatHistoryAgentThread
    from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion, OpenAIChatPromptExecutionSettings
    from semantic_kernel.functions import KernelArguments, kernel_function

    logs = harness.export_logs()
    diagnostics = logging.getLogger("semantic_kernel")
    diagnostics.addHandler(LoggingHandler(logger_provider=logs))
    diagnostics.setLevel(logging.INFO)

    class Plugin:
        """The tools of an agent."""

        def __init__(self, tool: Any) -> None:
            setattr(self, tool.__name__, kernel_function(tool))

    async def talk(questions: list[str], *, tools: Any = (), stream: bool = False, typed: bool = False) -> None:
        client = AsyncOpenAI(base_url=BASE_URL, api_key="none", max_retries=0)
        settings = OpenAIChatPromptExecutionSettings(response_format=harness.stay()) if typed else None
        agent = ChatCompletionAgent(
            service=OpenAIChatCompletion(ai_model_id=MODEL, async_client=client),
            name="support",
            instructions=SYSTEM,
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


def strands() -> None:
    """Strands Agents with their own spans, whose content is in events."""
    from strands import Agent, tool
    from strands.models.openai import OpenAIModel

    model = OpenAIModel(client_args={"base_url": BASE_URL, "api_key": "none", "max_retries": 0}, model_id="small")

    def agent(tools: Any = (), messages: Any = ()) -> Agent:
        return Agent(
            model=model,
            name="support",
            system_prompt=SYSTEM,
            messages=list(messages),
            tools=[*map(tool, tools)],
            trace_attributes=harness.IDS,
            callback_handler=None,
        )

    def stream() -> None:
        async def consume() -> None:
            async for _ in agent().stream_async(QUESTION):
                pass

        asyncio.run(consume())

    def two_turns() -> None:
        ask(QUESTION)
        turns = [{"role": one["role"], "content": [{"text": one["content"]}]} for one in harness.TURNS]
        agent(messages=turns)(QUESTION)

    def ask(question: str, tools: Any = (), **options: Any) -> None:
        agent(tools)(question, **options)

    typed = {"structured_output_model": harness.stay()}
    harness.run(harness.asked(ask, stream=stream, two_turns=two_turns, tools=harness.same, typed=typed))


def smolagents() -> None:
    """Smolagents through OpenInference, within the span of a request."""
    from openinference.instrumentation.smolagents import SmolagentsInstrumentor
    from smolagents import OpenAIServerModel, Tool, ToolCallingAgent, tool

    SmolagentsInstrumentor().instrument(tracer_provider=harness.provider)
    model = OpenAIServerModel(MODEL, api_base=BASE_URL, api_key="none", client_kwargs={"max_retries": 0})

    @tool
    def track(number: int) -> str:
        """Find a parcel.

        Args:
            number: Its number.
        """
        return harness.track(number)

    @tool
    def kb_search(query: str) -> list[str]:
        """Search the handbook.

        Args:
            query: What to look for.
        """
        return harness.kb_search(query)

    def agent(tools: Sequence[Tool] = (), *, stream: bool = False) -> ToolCallingAgent:
        options: Any = {"instructions": SYSTEM, "verbosity_level": 0, "max_steps": 3}
        return ToolCallingAgent([*tools], model, stream_outputs=stream, **options)

    def ask(question: str, **options: Any) -> None:
        with harness.request():
            agent(**options).run(question)

    def two_turns() -> None:
        talking = agent()
        for reset in (True, False):
            with harness.request():
                talking.run(QUESTION, reset=reset)

    tools = {"tool": {"tools": [track]}, "search": {"tools": [kb_search]}}
    harness.run(harness.asked(ask, two_turns=two_turns, **tools, typed={}))
