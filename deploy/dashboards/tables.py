"""The tables of the dashboards, one TOML file each, read with their placeholders filled in.

A panel belongs to the alerts that it explains: the settings of the first of them give its bounds and windows, as they
give those of the alert (`rules/templates.py`), and the panel links to the runbooks of all.
"""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from deploy.rules.promql import TimeScale
from deploy.rules.rule_files import read_alerts
from deploy.rules.table import Table
from deploy.rules.templates import Template, one_line

_TERM: Final = re.compile(r"(?:(?P<whole>[\d.]+) - )?(?P<value>[\d.]+)(?: / (?P<divisor>\d+))?")


class Panel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A panel. Without the other keys it is a graph of counts from 0, green, with "Nothing measured" without data."""

    title: str
    description: str
    kind: Literal["graph", "number", "states", "bars", "heat_map", "rows"] = "graph"
    # PromQL, and its legend unless that is the labels of the outermost aggregation, which ``…`` stands for.
    queries: tuple[str | tuple[str, str], ...]
    exemplars: bool = False  # Whether Grafana asks for the traces behind the buckets as well.
    # A unit of Grafana, or `share`, one of at most 1, and the decimals that are shown.
    unit: str | tuple[str, int] = ("short", 0)
    # Where the axis begins; "none" leaves it to the data. Graphs that are not stacked begin at 0.
    least: int | float | Literal["none"] | None = None
    most: int | float | None = None
    base: str = "green"
    # Values from which on the colour changes: numbers, or terms such as ``<<bound>> / 2``.
    bounds: tuple[tuple[int | float | str, str], ...] = ()
    no_data: str = "Nothing measured"
    alerts: tuple[str, ...] = ()  # The alerts that it explains, without `TraceJudge`.
    size: tuple[int, int] | None = None  # Width, of 24, and height; 4 and 4 for numbers, else 8 and 8.
    repeat: str | None = None  # The variable for each value of which it is repeated.
    interval: str | None = None
    stacked: bool | Literal["percent"] = False  # Stacks areas, or with "percent" their shares of the whole.
    as_bars: bool = False
    names: dict[str, tuple[str, str]] = {}  # Names and colours of values.
    columns: tuple[str, ...] = ()  # Labels, and after `=` the titles of the values of the queries, in the order shown.
    sort: str = ""  # The column to sort by.
    descending: bool = False
    # Properties of one series or column, as Grafana names them, and three of ours: a fixed ``color``, a ``link`` to a
    # dashboard with the labels of the row, and text that is red below a value, ``red_below``.
    overrides: dict[str, dict[str, Any]] = {}


class Row(Struct, frozen=True, forbid_unknown_fields=True):
    """Panels below a heading; those of a collapsed row are asked for when it is opened."""

    title: str
    panels: tuple[Panel, ...]
    collapsed: bool = False


class Choice(Struct, frozen=True, forbid_unknown_fields=True):
    """A variable with fixed values."""

    name: str
    label: str
    description: str
    values: tuple[str, ...]
    chosen: str


class Mark(Struct, frozen=True, forbid_unknown_fields=True):
    """An annotation: its query, the colour of its marks, and their texts."""

    name: str
    expr: str
    color: str
    title: str
    text: str
    tags: str


class Dashboard(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A dashboard."""

    name: str
    description: str
    since: str  # The begin of the time range that it opens with.
    # Variables: a metric and its labels, each of which offers the values that the choices before it leave.
    labels: tuple[tuple[str, tuple[str, ...]], ...]
    choices: tuple[Choice, ...] = ()
    hidden: dict[str, tuple[str, str]] = {}  # Variables that repeat a panel, with their query and regular expression.
    marks: tuple[Mark, ...] = ()
    rows: tuple[Row, ...]


@cache
def read_kinds() -> Mapping[str, Any]:
    """Read the fixed JSON of each kind of panel."""
    kinds: Mapping[str, Any] = _toml("kinds")["kinds"]
    return kinds


def read(name: str, table: Table) -> Dashboard:
    """Read the dashboard of a file.

    A row may have ``defaults`` of its panels, and a panel be ``like`` one that dashboards share.
    """
    content, common = _toml(name), _toml("kinds")
    texts = {key: one_line(text) for key, text in (common["texts"] | content.pop("texts", {})).items()}
    settings = {alert.name: alert.settings[0] for alert in read_alerts().alerts}
    # One row of the alerts is three rules.
    settings |= {f"TraceJudgeObjectiveBurn{speed.title()}": f"burn.{speed}" for speed in table.burn}
    for row in content["rows"]:
        defaults = row.pop("defaults", {})
        for place, own in enumerate(row["panels"]):
            panel = defaults | common["panels"].get(own.pop("like", None), {}) | own
            path = settings[f"TraceJudge{panel['alerts'][0]}"] if panel.get("alerts") else None
            row["panels"][place] = _filled(panel, Template(table, TimeScale(), path, texts))
    return msgspec.convert(_filled(content, Template(table, TimeScale(), None, texts)), Dashboard)


def bound_value(term: float | str) -> float:
    """Compute a bound: a number, or a term of one subtraction or division."""
    if not isinstance(term, str):
        return term
    match = _TERM.fullmatch(term)
    if match is None:
        raise ValueError(f"{term!r} is no bound: write a number, 'x / 2' or '1 - x'")
    value = float(match["value"]) / int(match["divisor"] or 1)
    return float(match["whole"]) - value if match["whole"] else value


def _toml(name: str) -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parent / f"{name}.toml").read_text(encoding="utf-8"))


def _filled(value: Any, template: Template) -> Any:
    """Fill in the placeholders of all texts, each on one line."""
    if isinstance(value, str):
        return template(one_line(value))
    if isinstance(value, dict):
        return {key: _filled(each, template) for key, each in value.items()}
    return [_filled(each, template) for each in value] if isinstance(value, list) else value
