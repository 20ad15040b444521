"""The files of rules."""

from pathlib import Path
from typing import Final

from deploy.generators import pipeline, quality, rules, shares, watcher
from deploy.generators.promql import Pace
from deploy.generators.table import Table, load

__all__ = ["RULES", "generate"]

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
