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
BRIEF = {"role": "system", "content": harness.SYSTEM}
PARAMETERS = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
TOOLS = [{"type": "function", "function": {"name": "track", "parameters": PARAMETERS}}]
PROPERTIES = {"city": {"type": "string"}, "days": {"type": "integer"}}
STAY = {"type": "object", "properties": PROPERTIES, "required": [*PROPERTIES], "additionalProperties": False}


def send(*messages: Any, **options: Any) -> Any:
    return client.complete(messages=[BRIEF, *messages], model=harness.MODEL, **options)


def user(question: str) -> dict[str, str]:
    return {"role": "user", "content": question}


def ask(*messages: Any, **options: Any) -> None:
    with harness.request():
        done = send(*messages, **options)
        for _ in done if options.get("stream") else ():
            pass


def two_turns() -> None:
    ask(user(harness.QUESTION))
    ask(*harness.TURNS, user(harness.QUESTION))


def tool() -> None:
    with harness.request():
        asked = user(harness.TOOL_QUESTION)
        message = send(asked, tools=TOOLS).choices[0].message
        call = message.tool_calls[0]
        result = harness.track(**json.loads(call.function.arguments))
        send(asked, message, {"role": "tool", "tool_call_id": call.id, "content": result}, tools=TOOLS)


harness.run(
    {
        "single": lambda: ask(user(harness.QUESTION)),
        "stream": lambda: ask(user(harness.QUESTION), stream=True),
        "two_turns": two_turns,
        "tool": tool,
        "stuffed": lambda: ask(user(harness.stuffed(harness.RETRIEVAL_QUESTION))),
        "typed": lambda: ask(user(harness.TYPED_QUESTION), response_format=JsonSchemaFormat(name="stay", schema=STAY)),
        "error": lambda: ask(user(harness.ERROR_QUESTION)),
    }
)
