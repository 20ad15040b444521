"""LiteLLM with its own callback for OpenTelemetry."""

import json
import os
import time
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no request for the price list
os.environ["USE_OTEL_LITELLM_REQUEST_SPAN"] = "True"  # a span of its own below the span of a request

import litellm
from harness import (
    ANSWER,
    ERROR_QUESTION,
    MODEL,
    QUESTION,
    RETRIEVAL_QUESTION,
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
from stay import Stay

litellm.callbacks = [OpenTelemetry(OpenTelemetryConfig(), tracer_provider=provider)]
litellm.telemetry = False
BRIEF: dict[str, Any] = {"role": "system", "content": SYSTEM}
PARAMETERS = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
TOOLS = [{"type": "function", "function": {"name": "track", "parameters": PARAMETERS}}]


def ask(question: str, *before: Any, **options: Any) -> Any:
    """Send a conversation that ends with a question."""
    messages = [BRIEF, *before, {"role": "user", "content": question}]
    # LiteLLM marks the metadata of a call that it has exported: each call needs its own.
    # What is exported is what a proxy passes on as the metadata of the request.
    metadata = {"metadata": {"user_id": USER, "session_id": SESSION}}
    return litellm.completion(f"openai/{MODEL}", messages, metadata=metadata, user=USER, num_retries=0, **options)


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
        litellm.completion(f"openai/{MODEL}", messages, user=USER, tools=TOOLS)


def stuffed_prompt() -> None:
    litellm.embedding(f"openai/{MODEL}", [RETRIEVAL_QUESTION])
    ask(stuffed(RETRIEVAL_QUESTION))


def settle() -> None:
    time.sleep(1.5)  # callbacks run on threads of LiteLLM, which offers no wait for them
    provider.force_flush()


run(
    {
        "single": lambda: ask(QUESTION),
        "stream": stream,
        "two_turns": two_turns,
        "tool": tool,
        "stuffed": stuffed_prompt,
        "typed": lambda: ask(TYPED_QUESTION, response_format=Stay),
        "error": lambda: ask(ERROR_QUESTION),
    },
    settle,
)
