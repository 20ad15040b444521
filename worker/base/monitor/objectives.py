"""Objectives: the share of verdicts that should pass, for each metric of a judge.

They are rows of `objectives.toml` beside the configuration; the monitor reads it, and the alert rules are made from it.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct, structs

from judges.core.faults import Faults, catch_fault, fault_of
from judges.custom.definition import conversion_fault, read_toml
from judges.registry import catalogue
from worker.base.monitor.feature import MONITOR, OBJECTIVES
from worker.core.config.reading import ConfigSources
from worker.core.config.settings import Settings

FILE_NAME: Final = "objectives.toml"
Share = Annotated[float, Meta(gt=0, lt=1)]
Positive = Annotated[float, Meta(gt=0)]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]+$")]
Speed = Literal["fast", "medium", "slow"]


class Objective(Struct, frozen=True, forbid_unknown_fields=True):
    """The share that should pass of one metric of a judge; factors replace the factors of the alert rules."""

    judge: Name
    metric: Name
    objective: Share
    # Confirmed failures beyond the judge's own error are an incident.
    safety: bool = False
    factors: dict[Speed, Positive] = {}
    # The judge is the user's, so that the catalogue does not have it.
    own: bool = False


def read_objectives(path: Path) -> Faults[tuple[Objective, ...]]:
    """Read and check the rows `[[objectives]]` of a file; its other tables are of the alert rules."""
    raw = yield from catch_fault(partial(read_toml, path, f"correct {path.name}"))
    if raw is None:
        return ()
    try:
        rows = msgspec.convert(raw.get("objectives", []), tuple[Objective, ...])
    except msgspec.ValidationError as error:
        yield structs.replace(conversion_fault("objectives", tuple[Objective, ...], error), place=f"{path}")
        return ()
    for mistake in mistakes_in(rows):
        yield fault_of("objectives", mistake, place=f"{path}")
    return rows


def mistakes_in(rows: Sequence[Objective]) -> Iterator[str]:
    """Find mistakes in the rows together; each text says how to fix it."""
    names = [(row.judge, row.metric) for row in rows]
    judges = catalogue()
    for number, row in enumerate(rows):
        if names[number] in names[:number]:
            yield f"{row.judge} has two rows for {row.metric}; leave one"
        if not row.own:
            # The alerts of a misspelled name would be silent for ever.
            judge = judges.get(row.judge)
            rated = [metric.name for metric in judge.metrics if metric.pass_rule is not None] if judge else []
            if row.metric not in rated:
                nothing = f"{row.judge} passes or fails nothing called {row.metric}"
                what = nothing if judge else f"no built-in judge {row.judge}"
                yield f"{what}; correct the name, or set own = true for a judge of your own"


def load_objectives(settings: Settings, sources: ConfigSources) -> Faults[Settings]:
    """Read the file of objectives beside the configuration, if there is one."""
    if sources.path is None or not (file := Path(sources.path).with_name(FILE_NAME)).exists():
        return settings
    rows, monitor = (yield from read_objectives(file)), MONITOR.read(settings)
    safety = tuple(dict.fromkeys((*monitor.safety, *(row.judge for row in rows if row.safety))))
    return OBJECTIVES.with_value(MONITOR.with_value(settings, structs.replace(monitor, safety=safety)), rows)
