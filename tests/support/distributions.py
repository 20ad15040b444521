"""Wheels of this checkout, and empty environments of every Python of this machine to install them in."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from deploy import release

__all__ = ["ROOT", "build", "found", "install", "interpreter", "run"]

ROOT = Path(__file__).parents[2]


@cache
def interpreter(version: str) -> Path | None:
    """Find a Python of this version that runs: the shims of pyenv may name one that does not."""
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    folders = [*map(Path, os.get_exec_path()), *sorted(versions.glob("*/bin"))]
    running = (Path(sys.executable),) if version == found(sys.executable) else ()
    for python in (*running, *(folder / f"python{version}" for folder in folders)):
        if os.access(python, os.X_OK) and found(python) == version:
            return python
    return None


def found(python: Path | str) -> str | None:
    """Return the version of a Python as `3.11`; None where it cannot run."""
    command = [python, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def build(into: Path) -> Path:
    """Build both distributions from the tracked files, and return the folder."""
    release.build(into)
    return into


def install(folder: Path, python: Path, *requirements: str | Path) -> Path:
    """Make an empty environment and install requirements; return its `python`."""
    own = folder / "bin" / "python"
    settings = os.environ | {"UV_PYTHON_DOWNLOADS": "never"}
    installing = ["pip", "install", "--python", own, "--constraint", ROOT / "constraints.txt", *requirements]
    for command in (["venv", "--python", python, folder], installing):
        done = subprocess.run(
            [sys.executable, "-m", "uv", "--quiet", *command], env=settings, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    return own


def run(
    command: Sequence[str | Path], folder: Path, variables: Mapping[str, str] | None = None, timeout_s: float = 100
) -> "subprocess.CompletedProcess[str]":
    """Run a command in a folder outside the checkout, without the tests' own settings of TraceJudge and Python."""
    left_out = ("TRACEJUDGE_", "PYTHON", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return subprocess.run(
        command,
        cwd=folder,
        env=environment | dict(variables or {}),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
