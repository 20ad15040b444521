"""The dashboards as Grafana reads them: generated, complete, and without a panel upon another."""

import json
import re
from itertools import chain
from typing import Any

import msgspec
import pytest
from alert_scenes import alert_names
from queries import Asked, asked, dashboards, fill, named_metrics, panels, recorded, rule_expressions, selectors
from support.cases import each_case
from support.lazy import Lazy

from deploy.dashboards.grafana import FOLDER, bound_value, generate
from deploy.rules.alert_settings import load
from deploy.rules.rule_files import FOLDER as RULES
from docs.metrics import worker_metrics

encoder, plugins, models = (
    Lazy(f"grafana_foundation_sdk.{name}") for name in ("cog.encoder", "cog.plugins", "models.dashboard")
)
ALL = [pytest.param(each, id=uid) for uid, each in dashboards().items()]
PANELS = {f"{uid}: {panel['title']}": panel for uid, each in dashboards().items() for panel in panels(each)}
each_panel = each_case("panel", PANELS.values(), ids=PANELS)
TITLES = {
    "tracejudge-quality": "TraceJudge / Quality",
    "tracejudge-pipeline": "TraceJudge / Pipeline",
    "tracejudge-cost": "TraceJudge / Cost",
}
ALERTS = set(alert_names(sorted(RULES.glob("*.yaml"))))
CORE_PANELS = {"bargauge", "heatmap", "stat", "state-timeline", "table", "timeseries"}
UNITS = {"cps", "currencyUSD", "dateTimeFromNow", "none", "bytes", "percentunit", "reqps", "s", "short", "suffix:x"}
DATA_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
FEWEST_WORDS = 4


def runbooks_of(panel: dict[str, Any]) -> set[str]:
    _, _, named = panel["description"].partition("\n\nRunbooks: ")
    names = {name.lower(): name for name in ALERTS}
    return {names[address.partition("#")[2]] for address in named.split(", ") if address}


def test_dashboards_are_at_addresses_that_alerts_open() -> None:
    assert {uid: each["title"] for uid, each in dashboards().items()} == TITLES


@each_case("dashboard", ALL)
def test_the_model_of_the_sdk_reads_and_writes_the_same(dashboard: dict[str, Any]) -> None:
    plugins.register_default_plugins()
    own = {"step", "tagKeys", "textFormat", "titleFormat", "useValueForTime"}  # which its model lacks
    marks = [{key: mark[key] for key in mark.keys() - own} for mark in dashboard["annotations"]["list"]]
    expected = [{key: panel[key] for key in panel.keys() - {"maxPerRow"}} for panel in dashboard["panels"]]
    again = json.loads(json.dumps(models.Dashboard.from_json(dashboard), cls=encoder.JSONEncoder))
    assert again == {**dashboard, "panels": expected, "annotations": {"list": marks}}
    # Grafana asks whether it is true, and a text is, whatever it says: a mark would stand at a second of 1970.
    assert [mark["useValueForTime"] for mark in dashboard["annotations"]["list"] if mark["useValueForTime"]] == []


@each_case("dashboard", ALL)
def test_panels_have_places_numbers_and_titles_of_their_own(dashboard: dict[str, Any]) -> None:
    """The first row says what is wrong now. Each open panel asks Prometheus every minute; the others are collapsed."""
    taken: dict[tuple[int, int], str] = {}
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, f"{panel['title']} lies upon {taken.get((x, y))}"
                taken[x, y] = panel["title"]
    assert max(x for x, _ in taken) < 24
    for names in ([panel["id"] for panel in dashboard["panels"]], [panel["title"] for panel in panels(dashboard)]):
        assert len(set(names)) == len(names)
    first, *others = dashboard["panels"]
    now = others[: next(place for place, panel in enumerate(others) if panel["type"] == "row")]
    assert (first["type"], first["title"], first["gridPos"]["y"]) == ("row", "Now", 0)
    assert {panel["type"] for panel in now} <= {"table", "stat"}
    assert len([panel for panel in dashboard["panels"] if panel["type"] != "row"]) <= 14
    rows = [panel for panel in dashboard["panels"] if panel.get("collapsed")]
    assert len(rows) == {"tracejudge-pipeline": 5, "tracejudge-quality": 3, "tracejudge-cost": 2}[dashboard["uid"]]
    for row in rows:
        assert row["panels"], row["title"]
        for panel in row["panels"]:
            assert panel["gridPos"]["y"] > row["gridPos"]["y"], panel["title"]
            assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24, panel["title"]
    others = [f"/d/{uid}/{uid}" for uid in TITLES if uid != dashboard["uid"]]
    assert {link["url"] for link in dashboard["links"]} == set(others)
    assert all(link["includeVars"] and link["keepTime"] for link in dashboard["links"])


