"""Write the dashboards as Grafana reads them, or compare them with what they would be."""

import difflib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from deploy.dashboards import cost, pipeline, quality
from deploy.generators.table import Table, load

__all__ = ["FOLDER", "differences", "generate", "write"]

FOLDER: Final = Path(__file__).parent.parent / "grafana" / "dashboards"


def generate(table: Table | None = None) -> dict[str, str]:
    """Make all files, by name; out of the committed table unless one is given.

    Raises:
        TableError: The committed table is wrong.
    """
    table = table or load()
    made = (quality.make(table), pipeline.make(table), cost.make(table))
    return {f"{one.uid}.json": json.dumps(one, cls=JSONEncoder, indent=2, sort_keys=True) + "\n" for one in made}


def write(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Write what differs, remove dashboards that are made no more; return the names of both."""
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
    for name in sorted({*files, *(path.name for path in folder.glob("*.json"))}):
        if name not in files or _read(folder / name) != files[name]:
            yield name


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""
