"""Write generated files, or compare them with the committed ones; shared by ``deploy`` and ``docs.generate``."""

import argparse
import difflib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path


def arguments(prog: str, description: str | None, folder: Path) -> argparse.ArgumentParser:
    """Make a parser with ``--check`` and ``--into``; ``folder`` holds the committed files."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("--check", action="store_true", help="write nothing, exit with 1 on a difference")
    parser.add_argument("--into", type=Path, default=folder, help="write to another folder than the committed one")
    return parser


def run(folder: Path, files: Mapping[str, str], *, check: bool, alone: bool = True) -> int:
    """Write the files, ``alone`` in the folder or not, or with ``check`` compare them; return 1 when they differ."""
    if check:
        text = differences(folder, files, alone=alone)
        if text:
            sys.stdout.write(f"{text}\nrun `make generate` and commit the result\n")
        return int(bool(text))
    for name in write(folder, files, alone=alone):
        sys.stdout.write(f"wrote {folder.name}/{name}\n")
    return 0


def write(folder: Path, files: Mapping[str, str], *, alone: bool = True) -> list[str]:
    """Write changed files, remove obsolete files with the same suffixes; return the names of both."""
    folder.mkdir(parents=True, exist_ok=True)
    changed = list(_changed(folder, files, alone=alone))
    for name in changed:
        if name in files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(files[name], encoding="utf-8")
        else:
            (folder / name).unlink()
    return changed


def differences(folder: Path, files: Mapping[str, str], *, alone: bool = True) -> str:
    """Return a unified diff from the folder to the generated files; empty when they are equal."""
    return "\n".join(
        line
        for name in _changed(folder, files, alone=alone)
        for line in difflib.unified_diff(
            _read(folder / name).splitlines(), files.get(name, "").splitlines(), name, "generated", lineterm=""
        )
    )


def _changed(folder: Path, files: Mapping[str, str], *, alone: bool) -> Iterator[str]:
    # A file that is no longer generated would stay in use by Prometheus or Grafana, so it counts as changed.
    suffixes = {Path(name).suffix for name in files} if alone else set()
    present = (path.name for path in folder.glob("*") if path.suffix in suffixes)
    for name in sorted({*files, *present}):
        if name not in files or _read(folder / name) != files[name]:
            yield name


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""
