"""Langfuse's SDK beside an exporter of one's own: its decorator, its wrapper of OpenAI's client, and typed steps."""

import json
import os
from collections.abc import Callable
from typing import Any

import harness
from langfuse import Langfuse, observe, propagate_attributes

# Langfuse's own processor sends to an address where nobody listens; the harness exports the same spans.
os.environ |= {"LANGFUSE_PUBLIC_KEY": "pk", "LANGFUSE_SECRET_KEY": "sk", "LANGFUSE_BASE_URL": "http://127.0.0.1:9"}
Langfuse(tracer_provider=harness.provider)

from langfuse.openai import OpenAI
from pydantic import BaseModel

client = OpenAI(max_retries=0)
BRIEF: dict[str, Any] = {"role": "system", "content": harness.SYSTEM}
PARAMETERS = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "track", "parameters": PARAMETERS}}]


class Stay(BaseModel):
    """An answer of two fields."""

    city: str
    days: int


def ask(question: str, *before: Any, **options: Any) -> Any:
    messages = [BRIEF, *before, {"role": "user", "content": question}]
    return client.chat.completions.create(model=harness.MODEL, messages=messages, **options)


def of_a_user(work: Callable[[], object]) -> Callable[[], None]:
    """Run a scenario with the ids of a session and a user."""

    def run() -> None:
        with propagate_attributes(session_id=harness.SESSION, user_id=harness.USER):
            work()

    run.__name__ = work.__name__
    return run


@observe()
def answer(question: str) -> str:
    return str(ask(question).choices[0].message.content)


def single() -> None:
    answer(harness.QUESTION)


def stream() -> None:
    for _ in ask(harness.QUESTION, stream=True, stream_options={"include_usage": True}):
        pass


def two_turns() -> None:
    ask(harness.QUESTION)
    before = ({"role": "user", "content": harness.QUESTION}, {"role": "assistant", "content": harness.ANSWER})
    ask(harness.QUESTION, *before)


@observe(as_type="tool", name="track")
def track(number: int) -> str:
    return harness.track(number)


@observe(as_type="agent", name="ask")
def agent(question: str) -> str:
    message = ask(question, tools=TOOLS).choices[0].message
    call = message.tool_calls[0]
    result = track(**json.loads(call.function.arguments))
    messages = [
        BRIEF,
        {"role": "user", "content": question},
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": result},
    ]
    done = client.chat.completions.create(model=harness.MODEL, messages=messages, tools=TOOLS)
    return str(done.choices[0].message.content)


def tool() -> None:
    agent(harness.TOOL_QUESTION)


@observe(as_type="retriever")
def search(_query: str) -> list[dict[str, Any]]:
    return harness.DOCUMENTS


@observe(as_type="chain", name="ask")
def rag(question: str) -> str:
    search(question)
    return str(ask(harness.stuffed(question)).choices[0].message.content)


def retrieval() -> None:
    rag(harness.RETRIEVAL_QUESTION)


def typed() -> None:
    schema = {"name": "stay", "schema": Stay.model_json_schema()}
    ask(harness.TYPED_QUESTION, response_format={"type": "json_schema", "json_schema": schema})


def error() -> None:
    ask(harness.ERROR_QUESTION)


SCENARIOS = (single, stream, two_turns, tool, retrieval, typed, error)
harness.run({one.__name__: of_a_user(one) for one in SCENARIOS}, harness.provider.force_flush)
