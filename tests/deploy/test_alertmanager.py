"""The Alertmanager example: what it routes where, what it silences and what never, and how its messages read."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from alertmanager_run import BOT, CONFIG, Alertmanager, alert, find_program, running
from support.cases import each_case
from support.processes import wait_until

from deploy.rules.rule_files import FOLDER as RULES

# Alerts of the watcher that silence no quality: what is judged meanwhile is late or less, and true.
SEES_STILL = frozenset(
    {
        "TraceJudgeTracesStopped",
        "TraceJudgeProducerDrops",
        "TraceJudgeJudgeSlow",
        "TraceJudgeScoresLate",
        "TraceJudgeStreamNearlyFull",
        "TraceJudgeRedisNearlyFull",
        "TraceJudgePartitionAway",
        "TraceJudgeTracesCutOff",
        "TraceJudgeDeadLettersGrowing",
        "TraceJudgeExporterBehind",
        "TraceJudgeExportDropped",
        "TraceJudgeQualitySilent",
        "TraceJudgeAbstainedShareHigh",
        # Budgets reduce the number of verdicts, and the weights make up for reduced rates.
        "TraceJudgeBudgetExhausted",
        "TraceJudgeBudgetOverspent",
        "TraceJudgeBudgetRatesReduced",
    }
)


@pytest.fixture
def alertmanager(tmp_path: Path) -> Iterator[Alertmanager]:
    with running(tmp_path) as started:
        yield started


def config() -> dict[str, Any]:
    return yaml.safe_load(CONFIG.read_text(encoding="utf-8"))


def kinds() -> dict[str, str]:
    """Return the kind of each alert of the committed rules."""
    files = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(RULES.glob("*.yaml"))]
    rules = [rule for file in files for group in file["groups"] for rule in group["rules"] if "alert" in rule]
    return {rule["alert"]: rule["labels"]["kind"] for rule in rules}


def names_in(rule: dict[str, Any], side: str) -> set[str]:
    matchers = [matcher for matcher in rule[side] if matcher.startswith("alertname")]
    return {name for matcher in matchers if "!" not in matcher for name in matcher.split('"')[1].split("|")}


def test_amtool_takes_the_configuration_and_its_templates() -> None:
    checked = subprocess.run(
        [find_program("amtool"), "check-config", CONFIG], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr


def test_it_starts_without_a_warning(tmp_path: Path) -> None:
    """It has one of intervals that are longer than it remembers what it sent."""
    with running(tmp_path):
        output = (tmp_path / "log").read_text(encoding="utf-8")
    assert "Completed loading of configuration file" in output
    assert [line for line in output.splitlines() if re.search(r"(?i)level=(warn|error)", line)] == []


def test_inhibitions_name_alerts_that_exist() -> None:
    named = {
        name for rule in config()["inhibit_rules"] for side in rule if side != "equal" for name in names_in(rule, side)
    }
    assert named <= set(kinds())


def test_of_each_alert_of_the_watcher_it_is_decided_whether_it_silences_quality() -> None:
    rules = [rule for rule in config()["inhibit_rules"] if 'kind="quality"' in rule["target_matchers"]]
    watchers = {name for name, kind in kinds().items() if kind == "watcher"}
    # A louder alert on the same series silences others as well.
    blind = {name for rule in rules for name in names_in(rule, "source_matchers")} - {"TraceJudgeSafetyFailures"}
    assert blind | SEES_STILL == watchers
    assert not blind & SEES_STILL


@each_case(
    ("labels", "receivers"),
    [
        (("severity=page", "kind=quality"), "webhook,page"),
        (("severity=page", "kind=watcher"), "webhook,page"),
        (("severity=ticket", "kind=watcher"), "webhook,ticket"),
        (("severity=ticket", "kind=quality"), "webhook,ticket"),
        (("severity=info", "kind=info"), "webhook,info"),
        (("severity=critical",), "webhook,ticket"),
        ((), "webhook,ticket"),
    ],
)
def test_severity_says_who_hears_of_it(labels: tuple[str, ...], receivers: str) -> None:
    command = [find_program("amtool"), "config", "routes", "test", f"--config.file={CONFIG}", *labels]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == receivers


class Scene(NamedTuple):
    """An alert of the watcher, and what it silences and what not, by what sets that apart from BOT."""

    watcher: dict[str, Any]
    silenced: tuple[dict[str, str], ...]
    heard: tuple[dict[str, str], ...]
    always_heard: tuple[str, ...] = ("TraceJudgeSafetyFailures",)


OTHERS = ({"service": "code-helper"}, {"environment": "stage"}, {"judge": "correctness"}, {"judge_model": "claude"})
EVERYWHERE = ({}, *OTHERS)
SCENES = {
    "no metrics": Scene(alert("TraceJudgeMetricsAbsent", "page", "watcher"), EVERYWHERE, ()),
    "one worker without metrics": Scene(
        alert("TraceJudgeMetricsAbsent", "ticket", "watcher", instance="worker:9808"), (), EVERYWHERE
    ),
    "nobody judges": Scene(alert("TraceJudgeRoleNotReady", "page", "watcher", role="judge"), EVERYWHERE, ()),
    "nobody exports spans": Scene(alert("TraceJudgeRoleNotReady", "page", "watcher", role="export"), (), EVERYWHERE),
    "one of several does not": Scene(
        alert("TraceJudgeRoleNotReady", "ticket", "watcher", role="export"), (), EVERYWHERE
    ),
    "no verdicts on a service": Scene(
        alert("TraceJudgeNoVerdicts", "page", "watcher", service=BOT["service"]), ({}, *OTHERS[1:]), OTHERS[:1]
    ),
    "a judge model is away": Scene(
        alert("TraceJudgeJudgeCircuitOpen", "ticket", "watcher", judge_model=BOT["judge_model"]),
        ({}, *OTHERS[:3]),
        OTHERS[3:],
    ),
    "a judge gives no scores on a service": Scene(
        alert(
            "TraceJudgeUnscoredShareHigh",
            "ticket",
            "watcher",
            **{name: BOT[name] for name in ("service", "environment", "judge", "judge_model")},
        ),
        ({},),
        OTHERS,
        # The detector takes verdicts that are not known for passes.
        ("TraceJudgeSafetyFailures", "TraceJudgeQualityDrop"),
    ),
    "a judge gives no scores where no environment is said": Scene(
        alert(
            "TraceJudgeUnscoredShareHigh",
            "ticket",
            "watcher",
            **{**BOT, "environment": "", "version": "", "metric": ""},
        ),
        ({"environment": ""},),
        EVERYWHERE,
        ("TraceJudgeSafetyFailures", "TraceJudgeQualityDrop"),
    ),
    "a judge drifts": Scene(
        alert(
            "TraceJudgeJudgeDrift",
            "page",
            "watcher",
            **{name: BOT[name] for name in ("judge", "version", "judge_model")},
        ),
        ({}, *OTHERS[:2]),
        (*OTHERS[2:], {"version": "99999999"}),
    ),
    "scores come late": Scene(
        alert("TraceJudgeScoresLate", "ticket", "watcher", service=BOT["service"]), (), EVERYWHERE
    ),
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
def test_the_blind_silence_quality_of_what_they_do_not_see_and_nothing_else(
    alertmanager: Alertmanager, scene: Scene
) -> None:
    """A safety failure is never silenced by them: it is a fact that was found."""
    quality = [
        ("TraceJudgeQualityDrop", "page"),
        ("TraceJudgeObjectiveBurnFast", "page"),
        ("TraceJudgeSafetyFailures", "page"),
    ]
    sent, expected = [scene.watcher | {"labels": scene.watcher["labels"] | {"case": "watcher"}}], {"watcher": "active"}
    for state, differences in (("suppressed", scene.silenced), ("active", scene.heard)):
        for different in differences:
            for name, severity in quality:
                case = f"{name} {different}"
                # Each of a metric of its own: on one series a drop silences what burns.
                labels = BOT | {"metric": name} | different | {"case": case}
                sent.append(alert(name, severity, "quality", **labels))
                expected[case] = "active" if name in scene.always_heard else state
    alertmanager.post(*sent)
    wait_until(lambda: alertmanager.states() == expected, what=f"{expected}, at first {alertmanager.states()}")


def test_who_is_blind_is_heard_in_place_of_the_quality_alert(alertmanager: Alertmanager) -> None:
    """The judge model dies: its alert comes and no quality alert of its own, while another model's is heard."""
    alertmanager.post(alert("TraceJudgeJudgeCircuitOpen", "ticket", "watcher", judge_model="gpt-6-luna"))
    alertmanager.inbox.wait_for("ticket")
    alertmanager.post(alert("TraceJudgeQualityDrop", "page", "quality", **BOT))
    alertmanager.post(alert("TraceJudgeQualityDrop", "page", "quality", **(BOT | {"service": "summariser"})))
    alertmanager.post(alert("TraceJudgeObjectiveBurnFast", "page", "quality", **(BOT | {"judge_model": "claude"})))
    alertmanager.inbox.wait_for("page")
    alertmanager.inbox.wait_for("webhook", 2)
    heard = [names for message in alertmanager.inbox.messages("webhook") for names in message.alerts]
    assert sorted(heard) == [("TraceJudgeJudgeCircuitOpen", "firing"), ("TraceJudgeObjectiveBurnFast", "firing")]
    assert [message.attachment["title"] for message in alertmanager.inbox.messages("page")] == [
        "[PAGE] TraceJudgeObjectiveBurnFast happened"
    ]


