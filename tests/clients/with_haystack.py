"""Haystack through OpenInference."""

import os
from typing import Any

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

import harness
from haystack import Document, Pipeline, component
from haystack.components.agents import Agent
from haystack.components.builders import ChatPromptBuilder
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from openinference.instrumentation.haystack import HaystackInstrumentor

HaystackInstrumentor().instrument(tracer_provider=harness.provider)


@component
class HandbookRetriever:
    """Finds the documents of the handbook, whatever the question."""

    @component.output_types(documents=list[Document])
    def run(self, query: str) -> dict[str, list[Document]]:
        found = [Document(id=one["id"], content=one["text"], score=one["score"]) for one in harness.DOCUMENTS]
        return {"documents": found}


def generator(**options: Any) -> OpenAIChatGenerator:
    """Make the component that calls the model."""
    return OpenAIChatGenerator(model=harness.MODEL, max_retries=0, **options)


def chat(question: str, *before: ChatMessage, **options: Any) -> None:
    """Run a pipeline of one model within a request."""
    pipeline = Pipeline()
    pipeline.add_component("llm", generator(**options))
    messages = [ChatMessage.from_system(harness.SYSTEM), *before, ChatMessage.from_user(question)]
    with harness.request():
        pipeline.run({"llm": {"messages": messages}})


def two_turns() -> None:
    chat(harness.QUESTION)
    chat(harness.QUESTION, ChatMessage.from_user(harness.QUESTION), ChatMessage.from_assistant(harness.ANSWER))


def tool() -> None:
    agent = Agent(
        chat_generator=generator(), tools=[create_tool_from_function(harness.track)], system_prompt=harness.SYSTEM
    )
    with harness.request():
        agent.run(messages=[ChatMessage.from_user(harness.TOOL_QUESTION)])


def retrieval() -> None:
    """Answer from the documents that are found."""
    template = [
        ChatMessage.from_system(harness.SYSTEM),
        ChatMessage.from_user("{% for one in documents %}{{ one.content }}\n{% endfor %}\nQuestion: {{ question }}"),
    ]
    pipeline = Pipeline()
    pipeline.add_component("retriever", HandbookRetriever())
    pipeline.add_component("prompt", ChatPromptBuilder(template=template, required_variables=["documents", "question"]))
    pipeline.add_component("llm", generator())
    pipeline.connect("retriever.documents", "prompt.documents")
    pipeline.connect("prompt.prompt", "llm.messages")
    with harness.request():
        pipeline.run(
            {"retriever": {"query": harness.RETRIEVAL_QUESTION}, "prompt": {"question": harness.RETRIEVAL_QUESTION}}
        )


def stream() -> None:
    usage = {"stream_options": {"include_usage": True}}
    chat(harness.QUESTION, streaming_callback=lambda _: None, generation_kwargs=usage)


schema = {"type": "json_schema", "json_schema": {"name": "stay", "schema": harness.STAY}}
others = {one.__name__: one for one in (stream, two_turns, tool, retrieval)}
harness.run(harness.asked(chat, **others, typed={"generation_kwargs": {"response_format": schema}}))
