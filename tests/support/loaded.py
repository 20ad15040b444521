"""Which packages commands load beyond those that each may load.

Run as a program, this file is the process from which one is forked for each set of packages; in it the commands run
one after the other, so that of several which load a package the first one is named.
"""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["loaded_beyond"]


def loaded_beyond(
    lines: Mapping[str, Collection[str]], watched: Collection[str], folder: Path
) -> dict[str, Sequence[str]]:
    """Run command lines in a folder; return the watched packages that each one loads, and may not load."""
    request = json.dumps([{line: sorted(allowed) for line, allowed in lines.items()}, sorted(watched)])
    command = [sys.executable, __file__]
    done = subprocess.run(command, cwd=folder, input=request, capture_output=True, text=True, check=True, timeout=100)
    answers = dict(map(json.loads, done.stdout.splitlines()))
    assert answers.keys() == lines.keys(), done.stderr
    return {line: packages for line, packages in answers.items() if packages}


def _run(main: Any, line: str) -> bool:
    """Run a command without its output; return whether it ended as it should."""
    out = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        main(line.split())
    except SystemExit as end:
        return end.code in {0, 1}
    finally:
        sys.stdout.flush()
        os.dup2(out, 1)
    return False


def _serve() -> None:
    lines, watched = json.load(sys.stdin)
    groups: dict[tuple[str, ...], list[str]] = {}
    for line, allowed in lines.items():
        groups.setdefault(tuple(allowed), []).append(line)
    cli = importlib.import_module("worker.cli")
    for allowed, commands in groups.items():
        if os.fork() == 0:
            left = set(watched) - set(allowed)
            for line in commands:
                if _run(cli.main, line):
                    loaded = {name.partition(".")[0] for name in sys.modules}
                    os.write(1, json.dumps([line, sorted(left & loaded)]).encode() + b"\n")
                    left -= loaded
            return
        os.wait()


if __name__ == "__main__":
    del sys.path[0]
    _serve()
