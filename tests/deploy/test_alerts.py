"""The rules of alerts: made from a table that is checked, committed as generated, valid, and each alert tested."""

import math
import os
import re
import subprocess
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
from alert_scenes import (
    Text,
    Texts,
    alert_names,
    every_rule,
    play,
    read_texts,
    rules_of,
    run_groups,
    scenes,
    write_texts,
)
from compose_file import mounts, ports, services
from queries import dashboards
from support.cases import each_case
from support.scrape import samples_of
from support.tables import read_table

from deploy.__main__ import main
from deploy.generated import differences, write
from deploy.rules.alert_settings import PATH, Objective, TableError, load
from deploy.rules.rule_files import FOLDER as RULES
from deploy.rules.rule_files import generate
from deploy.rules.templates import RATED
from docs.metrics import worker_metrics
from judges.registry import catalogue
from worker.core.telemetry.metrics import SERIES

FILES = sorted(RULES.glob("*.yaml"))
ALERTS = alert_names(FILES)
PARTS = ("quality", "watcher", "whole")
TABLE = PATH.read_text(encoding="utf-8")
RATIOS = ("ObjectiveBurn", "NoVerdicts", "JudgeSlow", "ScoresLate", "StreamNearlyFull", "RedisNearly", "ProducerDrops")
Z = 1.959964

# --- scenes ---


@pytest.mark.parametrize(
    ("part", "all_rules"),
    [
        *(
            pytest.param(part, part == "whole", id=part, marks=pytest.mark.slow("many runs of promtool"))
            for part in PARTS
        ),
        *(
            pytest.param(part, True, id=f"{part}, all rules", marks=pytest.mark.endurance("a minute of CPU"))
            for part in ("quality", "watcher")
        ),
    ],
)
def test_scenes(part: str, promtool: str, tmp_path: Path, *, all_rules: bool) -> None:
    """At each moment the alerts of the scene fire, with these labels, addresses and texts, and no other alert does.

    Of all alerts that is so in the scenes of the whole; in the others of those that a scene names, or of all too.
    """
    wrong, said = dict[str, object](), Texts()
    played = play(promtool, rules_of(part, RULES), scenes(part), tmp_path, all_rules=all_rules)
    for scene, moment, firing in played:
        annotations = {frozenset(alert.labels.items()): dict(alert.annotations) for alert in firing}
        texts = {
            labels: Text(each.pop("summary", ""), each.pop("description", "")) for labels, each in annotations.items()
        }
        expected = {frozenset(alert.labels.items()): alert.annotations for alert in moment.firing}
        if annotations != expected:
            wrong[f"{scene.name}, minute {moment.minute}: {', '.join(moment.kinds)}"] = annotations, expected
        for alert, labels in zip(moment.firing, expected, strict=True):
            said.setdefault((alert.name, scene.name, moment.minute), []).append(texts.get(labels, Text("", "")))
    assert not wrong
    if os.environ.get("UPDATE_GOLDEN") == "1":
        write_texts({key: text for key, text in (read_texts() | said).items() if key in texts_of(*PARTS)})
    known = read_texts()
    assert said == {key: known.get(key) for key in said}


def texts_of(*parts: str) -> set[tuple[str, str, int]]:
    """Return the alerts that fire, by name, scene and minute: each has a text."""
    return {
        (alert.name, scene.name, moment.minute)
        for scene in scenes(*parts)
        for moment in scene.moments
        for alert in moment.firing
    }


def test_every_text_says_a_figure_and_a_command_and_the_guide_explains_one() -> None:
    """The last words of a text are the command to run first."""
    known = read_texts()
    assert known.keys() == texts_of(*PARTS)
    for place, texts in known.items():
        for text in texts:
            assert re.search(r"\d", text.summary + text.description), place
            assert re.search(r"First run `(tracejudge|redis-cli) [^`{}]+`\.\Z", text.description), place
            assert "?" not in text.summary + text.description, place
    page = (Path(__file__).parents[2] / "docs" / "alerts.md").read_text(encoding="utf-8")
    ((summary, description),) = known["TraceJudgeQualityDrop", "the drop of the guide", 5]
    match = re.search(r"^```text\n(.+?)\n\n(.+?)\n```$", page, re.MULTILINE | re.DOTALL)
    assert match
    assert (match[1], match[2].replace("\n", " ")) == (summary, description)


