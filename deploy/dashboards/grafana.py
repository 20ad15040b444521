"""The JSON of a dashboard as Grafana's own model writes it: variables, panels, their places, and links.

``All`` stands for ``.*``, so that a series without the label matches as well. Alerts open dashboards with ``service``,
``environment`` and ``judge``: these names are fixed.
"""

import copy
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from string import ascii_uppercase
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from deploy.rules.alert_settings import FOLDER as _DEPLOY
from deploy.rules.alert_settings import Table, load
from deploy.rules.rule_files import read_alerts
from deploy.rules.templates import Template, TimeScale, one_line, runbook_url

_TERM: Final = re.compile(r"(?:(?P<whole>[\d.]+) - )?(?P<value>[\d.]+)(?: / (?P<divisor>\d+))?")
FOLDER: Final = _DEPLOY / "grafana" / "dashboards"
Json = dict[str, Any]
_NAMES: Final = ("Quality", "Pipeline", "Cost")
_PROMETHEUS: Final = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH: Final = 24
_OUTERMOST: Final = re.compile(r"\w+ by \(([^)]*)\) ")
# Points that look back over such windows of raw samples read thousands of them each: they are 5 minutes apart at least.
_FROM_RAW: Final = re.compile(r"\[(\$window|1d)\]")
# What Grafana's model writes of each variable, and of each link.
_VARIABLE: Final = {
    "auto": False,
    "auto_count": 30,
    "auto_min": "10s",
    "hide": 0,
    "id": "00000000-0000-0000-0000-000000000000",
}
_VARIABLE_FLAGS: Final = {"includeAll": False, "multi": False, "skipUrlSync": False}
_LINK: Final = {"asDropdown": False, "includeVars": False, "keepTime": False, "tags": [], "tooltip": "", "type": "link"}


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
    """Read the dashboard of a file; rows may have ``defaults`` of panels, and panels be ``like`` a shared one."""
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
    if isinstance(value, str):
        return template(one_line(value))
    if isinstance(value, dict):
        return {key: _filled(each, template) for key, each in value.items()}
    return [_filled(each, template) for each in value] if isinstance(value, list) else value


def generate(table: Table | None = None) -> dict[str, str]:
    """Make all dashboards as JSON, by file name; from the committed table unless one is passed."""
    table = table or load()
    made = (build(read(name, table), table) for name in ("quality", "pipeline", "cost"))
    return {f"{document['uid']}.json": json.dumps(document, indent=2, sort_keys=True) + "\n" for document in made}


def build(dashboard: Dashboard, table: Table) -> Json:
    """Build a dashboard."""
    uid = _uid(dashboard.name)
    panels: list[Json] = []
    top = 0
    for place, row in enumerate(dashboard.rows, start=1):
        # The id of a panel depends on its row alone, so that links to it stay valid when other rows grow.
        first = place * 100
        below = [_panel(panel, table, id_) for id_, panel in enumerate(row.panels, start=first + 1)]
        bottom = _place(below, top + 1)
        heading = {
            "collapsed": row.collapsed,
            "id": first,
            "title": row.title,
            "type": "row",
            "gridPos": {"h": 1, "w": _WIDTH, "x": 0, "y": top},
            # Grafana keeps the panels within a collapsed row, and moves what follows when it is opened.
            "panels": below if row.collapsed else [],
        }
        panels += [heading] if row.collapsed else [heading, *below]
        top = top + 1 if row.collapsed else bottom
    return {
        "annotations": {"list": [_mark(mark) for mark in dashboard.marks]},
        "description": dashboard.description,
        "editable": False,
        "fiscalYearStartMonth": 0,
        "graphTooltip": 1,
        "links": [
            _LINK
            | {"title": name, "icon": "dashboard", "tooltip": f"TraceJudge / {name}", "url": _address(name)}
            | {"includeVars": True, "keepTime": True, "targetBlank": False}
            for name in _NAMES
            if name != dashboard.name
        ],
        "panels": panels,
        "refresh": "1m",
        "schemaVersion": 36,
        "style": "dark",
        "tags": ["tracejudge"],
        "templating": {"list": list(_variables(dashboard))},
        "time": {"from": dashboard.since, "to": "now"},
        "timezone": "browser",
        "title": f"TraceJudge / {dashboard.name}",
        "uid": uid,
    }


def _uid(name: str) -> str:
    return f"tracejudge-{name.lower()}"


def _address(name: str) -> str:
    return f"/d/{_uid(name)}/{_uid(name)}"


