"""The examples of docs/examples: their commands, run as the README says, and what they sent as OTLP.

    PYTHONPATH=. python features/gateway/example_parts.py NAME …        # from tests/: record what an example sends
    PYTHONPATH=. python features/gateway/example_parts.py --client

An example with packages of its own runs in an environment below the folder that TRACEJUDGE_CLIENT_ENVS names. The
example in Go was recorded with Go 1.19 and version 1.16 of OpenTelemetry's SDK and otlptracehttp; recording it again
takes `go` from the PATH.
"""

import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from clients.recording import environment
from support.model_server import ModelServer
from support.tables import read_table

ROOT: Final = Path(__file__).parents[3]
EXAMPLES: Final = ROOT / "docs" / "examples"
RECORDED: Final = Path(__file__).parent / "recorded"
NODE_RECORDED: Final = RECORDED / "node_client"
NODE_CLIENT: Final = Path(__file__).parent / "node_client.js"
SCENARIOS: Final = re.findall(r"^  (?:async )?(\w+)(?:: |\(\) \{)", NODE_CLIENT.read_text(), re.MULTILINE)
Bodies = dict[str, bytes]
LONGEST_S: Final = 120
_TABLE: Final = read_table(__file__, "examples")
SOURCES: Final[dict[str, str]] = _TABLE["sources"]
PINS: Final[dict[str, list[str]]] = _TABLE["pins"]
NODE: Final = "node@24.21.0"
"""The interpreter, as a package of npm: OpenTelemetry's SDK needs a newer one than many machines have."""
_SECTION: Final = re.compile(r"^## (?P<name>.+?)\n(?P<text>.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_BLOCK: Final = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What was installed before is not installed again; `installed` lists what a block asks for.
_STUBS: Final = 'pip() { shift; printf "%s\\n" "$@" >> installed; }\nnpm() { pip "$@"; }\n'


def blocks() -> dict[str, list[str]]:
    """Read the commands of each example in the README, one text for each block."""
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    return {matches["name"]: _BLOCK.findall(matches["text"]) for matches in _SECTION.finditer(text)}


def copied(name: str, folder: Path) -> Path:
    """Copy an example, so that nothing is written into the checkout."""
    return shutil.copytree((EXAMPLES / SOURCES[name]).parent, folder / "example")


def start_block(
    text: str, folder: Path, variables: Mapping[str, str], path: Path | None = None
) -> subprocess.Popen[str]:
    """Start the commands of a block in a folder, with the programs of `path` before those of the machine."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("OTEL_", "TRACEJUDGE_", "OPENAI_"))}
    searched = f"{path or Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"
    return subprocess.Popen(
        ["bash", "-euc", _STUBS + text],
        cwd=folder,
        env={**kept, "PATH": searched, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a group of its own, so that a server ends with it
    )


def run_block(text: str, folder: Path, variables: Mapping[str, str], path: Path | None = None) -> str:
    """Run the commands of a block to their end, and return what they print."""
    out, err = (program := start_block(text, folder, variables, path)).communicate(timeout=LONGEST_S)
    assert program.returncode == 0, f"{out}\n{err}"
    return out


def model_variables(server: ModelServer) -> dict[str, str]:
    """Return the variables that lead clients to a model of the tests."""
    return {"OPENAI_BASE_URL": f"{server.root_url}/v1", "OPENAI_API_KEY": "none"}


def programs(name: str, folder: Path) -> Path | None:
    """Return the folder of an example's programs; its environment is built if it is missing."""
    if name == "Node.js":
        built = _node_modules()
        (folder / "node_modules").symlink_to(built)
        return built / ".bin"
    if name not in PINS:
        return None
    return environment(f"example-{SOURCES[name].partition('/')[0]}", PINS[name]).parent


def _node_modules() -> Path:
    folder = environment("example-node", ()).parents[1]
    if not (folder / "node_modules").exists():
        # npm chooses packages by the version of the interpreter that runs it, so versions are exact.
        command = ["npm", "install", "--no-audit", "--no-fund", "--no-save", "--prefix", folder, NODE, *PINS["Node.js"]]
        subprocess.run(command, check=True, capture_output=True)
    return folder / "node_modules"


def install_sdk(path: Path) -> None:
    """Install the SDK of this checkout in an example's environment."""
    command = [path / "python", "-m", "pip", "install", "--quiet"]
    subprocess.run([*command, "redis", "msgspec"], check=True)
    subprocess.run([*command, "--force-reinstall", "--no-deps", ROOT / "producers"], check=True)


def source_digest(name: str) -> str:
    """Return the digest of an example's source, which a recording belongs to."""
    return hashlib.sha256((EXAMPLES / SOURCES[name]).read_bytes()).hexdigest()


def recorded(name: str) -> dict[str, bytes]:
    """Return what an example sent: its bodies by path."""
    stem = SOURCES[name].partition("/")[0]
    return {
        f"/v1/{file.suffixes[-2][1:]}": gzip.decompress(file.read_bytes())
        for file in sorted(RECORDED.glob(f"{stem}.*.gz"))
    }


def recorded_digests() -> dict[str, str]:
    """Return the digest of the source that each recording was made with."""
    digests: dict[str, str] = json.loads((RECORDED / "sources.json").read_text())
    return digests


def record(name: str) -> None:
    """Replace the recording of an example: the last block of its section is run against a recorder."""
    stem = SOURCES[name].partition("/")[0]
    with ModelServer(port=8899) as server, tempfile.TemporaryDirectory() as home:
        folder = copied(name, Path(home))
        text = blocks()[name][-1]
        # The addresses of the README are those of a default installation.
        variables = model_variables(server) | {"OTEL_EXPORTER_OTLP_ENDPOINT": server.root_url}
        variables["OTEL_NODE_RESOURCE_DETECTORS"] = "service"  # not the host, the process and its paths
        run_block(redirected(text, variables), folder, variables, programs(name, folder))
    RECORDED.mkdir(exist_ok=True)
    for old in RECORDED.glob(f"{stem}.*.gz"):
        old.unlink()
    for kind, kept in (("traces", server.traces), ("logs", server.logs)):
        for body in kept.values():
            (RECORDED / f"{stem}.{kind}.gz").write_bytes(gzip.compress(body, mtime=0))
    digests = recorded_digests() if (RECORDED / "sources.json").exists() else {}
    digests[name] = source_digest(name)
    (RECORDED / "sources.json").write_text(json.dumps(digests, indent=1, sort_keys=True) + "\n")


def redirected(text: str, variables: Mapping[str, str]) -> str:
    """Leave out the assignments of variables that the test sets."""
    return re.sub(rf"\b(?:{'|'.join(variables)})=\S+", "", text)


def normalised(trace: dict[str, Any]) -> dict[str, Any]:
    """Replace ids and times by names, and spans by `kind: name`."""
    assert len(trace.pop("id")) == 16
    assert len(trace.pop("trace_id")) == 32
    assert trace.pop("started_at", 0.0) <= trace.pop("ended_at", 0.0)
    names = {span["span_id"]: span["name"] for span in trace.get("spans", ())}
    if "spans" in trace:
        trace["spans"] = [f"{span['kind']}: {span['name']}" for span in trace["spans"]]
    return trace | {"span_id": names.get(trace["span_id"], "span")}


def node_client() -> dict[str, Bodies]:
    """Return what the client of Node.js sent in each scenario, its bodies by path, log records first."""
    bodies: dict[str, Bodies] = {}
    for file in sorted(NODE_RECORDED.glob("*.gz")):
        scenario, kind = file.name.removesuffix(".gz").split(".")
        bodies.setdefault(scenario, {})[f"/v1/{kind}"] = gzip.decompress(file.read_bytes())
    return bodies


def run_client() -> dict[str, Bodies]:
    """Run each scenario of the client of Node.js in a process of its own, and return what it sends."""
    with ModelServer(port=8899) as server, tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        shutil.copy(NODE_CLIENT, folder)
        path = programs("Node.js", folder)
        variables = model_variables(server) | {
            "OTEL_EXPORTER_OTLP_ENDPOINT": server.root_url,
            "OTEL_SERVICE_NAME": "shop",
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_NODE_RESOURCE_DETECTORS": "service",  # not the host, the process and its paths
        }
        for scenario in SCENARIOS:
            server.scenario = scenario
            run_block(f"node {NODE_CLIENT.name} {scenario}", folder, variables, path)
        sent = {"/v1/logs": server.logs, "/v1/traces": server.traces}
        return {each: {where: kept[each] for where, kept in sent.items() if each in kept} for each in SCENARIOS}


def record_client() -> None:
    """Replace the recording of the client of Node.js."""
    for old in NODE_RECORDED.glob("*.gz"):
        old.unlink()
    for scenario, bodies in run_client().items():
        for where, body in bodies.items():
            (NODE_RECORDED / f"{scenario}.{where.rpartition('/')[2]}.gz").write_bytes(gzip.compress(body, mtime=0))


if __name__ == "__main__":
    for one in sys.argv[1:]:
        record_client() if one == "--client" else record(one)
