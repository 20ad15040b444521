"""The Alertmanager example: what it routes where, what it silences and what never, and how its messages read."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from alert_scenes import RUNBOOKS, every_rule
from alertmanager_run import BOT, CONFIG, Alertmanager, alert, find_program, running
from support.processes import wait_until
from support.tables import read_table

from deploy.rules.rule_files import FOLDER as RULES

TABLE = read_table(__file__, "alertmanager")
DROP = ("TraceJudgeQualityDrop", "page", "quality")
DASHBOARD = "http://localhost:3000/d/tracejudge-quality"
BEFORE_AND_AFTER = "(from 03:05 to 04:20 UTC, 21 January)"
DIFFERENT = {
    "same": {},
    "service": {"service": "code-helper"},
    "environment": {"environment": "stage"},
    "no environment": {"environment": ""},
    "judge": {"judge": "correctness"},
    "judge_model": {"judge_model": "claude"},
    "version": {"version": "99999999"},
}
"""By which label the series of an alert differs from BOT."""


@pytest.fixture
def alertmanager(tmp_path: Path) -> Iterator[Alertmanager]:
    with running(tmp_path) as started:
        yield started


def test_amtool_takes_the_configuration_and_severity_decides_who_hears_of_it() -> None:
    amtool = find_program("amtool")
    checked = subprocess.run([amtool, "check-config", CONFIG], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    for labels, receivers in TABLE["routes"]:
        command = [amtool, "config", "routes", "test", f"--config.file={CONFIG}", *labels]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert output.strip() == receivers, labels


def test_of_each_alert_of_the_watcher_it_is_decided_whether_it_silences_quality() -> None:
    """Those that silence no quality see still: what is judged meanwhile is late or less, and true."""
    rules = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))["inhibit_rules"]
    kinds = {
        rule["alert"]: rule["labels"]["kind"] for rule in every_rule(sorted(RULES.glob("*.yaml"))) if "alert" in rule
    }

    def names_in(rule: dict[str, Any], *sides: str) -> set[str]:
        matchers = [matcher for side in sides for matcher in rule[side] if re.match("alertname=", matcher)]
        return {name for matcher in matchers for name in matcher.split('"')[1].split("|")}

    assert {name for rule in rules for name in names_in(rule, "source_matchers", "target_matchers")} <= set(kinds)
    of_quality = [rule for rule in rules if 'kind="quality"' in rule["target_matchers"]]
    # A louder alert on the same series silences others as well.
    blind = {name for rule in of_quality for name in names_in(rule, "source_matchers")} - {"TraceJudgeSafetyFailures"}
    sees_still = {f"TraceJudge{name}" for name in TABLE["sees_still"]}
    assert blind | sees_still == {name for name, kind in kinds.items() if kind == "watcher"}
    assert not blind & sees_still


def test_the_blind_silence_quality_of_what_they_do_not_see_and_nothing_else(alertmanager: Alertmanager) -> None:
    """They do so until they are over. A safety failure is never silenced by them: it is a fact that was found."""
    names = ("QualityDrop", "QualityBelowObjective", "ObjectiveBurnFast", "SafetyFailures")
    for word, different in DIFFERENT.items():
        for name in names:
            # Each of a metric of its own: on one series a drop silences what burns.
            labels = BOT | {"metric": name} | different | {"case": f"{name}, {word}"}
            alertmanager.post(alert(f"TraceJudge{name}", "page", "quality", **labels))
    for word in ("same", "service"):
        labels = {"service": BOT["service"], "environment": "prod"} | DIFFERENT[word] | {"case": f"quiet, {word}"}
        alertmanager.post(alert("TraceJudgeQualitySilent", "ticket", "watcher", **labels))
    active = {f"{name}, {word}": "active" for word in DIFFERENT for name in names}
    active |= dict.fromkeys(("quiet, same", "quiet, service"), "active")
    for case, scene in TABLE["silences"].items():
        name, severity = scene["watcher"].split()
        labels = scene.get("labels", {}) | {label: BOT[label] for label in scene.get("of", ())} | {"case": "watcher"}
        watcher = f"TraceJudge{name}", severity, "watcher"
        alertmanager.post(alert(*watcher, **labels))
        words = list(DIFFERENT) if scene.get("silenced") == ["all"] else scene.get("silenced", ())
        silenced = {
            f"{name}, {word}" for word in words for name in {*names} - {*scene.get("heard", ["SafetyFailures"])}
        }
        silenced |= {f"quiet, {word}" for word in scene.get("quiet", ())}
        expected = active | {"watcher": "active"} | dict.fromkeys(silenced, "suppressed")
        wait_until(lambda expected=expected: alertmanager.states() == expected, what=f"{case}: {expected}")
        alertmanager.post(alert(*watcher, **labels, over=True))
        wait_until(lambda: alertmanager.states() == active, what=f"the end of: {case}")


def test_the_louder_alert_speaks_for_a_series(alertmanager: Alertmanager) -> None:
    expected = {}
    for number, (loud, quiet) in enumerate(TABLE["louder"]):
        labels, case = BOT | {"service": f"service-{number}"}, f"{loud} and {quiet}"
        alertmanager.post(
            alert(f"TraceJudge{loud}", "page", "quality", **labels, case=f"{case}: loud"),
            alert(f"TraceJudge{quiet}", "ticket", "quality", **labels, case=f"{case}: quiet"),
            alert(f"TraceJudge{quiet}", "ticket", "quality", **(labels | {"metric": "tone"}), case=f"{case}: other"),
        )
        expected |= {f"{case}: loud": "active", f"{case}: quiet": "suppressed", f"{case}: other": "active"}
    wait_until(lambda: alertmanager.states() == expected, what=str(expected))


def test_who_is_blind_is_heard_in_place_of_the_quality_alert(tmp_path: Path) -> None:
    """The judge model dies: its alert comes and no quality alert of its own, while another model's is heard.

    It starts without a warning: it has one of intervals that are longer than it remembers what it sent.
    """
    with running(tmp_path) as alertmanager:
        alertmanager.post(alert("TraceJudgeJudgeCircuitOpen", "ticket", "watcher", judge_model="gpt-6-luna"))
        alertmanager.inbox.wait_for("ticket")
        alertmanager.post(alert(*DROP, **BOT), alert(*DROP, **(BOT | {"service": "summariser"})))
        alertmanager.post(alert("TraceJudgeObjectiveBurnFast", "page", "quality", **(BOT | {"judge_model": "claude"})))
        alertmanager.inbox.wait_for("page")
        alertmanager.inbox.wait_for("webhook", 2)
        messages = alertmanager.inbox.messages("webhook")
        heard = [(told["labels"]["alertname"], told["status"]) for each in messages for told in each.body["alerts"]]
        assert sorted(heard) == [("TraceJudgeJudgeCircuitOpen", "firing"), ("TraceJudgeObjectiveBurnFast", "firing")]
        (page,) = alertmanager.inbox.messages("page")
        assert page.attachment["title"] == "[PAGE] TraceJudgeObjectiveBurnFast happened"
        output = (tmp_path / "log").read_text(encoding="utf-8")
    assert "Completed loading of configuration file" in output
    assert [line for line in output.splitlines() if re.search(r"(?i)level=(warn|error)", line)] == []


def shown(title: str, text: str, color: str, link: str = DASHBOARD) -> dict[str, str]:
    return {"title": title, "fallback": title, "title_link": link, "color": color, "text": text}


def test_a_page_says_what_where_since_when_and_what_to_open(alertmanager: Alertmanager) -> None:
    """Programs get labels and annotations whole. What is over is said with its times, and what goes on before it."""
    inbox, other = alertmanager.inbox, BOT | {"metric": "correctness"}

    def read(message: Any) -> dict[str, str]:
        return {name: message.attachment[name] for name in shown("", "", "")}

    sent = alert(*DROP, **BOT)
    alertmanager.post(sent)
    (message,) = inbox.wait_for("page")
    firing = f"Firing since 03:05 UTC, 21 January.\nDashboard: {DASHBOARD}\nRunbook: {RUNBOOKS}/quality.md"
    text = f"In the last 1h 61% of 120 judgements passed.\n{firing}#tracejudgequalitydrop"
    assert read(message) == shown("[PAGE] TraceJudgeQualityDrop happened", text, "danger")
    (message,) = inbox.wait_for("webhook")
    (got,) = message.body["alerts"]
    assert (got["labels"], got["annotations"], got["status"]) == (sent["labels"], sent["annotations"], "firing")
    alertmanager.post(alert(*DROP, **other))
    inbox.wait_for("page", 2)
    alertmanager.post(alert(*DROP, **other, over=True))
    text = inbox.wait_for_titled("page", "Over: ", "text").attachment["text"]
    assert text.startswith("* TraceJudgeQualityDrop happened\nIn the last")
    assert text.endswith(f"\n\nOver: TraceJudgeQualityDrop happened {BEFORE_AND_AFTER}")
    alertmanager.post(alert(*DROP, **BOT, over=True))
    message = inbox.wait_for_titled("page", "[RESOLVED]")
    text = f"Over: TraceJudgeQualityDrop happened {BEFORE_AND_AFTER}"
    assert read(message) == shown("[RESOLVED] TraceJudgeQualityDrop happened", text, "good")
    # An alert of others, without annotations, reads as well.
    alertmanager.post({"labels": {"alertname": "DiskFull", "severity": "page"}, "startsAt": "2026-01-21T03:05:00Z"})
    message = inbox.wait_for_titled("page", "DiskFull")
    text = "Firing since 03:05 UTC, 21 January."
    assert read(message) == shown("[PAGE] DiskFull", text, "danger", "http://localhost:9093")


def test_an_incident_is_one_message_of_five_alerts_at_most(alertmanager: Alertmanager) -> None:
    """The metrics of one judge on one service belong together; another judge's drop is a message of its own.

    Who is blind on every service wakes somebody once, and the pipeline is named where no service is.
    """
    inbox = alertmanager.inbox
    drops = [alert(*DROP, **(BOT | {"metric": f"metric-{number}"})) for number in range(7)]
    alertmanager.post(*drops)
    message = inbox.wait_for_titled("page", "7 alerts").attachment
    assert message["title"] == "[PAGE] 7 alerts on support-bot, prod: TraceJudgeQualityDrop happened, and more"
    assert message["text"].count("\n\n* TraceJudgeQualityDrop happened\nIn the last") == 4
    assert message["text"].startswith("* TraceJudgeQualityDrop happened\n")
    assert message["text"].endswith("\n\n5 of 7 are shown; all of them: http://localhost:9093/#/alerts?receiver=page")
    alertmanager.post(alert(*DROP, **(BOT | {"judge": "safety"})))
    wait_until(
        lambda: inbox.messages("page")[-1].attachment["title"] == "[PAGE] TraceJudgeQualityDrop happened",
        what="the message of the other judge",
    )
    services = ("support-bot", "code-helper", "summariser")
    alertmanager.post(*(alert("TraceJudgeNoVerdicts", "page", "watcher", service=service) for service in services))
    inbox.wait_for_titled("page", "[PAGE] 3 alerts on the pipeline: TraceJudgeNoVerdicts happened, and more")
    alertmanager.post(
        alert("TraceJudgeExporterBehind", "ticket", "watcher", exporter="otel"),
        alert("TraceJudgeTracesCutOff", "ticket", "watcher"),
    )
    message = inbox.wait_for_titled("ticket", "[TICKET] 2 alerts on the pipeline: TraceJudge").attachment
    assert message["color"] == "warning"
