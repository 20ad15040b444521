"""LiteLLM's proxy with its callback for OpenTelemetry; the callers know nothing of it."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from harness import (
    ANSWER,
    BASE_URL,
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
    run,
    stuffed,
    track,
)
from openai import OpenAI
from stay import Stay

_LONGEST_START_S = 90
KEY = "sk-0123456789abcdef0123456789abcdef"  # the proxy starts with no shorter one
CONFIGURATION = {
    "model_list": [
        {"model_name": MODEL, "litellm_params": {"model": f"openai/{MODEL}", "api_base": BASE_URL, "api_key": "none"}}
    ],
    "litellm_settings": {"callbacks": ["otel"], "num_retries": 0, "telemetry": False},
}
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
Path("proxy.json").write_text(json.dumps(CONFIGURATION))
proxy = subprocess.Popen(
    [Path(sys.executable).parent / "litellm", "--config", "proxy.json", "--host", "127.0.0.1", "--port", str(port)],
    env=os.environ
    | {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # no request for the price list
        "LITELLM_MASTER_KEY": KEY,
        "OTEL_EXPORTER": "otlp_http",
        "OTEL_ENDPOINT": ROOT_URL,
        "OTEL_BSP_SCHEDULE_DELAY": "200",
    },
)
client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=KEY, max_retries=0)
BRIEF: Any = {"role": "system", "content": SYSTEM}
PARAMETERS = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
TOOLS: Any = [{"type": "function", "function": {"name": "track", "parameters": PARAMETERS}}]


def wait_for_proxy() -> None:
    until = time.monotonic() + _LONGEST_START_S
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health/liveliness", timeout=5).close()
        except OSError:
            if proxy.poll() is not None or time.monotonic() > until:
                raise
            time.sleep(0.5)
        else:
            return


def ask(question: str, *before: Any, **options: Any) -> Any:
    """Send a conversation that ends with a question."""
    messages = [BRIEF, *before, {"role": "user", "content": question}]
    body = {"litellm_session_id": SESSION}
    return client.chat.completions.create(model=MODEL, messages=messages, user=USER, extra_body=body, **options)


def stream() -> None:
    for _ in ask(QUESTION, stream=True, stream_options={"include_usage": True}):
        pass


def two_turns() -> None:
    ask(QUESTION)
    ask(QUESTION, {"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER})


def tool() -> None:
    message = ask(TOOL_QUESTION, tools=TOOLS).choices[0].message
    call = message.tool_calls[0]
    result = track(**json.loads(call.function.arguments))
    question = {"role": "user", "content": TOOL_QUESTION}
    turns: Any = [BRIEF, question, message.model_dump(exclude_none=True)]
    turns.append({"role": "tool", "tool_call_id": call.id, "content": result})
    body = {"litellm_session_id": SESSION}
    client.chat.completions.create(model=MODEL, messages=turns, user=USER, tools=TOOLS, extra_body=body)


def typed() -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "Stay", "schema": Stay.model_json_schema()}}
    ask(TYPED_QUESTION, response_format=schema)


def settle() -> None:
    time.sleep(2)  # the proxy exports by itself, and offers no wait for it


try:
    wait_for_proxy()
    run(
        {
            "single": lambda: ask(QUESTION),
            "stream": stream,
            "two_turns": two_turns,
            "tool": tool,
            "stuffed": lambda: ask(stuffed(RETRIEVAL_QUESTION)),
            "typed": typed,
            "error": lambda: ask(ERROR_QUESTION),
        },
        settle,
    )
finally:
    proxy.terminate()
    proxy.wait()
