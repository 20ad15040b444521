"""Quality of one service is bad: who is on call hears of it, and of nothing else."""

import re
from pathlib import Path

import pytest
from busy_services import ENVIRONMENT, BusyServices
from alert_scenes import RUNBOOKS
from whole_picture import JUDGE_MODEL, Heard, Picture

from judges.registry import catalogue

pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow("a whole deployment with Prometheus, at 75 times its pace")]
FALLING, HEALTHY = "support-bot", "summariser"
FAST, MEDIUM, SLOW = (f"TraceJudgeObjectiveBurn{pace}" for pace in ("Fast", "Medium", "Slow"))
BELOW = "TraceJudgeQualityBelowObjective"
NUMBER = r"(\d+(?:\.\d+)?)"
PASSED = rf"{NUMBER}% of {NUMBER} judgements of the last 1h 0m 0s passed \(95% interval {NUMBER}% to {NUMBER}%\)"
SINCE = r"Since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d \+0000 UTC\."
OPEN = r"First run `tracejudge tail --failed --service support-bot --judge groundedness`\."
DASHBOARD = "http://localhost:3000/d/tracejudge-quality/tracejudge-quality"


def test_a_service_that_is_bad_from_its_first_day_burns_its_budget(picture: Picture, tmp_path: Path) -> None:
    """There is no better time before, so nothing drops; and of the alerts on one series the loudest speaks."""
    picture.watch("faithfulness", "groundedness", "safety", config=picture.beside_objectives(tmp_path))
    services = BusyServices(picture.pipeline, FALLING, HEALTHY)
    services.turn(FALLING, {("groundedness", "bad"): 1.0})
    with services:
        told = picture.hear(FAST, "firing")
        picture.wait_silenced(SLOW, FALLING, by={FAST})

    # On a busy machine a quieter one may be told before. In which order messages come that are sent at the same time
    # nobody knows.
    heard = picture.heard()
    assert {alert.about for alert in heard} <= {(name, "firing", FALLING) for name in (FAST, MEDIUM, SLOW, BELOW)}
    assert [alert for alert in heard if alert.began >= told.began] == [told]
    assert picture.fired(HEALTHY) == set()
    assert told.labels == bears(FAST, "groundedness")
    says_how_fast_it_burns(told)
    opens_runbook_and_dashboard(told, "groundedness")
    page = picture.alertmanager.inbox.wait_for_titled("page", told.annotations["summary"])
    reads_as_told(dict(page.attachment), told)


def bears(alert: str, judge: str) -> dict[str, str]:
    """Return the labels that routes, inhibitions and people use."""
    return {
        "alertname": alert,
        "severity": "page",
        "kind": "quality",
        "component": "tracejudge",
        "service": FALLING,
        "environment": ENVIRONMENT,
        "judge": judge,
        "metric": judge,
        "version": catalogue()[judge].version[:8],
        "judge_model": JUDGE_MODEL,
    }


def says_how_fast_it_burns(told: Heard) -> None:
    match(
        rf"groundedness of {FALLING} in prod misses its objective: 0% passed in the last 1h 0m 0s",
        told,
        "summary",
    )
    version = told.labels["version"]
    passed, judged, lower, upper = match(
        rf"{PASSED}\. The objective is 95%: failures use up their budget 20\.0 times as fast as it allows\. {SINCE} It "
        rf"is judge version {version}, judge model {JUDGE_MODEL}\. {OPEN}",
        told,
        "description",
    )
    assert (passed, lower) == (0, 0)
    assert judged >= 30
    assert upper < 28


def match(pattern: str, told: Heard, annotation: str) -> tuple[float, ...]:
    """Compare a text whole, and give its numbers."""
    hit = re.fullmatch(pattern, told.annotations[annotation])
    assert hit, told.annotations[annotation]
    return tuple(map(float, hit.groups()))


def opens_runbook_and_dashboard(told: Heard, judge: str) -> None:
    variables = f"var-service={FALLING}&var-environment={ENVIRONMENT}&var-judge={judge}"
    assert told.annotations["dashboard_url"] == f"{DASHBOARD}?{variables}"
    assert told.annotations["runbook_url"] == f"{RUNBOOKS}/quality.md#{told.name.lower()}"


def reads_as_told(message: dict[str, str], told: Heard) -> None:
    """Compare what a person reads with what programs get."""
    text = told.annotations
    assert message["title"] == f"[PAGE] {text['summary']}"
    assert message["title_link"] == text["dashboard_url"]
    before, firing, *links = message["text"].rsplit("\n", 3)
    assert before == text["description"]
    assert re.fullmatch(r"Firing since \d\d:\d\d UTC, \d+ \w+\.", firing)
    assert links == [f"Dashboard: {text['dashboard_url']}", f"Runbook: {text['runbook_url']}"]