def _mark(mark: Mark) -> Json:
    return {
        "datasource": _PROMETHEUS,
        "enable": True,
        "expr": mark.expr,
        "hide": False,
        "iconColor": mark.color,
        "name": mark.name,
        "step": "60s",
        "tagKeys": mark.tags,
        "textFormat": mark.text,
        "titleFormat": mark.title,
        # Grafana takes any text for true, and puts marks at 1970.
        "useValueForTime": False,
    }


def _variables(dashboard: Dashboard) -> Iterator[Json]:
    source = "The Prometheus that scrapes the workers."
    variable = _VARIABLE | _VARIABLE_FLAGS | {"name": "datasource", "label": "Data source", "type": "datasource"}
    yield variable | {"query": "prometheus", "description": source}
    for metric, names in dashboard.labels:
        for place, name in enumerate(names):
            before = ", ".join(f'{name}=~"${name}"' for name in names[:place])
            selected = f"{metric}{{{before}}}" if before else metric
            label = {"label": name.capitalize().replace("_", " "), "allValue": ".*", "sort": 1}
            yield _several(name, f"label_values({selected}, {name})") | label
    yield from map(_choice, dashboard.choices)
    for name, (query, regex) in dashboard.hidden.items():
        # Their values depend on the other variables: a value taken over from a link would be a panel without data.
        yield _several(name, query) | {"hide": 2, "regex": regex, "skipUrlSync": True, "sort": 0}


def _several(name: str, query: str) -> Json:
    every = {"selected": True, "text": ["All"], "value": ["$__all"]}
    return {
        **_VARIABLE,
        "name": name,
        "query": query,
        "datasource": _PROMETHEUS,
        "current": every,
        "type": "query",
        "includeAll": True,
        "multi": True,
        "refresh": 2,
        "skipUrlSync": False,
    }


def _choice(choice: Choice) -> Json:
    return {
        **_VARIABLE,
        **_VARIABLE_FLAGS,
        "name": choice.name,
        "label": choice.label,
        "description": choice.description,
        "type": "custom",
        "query": ",".join(choice.values),
        "options": [{"selected": value == choice.chosen, "text": value, "value": value} for value in choice.values],
        "current": {"selected": True, "text": choice.chosen, "value": choice.chosen},
    }