def test_a_silent_service_is_told_once(alertmanager: Alertmanager) -> None:
    """Its silence follows from what another alert names; that of another service does not."""
    alertmanager.post(
        alert("TraceJudgeTracesStopped", "ticket", "watcher", service="support-bot", case="stopped"),
        alert("TraceJudgeQualitySilent", "ticket", "watcher", service="support-bot", environment="prod", case="silent"),
        alert("TraceJudgeQualitySilent", "ticket", "watcher", service="summariser", environment="prod", case="other"),
    )
    expected = {"stopped": "active", "silent": "suppressed", "other": "active"}
    wait_until(lambda: alertmanager.states() == expected, what=str(expected))


def test_a_silence_ends_with_the_blindness(alertmanager: Alertmanager) -> None:
    blind = ("TraceJudgeNoVerdicts", "page", "watcher")
    alertmanager.post(
        alert(*blind, service="support-bot", case="blind"),
        alert("TraceJudgeQualityDrop", "page", "quality", **BOT, case="drop"),
    )
    wait_until(lambda: alertmanager.states() == {"blind": "active", "drop": "suppressed"}, what="the silence")
    alertmanager.post(alert(*blind, service="support-bot", case="blind", over=True))
    wait_until(lambda: alertmanager.states() == {"drop": "active"}, what="its end")


