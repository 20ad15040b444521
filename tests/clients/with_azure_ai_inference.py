"""Azure AI Inference with its own instrumentation, in the span of a request."""

import json
import os
from typing import Any

import harness

os.environ["AZURE_TRACING_GEN_AI_CONTENT_RECORDING_ENABLED"] = "true"

from azure.ai.inference import ChatCompletionsClient
from azure.ai.inference.models import JsonSchemaFormat
from azure.ai.inference.tracing import AIInferenceInstrumentor
from azure.core.credentials import AzureKeyCredential
from azure.core.settings import settings

settings.tracing_implementation = "opentelemetry"
AIInferenceInstrumentor().instrument()

client = ChatCompletionsClient(harness.BASE_URL, AzureKeyCredential("none"), retry_total=0, base_user_agent="shop")
STAY = {**harness.STAY, "required": ["city", "days"], "additionalProperties": False}


def send(*messages: Any, **options: Any) -> Any:
    brief = {"role": "system", "content": harness.SYSTEM}
    return client.complete(messages=[brief, *messages], model=harness.MODEL, **options)


def ask(question: str, *before: Any, **options: Any) -> None:
    with harness.request():
        done = send(*before, {"role": "user", "content": question}, **options)
        for _ in done if options.get("stream") else ():
            pass


def tool() -> None:
    with harness.request():
        asked = {"role": "user", "content": harness.TOOL_QUESTION}
        message = send(asked, tools=harness.TOOLS).choices[0].message
        call = message.tool_calls[0]
        result = harness.track(**json.loads(call.function.arguments))
        send(asked, message, {"role": "tool", "tool_call_id": call.id, "content": result}, tools=harness.TOOLS)


typed = {"response_format": JsonSchemaFormat(name="stay", schema=STAY)}
harness.run(harness.asked(ask, turns=True, tool=tool, stuffed={}, typed=typed))
