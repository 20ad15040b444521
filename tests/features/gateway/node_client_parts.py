"""The OpenAI client of Node.js, traced by OpenTelemetry's own instrumentation, and what it sent by scenario.

PYTHONPATH=. python features/gateway/node_client_parts.py        # from tests/: record anew
"""

import gzip
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from example_parts import LONGEST_S, model_variables, programs
from support.model_server import ModelServer

SOURCE: Final = Path(__file__).parent / "node_client.js"
RECORDED: Final = Path(__file__).parent / "recorded" / "node_client"
SCENARIOS: Final = re.findall(r"^  (?:async )?(\w+)(?:: |\(\) \{)", SOURCE.read_text(), re.MULTILINE)

Bodies = dict[str, bytes]


def recorded() -> dict[str, Bodies]:
    """Return the bodies of each scenario by path, log records first."""
    bodies: dict[str, Bodies] = {}
    for file in sorted(RECORDED.glob("*.gz")):
        scenario, kind = file.name.removesuffix(".gz").split(".")
        bodies.setdefault(scenario, {})[f"/v1/{kind}"] = gzip.decompress(file.read_bytes())
    return bodies


def run_client() -> dict[str, Bodies]:
    """Run each scenario in a process of its own, and return what it sends."""
    with ModelServer(port=8899) as server, tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        shutil.copy(SOURCE, folder)
        path = programs("Node.js", folder)
        variables = model_variables(server) | {
            "PATH": f"{path}{os.pathsep}{os.environ['PATH']}",
            "OTEL_EXPORTER_OTLP_ENDPOINT": server.root_url,
            "OTEL_SERVICE_NAME": "shop",
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_NODE_RESOURCE_DETECTORS": "service",  # not the host, the process and its paths
        }
        for scenario in SCENARIOS:
            server.scenario = scenario
            command = ["node", SOURCE.name, scenario]
            done = subprocess.run(
                command, cwd=folder, env=variables, capture_output=True, text=True, timeout=LONGEST_S, check=False
            )
            assert done.returncode == 0, done.stderr
        sent = {"/v1/logs": server.logs, "/v1/traces": server.traces}
        return {each: {where: kept[each] for where, kept in sent.items() if each in kept} for each in SCENARIOS}


def record() -> None:
    """Replace the recording."""
    RECORDED.mkdir(parents=True, exist_ok=True)
    for old in RECORDED.glob("*.gz"):
        old.unlink()
    for scenario, bodies in run_client().items():
        for where, body in bodies.items():
            (RECORDED / f"{scenario}.{where.rpartition('/')[2]}.gz").write_bytes(gzip.compress(body, mtime=0))


if __name__ == "__main__":
    record()
