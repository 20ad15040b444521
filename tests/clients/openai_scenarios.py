"""The scenarios of OpenAI's client, whatever the instrumentation; each in the span of a request."""

import json
from collections.abc import Callable
from typing import Any

import harness
from openai import OpenAI
from stay import Stay

client = OpenAI(max_retries=0)
BRIEF: dict[str, Any] = {"role": "system", "content": harness.SYSTEM}
PARAMETERS = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "track", "parameters": PARAMETERS}}]


STAY_FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "stay", "schema": Stay.model_json_schema()}}


def ask(question: object, *before: Any, **options: Any) -> Any:
    """Send a conversation that ends with a question."""
    messages = [BRIEF, *before, {"role": "user", "content": question}]
    return client.chat.completions.create(model=harness.MODEL, messages=messages, user=harness.USER, **options)


def single() -> None:
    with harness.request():
        ask(harness.QUESTION)


def stream() -> None:
    with harness.request():
        for _ in ask(harness.QUESTION, stream=True, stream_options={"include_usage": True}):
            pass


def two_turns() -> None:
    with harness.request():
        ask(harness.QUESTION)
    with harness.request():
        ask(harness.QUESTION, *harness.TURNS)


def use_tool(question: str, track: Callable[..., str] = harness.track) -> str:
    """Answer a question by the tool that the model asks for."""
    message = ask(question, tools=TOOLS).choices[0].message
    call = message.tool_calls[0]
    messages = [
        BRIEF,
        {"role": "user", "content": question},
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": track(**json.loads(call.function.arguments))},
    ]
    done = client.chat.completions.create(model=harness.MODEL, messages=messages, tools=TOOLS, user=harness.USER)
    return str(done.choices[0].message.content)


def tool() -> None:
    with harness.request():
        use_tool(harness.TOOL_QUESTION)


def stuffed_prompt() -> None:
    """Index one document, search by embedding, answer from the documents in the prompt: no span has them alone."""
    with harness.request("index"):
        client.embeddings.create(model=harness.MODEL, input=["Parcels leave on Mondays."])
    with harness.request():
        client.embeddings.create(model=harness.MODEL, input=harness.RETRIEVAL_QUESTION)
        ask(harness.stuffed(harness.RETRIEVAL_QUESTION))


def typed() -> None:
    with harness.request():
        ask(harness.TYPED_QUESTION, response_format=STAY_FORMAT)


def image() -> None:
    with harness.request():
        url = "https://shop.example/parcel.png"
        ask([{"type": "text", "text": harness.QUESTION}, {"type": "image_url", "image_url": {"url": url}}])


def responses() -> None:
    with harness.request():
        client.responses.create(model=harness.MODEL, instructions=harness.SYSTEM, input=harness.QUESTION)


def error() -> None:
    with harness.request():
        ask(harness.ERROR_QUESTION)


SCENARIOS: dict[str, Callable[[], None]] = {
    **{one.__name__: one for one in (single, stream, two_turns, tool, typed, image, responses, error)},
    "stuffed": stuffed_prompt,
}
