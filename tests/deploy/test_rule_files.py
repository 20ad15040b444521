"""The committed rules: as generated, valid, each alert tested, with a runbook, and of metrics that exist."""

import re
import subprocess
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import pytest
import scenes_quality
import scenes_watcher
import scenes_whole
from compose_file import mounts, ports, services
from promtool_run import alert_names, every_rule
from queries import dashboards
from support.cases import each_case
from support.scrape import samples_of

from deploy.__main__ import main
from deploy.generated import differences, write
from deploy.rules.alert_settings import load
from deploy.rules.rule_files import FOLDER as RULES
from deploy.rules.rule_files import generate
from deploy.rules.templates import RATED
from docs.metrics import worker_metrics
from judges.registry import catalogue
from worker.core.telemetry.metrics import SERIES

FILES = sorted(RULES.glob("*.yaml"))
ALERTS = alert_names(FILES)
KINDS = {"not_yet", "fires", "healthy", "no_data"}
RATIOS = {
    *scenes_quality.BURNS,
    *(scenes_watcher.NO_VERDICTS, scenes_watcher.SLOW, scenes_watcher.LATE),
    *(scenes_watcher.STREAM, scenes_watcher.MEMORY, scenes_watcher.DROPS),
}
TESTED = [
    case for part in (scenes_quality, scenes_watcher, scenes_whole) for scene in part.SCENES for case in scene.cases
]
NAMES = {*scenes_quality.ALL, *scenes_watcher.ALL}
each_alert = each_case("rule", [rule for rule in every_rule(FILES) if "alert" in rule], ids=lambda rule: rule["alert"])


def test_committed_as_generated() -> None:
    assert not differences(RULES, generate())
    assert main(["--check"]) == 0


def test_check_tells_of_a_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A changed file and an obsolete one both count; writing fixes both."""
    folder = tmp_path / "prometheus" / "rules"
    assert main(["--into", str(tmp_path)]) == 0
    (folder / "old.yaml").write_text("groups: []\n")
    (folder / FILES[0].name).write_text("groups: []\n")
    capsys.readouterr()
    assert main(["--check", "--into", str(tmp_path)]) == 1
    assert "make generate" in capsys.readouterr().out
    assert set(write(folder, generate())) == {"old.yaml", FILES[0].name}
    assert main(["--check", "--into", str(tmp_path)]) == 0


@each_case("scale", [1, 120, 3600])
def test_promtool_accepts_the_rules(promtool: str, tmp_path: Path, scale: int) -> None:
    """At their own pace, and at that of a test."""
    write(tmp_path, generate(scale=scale))
    checked = subprocess.run(
        [promtool, "check", "rules", "--lint-fatal", *map(str, tmp_path.glob("*.yaml"))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_promtool_accepts_the_example(promtool: str) -> None:
    config = str(RULES.parent / "prometheus.yml")
    checked = subprocess.run([promtool, "check", "config", config], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_scale_divides_every_duration() -> None:
    """An hour lasts a minute, and no duration of the table is left in a query."""
    text = "".join(generate(scale=60).values())
    assert "[60000ms]" in text
    assert not re.search(r"\[\d+[smhdw][\]:]", text)
    assert not re.search(r"offset \d+[smhdw]\b", text)
    assert not re.search(r"(for|interval): [1-9]\d*[smhdw]\b", text)


def test_alerts_are_the_known_ones() -> None:
    """Runbooks, routes and dashboards go by these names."""
    assert set(ALERTS) == NAMES


@each_case("alert", ALERTS)
def test_alert_has_a_test_of_each_kind(alert: str) -> None:
    expected_names = KINDS | ({"all_failed", "no_traffic"} if alert in RATIOS else set())
    assert expected_names <= {case.kind for case in TESTED if case.alert == alert}


def test_no_moment_of_a_scene_is_untested() -> None:
    """A moment that no test is named for would be compared by nobody."""
    tested = {(case.scene.name, case.minute) for case in TESTED}
    scenes = [scene for part in (scenes_quality, scenes_watcher, scenes_whole) for scene in part.SCENES]
    assert tested == {(scene.name, minute) for scene in scenes for minute in scene.moments}
    names = [case.name for case in TESTED if case.scene not in scenes_whole.SCENES]
    assert len(names) == len(set(names))


@each_alert
def test_alert_is_labelled_and_leads_on(rule: dict[str, Any]) -> None:
    """Each alert has three labels and four annotations."""
    assert set(rule["labels"]) == {"severity", "kind", "component"}
    assert rule["labels"]["severity"] in {"page", "ticket", "info"}
    assert rule["labels"]["kind"] in {"quality", "watcher", "info"}
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url", "dashboard_url"}


@each_alert
def test_its_runbook_is_served_by_the_grafana_of_compose(rule: dict[str, Any]) -> None:
    """Grafana serves what lies below its folder `public`: here the page of this alert."""
    grafana = services()["grafana"]
    address = urlsplit(rule["annotations"]["runbook_url"])
    path = PurePosixPath("/usr/share/grafana", address.path.lstrip("/"))

    assert (address.scheme, address.hostname, address.port in ports(grafana)) == ("http", "localhost", True)
    assert path.is_relative_to("/usr/share/grafana/public")
    (served,) = (mount.source for mount in mounts(grafana) if path.parent == PurePosixPath(mount.target))
    page = served / path.name
    assert f"\n## {rule['alert']}\n" in page.read_text(encoding="utf-8")
    assert address.fragment == rule["alert"].lower()


@each_alert
def test_its_dashboard_exists_and_has_the_variables_that_are_filled_in(rule: dict[str, Any]) -> None:
    address = urlsplit(rule["annotations"]["dashboard_url"])
    uid = PurePosixPath(address.path).parts[2]

    assert f"{address.scheme}://{address.netloc}" == load().grafana_base
    assert address.path == f"/d/{uid}/{uid}"
    variables = {f"var-{variable['name']}" for variable in dashboards()[uid]["templating"]["list"]}
    assert {part.partition("=")[0] for part in filter(None, address.query.split("&"))} <= variables


def test_rules_use_only_metrics_that_exist() -> None:
    """Rules use exported or recorded metrics only, and the labels of series."""
    labels_of_alerts = {rule["record"] for rule in every_rule(FILES) if "record" in rule} | set(exported())
    used = {name for path in FILES for name in re.findall(r"\btracejudge[_:][a-z0-9_:]+", path.read_text())}
    assert used - labels_of_alerts == set()
    assert (*SERIES, "metric") == RATED


def exported() -> list[str]:
    """Name every time series of the worker."""
    return [name for metric in worker_metrics() for name in samples_of(metric)]


def test_recorded_names_are_unique_but_for_rows() -> None:
    recorded = [rule["record"] for rule in every_rule(FILES) if "record" in rule and "labels" not in rule]
    assert len(recorded) == len(set(recorded))


def test_objectives_are_of_judges_with_a_pass_rule() -> None:
    """Each row names a metric of the catalogue that can pass and fail."""
    rated = {
        (name, metric.name)
        for name, judge in catalogue().items()
        for metric in judge.metrics
        if metric.pass_rule is not None
    }
    assert {(row.judge, row.metric) for row in load().objectives} <= rated
