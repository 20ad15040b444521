"""The scenarios of Google's client, whatever the instrumentation; each in the span of a request."""

from collections.abc import Callable
from typing import Any

import harness
from google import genai
from google.genai import types
from stay import Stay

client = genai.Client(api_key="none", http_options=types.HttpOptions(base_url=harness.ROOT_URL))


def ask(contents: Any, **options: Any) -> Any:
    """Send a question or a conversation within a request."""
    config = types.GenerateContentConfig(system_instruction=harness.SYSTEM, **options)
    with harness.request():
        return client.models.generate_content(model=harness.MODEL, contents=contents, config=config)


def stream() -> None:
    config = types.GenerateContentConfig(system_instruction=harness.SYSTEM)
    with harness.request():
        for _ in client.models.generate_content_stream(model=harness.MODEL, contents=harness.QUESTION, config=config):
            pass


def two_turns() -> None:
    ask(harness.QUESTION)
    said = types.Content(role="user", parts=[types.Part(text=harness.QUESTION)])
    ask([said, types.Content(role="model", parts=[types.Part(text=harness.ANSWER)]), said])


def image() -> None:
    picture = types.Part.from_bytes(data=b"\x89PNG", mime_type="image/png")
    ask([types.Content(role="user", parts=[types.Part(text=harness.QUESTION), picture])])


SCENARIOS: dict[str, Callable[[], object]] = {
    "single": lambda: ask(harness.QUESTION),
    "stream": stream,
    "two_turns": two_turns,
    "tool": lambda: ask(harness.TOOL_QUESTION, tools=[harness.track]),
    "typed": lambda: ask(harness.TYPED_QUESTION, response_mime_type="application/json", response_schema=Stay),
    "image": image,
    "stuffed": lambda: ask(harness.stuffed(harness.RETRIEVAL_QUESTION)),
    "error": lambda: ask(harness.ERROR_QUESTION),
}
