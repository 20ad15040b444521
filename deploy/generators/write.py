"""Write the rules, or compare them with what they would be."""

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from deploy.generators import pipeline, quality, rules, shares, watcher
from deploy.generators.promql import Pace
from deploy.generators.table import Table, load

__all__ = ["RULES", "differences", "generate", "write"]

RULES: Final = Path(__file__).parent.parent / "prometheus" / "rules"


def generate(table: Table | None = None, scale: float = 1.0) -> dict[str, str]:
    """Make all files of rules, by name.

    Args:
        table: The committed one unless given.
        scale: All durations are divided by it, for tests that live through an hour in seconds.
    """
    pace, table = Pace(scale), table or load()
    parts = {"shares": shares, "quality": quality, "pipeline": pipeline, "watcher": watcher}
    return {f"{name}.yaml": rules.text(part.groups(table, pace)) for name, part in parts.items()}


def write(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Write what differs, remove rules that are made no more; return the names of both."""
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
    for name in sorted({*files, *(path.name for path in folder.glob("*.yaml"))}):
        if name not in files or _read(folder / name) != files[name]:
            yield name


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""
