"""The scenarios of Google's client, whatever the instrumentation; each in the span of a request."""

from collections.abc import Callable
from typing import Any

from google import genai
from google.genai import types
from harness import (
    ANSWER,
    ERROR_QUESTION,
    MODEL,
    QUESTION,
    RETRIEVAL_QUESTION,
    ROOT_URL,
    SYSTEM,
    TOOL_QUESTION,
    TYPED_QUESTION,
    request,
    stuffed,
    track,
)
from pydantic import BaseModel

client = genai.Client(api_key="none", http_options=types.HttpOptions(base_url=ROOT_URL))


class Stay(BaseModel):
    """An answer of two fields."""

    city: str
    days: int


def ask(contents: Any, **options: Any) -> Any:
    """Send a question or a conversation within a request."""
    config = types.GenerateContentConfig(system_instruction=SYSTEM, **options)
    with request():
        return client.models.generate_content(model=MODEL, contents=contents, config=config)


def stream() -> None:
    config = types.GenerateContentConfig(system_instruction=SYSTEM)
    with request():
        for _ in client.models.generate_content_stream(model=MODEL, contents=QUESTION, config=config):
            pass


def two_turns() -> None:
    ask(QUESTION)
    said = types.Content(role="user", parts=[types.Part(text=QUESTION)])
    ask([said, types.Content(role="model", parts=[types.Part(text=ANSWER)]), said])


def image() -> None:
    picture = types.Part.from_bytes(data=b"\x89PNG", mime_type="image/png")
    ask([types.Content(role="user", parts=[types.Part(text=QUESTION), picture])])


SCENARIOS: dict[str, Callable[[], object]] = {
    "single": lambda: ask(QUESTION),
    "stream": stream,
    "two_turns": two_turns,
    "tool": lambda: ask(TOOL_QUESTION, tools=[track]),
    "typed": lambda: ask(TYPED_QUESTION, response_mime_type="application/json", response_schema=Stay),
    "image": image,
    "stuffed": lambda: ask(stuffed(RETRIEVAL_QUESTION)),
    "error": lambda: ask(ERROR_QUESTION),
}
