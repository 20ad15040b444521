"""LiteLLM's proxy with its callback for OpenTelemetry; the callers know nothing of it."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import harness

_LONGEST_START_S = 90
KEY = "sk-0123456789abcdef0123456789abcdef"  # the proxy starts with no shorter one
PARAMETERS = {"model": f"openai/{harness.MODEL}", "api_base": harness.BASE_URL, "api_key": "none"}
CONFIGURATION = {
    "model_list": [{"model_name": harness.MODEL, "litellm_params": PARAMETERS}],
    "litellm_settings": {"callbacks": ["otel"], "num_retries": 0, "telemetry": False},
}
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
Path("proxy.json").write_text(json.dumps(CONFIGURATION))
variables = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # no request for the price list
    "LITELLM_MASTER_KEY": KEY,
    "OTEL_EXPORTER": "otlp_http",
    "OTEL_ENDPOINT": harness.ROOT_URL,
    "OTEL_BSP_SCHEDULE_DELAY": "200",
}
proxy = subprocess.Popen(
    [Path(sys.executable).parent / "litellm", "--config", "proxy.json", "--host", "127.0.0.1", "--port", str(port)],
    env=os.environ | variables,
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


def tool() -> None:
    use_tool(harness.TOOL_QUESTION)


typed = {"response_format": STAY_FORMAT}
try:
    wait_for_proxy()
    # The proxy exports by itself, and offers no wait for it.
    scenarios = harness.asked(ask, turns=True, tool=tool, stuffed={}, typed=typed)
    harness.run(scenarios, lambda: time.sleep(2))
finally:
    proxy.terminate()
    proxy.wait()
