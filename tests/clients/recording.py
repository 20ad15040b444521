"""Run a client in its own environment, and record the OTLP that it sends.

    python -m clients.recording NAME …          # from tests/: record anew

The environment is a virtual environment below the folder that TRACEJUDGE_CLIENT_ENVS names, outside the checkout,
with the packages of `requirements.json`, or a folder with those of Node.js. `client.py` runs a client, `with_NAME.mjs`
one of Node.js. A recording is one file for each scenario: the request bodies as sent, compressed.
"""

import gzip
import json
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
REQUIREMENTS: Final[dict[str, list[str]]] = json.loads((HERE / "requirements.json").read_text())


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
            (Path(folder) / "node_modules").symlink_to(node_modules(name, (*REQUIREMENTS[name], *_NODE_EXPORT)))
            command = ["node", f"with_{name}.mjs", server.root_url]
        else:
            # Two programs of the same packages share an environment.
            packages = REQUIREMENTS[name]
            shared = next(other for other, needed in REQUIREMENTS.items() if needed == packages)
            command = [environment(shared, (*packages, *_EXPORT)), "client.py", server.root_url, name]
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
