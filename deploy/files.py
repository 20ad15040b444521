"""Files that are made from the table: written, or compared with what they would be; and the command line for both."""

import argparse
import difflib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from deploy.generators.table import TableError

__all__ = ["arguments", "differences", "run", "write"]


def arguments(prog: str, description: str | None, folder: Path) -> argparse.ArgumentParser:
    """Make the parser of what all generators take: ``--check`` and ``--into``.

    Args:
        folder: Where the committed files lie.
    """
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("--check", action="store_true", help="write nothing, fail on a difference")
    parser.add_argument("--into", type=Path, default=folder, help="another folder than the committed one")
    return parser


def run(asked: argparse.Namespace, generate: Callable[[], Mapping[str, str]]) -> int:
    """Write or compare the files; 1 when they differ or the table of objectives is wrong."""
    try:
        files = generate()
    except TableError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if asked.check:
        found = differences(asked.into, files)
        if found:
            sys.stdout.write(f"{found}\nrun `make generate` and commit what it writes\n")
        return int(bool(found))
    for name in write(asked.into, files):
        sys.stdout.write(f"wrote {name}\n")
    return 0


def write(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Write what differs, remove files of the same kinds that are made no more; return the names of both."""
    folder.mkdir(parents=True, exist_ok=True)
    changed = list(_changed(folder, files))
    for name in changed:
        if name in files:
            (folder / name).write_text(files[name], encoding="utf-8")
        else:
            (folder / name).unlink()
    return changed


def differences(folder: Path, files: Mapping[str, str]) -> str:
    """Show how a folder differs from what would be written; empty when it does not."""
    return "\n".join(
        line
        for name in _changed(folder, files)
        for line in difflib.unified_diff(
            _read(folder / name).splitlines(), files.get(name, "").splitlines(), name, "generated", lineterm=""
        )
    )


def _changed(folder: Path, files: Mapping[str, str]) -> Iterator[str]:
    kinds = {Path(name).suffix for name in files}
    present = (path.name for path in folder.glob("*") if path.suffix in kinds)
    for name in sorted({*files, *present}):
        if name not in files or _read(folder / name) != files[name]:
            yield name


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""
