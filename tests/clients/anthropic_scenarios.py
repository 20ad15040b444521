"""The scenarios of Anthropic's client, whatever the instrumentation; each in the span of a request."""

from collections.abc import Callable
from typing import Any

from anthropic import Anthropic
from harness import (
    ANSWER,
    ERROR_QUESTION,
    MODEL,
    QUESTION,
    RETRIEVAL_QUESTION,
    SYSTEM,
    TOOL_QUESTION,
    TYPED_QUESTION,
    request,
    stuffed,
    track,
)

client = Anthropic(max_retries=0)
PARAMETERS = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
TOOLS: list[Any] = [{"name": "track", "description": "Find a parcel.", "input_schema": PARAMETERS}]
STAY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}


def ask(question: object, *before: Any, **options: Any) -> Any:
    """Send a conversation that ends with a question."""
    messages = [*before, {"role": "user", "content": question}]
    return client.messages.create(model=MODEL, max_tokens=100, system=SYSTEM, messages=messages, **options)


def single() -> None:
    with request():
        ask(QUESTION)


def stream() -> None:
    with request():
        for _ in ask(QUESTION, stream=True):
            pass


def two_turns() -> None:
    with request():
        ask(QUESTION)
    with request():
        ask(QUESTION, {"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER})


def tool() -> None:
    with request():
        message = ask(TOOL_QUESTION, tools=TOOLS)
        call = message.content[0]
        used = {"type": "tool_use", "id": call.id, "name": call.name, "input": call.input}
        result = {"type": "tool_result", "tool_use_id": call.id, "content": track(**call.input)}
        before = {"role": "user", "content": TOOL_QUESTION}, {"role": "assistant", "content": [used]}
        ask([result], *before, tools=TOOLS)


def typed() -> None:
    with request():
        tools = [{"name": "final_result", "description": "Give the answer.", "input_schema": STAY}]
        ask(TYPED_QUESTION, tools=tools, tool_choice={"type": "tool", "name": "final_result"})


def image() -> None:
    with request():
        source = {"type": "url", "url": "https://shop.example/parcel.png"}
        ask([{"type": "text", "text": QUESTION}, {"type": "image", "source": source}])


def stuffed_prompt() -> None:
    with request():
        ask(stuffed(RETRIEVAL_QUESTION))


def error() -> None:
    with request():
        ask(ERROR_QUESTION)


SCENARIOS: dict[str, Callable[[], None]] = {
    **{one.__name__: one for one in (single, stream, two_turns, tool, typed, image, error)},
    "stuffed": stuffed_prompt,
}
