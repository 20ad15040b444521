"""The table ``prometheus/objectives.toml`` of judges, objectives and windows, read and checked."""

import re
import tomllib
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from worker.base.monitor.objectives import Name, Objective, Positive, Share, Speed, mistakes_in

FOLDER: Final = Path(__file__).parent.parent  # The folder `deploy`.
PATH: Final = FOLDER / "prometheus" / "objectives.toml"

Count = Annotated[int, Meta(ge=1)]
Duration = Annotated[str, Meta(pattern=r"^[0-9]+(ms|s|m|h|d|w)$")]

_UNIT_S: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


class TableError(ValueError):
    """The table is invalid; the message names the place and the fix."""


class _Part(Struct, frozen=True, forbid_unknown_fields=True):
    """A part of the table; unknown keys are refused."""


class Level(_Part, frozen=True):
    """An alert on a gauge of the monitor: how long it must hold, and the bounds if the gauge is a share."""

    holds: Duration = msgspec.field(name="for")
    keep_firing_for: Duration
    severity: Literal["page", "ticket", "info"]
    bound: Share = 0.5
    unknown: Share = 0.1


class Burn(_Part, frozen=True):
    """The alert about a budget of failures that burns too fast; without a window it has the gauge's."""

    factor: Positive
    holds: Duration = msgspec.field(name="for")
    keep_firing_for: Duration
    severity: Literal["page", "ticket"]
    window: Duration | Literal[""] = ""


class Watch(_Part, frozen=True):
    """Window and bound of one alert of the watcher; comments of the table explain each bound."""

    holds: Duration = msgspec.field(name="for")
    window: Duration | Literal[""] = ""
    bound: Positive = 1
    min_count: Count = 1
    baseline: Duration = "1d"


class Watcher(_Part, frozen=True):
    """The alerts of the watcher itself."""

    no_verdicts: Watch
    traces_stopped: Watch
    circuit: Watch
    judge_slow: Watch
    scores_late: Watch
    stream: Watch
    memory: Watch
    partition_away: Watch
    cut_off: Watch
    dead_letters: Watch
    producer_drops: Watch
    not_ready: Watch
    exporter: Watch
    export_dropped: Watch
    budget_exhausted: Watch
    budget_rates: Watch
    budget_overspent: Watch
    absent: Watch
    judge_changed: Watch


class Table(_Part, frozen=True):
    """The whole table."""

    runbook_base: str
    grafana_base: str
    job: Name
    interval: Duration
    min_judgements: Count
    drop: Level
    below_objective: Level
    safety: Level
    judge_drift: Level
    abstained: Level
    unscored: Level
    silent: Level
    decline: Level
    burn: dict[Speed, Burn]
    objectives: tuple[Objective, ...]
    watcher: Watcher


def load(path: Path = PATH) -> Table:
    """Read and check a table, or raise ``TableError``."""
    try:
        table = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Table)
    except (msgspec.ValidationError, tomllib.TOMLDecodeError) as error:
        raise TableError(f"{path.name}: {error}") from error
    if set(table.burn) != {"fast", "medium", "slow"}:
        raise TableError("burn: needs the tables fast, medium and slow")
    for burn in table.burn.values():
        # Long windows are summed from pieces of this length.
        if burn.window and seconds(burn.window) % 300:
            raise TableError(f"window {burn.window}: must be a multiple of 5m, of which long windows are made")
    _check_rows(table)
    return table


def seconds(duration: str) -> float:
    """Convert a duration such as ``90s`` or ``3d``."""
    amount, unit = re.fullmatch(r"([0-9]+)([a-z]+)", duration).groups()  # type: ignore[union-attr]  # as checked
    return int(amount) * _UNIT_S[unit]


def _check_rows(table: Table) -> None:
    if (mistake := next(mistakes_in(table.objectives), None)) is not None:
        raise TableError(f"objectives: {mistake}")
    for row in table.objectives:
        for name, burn in table.burn.items():
            factor = row.factors.get(name, burn.factor)
            # Even a share of 0 would not burn the budget of so low an objective that fast.
            if factor * (1 - row.objective) >= 1:
                raise TableError(
                    f"objectives: {row.judge}/{row.metric} with {row.objective} can never raise burn.{name}; "
                    f"set an objective above {1 - 1 / factor:.3f}, or a smaller one in factors = {{ {name} = … }} of "
                    "this row"
                )
