"""The scenarios of Anthropic's client, whatever the instrumentation; each in the span of a request."""

from collections.abc import Callable
from typing import Any

import harness
from anthropic import Anthropic

client = Anthropic(max_retries=0)
PARAMETERS = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
TOOLS: list[Any] = [{"name": "track", "description": "Find a parcel.", "input_schema": PARAMETERS}]
STAY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}


def ask(question: object, *before: Any, **options: Any) -> Any:
    """Send a conversation that ends with a question."""
    messages = [*before, {"role": "user", "content": question}]
    return client.messages.create(
        model=harness.MODEL, max_tokens=100, system=harness.SYSTEM, messages=messages, **options
    )


def single() -> None:
    with harness.request():
        ask(harness.QUESTION)


def stream() -> None:
    with harness.request():
        for _ in ask(harness.QUESTION, stream=True):
            pass


def two_turns() -> None:
    with harness.request():
        ask(harness.QUESTION)
    with harness.request():
        ask(
            harness.QUESTION,
            {"role": "user", "content": harness.QUESTION},
            {"role": "assistant", "content": harness.ANSWER},
        )


def tool() -> None:
    with harness.request():
        message = ask(harness.TOOL_QUESTION, tools=TOOLS)
        call = message.content[0]
        used = {"type": "tool_use", "id": call.id, "name": call.name, "input": call.input}
        result = {"type": "tool_result", "tool_use_id": call.id, "content": harness.track(**call.input)}
        before = {"role": "user", "content": harness.TOOL_QUESTION}, {"role": "assistant", "content": [used]}
        ask([result], *before, tools=TOOLS)


def typed() -> None:
    with harness.request():
        tools = [{"name": "final_result", "description": "Give the answer.", "input_schema": STAY}]
        ask(harness.TYPED_QUESTION, tools=tools, tool_choice={"type": "tool", "name": "final_result"})


def image() -> None:
    with harness.request():
        source = {"type": "url", "url": "https://shop.example/parcel.png"}
        ask([{"type": "text", "text": harness.QUESTION}, {"type": "image", "source": source}])


def stuffed_prompt() -> None:
    with harness.request():
        ask(harness.stuffed(harness.RETRIEVAL_QUESTION))


def error() -> None:
    with harness.request():
        ask(harness.ERROR_QUESTION)


SCENARIOS: dict[str, Callable[[], None]] = {
    **{one.__name__: one for one in (single, stream, two_turns, tool, typed, image, error)},
    "stuffed": stuffed_prompt,
}
