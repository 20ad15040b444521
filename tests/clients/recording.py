"""Run a client in its own environment, and record the OTLP that it sends.

    python -m clients.recording NAME …          # from tests/: record anew

The environment is a virtual environment below the folder that TRACEJUDGE_CLIENT_ENVS names, outside the checkout,
with the packages of `REQUIREMENTS`, or a folder with those of Node.js. A recording is one file for each scenario: the
request bodies as sent, compressed.
"""

import gzip
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from support.model_server import ModelServer

HERE: Final = Path(__file__).parent
RECORDED: Final = HERE / "recorded"
LONGEST_S: Final = 300
_EXPORT: Final = ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http")
_NODE_EXPORT: Final = (
    *("@opentelemetry/api@1", "@opentelemetry/resources@2"),
    *("@opentelemetry/sdk-trace-node@2", "@opentelemetry/exporter-trace-otlp-proto@0"),
)
REQUIREMENTS: Final = {
    "pydantic_ai": ("pydantic-ai-slim[openai]==2.68.0",),
    # Without these two the instrumentation does not import.
    "openai_v2": (
        "openai==3.54.0",
        "opentelemetry-instrumentation-openai-v2==2.4b0",
        "opentelemetry-util-genai==0.4b0",
        "httpx",
    ),
    "openai_v2_logs": (
        "openai==3.54.0",
        "opentelemetry-instrumentation-openai-v2==2.4b0",
        "opentelemetry-util-genai==0.4b0",
        "httpx",
    ),
    "openllmetry": ("openai==3.54.0", "opentelemetry-instrumentation-openai==0.62.4"),
    "langgraph": (
        "langchain==1.4.7",
        "langchain-openai==1.7.3",
        "langgraph==1.2.22",
        "openinference-instrumentation-langchain==0.1.80",
    ),
    "langgraph_openllmetry": (
        "langchain==1.4.7",
        "langchain-openai==1.7.3",
        "langgraph==1.2.22",
        "opentelemetry-instrumentation-langchain==0.62.4",
    ),
    "langchain_langsmith": (
        "langchain==1.4.7",
        "langchain-openai==1.7.3",
        "langgraph==1.2.22",
        "langsmith[otel]==0.15.1",
    ),
    "openai_agents": ("openai-agents==0.24.0", "openinference-instrumentation-openai-agents==2.6.0"),
    "logfire": ("logfire[httpx]==5.2.0", "openai==3.54.0"),
    "anthropic": ("anthropic==2.12.0", "openinference-instrumentation-anthropic==3.1.0"),
    "anthropic_openllmetry": ("anthropic==2.12.0", "opentelemetry-instrumentation-anthropic==0.62.4"),
    "google_genai": ("google-genai==2.34.0", "opentelemetry-instrumentation-google-genai==1.3b0"),
    "google_openinference": ("google-genai==2.34.0", "openinference-instrumentation-google-genai==1.4.14"),
    "llamaindex": (
        "llama-index-core==0.14.25",
        "llama-index-llms-openai==0.8.3",
        "openinference-instrumentation-llama-index==4.6.1",
    ),
    "haystack": ("haystack-ai==3.4.0", "openinference-instrumentation-haystack==0.1.46"),
    "dspy": ("dspy==3.4.1", "openinference-instrumentation-dspy==0.1.48"),
    "crewai": (
        "crewai==1.15.30",
        "openinference-instrumentation-crewai==1.1.21",
        "openinference-instrumentation-openai==0.1.66",
    ),
    "litellm": ("litellm==1.106.2", "mcp"),
    "litellm_proxy": ("litellm[proxy]==1.110.2",),
    "mlflow": ("mlflow-tracing==3.17.2", "openai==3.54.0"),
    "langsmith": ("langsmith[otel]==0.15.1", "openai==3.54.0"),
    "laminar": ("lmnr==0.8.2", "openai==3.54.0"),
    "strands": ("strands-agents[openai]==1.62.0", "opentelemetry-exporter-otlp-proto-http==1.45.1"),
    "strands_latest": ("strands-agents[openai]==1.62.0", "opentelemetry-exporter-otlp-proto-http==1.45.1"),
    "smolagents": ("smolagents[openai]==1.26.0", "openinference-instrumentation-smolagents==0.1.43"),
    "agno": ("agno==3.1.10", "openinference-instrumentation-agno==1.0.15", "openai==3.54.0"),
    "google_adk": ("google-adk==2.13.0",),
    "autogen": (
        "autogen-agentchat==0.7.5",
        "autogen-ext[openai]==0.7.5",
        "openinference-instrumentation-autogen-agentchat==0.1.22",
        "openinference-instrumentation-openai==0.1.66",
    ),
    "semantic_kernel": ("semantic-kernel==1.45.0",),
    "azure_ai_inference": ("azure-ai-inference==1.0.0b9", "azure-core-tracing-opentelemetry==1.0.0b12"),
    "google_adk_legacy": ("google-adk==2.13.0",),
    "ag2": ("ag2[openai,tracing]==1.2.1",),
    "weave": ("weave==0.54.0", "openai==3.54.0"),
    "langfuse": ("langfuse==5.0.4", "openai==3.54.0"),
    "langfuse_js": (
        *("@langfuse/tracing@5.11.1", "@langfuse/otel@5.11.1", "@langfuse/openai@5.11.1", "openai@7.59.0"),
        *_NODE_EXPORT,
    ),
    "vercel_ai": ("ai@7.0.173", "@ai-sdk/otel@1.0.173", "@ai-sdk/openai@3.0.141", "zod@4", *_NODE_EXPORT),
    "vercel_ai_6": ("ai@6.0.326", "@ai-sdk/openai@3.0.141", "zod@4", *_NODE_EXPORT),
}


