"""Quality of one service falls: who is on call hears of it, of nothing else, and that it is over."""

import re

import pytest
from busy_services import ENVIRONMENT, BusyServices, Flaws
from expected import RUNBOOKS
from scaled_prometheus import PACE
from whole_picture import JUDGE_MODEL, Heard, Picture

from judges.registry import catalogue

pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow("a whole deployment with Prometheus, at 75 times its pace")]
FALLING, HEALTHY = "support-bot", "summariser"
DROP = "TraceJudgeQualityDrop"
BURNS = [f"TraceJudgeObjectiveBurn{pace}" for pace in ("Fast", "Medium", "Slow")]
NUMBER = r"(\d+(?:\.\d+)?)"
PASSED = rf"{NUMBER}% of {NUMBER} judgements passed \(95% interval {NUMBER}% to {NUMBER}%\)"
SINCE = r"Since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d \+0000 UTC\."
OPEN = r"Open the dashboard, then failed traces: `tracejudge tail --failed`\."
DASHBOARD = "http://localhost:3000/d/tracejudge-quality/tracejudge-quality"


def test_a_fall_of_one_service_is_told_and_so_is_its_end(picture: Picture) -> None:
    """For faithfulness there is no objective, so the fall alone is told."""
    picture.watch("faithfulness", "groundedness", "safety")
    usual: Flaws = {("faithfulness", "bad"): 0.05}
    worse: Flaws = {("faithfulness", "bad"): 0.7}
    services = BusyServices(picture.pipeline, FALLING, HEALTHY)
    services.turn(FALLING, usual)
    with services:
        picture.wait_for(f'tracejudge:judgements:1h{{service="{FALLING}", judge="faithfulness"}} >= 300')
        services.turn(FALLING, worse)
        told = picture.hear(DROP, "firing")
        services.turn(FALLING, usual)
        picture.hear(DROP, "resolved")

    assert [alert.about for alert in picture.heard()] == [(DROP, "firing", FALLING), (DROP, "resolved", FALLING)]
    assert picture.fired(HEALTHY) == set()
    assert told.labels == bears(DROP, "faithfulness")
    says_how_far_it_fell(told)
    opens_runbook_and_dashboard(told, "faithfulness")
    page, over = picture.read("page", 2)
    reads_as_told(page, told)
    assert over["title"].startswith(f"[RESOLVED] faithfulness/faithfulness of {FALLING} in prod fell from ")
    assert picture.read("ticket", 0) == picture.read("info", 0) == []


def test_a_service_that_is_bad_from_its_first_day_burns_its_budget(picture: Picture) -> None:
    """There is no better time before, so nothing falls; and of three alerts on one series the loudest speaks."""
    picture.watch("faithfulness", "groundedness", "safety")
    services = BusyServices(picture.pipeline, FALLING, HEALTHY)
    services.turn(FALLING, {("groundedness", "bad"): 1.0})
    with services:
        told = picture.hear(BURNS[0], "firing")
        for quieter in BURNS[1:]:
            picture.wait_silenced(quieter, FALLING, by={BURNS[0]})

    # On a busy machine the long windows may have their 30 judgements before the 5 minutes of the fast burn have; from
    # then on nobody hears of the slower ones. In which order messages come that are sent at the same time nobody knows.
    heard = picture.heard()
    assert {alert.about for alert in heard} <= {(burn, "firing", FALLING) for burn in BURNS}
    assert [alert for alert in heard if alert.began >= told.began] == [told]
    assert picture.fired(HEALTHY) == set()
    assert told.labels == bears(BURNS[0], "groundedness")
    says_how_fast_it_burns(told)
    opens_runbook_and_dashboard(told, "groundedness")
    page = picture.alertmanager.inbox.wait_for_titled("page", told.annotations["summary"])
    reads_as_told(dict(page.attachment), told)


def bears(alert: str, judge: str) -> dict[str, str]:
    """Give the labels that routes, inhibitions and people go by."""
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


def says_how_far_it_fell(told: Heard) -> None:
    summary = match(
        rf"faithfulness/faithfulness of {FALLING} in prod fell from {NUMBER}% to {NUMBER}%", told, "summary"
    )
    version = told.labels["version"]
    described = match(
        rf"In the last {PACE('1h')} {PASSED}; in the {PACE('3d')} before, {PASSED}\. "
        rf"With 99% confidence the fall is at least {NUMBER} percentage points\. {SINCE} It is the same judge "
        rf"version {version}, judge model {JUDGE_MODEL}: the answers have changed, or the questions\. {OPEN}",
        told,
        "description",
    )
    now, judged, lower, upper, before, judged_before, lower_before, upper_before, fall = described
    assert summary == (before, now)
    assert 20 <= lower < now < upper < lower_before < before < upper_before
    assert 90 < before < 100
    assert min(judged, judged_before) >= 30
    assert 5 < fall < before - now


def says_how_fast_it_burns(told: Heard) -> None:
    match(
        rf"groundedness/groundedness of {FALLING} in prod misses its objective: 0% passed in the last {PACE('1h')}",
        told,
        "summary",
    )
    version = told.labels["version"]
    passed, judged, lower, upper = match(
        rf"In the last {PACE('1h')} {PASSED}; in the last {PACE('5m')} 0%\. The objective is 95%: failures use up "
        rf"their budget 20\.0 times as fast as it allows\. {SINCE} It is judge version {version}, judge model "
        rf"{JUDGE_MODEL}\. {OPEN}",
        told,
        "description",
    )
    assert (passed, lower) == (0, 0)
    assert judged >= 30
    assert upper < 28


def match(pattern: str, told: Heard, annotation: str) -> tuple[float, ...]:
    """Compare a text whole, and give its numbers."""
    found = re.fullmatch(pattern, told.annotations[annotation])
    assert found, told.annotations[annotation]
    return tuple(map(float, found.groups()))


def opens_runbook_and_dashboard(told: Heard, judge: str) -> None:
    variables = f"var-service={FALLING}&var-environment={ENVIRONMENT}&var-judge={judge}"
    assert told.annotations["dashboard_url"] == f"{DASHBOARD}?{variables}"
    assert told.annotations["runbook_url"] == f"{RUNBOOKS}/{told.name}.md"


def reads_as_told(message: dict[str, str], told: Heard) -> None:
    """Compare what a person reads with what programs get."""
    said = told.annotations
    assert message["title"] == f"[PAGE] {said['summary']}"
    assert message["title_link"] == said["dashboard_url"]
    before, firing, *links = message["text"].rsplit("\n", 3)
    assert before == said["description"]
    assert re.fullmatch(r"Firing since \d\d:\d\d UTC, \d+ \w+\.", firing)
    assert links == [f"Dashboard: {said['dashboard_url']}", f"Runbook: {said['runbook_url']}"]