def test_the_first_screen_tells_the_budget_since_when_and_which_segment() -> None:
    """A screen shows about 22 of Grafana's units."""
    quality = dashboards()["tracejudge-quality"]
    seen = {panel["title"]: panel for panel in quality["panels"] if sum(map(panel["gridPos"].get, "yh")) <= 22}
    (budget,) = (target["expr"] for target in seen["Error budget left"]["targets"])
    (since,) = (target["expr"] for target in seen["Dropped since"]["targets"])
    assert "tracejudge_quality_objective" in budget
    assert "tracejudge_quality_drop_since_seconds" in since
    columns = seen["Open incidents"]["transformations"][1]["options"]["indexByName"]
    assert {"segment", "since", "changed"} <= set(columns)


@each_panel
def test_a_panel_says_what_it_shows_and_asks_the_chosen_prometheus(panel: dict[str, Any]) -> None:
    sentence, defaults = panel["description"].split("\n\n")[0], panel["fieldConfig"]["defaults"]
    assert panel["title"]
    assert sentence[0].isupper()
    assert sentence.endswith(".")
    assert len(sentence.split()) >= FEWEST_WORDS
    assert runbooks_of(panel) <= ALERTS
    assert defaults["unit"] in UNITS
    assert defaults["noValue"]
    assert defaults["thresholds"]["steps"][0]["value"] is None
    assert panel["type"] in CORE_PANELS
    assert panel["datasource"] == DATA_SOURCE
    assert [target["datasource"] for target in panel["targets"]] == [DATA_SOURCE] * len(panel["targets"])
    assert [target["refId"] for target in panel["targets"]] == list("ABCDEFGHIJ"[: len(panel["targets"])])
    if panel["type"] in {"timeseries", "state-timeline", "bargauge"}:
        assert [target["legendFormat"] for target in panel["targets"] if target["legendFormat"] == "__auto"] == []
    if "repeat" in panel:
        # Without a number Grafana puts four beside each other, too narrow to be read.
        assert (panel["repeatDirection"], panel["maxPerRow"] * panel["gridPos"]["w"]) == ("h", 24)
    for target in panel["targets"]:
        # Windows of raw samples are not asked for at every pixel; each point of a recorded series is one sample.
        if not target["instant"] and re.search(r"\[(\$window|\d+d)\]", target["expr"]):
            assert panel["interval"] in {"5m", "1d"}


def test_every_alert_is_explained_by_a_panel_or_is_in_the_list_of_all() -> None:
    """The list shows every alert; those that page are explained by a panel as well."""
    explained = {name for each in dashboards().values() for panel in panels(each) for name in runbooks_of(panel)}
    assert ALERTS - explained == {
        "TraceJudgeJudgeChanged",  # marked on the graphs
        "TraceJudgeObjectiveBurnMedium",  # as TraceJudgeObjectiveBurnFast
        "TraceJudgeQualitySilent",  # seen as a missing line
        "TraceJudgeQualitySlowDecline",  # marked on the graphs
    }


def test_thresholds_are_those_of_the_alerts() -> None:
    """A changed bound changes alert and colour together."""
    table = load()
    stream = msgspec.structs.replace(table.watcher.stream, bound=0.625)
    changed = msgspec.structs.replace(table, watcher=msgspec.structs.replace(table.watcher, stream=stream))
    made = json.loads(generate(changed)["tracejudge-pipeline.json"])
    fill = next(panel for panel in panels(made) if panel["title"] == "Stream is full to")
    assert fill["fieldConfig"]["defaults"]["thresholds"]["steps"][-1] == {"color": "red", "value": 0.625}


def test_a_bound_is_a_number_or_a_term() -> None:
    assert [bound_value(term) for term in (3, "0.8", "900 / 3", "1 - 0.2")] == [3, 0.8, 300, 0.8]
    with pytest.raises(ValueError, match=r"'2 \* 3' is no bound"):
        bound_value("2 * 3")


def test_runbooks_on_the_web_are_links() -> None:
    made = json.loads(
        generate(msgspec.structs.replace(load(), runbook_base="https://books"))["tracejudge-quality.json"]
    )
    links = [link for panel in panels(made) for link in panel.get("links") or ()]
    now = panels(made)[0]
    assert "https://books/endpoint-and-pipeline.md#tracejudgenoverdicts" in {link["url"] for link in links}
    assert '"https://books/cost.md#:~:text=$1"' in now["targets"][0]["expr"]
    assert "${__data.fields.runbook}" in json.dumps(now["fieldConfig"]["overrides"])