def environment_folder(name: str) -> Path:
    """Return the folder of an environment."""
    return Path(os.environ.get("TRACEJUDGE_CLIENT_ENVS") or Path(tempfile.gettempdir()) / "tracejudge-clients") / name


def node_modules(name: str, packages: Iterable[str]) -> Path:
    """Return the folder of packages of Node.js, which are installed if it is missing."""
    folder = environment_folder(name)
    if not (folder / "node_modules").exists():
        command = ["npm", "install", "--no-audit", "--no-fund", "--no-save", "--prefix", folder, *packages]
        subprocess.run(command, check=True, capture_output=True)
    return folder / "node_modules"


def environment(name: str, packages: Iterable[str]) -> Path:
    """Return the interpreter of an environment, which is built with the packages if it is missing."""
    folder = environment_folder(name)
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        if wanted := list(packages):
            subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted], check=True)
    return python


def run_client(name: str, server: ModelServer) -> None:
    """Run all scenarios of a client against a server."""
    command: list[str | Path]
    kept = ("PATH", "HOME", "LANG", "SSL_CERT_FILE")
    variables = {key: value for key, value in os.environ.items() if key in kept}
    # A copy, so that no stack trace in a recording names a checkout.
    with tempfile.TemporaryDirectory() as folder:
        copied = shutil.copytree(
            HERE, folder, ignore=shutil.ignore_patterns("recorded", "__pycache__"), dirs_exist_ok=True
        )
        if (HERE / f"with_{name}.mjs").exists():
            (Path(folder) / "node_modules").symlink_to(node_modules(name, REQUIREMENTS[name]))
            command = ["node", f"with_{name}.mjs", server.root_url]
        else:
            # Two programs of the same packages share an environment.
            packages = REQUIREMENTS[name]
            shared = next(other for other, needed in REQUIREMENTS.items() if needed == packages)
            command = [environment(shared, (*packages, *_EXPORT)), f"with_{name}.py", server.root_url]
        done = subprocess.run(
            command, env=variables, capture_output=True, text=True, timeout=LONGEST_S, check=False, cwd=copied
        )
    assert done.returncode == 0, done.stderr


def record(name: str) -> None:
    """Replace the recording of a client."""
    folder = RECORDED / name
    with ModelServer(port=8899) as server:
        run_client(name, server)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.gz"):
        old.unlink()
    for kind, kept in (("traces", server.traces), ("logs", server.logs)):
        for scenario, body in kept.items():
            (folder / f"{scenario}.{kind}.gz").write_bytes(gzip.compress(_without_home(body), mtime=0))


def _without_home(body: bytes) -> bytes:
    """Replace the folders of interpreters and packages in stack traces by one of the same length."""
    for folder in (environment_folder(""), sys.base_prefix):
        name = str(folder).encode()
        body = body.replace(name, b"/usr".ljust(len(name), b"/"))
    return body


if __name__ == "__main__":
    for one in sys.argv[1:]:
        record(one)