def test_each_alert_is_the_subject_of_each_kind_of_test() -> None:
    """Of a ratio also: everything failed, and nothing came. No test is made twice."""
    tested = [
        (alert, kind)
        for scene in scenes("quality", "watcher")
        for moment in scene.moments
        for kind, alerts in moment.kinds.items()
        for alert in alerts
    ]
    assert len(tested) == len(set(tested))
    assert {alert for alert, _ in tested} == set(ALERTS)
    for alert in ALERTS:
        kinds = {"not_yet", "fires", "healthy", "no_data"}
        kinds |= {"all_failed", "no_traffic"} if alert.removeprefix("TraceJudge").startswith(RATIOS) else set()
        assert kinds <= {kind for other, kind in tested if other == alert}, alert
    assert all(moment.kinds for scene in scenes(*PARTS) for moment in scene.moments), "a moment is compared by nobody"


@pytest.mark.slow("promtool plays an hour")
def test_recorded_shares_of_long_windows(promtool: str, tmp_path: Path) -> None:
    """Rules record the number, the share and its upper limit from the gauges of the monitor."""
    groups = []
    for scene in scenes("shares"):
        steps = scene.recorded["steps"]
        # Judgements an hour, in steps of five minutes.
        number = sum(count * rate / 12 for count, _, rate in steps)
        share = sum(count * rate / 12 * part for count, part, rate in steps) / number
        half = Z * math.sqrt(share * (1 - share) / number + Z * Z / (4 * number**2))
        upper = min(1, (share + Z * Z / (2 * number) + half) / (1 + Z * Z / number))
        values = {"effective_judgements": number, "pass_share": share, "pass_share_upper": upper}
        tests = [
            {
                "expr": f"count(abs(tracejudge:{name}:{scene.recorded['window']} - {value!r}) < 1e-6)",
                "exp_samples": [{"labels": "{}", "value": 1}],
                "eval_time": "60m",
            }
            for name, value in values.items()
        ]
        groups.append({"name": scene.name, "interval": "1m", "input_series": scene.series, "promql_expr_test": tests})
    output = run_groups(promtool, [RULES / "shares.yaml"], groups, tmp_path, "5m")
    assert "FAILED" not in output, output


def test_factors_of_a_row(promtool: str, tmp_path: Path) -> None:
    """Of two judges with a low objective, the one with a slower factor tells that it burns fast."""
    rows = (
        Objective(judge="faithfulness", metric="faithfulness", objective=0.8, factors={"fast": 4}),
        Objective(judge="relevance", metric="relevance", objective=0.8),
    )
    write(tmp_path, generate(msgspec.structs.replace(load(), objectives=rows)))
    rules = [tmp_path / "shares.yaml", tmp_path / "quality.yaml"]
    ((_, _, firing),) = play(promtool, rules, scenes("factors"), tmp_path, all_rules=True)
    assert [alert.labels["judge"] for alert in firing if alert.name.endswith("Fast")] == ["faithfulness"]


# --- files ---