@each_case("dashboard", ALL)
def test_the_guide_describes_the_first_screen_and_every_row(dashboard: dict[str, Any]) -> None:
    name = dashboard["title"].rpartition(" ")[2]
    guide = (FOLDER.parents[2] / "docs" / "dashboards.md").read_text(encoding="utf-8")
    part = guide.split(f"\n## {name}\n")[1].split("\n## ")[0]
    first, *rows = [place for place, panel in enumerate(dashboard["panels"]) if panel["type"] == "row"]
    screen = {panel["title"]: panel for panel in dashboard["panels"][first + 1 : rows[0]]}
    titles = {panel["title"] for panel in (*dashboard["panels"], *panels(dashboard))}
    quoted = set(re.findall(r'"([^"]+)"', part))
    assert quoted <= titles
    assert {*screen, *(dashboard["panels"][place]["title"] for place in rows)} <= quoted
    shown, _, _ = part.partition("\nThe collapsed rows:\n")
    for line in (line for line in shown.splitlines() if line.startswith('| "')):
        cells = line.split("|")
        for panel in (screen[title] for title in re.findall(r'"([^"]+)"', cells[1]) if title in screen):
            colors = {step["color"] for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]}
            assert set(re.findall(r"\b(?:red|orange)\b", cells[3])) == colors - {"green"}, panel["title"]


# --- metrics ---

SLOPES = {f"tracejudge_quality_slope_{part}" for part in ("lower", "upper", "since_seconds")}
UNUSED = {
    "tracejudge_quality_corrected_window_seconds": "says what the corrected share is about; docs/statistics.md",
    **dict.fromkeys({"tracejudge_quality_least_drop", *SLOPES}, "in the texts of alerts"),
    "tracejudge_verdict_weight_squared_total": "for intervals where no monitor runs: docs/reference/metrics.md",
}
"""Metrics that neither a rule nor a dashboard asks for, and why."""
SUFFIXES = ("_bucket", "_sum", "_count")
EVERYTHING = {"service", "environment", "judge", "metric", "judge_model"}


def declared() -> dict[str, set[str]]:
    """Return the labels of each metric, by the name of its samples."""
    return {metric.full_name: set(metric.labels) for metric in worker_metrics()}


def bare(name: str) -> str:
    """Return the metric's name without the suffix of a histogram's samples."""
    return next((name.removesuffix(suffix) for suffix in SUFFIXES if name.endswith(suffix)), name)


def windows() -> list[str]:
    variables = dashboards()["tracejudge-quality"]["templating"]["list"]
    return next(variable["query"].split(",") for variable in variables if variable["name"] == "window")


def used() -> set[str]:
    rules = rule_expressions().values()
    return {bare(name) for expr in chain(rules, (query.expr for query in asked())) for name in named_metrics(expr)}


def test_every_metric_is_watched_or_left_out_on_purpose() -> None:
    assert set(declared()) - used() == set(UNUSED)


@each_case("window", windows())
def test_what_is_asked_for_exists(window: str) -> None:
    metric_names = set(declared()) | recorded()
    values = {
        "window": window,
        **dict.fromkeys(EVERYTHING | {"series", "graded", "__interval", "__range", "__rate_interval"}, "1m"),
    }
    names = {bare(name) for query in asked() for name in named_metrics(fill(query.expr, values))}
    assert names - metric_names == set()
    assert {bare(name) for expr in rule_expressions().values() for name in named_metrics(expr)} - metric_names == set()


@each_case("query", asked(), ids=lambda query: f"{query.dashboard}:{query.where}:{query.ref}")
def test_queries_are_bound_by_the_variables_of_their_dashboard(query: Asked) -> None:
    variables = {each["name"] for each in dashboards()[query.dashboard]["templating"]["list"]}
    if query.where.startswith("variable "):
        return
    for name, matchers in selectors(query.expr):
        for label in declared().get(bare(name), set()) & variables:
            assert f'{label}=~"${label}"' in matchers, f"{name} is not bound by ${label}"


def test_a_variable_is_bound_by_those_before_it_and_several_values_become_alternatives() -> None:
    query = next(query for query in asked() if query.where == "variable judge" and "quality" in query.dashboard)
    assert query.expr == 'tracejudge_verdicts_total{service=~"$service", environment=~"$environment"}'
    assert fill('a{b=~"$b"} + ${c:raw}[$__range]', {"b": ["x", "y"], "c": "1", "__range": "5m"}) == (
        'a{b=~"(x|y)"} + 1[5m]'
    )
