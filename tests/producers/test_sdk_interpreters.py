"""The SDK, installed from its wheel for every Python that is found on this machine."""

import sys
from pathlib import Path

import pytest
from sdk_rig import Host
from support.distributions import build, install, interpreter, run

VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
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


@pytest.mark.slow("installs the SDK in an environment of each interpreter")
def test_the_installed_sdk_publishes_on_each_python(host: Host, tmp_path: Path) -> None:
    (wheel,) = build(tmp_path / "dist").glob("tracejudge-*.whl")
    pythons = {version: python for version in VERSIONS if (python := interpreter(version)) is not None}
    assert f"{sys.version_info[0]}.{sys.version_info[1]}" in pythons
    program = host.write("program.py", PROGRAM)
    settings = {name: value for name, value in host.environment().items() if name.startswith("TRACEJUDGE_")}
    for place, (version, python_path) in enumerate(pythons.items(), 1):
        python = install(tmp_path / version, python_path, f"{wheel}[otel]")
        done = run([python, "-W", "error", program], tmp_path, settings)
        assert (done.returncode, done.stdout.strip(), done.stderr) == (0, version, ""), done.stderr
        assert host.left().outputs == sorted(["Tea is hot.", "a span", "converted", "published"] * place), version