def _panel(panel: Panel, table: Table, id_: int) -> Json:
    document: Json = copy.deepcopy(read_kinds()[panel.kind])
    alerts = [f"TraceJudge{alert}" for alert in panel.alerts]
    runbooks = {alert: runbook_url(table.runbook_base, alert) for alert in alerts}
    width, height = panel.size or ((4, 4) if panel.kind == "number" else (8, 8))
    note = f"\n\nRunbooks: {', '.join(runbooks.values())}" if runbooks else ""
    # Grafana cannot open a path in the repository.
    is_on_web = table.runbook_base.startswith("http")
    document |= {
        "id": id_,
        "title": panel.title,
        "description": panel.description + note,
        "datasource": _PROMETHEUS,
        "gridPos": {"h": height, "w": width},
        "repeatDirection": "h",
        "transformations": [],
        "transparent": False,
        "targets": [_target(panel, query, ref) for query, ref in zip(panel.queries, ascii_uppercase, strict=False)],
    }
    if runbooks and is_on_web:
        document["links"] = [
            _LINK | {"title": f"Runbook: {alert}", "icon": "doc", "url": url, "targetBlank": True}
            for alert, url in runbooks.items()
        ]
    if panel.repeat:
        # By default Grafana puts four in a row.
        document |= {"repeat": panel.repeat, "maxPerRow": _WIDTH // width}
    if panel.interval or (panel.kind in {"graph", "heat_map"} and _FROM_RAW.search(str(panel.queries))):
        document["interval"] = panel.interval or "5m"
    document["fieldConfig"]["defaults"] |= _defaults(panel)
    document["fieldConfig"]["overrides"] = [
        {"matcher": {"id": "byName", "options": name}, "properties": list(_properties(properties))}
        for name, properties in panel.overrides.items()
        if is_on_web or name != "runbook"
    ]
    _fit_kind(panel, document)
    return document


def _target(panel: Panel, query: str | tuple[str, str], ref: str) -> Json:
    expr, legend = (query, "…") if isinstance(query, str) else query
    match = None if panel.kind == "rows" else _OUTERMOST.match(expr)
    if match is not None:
        legend = legend.replace("…", " / ".join(f"{{{{{label}}}}}" for label in match[1].split(", ")))
    is_now = panel.kind in {"number", "bars", "rows"}
    return {
        "datasource": _PROMETHEUS,
        "editorMode": "code",
        "exemplar": panel.exemplars,
        "expr": expr,
        "refId": ref,
        "format": {"rows": "table", "heat_map": "heatmap"}.get(panel.kind, "time_series"),
        "instant": is_now,
        "range": not is_now,
        "legendFormat": "__auto" if legend == "…" else legend,
    }


def _defaults(panel: Panel) -> Json:
    unit, decimals = (panel.unit, None) if isinstance(panel.unit, str) else panel.unit
    unit, most = ("percentunit", 1) if unit == "share" else (unit, panel.most)
    # Grafana begins stacks at 0 itself; a line of small changes far above 0 would look like a cliff.
    least = 0 if panel.least is None and panel.kind == "graph" and not panel.stacked else panel.least
    steps: list[Json] = [{"color": panel.base, "value": None}]
    steps += [{"color": color, "value": bound_value(bound)} for bound, color in panel.bounds]
    colored = enumerate(panel.names.items())
    names = {value: {"text": text, "color": color, "index": place} for place, (value, (text, color)) in colored}
    defaults = {
        "unit": unit,
        "decimals": decimals,
        "noValue": panel.no_data,
        "min": None if least == "none" else least,
        "max": most,
        "thresholds": {"mode": "absolute", "steps": steps},
        "mappings": [{"options": names, "type": "value"}] if names else None,
    }
    return {key: value for key, value in defaults.items() if value is not None}


def _properties(properties: Mapping[str, Any]) -> Iterator[Json]:
    for name, value in properties.items():
        match name:
            case "color":
                yield {"id": name, "value": {"mode": "fixed", "fixedColor": value}}
            case "link":
                title, dashboard, *labels = value
                row = "".join(f"&var-{label}=${{__data.fields.{label}}}" for label in labels)
                url = f"{_address(dashboard)}?${{__url_time_range}}&${{datasource:queryparam}}{row}"
                yield {"id": "links", "value": [{"title": title, "url": url}]}
            case "red_below":
                steps = [{"color": "red", "value": None}, {"color": "green", "value": value}]
                yield {"id": "thresholds", "value": {"mode": "absolute", "steps": steps}}
                yield {"id": "custom.cellOptions", "value": {"type": "color-text"}}
            case _:
                # A property without a value removes the panel's value.
                yield {"id": name} if value == "none" else {"id": name, "value": value}


def _fit_kind(panel: Panel, document: Json) -> None:
    options = document["options"]
    match panel.kind:
        case "graph":
            custom = document["fieldConfig"]["defaults"]["custom"]
            custom |= {"fillOpacity": 60} if panel.stacked else {}
            custom |= {"drawStyle": "bars", "fillOpacity": 80} if panel.as_bars else {}
            custom |= {"thresholdsStyle": {"mode": "dashed"}} if panel.bounds else {}
            if panel.stacked:
                custom["stacking"] = {"group": "A", "mode": "percent" if panel.stacked == "percent" else "normal"}
        case "number" if panel.bounds:
            options["colorMode"] = "background"
        case "heat_map":
            options["cellValues"] = dict(zip(("unit", "decimals"), panel.unit, strict=True))
        case "rows":
            refs = ["Value"] if len(panel.queries) == 1 else [f"Value #{ref}" for ref in ascii_uppercase]
            values = iter(refs)
            titles = {next(values) if name[0] == "=" else name: name.removeprefix("=") for name in panel.columns}
            # Only the time is excluded by name: older Grafanas drop more than that.
            arranged = {
                "excludeByName": {"Time": True},
                "indexByName": {name: place for place, name in enumerate(titles)},
                "renameByName": {name: title for name, title in titles.items() if name != title},
            }
            options["sortBy"] = [{"desc": panel.descending, "displayName": panel.sort}]
            transformations = [{"id": "merge", "options": {}}, {"id": "organize", "options": arranged}]
            document["transformations"] = transformations
        case _:
            pass


def _place(panels: Sequence[Json], top: int) -> int:
    """Place each panel as high, then as far left as it fits; return where the next row begins."""
    floor = [top] * _WIDTH
    for panel in panels:
        position = panel["gridPos"]
        width = position["w"]
        x = min(range(_WIDTH - width + 1), key=lambda place: (max(floor[place : place + width]), place))
        y = max(floor[x : x + width])
        floor[x : x + width] = [y + position["h"]] * width
        position |= {"x": x, "y": y}
    return max(floor)
