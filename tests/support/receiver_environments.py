"""Virtual environments with Phoenix and MLflow, which have too many dependencies for ours.

`python -m support.receiver_environments` makes them ahead of the tests.
"""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

PACKAGES = {"phoenix": "arize-phoenix", "mlflow": "mlflow"}
FOLDER = Path(os.environ.get("TRACEJUDGE_RECEIVER_ENVS", Path(__file__).parents[2] / ".receivers"))


def environment(name: str) -> Path:
    """Return the folder of an environment's programs; makes it if there is none."""
    folder = FOLDER / name
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", "--upgrade-deps", folder], check=True)
            # A server compiles what it imports, a part of what is installed.
            options = ("--quiet", "--disable-pip-version-check", "--no-compile")
            install = [folder / "bin" / "pip", "install", *options, PACKAGES[name]]
            subprocess.run(install, check=True, stdout=subprocess.DEVNULL)
            (folder / "complete").touch()
    return folder / "bin"


if __name__ == "__main__":
    for each in PACKAGES:
        environment(each)
