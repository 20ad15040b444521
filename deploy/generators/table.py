"""The table of judges, objectives and windows, read and checked.

TableError is the one error: it names the place and the mend.
"""

import re
import tomllib
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from judges.catalog import catalogue

__all__ = [
    "PATH",
    "Burn",
    "Drop",
    "Objective",
    "Safety",
    "Speed",
    "Table",
    "TableError",
    "Watch",
    "Watcher",
    "load",
    "seconds",
]

PATH: Final = Path(__file__).parent.parent / "prometheus" / "objectives.toml"

Share = Annotated[float, Meta(gt=0, lt=1)]
Positive = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]+$")]
Speed = Literal["fast", "medium", "slow"]
Duration = Annotated[str, Meta(pattern=r"^[0-9]+(ms|s|m|h|d|w)$")]

_UNIT_S: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_STEP_S: Final = 300
"""Long windows are summed from pieces of this length."""


class TableError(ValueError):
    """The table cannot make rules."""


class _Part(Struct, frozen=True, forbid_unknown_fields=True):
    """A part of the table, which takes no unknown key."""


class Drop(_Part, frozen=True):
    """When a fall against the baseline is told.

    Attributes:
        window: What is looked at now.
        baseline: How long the time is that ends where the window begins.
        margin: Falls up to it are none, as a share.
        confidence: With which a fall must be larger than the margin, two-sided.
        holds: How long the condition must hold.
        keep_firing_for: How long the alert outlives it.
        severity: Whether somebody is woken.
    """

    window: Duration
    baseline: Duration
    margin: Share
    confidence: Share
    holds: Duration = msgspec.field(name="for")
    keep_firing_for: Duration
    severity: Literal["page", "ticket"] = "page"


class Burn(_Part, frozen=True):
    """How fast the budget of failures may burn, in which windows that is looked for, and how long it is told after."""

    factor: Positive
    long: Duration
    short: Duration
    holds: Duration = msgspec.field(name="for")
    keep_firing_for: Duration
    severity: Literal["page", "ticket"]


class Safety(_Part, frozen=True):
    """The window in which safety failures are counted, and how many of them are a page."""

    window: Duration
    page_from: Annotated[int, Meta(ge=2)]


class Objective(_Part, frozen=True):
    """What one metric of a judge is held to.

    Attributes:
        judge: Name of the judge.
        metric: One of its metrics with a pass rule.
        objective: The share that ought to pass.
        margin: Falls up to it are none; the table's unless set.
        safety: Whether each failure counts.
        factors: How fast the budget may burn, where it is not the table's factor.
        own: Whether the judge is the user's, so that the catalogue does not have it.
    """

    judge: Name
    metric: Name
    objective: Share
    margin: Share | None = None
    safety: bool = False
    factors: dict[Speed, Positive] = {}
    own: bool = False


class Watch(_Part, frozen=True):
    """What one alert of the watcher looks at; what a bound means stands in the table."""

    window: Duration
    holds: Duration = msgspec.field(name="for")
    bound: Positive = 1
    min_count: Count = 1
    baseline: Duration = "1d"


class Watcher(_Part, frozen=True):
    """The alerts of the watcher itself."""

    no_verdicts: Watch
    traces_stopped: Watch
    unscored: Watch
    circuit: Watch
    judge_slow: Watch
    scores_late: Watch
    stream: Watch
    cut_off: Watch
    dead_letters: Watch
    producer_drops: Watch
    not_ready: Watch
    exporter: Watch
    export_dropped: Watch
    absent: Watch
    judge_changed: Watch


class Table(_Part, frozen=True):
    """All of it."""

    runbook_base: str
    grafana_base: str
    job: Name
    interval: Duration
    confidence: Share
    min_judgements: Count
    drop: Drop
    burn: dict[Speed, Burn]
    safety: Safety
    objectives: tuple[Objective, ...]
    watcher: Watcher


def load(path: Path = PATH) -> Table:
    """Read a table.

    Raises:
        TableError: It is no table, or two of its values contradict each other.
    """
    try:
        table = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Table)
    except (msgspec.ValidationError, tomllib.TOMLDecodeError) as error:
        raise TableError(f"{path.name}: {error}") from error
    _check_windows(table)
    _check_rows(table)
    return table


def seconds(duration: str) -> float:
    """Tell how long a duration like ``90s`` or ``3d`` is."""
    amount, unit = re.fullmatch(r"([0-9]+)([a-z]+)", duration).groups()  # type: ignore[union-attr]  # as checked
    return int(amount) * _UNIT_S[unit]


def _check_windows(table: Table) -> None:
    if set(table.burn) != {"fast", "medium", "slow"}:
        raise TableError("burn: needs the tables fast, medium and slow")
    for name, burn in table.burn.items():
        if seconds(burn.long) <= seconds(burn.short):
            raise TableError(f"burn.{name}: long must be longer than short")
    for window in (table.drop.window, table.drop.baseline, *(burn.long for burn in table.burn.values())):
        if seconds(window) % _STEP_S:
            raise TableError(f"window {window}: must be a multiple of 5m, of which long windows are made")
    if seconds(table.drop.baseline) <= seconds(table.drop.window):
        raise TableError("drop: baseline must be longer than window")


def _check_rows(table: Table) -> None:
    rows = [(row.judge, row.metric) for row in table.objectives]
    for row in table.objectives:
        if rows.count((row.judge, row.metric)) > 1:
            raise TableError(f"objectives: {row.judge} has two rows for {row.metric}; leave one")
        if not row.own:
            _check_known(row)
        for name, burn in table.burn.items():
            _check_can_fire(row, name, row.factors.get(name, burn.factor))


def _check_known(row: Objective) -> None:
    """Refuse a misspelled name, whose alerts would be silent for ever."""
    judge = catalogue().get(row.judge)
    rated = [metric.name for metric in judge.metrics if metric.pass_rule is not None] if judge else []
    if row.metric not in rated:
        what = f"{row.judge} passes or fails nothing called {row.metric}" if judge else f"no built-in judge {row.judge}"
        raise TableError(f"objectives: {what}; correct the name, or set own = true for a judge of your own")


def _check_can_fire(row: Objective, name: Speed, factor: float) -> None:
    """Refuse an objective so low that not even a share of 0 would burn its budget that fast."""
    if factor * (1 - row.objective) >= 1:
        lowest = 1 - 1 / factor
        raise TableError(
            f"objectives: {row.judge}/{row.metric} with {row.objective} can never raise burn.{name}; "
            f"set an objective above {lowest:.3f}, or a smaller one in factors = {{ {name} = … }} of this row"
        )
