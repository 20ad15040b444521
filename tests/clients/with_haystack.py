"""Haystack through OpenInference."""

import os
from typing import Any

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

from harness import (
    ANSWER,
    DOCUMENTS,
    ERROR_QUESTION,
    MODEL,
    QUESTION,
    RETRIEVAL_QUESTION,
    SYSTEM,
    TOOL_QUESTION,
    TYPED_QUESTION,
    provider,
    request,
    run,
    track,
)
from haystack import Document, Pipeline, component
from haystack.components.agents import Agent
from haystack.components.builders import ChatPromptBuilder
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from openinference.instrumentation.haystack import HaystackInstrumentor

HaystackInstrumentor().instrument(tracer_provider=provider)
STAY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}


@component
class HandbookRetriever:
    """Finds the documents of the handbook, whatever the question."""

    @component.output_types(documents=list[Document])
    def run(self, query: str) -> dict[str, list[Document]]:
        found = [Document(id=one["id"], content=one["text"], score=one["score"]) for one in DOCUMENTS]
        return {"documents": found}


def generator(**options: Any) -> OpenAIChatGenerator:
    """Make the component that calls the model."""
    return OpenAIChatGenerator(model=MODEL, max_retries=0, **options)


def chat(question: str, *before: ChatMessage, **options: Any) -> None:
    """Run a pipeline of one model within a request."""
    pipeline = Pipeline()
    pipeline.add_component("llm", generator(**options))
    messages = [ChatMessage.from_system(SYSTEM), *before, ChatMessage.from_user(question)]
    with request():
        pipeline.run({"llm": {"messages": messages}})


def two_turns() -> None:
    chat(QUESTION)
    chat(QUESTION, ChatMessage.from_user(QUESTION), ChatMessage.from_assistant(ANSWER))


def tool() -> None:
    agent = Agent(chat_generator=generator(), tools=[create_tool_from_function(track)], system_prompt=SYSTEM)
    with request():
        agent.run(messages=[ChatMessage.from_user(TOOL_QUESTION)])


def retrieval() -> None:
    """Answer from the documents that are found."""
    template = [
        ChatMessage.from_system(SYSTEM),
        ChatMessage.from_user("{% for one in documents %}{{ one.content }}\n{% endfor %}\nQuestion: {{ question }}"),
    ]
    pipeline = Pipeline()
    pipeline.add_component("retriever", HandbookRetriever())
    pipeline.add_component("prompt", ChatPromptBuilder(template=template, required_variables=["documents", "question"]))
    pipeline.add_component("llm", generator())
    pipeline.connect("retriever.documents", "prompt.documents")
    pipeline.connect("prompt.prompt", "llm.messages")
    with request():
        pipeline.run({"retriever": {"query": RETRIEVAL_QUESTION}, "prompt": {"question": RETRIEVAL_QUESTION}})


schema = {"type": "json_schema", "json_schema": {"name": "stay", "schema": STAY}}
run(
    {
        "single": lambda: chat(QUESTION),
        "stream": lambda: chat(
            QUESTION, streaming_callback=lambda _: None, generation_kwargs={"stream_options": {"include_usage": True}}
        ),
        "two_turns": two_turns,
        "tool": tool,
        "retrieval": retrieval,
        "typed": lambda: chat(TYPED_QUESTION, generation_kwargs={"response_format": schema}),
        "error": lambda: chat(ERROR_QUESTION),
    }
)
