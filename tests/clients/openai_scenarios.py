"""The scenarios of OpenAI's client, whatever the instrumentation; each in the span of a request."""

import json
from collections.abc import Callable
from typing import Any

from harness import (
    ANSWER,
    ERROR_QUESTION,
    MODEL,
    QUESTION,
    RETRIEVAL_QUESTION,
    SYSTEM,
    TOOL_QUESTION,
    TYPED_QUESTION,
    USER,
    request,
    stuffed,
    track,
)
from openai import OpenAI
from pydantic import BaseModel

client = OpenAI(max_retries=0)
BRIEF: dict[str, Any] = {"role": "system", "content": SYSTEM}
PARAMETERS = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "track", "parameters": PARAMETERS}}]


class Stay(BaseModel):
    """An answer of two fields."""

    city: str
    days: int


def ask(question: object, *before: Any, **options: Any) -> Any:
    """Send a conversation that ends with a question."""
    messages = [BRIEF, *before, {"role": "user", "content": question}]
    return client.chat.completions.create(model=MODEL, messages=messages, user=USER, **options)


def single() -> None:
    with request():
        ask(QUESTION)


def stream() -> None:
    with request():
        for _ in ask(QUESTION, stream=True, stream_options={"include_usage": True}):
            pass


def two_turns() -> None:
    with request():
        ask(QUESTION)
    with request():
        ask(QUESTION, {"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER})


def tool() -> None:
    with request():
        message = ask(TOOL_QUESTION, tools=TOOLS).choices[0].message
        call = message.tool_calls[0]
        result = track(**json.loads(call.function.arguments))
        messages = [
            BRIEF,
            {"role": "user", "content": TOOL_QUESTION},
            message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": result},
        ]
        client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS, user=USER)


def stuffed_prompt() -> None:
    """Index one document, search by embedding, answer from the documents in the prompt: no span has them alone."""
    with request("index"):
        client.embeddings.create(model=MODEL, input=["Parcels leave on Mondays."])
    with request():
        client.embeddings.create(model=MODEL, input=RETRIEVAL_QUESTION)
        ask(stuffed(RETRIEVAL_QUESTION))


def typed() -> None:
    with request():
        schema = {"name": "stay", "schema": Stay.model_json_schema()}
        ask(TYPED_QUESTION, response_format={"type": "json_schema", "json_schema": schema})


def image() -> None:
    with request():
        url = "https://shop.example/parcel.png"
        ask([{"type": "text", "text": QUESTION}, {"type": "image_url", "image_url": {"url": url}}])


def responses() -> None:
    with request():
        client.responses.create(model=MODEL, instructions=SYSTEM, input=QUESTION)


def error() -> None:
    with request():
        ask(ERROR_QUESTION)


SCENARIOS: dict[str, Callable[[], None]] = {
    **{one.__name__: one for one in (single, stream, two_turns, tool, typed, image, responses, error)},
    "stuffed": stuffed_prompt,
}
