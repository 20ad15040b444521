"""Objectives: the share of verdicts that should pass, for each metric of a judge.

They stand in one file, which the monitor reads and the alert rules are generated from.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from judges.custom.definition import read_toml
from judges.registry import catalogue
from worker.config.errors import describe_error
from worker.config.settings import SettingsError

FILE_NAME: Final = "objectives.toml"
Share = Annotated[float, Meta(gt=0, lt=1)]
Positive = Annotated[float, Meta(gt=0)]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]+$")]
Speed = Literal["fast", "medium", "slow"]


class Objective(Struct, frozen=True, forbid_unknown_fields=True):
    """The share that should pass of one metric of a judge; factors stand in place of those of the alert rules."""

    judge: Name
    metric: Name
    objective: Share
    # Confirmed failures beyond the judge's own error are an incident.
    safety: bool = False
    factors: dict[Speed, Positive] = {}
    # The judge is the user's, so that the catalogue does not have it.
    own: bool = False


def read_objectives(path: Path, place: str = "") -> tuple[Objective, ...]:
    """Read and check the rows `[[objectives]]` of a file; its other tables are of the alert rules.

    Args:
        path: The file.
        place: The setting that names it, for errors.

    Raises:
        SettingsError: The file cannot be read, or a row is wrong.
    """
    here = place or path.name
    raw = read_toml(path, f"correct {here}").get("objectives", [])
    try:
        rows = msgspec.convert(raw, tuple[Objective, ...])
    except msgspec.ValidationError as error:
        raise SettingsError(describe_error(f"{path}: objectives", tuple[Objective, ...], error)) from error
    if (mistake := mistake_in(rows)) is not None:
        raise SettingsError(f"{path}: {mistake}")
    return rows


def mistake_in(rows: Sequence[Objective]) -> str | None:
    """Return what is wrong with the rows together, and how to fix it."""
    names = [(row.judge, row.metric) for row in rows]
    judges = catalogue()
    for row in rows:
        if names.count((row.judge, row.metric)) > 1:
            return f"objectives: {row.judge} has two rows for {row.metric}; leave one"
        if not row.own:
            # The alerts of a misspelled name would be silent for ever.
            judge = judges.get(row.judge)
            rated = [metric.name for metric in judge.metrics if metric.pass_rule is not None] if judge else []
            if row.metric not in rated:
                nothing = f"{row.judge} passes or fails nothing called {row.metric}"
                what = nothing if judge else f"no built-in judge {row.judge}"
                return f"objectives: {what}; correct the name, or set own = true for a judge of your own"
    return None
