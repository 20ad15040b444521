"""The dashboards as Grafana reads them: generated, complete, and without a panel upon another."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from queries import dashboards, panels
from support.cases import each_case
from support.lazy import Lazy

from deploy.__main__ import main
from deploy.dashboards.grafana import FOLDER, bound_value, generate
from deploy.generated import differences, write
from deploy.rules import rule_files
from deploy.rules.alert_settings import load
from deploy.rules.rule_files import FOLDER as RULES

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
CORE_PANELS = {"bargauge", "heatmap", "stat", "state-timeline", "table", "timeseries"}
UNITS = {"cps", "currencyUSD", "dateTimeFromNow", "none", "bytes", "percentunit", "reqps", "s", "short", "suffix:x"}
DATA_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
FEWEST_WORDS = 4
PROVISIONING = FOLDER.parent / "provisioning"


@cache
def alert_names() -> frozenset[str]:
    files = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in RULES.glob("*.yaml")]
    return frozenset(
        rule["alert"] for file in files for group in file["groups"] for rule in group["rules"] if "alert" in rule
    )


def runbooks_of(panel: dict[str, Any]) -> set[str]:
    _, _, named = panel["description"].partition("\n\nRunbooks: ")
    names = {name.lower(): name for name in alert_names()}
    return {names[address.partition("#")[2]] for address in named.split(", ") if address}


def test_the_committed_files_are_what_is_generated() -> None:
    assert differences(FOLDER, generate()) == ""


def test_generating_twice_gives_the_same() -> None:
    assert generate() == generate()


def test_addresses_are_those_that_alerts_open() -> None:
    assert {uid: each["title"] for uid, each in dashboards().items()} == TITLES


def test_check_shows_what_differs_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "grafana" / "dashboards"
    write(folder, {**generate(), "old.json": "{}\n"})
    write(tmp_path / "prometheus" / "rules", rule_files.generate())

    assert main(["--check", "--into", str(tmp_path)]) == 1

    assert "old.json" in capsys.readouterr().out
    assert (folder / "old.json").exists()


def test_writing_removes_what_is_made_no_more(tmp_path: Path) -> None:
    folder = tmp_path / "grafana" / "dashboards"
    write(folder, {"old.json": "{}\n"})

    assert main(["--into", str(tmp_path)]) == 0

    assert {path.name for path in folder.iterdir()} == {*generate()}
    assert main(["--check", "--into", str(tmp_path)]) == 0


@each_case("dashboard", ALL)
def test_the_model_of_the_sdk_reads_and_writes_the_same(dashboard: dict[str, Any]) -> None:
    plugins.register_default_plugins()
    own = {"step", "tagKeys", "textFormat", "titleFormat", "useValueForTime"}  # which its model lacks
    marks = [{key: mark[key] for key in mark.keys() - own} for mark in dashboard["annotations"]["list"]]
    expected = [{key: panel[key] for key in panel.keys() - {"maxPerRow"}} for panel in dashboard["panels"]]

    again = json.loads(json.dumps(models.Dashboard.from_json(dashboard), cls=encoder.JSONEncoder))

    assert again == {**dashboard, "panels": expected, "annotations": {"list": marks}}


@each_case("dashboard", ALL)
def test_marks_stand_at_their_time(dashboard: dict[str, Any]) -> None:
    """Grafana asks whether it is true, and a text is, whatever it says: a mark would stand at a second of 1970."""
    assert [mark["useValueForTime"] for mark in dashboard["annotations"]["list"] if mark["useValueForTime"]] == []


@each_panel
def test_repeated_panels_keep_their_width(panel: dict[str, Any]) -> None:
    """Without a number Grafana puts four beside each other, too narrow to be read."""
    if "repeat" in panel:
        assert (panel["repeatDirection"], panel["maxPerRow"] * panel["gridPos"]["w"]) == ("h", 24)


@each_panel
def test_windows_of_raw_samples_are_not_asked_for_at_every_pixel(panel: dict[str, Any]) -> None:
    """Those of recorded series may be: each point of these is one sample."""
    for target in panel["targets"]:
        if not target["instant"] and re.search(r"\[(\$window|\d+d)\]", target["expr"]):
            assert panel["interval"] in {"5m", "1d"}


@each_case("dashboard", ALL)
def test_no_panel_lies_upon_another_or_beyond_the_edge(dashboard: dict[str, Any]) -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, f"{panel['title']} lies upon {taken.get((x, y))}"
                taken[x, y] = panel["title"]


@each_case("dashboard", ALL)
def test_numbers_of_panels_and_titles_are_unique(dashboard: dict[str, Any]) -> None:
    numbers = [panel["id"] for panel in dashboard["panels"]]
    titles = [panel["title"] for panel in panels(dashboard)]

    assert len(set(numbers)) == len(numbers)
    assert len(set(titles)) == len(titles)


@each_case("dashboard", ALL)
def test_the_first_row_says_what_is_wrong_now(dashboard: dict[str, Any]) -> None:
    first, *others = dashboard["panels"]
    now = others[: next(place for place, panel in enumerate(others) if panel["type"] == "row")]

    assert (first["type"], first["title"], first["gridPos"]["y"]) == ("row", "Now", 0)
    assert {panel["type"] for panel in now} <= {"table", "stat"}


@each_case("dashboard", ALL)
def test_at_most_fourteen_panels_are_open(dashboard: dict[str, Any]) -> None:
    """Each open panel asks Prometheus every minute; those of a collapsed row lie below it, within the width."""
    opened = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    rows = [panel for panel in dashboard["panels"] if panel.get("collapsed")]

    assert len(opened) <= 14
    assert all(row["panels"] for row in rows)
    for row in rows:
        for panel in row["panels"]:
            assert panel["gridPos"]["y"] > row["gridPos"]["y"], panel["title"]
            assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24, panel["title"]
    assert len(rows) == {"tracejudge-pipeline": 5, "tracejudge-quality": 3, "tracejudge-cost": 2}[dashboard["uid"]]


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


@each_case("dashboard", ALL)
def test_links_lead_to_the_other_dashboards(dashboard: dict[str, Any]) -> None:
    others = {f"/d/{uid}/{uid}" for uid in TITLES if uid != dashboard["uid"]}

    assert {link["url"] for link in dashboard["links"]} == others
    assert all(link["includeVars"] and link["keepTime"] for link in dashboard["links"])


@each_panel
def test_a_panel_says_what_it_shows(panel: dict[str, Any]) -> None:
    sentence = panel["description"].split("\n\n")[0]
    defaults = panel["fieldConfig"]["defaults"]

    assert panel["title"]
    assert sentence[0].isupper()
    assert sentence.endswith(".")
    assert len(sentence.split()) >= FEWEST_WORDS
    assert defaults["unit"] in UNITS
    assert defaults["noValue"]
    assert defaults["thresholds"]["steps"][0]["value"] is None


@each_panel
def test_a_panel_is_of_grafana_itself_and_asks_the_chosen_prometheus(panel: dict[str, Any]) -> None:
    assert panel["type"] in CORE_PANELS
    assert panel["datasource"] == DATA_SOURCE
    assert [target["datasource"] for target in panel["targets"]] == [DATA_SOURCE] * len(panel["targets"])
    assert [target["refId"] for target in panel["targets"]] == list("ABCDEFGHIJ"[: len(panel["targets"])])


@each_panel
def test_lines_have_names(panel: dict[str, Any]) -> None:
    if panel["type"] in {"timeseries", "state-timeline", "bargauge"}:
        assert [target["legendFormat"] for target in panel["targets"] if target["legendFormat"] == "__auto"] == []


@each_panel
def test_runbooks_are_of_alerts_that_exist(panel: dict[str, Any]) -> None:
    assert runbooks_of(panel) <= alert_names()


def test_every_alert_is_explained_by_a_panel_or_is_in_the_list_of_all() -> None:
    """The list shows every alert; those that page are explained by a panel as well."""
    explained = {name for each in dashboards().values() for panel in panels(each) for name in runbooks_of(panel)}

    assert alert_names() - explained == {
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


def test_grafana_is_provisioned_with_what_dashboards_link_to() -> None:
    sources = yaml.safe_load((PROVISIONING / "datasources" / "tracejudge.yaml").read_text(encoding="utf-8"))
    by_uid = {each["uid"]: each for each in sources["datasources"]}
    of_prometheus = by_uid["prometheus"]["jsonData"]

    assert {uid for uid, each in by_uid.items() if each.get("isDefault")} == {"prometheus"}
    assert of_prometheus["alertmanagerUid"] in by_uid
    explore, jaeger = of_prometheus["exemplarTraceIdDestinations"]
    assert explore == {"name": "trace_id", "datasourceUid": "traces"}
    assert (jaeger["name"], jaeger["url"]) == ("trace_id", "http://localhost:16686/trace/$${__value.raw}")
    assert by_uid["traces"]["type"] in {"jaeger", "tempo"}


def test_grafana_finds_the_dashboards() -> None:
    providers = yaml.safe_load((PROVISIONING / "dashboards" / "tracejudge.yaml").read_text(encoding="utf-8"))

    assert [(each["type"], each["allowUiUpdates"]) for each in providers["providers"]] == [("file", False)]


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
