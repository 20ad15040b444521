"""Every query of the dashboards and rules, with variables filled in as Grafana does it."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import yaml

from deploy.dashboards.grafana import FOLDER
from deploy.rules.rule_files import FOLDER as RULES

_SELECTOR = re.compile(r"\b(tracejudge[_:][a-zA-Z0-9_:]+(?:\$window)?)(\{[^}]*\})?")
_QUERY_RESULT = re.compile(r"query_result\((.*)\)", re.DOTALL)
_LABEL_VALUES = re.compile(r"label_values\((.*), \w+\)", re.DOTALL)


class Asked(NamedTuple):
    """One query.

    Attributes:
        where: A panel's title, or what else asks.
        now: Whether it is asked for this moment alone.
        legend: How its series are called, with labels in double braces.
    """

    dashboard: str
    where: str
    ref: str
    expr: str
    now: bool
    legend: str = ""


def dashboards() -> dict[str, dict[str, Any]]:
    """Read them, by uid."""
    read = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))]
    return {dashboard["uid"]: dashboard for dashboard in read}


def panels(dashboard: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the panels without headings, those of collapsed rows as well."""
    listed = (each for panel in dashboard["panels"] for each in (panel, *panel.get("panels", ())))
    return [panel for panel in listed if panel["type"] != "row"]


def asked() -> list[Asked]:
    """Return every query of all dashboards as written: those of panels, annotations and variables."""
    return [query for uid, dashboard in dashboards().items() for query in _of(uid, dashboard)]


def opened_values(uid: str, series: str, interval: str) -> dict[str, str]:
    """Return the values of variables when a dashboard opens, with everything chosen; one panel repeats for a series."""
    values = {"__range": "5m", "__interval": interval, "__rate_interval": interval, "series": series, "graded": ".+"}
    for variable in dashboards()[uid]["templating"]["list"]:
        if variable["type"] == "custom":
            values[variable["name"]] = variable["current"]["value"]
        elif variable.get("allValue"):
            values[variable["name"]] = variable["allValue"]
    return values


def recorded() -> set[str]:
    """Return the names of the recorded series, the last part of the names of their rules."""
    return {f"tracejudge:{key.split(':tracejudge:', 1)[1]}" for key in rule_expressions() if ":tracejudge:" in key}


def rule_expressions() -> dict[str, str]:
    """Return the expressions of all rules by file, place and name."""
    values: dict[str, str] = {}
    for path in sorted(RULES.glob("*.yaml")):
        for group in yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)["groups"]:
            for place, rule in enumerate(group["rules"]):
                name = rule.get("record") or rule["alert"]
                values[f"{path.name}:{group['name']}:{place}:{name}"] = rule["expr"]
    return values


def fill(expr: str, values: Mapping[str, str | Sequence[str]]) -> str:
    """Put values in; several become alternatives, as the data source writes them."""

    def value(match: re.Match[str]) -> str:
        arguments = values[match["name"] or match["braced"]]
        return arguments if isinstance(arguments, str) else f"({'|'.join(arguments)})"

    # `$1` of label_replace is no variable.
    return re.sub(r"\$\{(?P<braced>\w+)(?::\w+)?\}|\$(?P<name>[A-Za-z_]\w*)", value, expr)


def selectors(expr: str) -> list[tuple[str, str]]:
    """Return each of our metrics in a query with its matchers."""
    return [(matches[1], (matches[2] or "{}")[1:-1]) for matches in _SELECTOR.finditer(expr)]


def named_metrics(expr: str) -> set[str]:
    """Return the names of our metrics in a query, recorded ones included."""
    return {name for name, _ in selectors(expr)}


def _of(uid: str, dashboard: Mapping[str, Any]) -> Iterator[Asked]:
    for panel in panels(dashboard):
        for target in panel["targets"]:
            yield Asked(uid, panel["title"], target["refId"], target["expr"], target["instant"], target["legendFormat"])
    for mark in dashboard["annotations"]["list"]:
        yield Asked(uid, f"annotation {mark['name']}", "A", mark["expr"], now=False)
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield Asked(uid, f"variable {variable['name']}", "A", _expression(variable["query"]), now=True)


def _expression(query: str) -> str:
    """Return the query of a variable without Grafana's own function."""
    match = _QUERY_RESULT.fullmatch(query) or _LABEL_VALUES.fullmatch(query)
    assert match, query
    return match[1]
