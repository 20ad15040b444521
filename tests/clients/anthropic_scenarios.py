"""The scenarios of Anthropic's client, whatever the instrumentation; each in the span of a request."""

from typing import Any

import harness
from anthropic import Anthropic

client = Anthropic(max_retries=0)
TOOLS: list[Any] = [{"name": "track", "description": "Find a parcel.", "input_schema": harness.PARAMETERS}]
RESULT: list[Any] = [{"name": "final_result", "description": "Give the answer.", "input_schema": harness.STAY}]


def send(question: object, *before: Any, **options: Any) -> Any:
    """Send a conversation that ends with a question."""
    messages = [*before, {"role": "user", "content": question}]
    options |= {"model": harness.MODEL, "max_tokens": 100, "system": harness.SYSTEM}
    return client.messages.create(messages=messages, **options)


def ask(question: object, *before: Any, **options: Any) -> None:
    with harness.request():
        done = send(question, *before, **options)
        for _ in done if options.get("stream") else ():
            pass


def tool() -> None:
    with harness.request():
        message = send(harness.TOOL_QUESTION, tools=TOOLS)
        call = message.content[0]
        used = {"type": "tool_use", "id": call.id, "name": call.name, "input": call.input}
        result = {"type": "tool_result", "tool_use_id": call.id, "content": harness.track(**call.input)}
        before = {"role": "user", "content": harness.TOOL_QUESTION}, {"role": "assistant", "content": [used]}
        send([result], *before, tools=TOOLS)


def image() -> None:
    source = {"type": "url", "url": harness.IMAGE_URL}
    ask([{"type": "text", "text": harness.QUESTION}, {"type": "image", "source": source}])


typed = {"tools": RESULT, "tool_choice": {"type": "tool", "name": "final_result"}}
SCENARIOS = harness.asked(ask, turns=True, tool=tool, typed=typed, image=image, stuffed={})
