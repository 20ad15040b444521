"""LiteLLM with its own callback for OpenTelemetry."""

import json
import os
import time
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no request for the price list
os.environ["USE_OTEL_LITELLM_REQUEST_SPAN"] = "True"  # a span of its own below the span of a request

import harness
import litellm
from litellm.integrations.opentelemetry import OpenTelemetry, OpenTelemetryConfig
from stay import Stay

litellm.callbacks = [OpenTelemetry(OpenTelemetryConfig(), tracer_provider=harness.provider)]
litellm.telemetry = False
MODEL = f"openai/{harness.MODEL}"
BRIEF: dict[str, Any] = {"role": "system", "content": harness.SYSTEM}


def ask(question: str, *before: Any, **options: Any) -> Any:
    """Send a conversation that ends with a question; a stream is read to its end."""
    messages = [BRIEF, *before, {"role": "user", "content": question}]
    options |= {"stream_options": {"include_usage": True}} if options.get("stream") else {}
    # LiteLLM marks the metadata of a call that it has exported: each call needs its own.
    # What is exported is what a proxy passes on as the metadata of the request.
    metadata = {"metadata": {"user_id": harness.USER, "session_id": harness.SESSION}}
    done = litellm.completion(MODEL, messages, metadata=metadata, user=harness.USER, num_retries=0, **options)
    return [*done] if options.get("stream") else done


def tool() -> None:
    with harness.request():
        message = ask(harness.TOOL_QUESTION, tools=harness.TOOLS).choices[0].message
        call = message.tool_calls[0]
        result = harness.track(**json.loads(call.function.arguments))
        messages = [
            BRIEF,
            {"role": "user", "content": harness.TOOL_QUESTION},
            message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": result},
        ]
        litellm.completion(MODEL, messages, user=harness.USER, tools=harness.TOOLS)


def stuffed() -> None:
    litellm.embedding(MODEL, [harness.RETRIEVAL_QUESTION])
    ask(harness.stuffed(harness.RETRIEVAL_QUESTION))


def settle() -> None:
    time.sleep(1.5)  # callbacks run on threads of LiteLLM, which offers no wait for them
    harness.provider.force_flush()


typed = {"response_format": Stay}
harness.run(harness.asked(ask, turns=True, tool=tool, stuffed=stuffed, typed=typed), settle)
