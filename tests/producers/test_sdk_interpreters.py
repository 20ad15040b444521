"""The SDK, installed for every Python that is found on this machine: from PATH, or below the folder of pyenv."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from sdk_programs import Host

VERSIONS = ((3, 10), (3, 11), (3, 12), (3, 13), (3, 14))
PROGRAM = """
import importlib, pkgutil, sys
import tracejudge
for module in pkgutil.walk_packages(tracejudge.__path__, "tracejudge."):
    importlib.import_module(module.name)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from tracejudge.otel import TraceJudgeExporter

@tracejudge.observe(kind="retriever")
def search(query):
    return ["Tea is hot."]

@tracejudge.observe
def ask(question):
    return f"{search(question)[0]}"

tracejudge.init()
tracejudge.publish("Is tea hot?", "published")
tracejudge.publish(input={"a": 1}, output=b"converted", context=[("Tea is hot.", 0.5)])
ask("Is tea hot?")
provider = TracerProvider()
exporter = TraceJudgeExporter()
provider.add_span_processor(SimpleSpanProcessor(exporter))
attributes = {"gen_ai.operation.name": "chat", "gen_ai.output.messages": '[{"role": "assistant", "content": "a span"}]'}
with provider.get_tracer("shop").start_as_current_span("chat", attributes=attributes):
    pass
provider.shutdown()
assert tracejudge.flush(30)
print("%d.%d" % sys.version_info[:2])
"""


@cache
def interpreter(version: tuple[int, int]) -> Path | None:
    """Find a Python of this version that runs: the shims of pyenv may name one that does not."""
    name = "python{}.{}".format(*version)
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    folders = [*map(Path, os.get_exec_path()), *sorted(versions.glob("*/bin"))]
    running = (Path(sys.executable),) if sys.version_info[:2] == version else ()
    for python in (*running, *(folder / name for folder in folders)):
        if os.access(python, os.X_OK):
            done = subprocess.run([python, "-c", "import venv, ensurepip"], capture_output=True, check=False)
            if done.returncode == 0:
                return python
    return None


@pytest.mark.slow("installs the SDK in an environment of each interpreter")
@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: "{}.{}".format(*version))
def test_the_installed_sdk_publishes(version: tuple[int, int], host: Host, tmp_path: Path) -> None:
    found = interpreter(version)
    if found is None:
        pytest.skip("no Python {}.{} on this machine".format(*version))
    environment = tmp_path / "environment"
    subprocess.run([found, "-m", "venv", environment], check=True, capture_output=True)
    python = environment / "bin" / "python"
    producers = Path(__file__).parents[2] / "producers"
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{producers}[otel]"]
    installed = subprocess.run(install, capture_output=True, text=True, check=False)
    assert installed.returncode == 0, installed.stderr
    command = [python, "-W", "error", host.write("program.py", PROGRAM)]
    done = subprocess.run(
        command, env=host.environment(), cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "{}.{}".format(*version), ""), done.stderr
    assert host.left().outputs == ["Tea is hot.", "a span", "converted", "published"]


def test_the_interpreter_of_the_tests_is_found() -> None:
    assert interpreter((sys.version_info[0], sys.version_info[1])) is not None