@pytest.mark.parametrize(
    ("loud", "quiet"),
    [
        ("TraceJudgeSafetyFailures", "TraceJudgeQualityDrop"),
        ("TraceJudgeQualityDrop", "TraceJudgeObjectiveBurnFast"),
        ("TraceJudgeQualityDrop", "TraceJudgeQualityBelowObjective"),
        ("TraceJudgeQualityBelowObjective", "TraceJudgeObjectiveBurnSlow"),
        ("TraceJudgeObjectiveBurnFast", "TraceJudgeQualityBelowObjective"),
        ("TraceJudgeObjectiveBurnFast", "TraceJudgeObjectiveBurnMedium"),
        ("TraceJudgeObjectiveBurnFast", "TraceJudgeObjectiveBurnSlow"),
        ("TraceJudgeObjectiveBurnMedium", "TraceJudgeObjectiveBurnSlow"),
    ],
)
def test_the_louder_alert_speaks_for_a_series(alertmanager: Alertmanager, loud: str, quiet: str) -> None:
    alertmanager.post(
        alert(loud, "page", "quality", **BOT, case="loud"),
        alert(quiet, "ticket", "quality", **BOT, case="quiet"),
        alert(quiet, "ticket", "quality", **(BOT | {"metric": "tone"}), case="another metric"),
    )
    expected = {"loud": "active", "quiet": "suppressed", "another metric": "active"}
    wait_until(lambda: alertmanager.states() == expected, what=str(expected))
