"""The scenarios of OpenAI's client, whatever the instrumentation; each in the span of a request."""

from collections.abc import Callable
from typing import Any

import harness
from openai import OpenAI

client = OpenAI(max_retries=0)
BRIEF: dict[str, Any] = {"role": "system", "content": harness.SYSTEM}
TOOLS = harness.TOOLS
STAY_FORMAT: Any = {
    "type": "json_schema",
    "json_schema": {"name": "stay", "schema": harness.stay().model_json_schema()},
}


def ask(question: object, *before: Any, **options: Any) -> Any:
    """Send a conversation that ends with a question; a stream is read to its end."""
    messages = [BRIEF, *before, {"role": "user", "content": question}]
    options |= {"stream_options": {"include_usage": True}} if options.get("stream") else {}
    done: Any = client.chat.completions.create(model=harness.MODEL, messages=messages, user=harness.USER, **options)
    return [*done] if options.get("stream") else done


def use_tool(question: str, track: Callable[..., str] = harness.track) -> str:
    """Answer a question by the tool that the model asks for."""
    messages = harness.with_result(ask(question, tools=TOOLS).choices[0].message, question, track)
    done = client.chat.completions.create(model=harness.MODEL, messages=messages, tools=TOOLS, user=harness.USER)
    return str(done.choices[0].message.content)


def requested(question: object, *before: Any, **options: Any) -> None:
    with harness.request():
        ask(question, *before, **options)


def tool() -> None:
    with harness.request():
        use_tool(harness.TOOL_QUESTION)


def stuffed() -> None:
    """Index one document, search by embedding, answer from the documents in the prompt: no span has them alone."""
    with harness.request("index"):
        client.embeddings.create(model=harness.MODEL, input=["Parcels leave on Mondays."])
    with harness.request():
        client.embeddings.create(model=harness.MODEL, input=harness.RETRIEVAL_QUESTION)
        ask(harness.stuffed(harness.RETRIEVAL_QUESTION))


def image() -> None:
    picture = {"type": "image_url", "image_url": {"url": harness.IMAGE_URL}}
    requested([{"type": "text", "text": harness.QUESTION}, picture])


def responses() -> None:
    with harness.request():
        client.responses.create(model=harness.MODEL, instructions=harness.SYSTEM, input=harness.QUESTION)


typed = {"response_format": STAY_FORMAT}
others = harness.asked(requested, turns=True, tool=tool, typed=typed, image=image, responses=responses)
SCENARIOS = {**others, "stuffed": stuffed}
