"""LiteLLM with its own callback for OpenTelemetry."""

import json
from typing import Any

import litellm
from harness import (
    ANSWER,
    ERROR_QUESTION,
    MODEL,
    QUESTION,
    RETRIEVAL_QUESTION,
    ROOT_URL,
    SESSION,
    SYSTEM,
    TOOL_QUESTION,
    TYPED_QUESTION,
    USER,
    provider,
    request,
    run,
    stuffed,
    track,
)
from litellm.integrations.opentelemetry import OpenTelemetry, OpenTelemetryConfig
from pydantic import BaseModel

telemetry = OpenTelemetry(OpenTelemetryConfig(exporter="otlp_http", endpoint=f"{ROOT_URL}/v1/traces"))
litellm.callbacks = [telemetry]
litellm.telemetry = False
BRIEF: dict[str, Any] = {"role": "system", "content": SYSTEM}
PARAMETERS = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
TOOLS = [{"type": "function", "function": {"name": "track", "parameters": PARAMETERS}}]
METADATA = {"user_id": USER, "session_id": SESSION}


class Stay(BaseModel):
    """An answer of two fields."""

    city: str
    days: int


def ask(question: str, *before: Any, **options: Any) -> Any:
    """Send a conversation that ends with a question."""
    messages = [BRIEF, *before, {"role": "user", "content": question}]
    return litellm.completion(f"openai/{MODEL}", messages, metadata=METADATA, user=USER, num_retries=0, **options)


def stream() -> None:
    for _ in ask(QUESTION, stream=True, stream_options={"include_usage": True}):
        pass


def two_turns() -> None:
    ask(QUESTION)
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
        litellm.completion(f"openai/{MODEL}", messages, metadata=METADATA, tools=TOOLS)


def retrieval() -> None:
    litellm.embedding(f"openai/{MODEL}", [RETRIEVAL_QUESTION])
    ask(stuffed(RETRIEVAL_QUESTION))


def settle() -> None:
    import time

    time.sleep(1.5)  # callbacks run on threads of LiteLLM, which offers no wait for them
    provider.force_flush()


run(
    {
        "single": lambda: ask(QUESTION),
        "stream": stream,
        "two_turns": two_turns,
        "tool": tool,
        "retrieval": retrieval,
        "typed": lambda: ask(TYPED_QUESTION, response_format=Stay),
        "error": lambda: ask(ERROR_QUESTION),
    },
    settle,
)
