"""LiteLLM's proxy with its callback for OpenTelemetry; the callers know nothing of it."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from harness import (
    BASE_URL,
    ERROR_QUESTION,
    MODEL,
    QUESTION,
    RETRIEVAL_QUESTION,
    ROOT_URL,
    TOOL_QUESTION,
    TURNS,
    TYPED_QUESTION,
    run,
    stuffed,
)

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
os.environ |= {"OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1", "OPENAI_API_KEY": KEY}

from openai_scenarios import STAY_FORMAT, ask, use_tool


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


def stream() -> None:
    for _ in ask(QUESTION, stream=True, stream_options={"include_usage": True}):
        pass


def two_turns() -> None:
    ask(QUESTION)
    ask(QUESTION, *TURNS)


def settle() -> None:
    time.sleep(2)  # the proxy exports by itself, and offers no wait for it


try:
    wait_for_proxy()
    run(
        {
            "single": lambda: ask(QUESTION),
            "stream": stream,
            "two_turns": two_turns,
            "tool": lambda: use_tool(TOOL_QUESTION),
            "stuffed": lambda: ask(stuffed(RETRIEVAL_QUESTION)),
            "typed": lambda: ask(TYPED_QUESTION, response_format=STAY_FORMAT),
            "error": lambda: ask(ERROR_QUESTION),
        },
        settle,
    )
finally:
    proxy.terminate()
    proxy.wait()
