"""The scenarios of Google's client, whatever the instrumentation; each in the span of a request."""

from typing import Any

import harness
from google import genai
from google.genai import types
from stay import Stay

client = genai.Client(api_key="none", http_options=types.HttpOptions(base_url=harness.ROOT_URL))


def ask(contents: Any, *, stream: bool = False, **options: Any) -> None:
    """Send a question or a conversation within a request."""
    config = types.GenerateContentConfig(system_instruction=harness.SYSTEM, **options)
    send = client.models.generate_content_stream if stream else client.models.generate_content
    with harness.request():
        done: Any = send(model=harness.MODEL, contents=contents, config=config)
        for _ in done if stream else ():
            pass


def two_turns() -> None:
    ask(harness.QUESTION)
    said = types.Content(role="user", parts=[types.Part(text=harness.QUESTION)])
    ask([said, types.Content(role="model", parts=[types.Part(text=harness.ANSWER)]), said])


def image() -> None:
    picture = types.Part.from_bytes(data=b"\x89PNG", mime_type="image/png")
    ask([types.Content(role="user", parts=[types.Part(text=harness.QUESTION), picture])])


typed = {"response_mime_type": "application/json", "response_schema": Stay}
tools = {"tools": [harness.track]}
SCENARIOS = harness.asked(ask, two_turns=two_turns, tool=tools, typed=typed, image=image, stuffed={})