def test_committed_as_generated_and_check_tells_of_a_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A changed file and an obsolete one both count, of rules and of dashboards; writing fixes both."""
    assert not differences(RULES, generate())
    assert main(["--check"]) == 0
    assert main(["--into", str(tmp_path)]) == 0
    rules, boards = tmp_path / "prometheus" / "rules", tmp_path / "grafana" / "dashboards"
    for path in (rules / "old.yaml", rules / FILES[0].name, boards / "old.json"):
        text = path.read_text() if path.exists() else None
        path.write_text("groups: []\n")
        capsys.readouterr()
        assert main(["--check", "--into", str(tmp_path)]) == 1
        output = capsys.readouterr().out
        assert ("make generate" in output, path.name in output) == (True, True)
        assert path.read_text() == "groups: []\n", "a check writes nothing"
        if text is None:
            path.unlink()
        else:
            path.write_text(text)
    (rules / "old.yaml").write_text("groups: []\n")
    (rules / FILES[0].name).write_text("groups: []\n")
    assert set(write(rules, generate())) == {"old.yaml", FILES[0].name}
    (boards / "old.json").write_text("{}\n")
    assert main(["--into", str(tmp_path)]) == 0
    assert not (boards / "old.json").exists()
    assert main(["--check", "--into", str(tmp_path)]) == 0


def test_promtool_accepts_the_rules_and_the_example(promtool: str, tmp_path: Path) -> None:
    """Rules at their own pace, and at that of a test."""
    commands = [["check", "config", str(RULES.parent / "prometheus.yml")]]
    for scale in (1, 120, 3600):
        write(tmp_path / str(scale), generate(scale=scale))
        commands.append(["check", "rules", "--lint-fatal", *map(str, (tmp_path / str(scale)).glob("*.yaml"))])
    for command in commands:
        checked = subprocess.run([promtool, *command], capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout + checked.stderr


def test_scale_divides_every_duration() -> None:
    """An hour lasts a minute, and no duration of the table is left in a query."""
    text = "".join(generate(scale=60).values())
    assert "[60000ms]" in text
    assert not re.search(r"\[\d+[smhdw][\]:]", text)
    assert not re.search(r"offset \d+[smhdw]\b", text)
    assert not re.search(r"(for|interval): [1-9]\d*[smhdw]\b", text)


@each_case("rule", [rule for rule in every_rule(FILES) if "alert" in rule], ids=lambda rule: rule["alert"])
def test_alert_is_labelled_and_leads_to_its_runbook_and_dashboard(rule: dict[str, Any]) -> None:
    """Each has three labels and four annotations. Grafana serves what lies below `public`: here this alert's page."""
    assert set(rule["labels"]) == {"severity", "kind", "component"}
    assert rule["labels"]["severity"] in {"page", "ticket", "info"}
    assert rule["labels"]["kind"] in {"quality", "watcher", "info"}
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url", "dashboard_url"}
    grafana, address = services()["grafana"], urlsplit(rule["annotations"]["runbook_url"])
    path = PurePosixPath("/usr/share/grafana", address.path.lstrip("/"))
    assert (address.scheme, address.hostname, address.port in ports(grafana)) == ("http", "localhost", True)
    assert path.is_relative_to("/usr/share/grafana/public")
    (served,) = (mount.source for mount in mounts(grafana) if path.parent == PurePosixPath(mount.target))
    assert f"\n## {rule['alert']}\n" in (served / path.name).read_text(encoding="utf-8")
    assert address.fragment == rule["alert"].lower()
    address = urlsplit(rule["annotations"]["dashboard_url"])
    uid = PurePosixPath(address.path).parts[2]
    assert f"{address.scheme}://{address.netloc}" == load().grafana_base
    assert address.path == f"/d/{uid}/{uid}"
    variables = {f"var-{variable['name']}" for variable in dashboards()[uid]["templating"]["list"]}
    assert {part.partition("=")[0] for part in filter(None, address.query.split("&"))} <= variables


def test_rules_use_only_metrics_that_exist_and_record_each_name_once() -> None:
    """They use exported or recorded metrics, and the labels of series; rows of objectives share their names."""
    recorded = [rule["record"] for rule in every_rule(FILES) if "record" in rule]
    used = {name for path in FILES for name in re.findall(r"\btracejudge[_:][a-z0-9_:]+", path.read_text())}
    assert used - {*recorded, *(name for metric in worker_metrics() for name in samples_of(metric))} == set()
    assert (*SERIES, "metric") == RATED
    unique = [rule["record"] for rule in every_rule(FILES) if "record" in rule and "labels" not in rule]
    assert len(unique) == len(set(unique))


# --- the table ---


def table(folder: Path, text: str) -> Path:
    path = folder / "objectives.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_objectives_are_of_judges_with_a_pass_rule(tmp_path: Path) -> None:
    """Each row names a metric of the catalogue that can pass and fail; a row may be of a judge of one's own."""
    rated = {
        (name, metric.name)
        for name, judge in catalogue().items()
        for metric in judge.metrics
        if metric.pass_rule is not None
    }
    assert {(row.judge, row.metric) for row in load().objectives} <= rated
    row = '\n[[objectives]]\njudge = "tone"\nmetric = "tone"\nobjective = 0.9\nfactors = { fast = 8 }\nown = true\n'
    assert load(table(tmp_path, TABLE + row)).objectives[-1].factors == {"fast": 8}


@each_case(("old", "new", "message"), read_table(__file__, "refused_objectives"), ids=str)
def test_a_table_that_cannot_make_rules_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    """An empty `old` is the end; one that ends with `...` reaches to the rows of judges."""
    assert old.removesuffix("...") in TABLE
    text = TABLE + new if not old else TABLE.replace(old, new, 1)
    if old.endswith("..."):
        start, end = TABLE.index(old[:-3]), TABLE.index("# One row for each judge")
        text = TABLE[:start] + TABLE[end:]
    with pytest.raises(TableError, match=message):
        load(table(tmp_path, text))


def test_a_refused_table_ends_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = table(tmp_path, TABLE.replace("objective = 0.99", "objective = 0.9", 1))
    monkeypatch.setattr("deploy.__main__.load", lambda: load(path))
    assert main(["--check"]) == 1
    assert "set an objective above 0.931" in capsys.readouterr().err
