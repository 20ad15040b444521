"""On call: what is bad, changed, blind or fallen is told once, with all details; and nothing else is told."""

import re
from pathlib import Path

import pytest
from alert_scenes import RUNBOOKS
from traffic import ENVIRONMENT, BusyServices, Flaws, Past, call, version
from whole_picture import JUDGE_MODEL, MISSED, PACE, SCALE, SCRAPE_S, Picture, address

from deploy.rules.rule_files import generate
from judges.registry import catalogue
from worker.base.monitor.series import HOUR_S

pytestmark = pytest.mark.timeout(1200)
at_pace = pytest.mark.slow("a whole deployment with Prometheus, at 75 times its pace")
FALLING, HEALTHY, SHOP, QUIET = "support-bot", "summariser", "shop", "night-desk"
FAST, MEDIUM, SLOW = (f"TraceJudgeObjectiveBurn{pace}" for pace in ("Fast", "Medium", "Slow"))
BELOW, DROP, SAFETY = "TraceJudgeQualityBelowObjective", "TraceJudgeQualityDrop", "TraceJudgeSafetyFailures"
DRIFT, SILENT, CHANGED = "TraceJudgeJudgeDrift", "TraceJudgeQualitySilent", "TraceJudgeJudgeChanged"
CIRCUIT, NO_VERDICTS = "TraceJudgeJudgeCircuitOpen", "TraceJudgeNoVerdicts"
JUDGES = ("safety", "groundedness", "relevance_to_query")
ALL_BAD: Flaws = {(judge, "bad"): 1.0 for judge in JUDGES}
STRICT, STRICTER = "faithfulness", {"pass_at": 5}
NUMBER = r"(\d+(?:\.\d+)?)"
PASSED = rf"{NUMBER}% of {NUMBER} judgements of the last 1h 0m 0s passed \(95% interval {NUMBER}% to {NUMBER}%\)"
DASHBOARD = "http://localhost:3000/d/tracejudge-quality/tracejudge-quality"
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\dZ"
SINCE = rf"Since {TIME} \(between {TIME} and {TIME}\)\."


def labels_of(alert: str, severity: str, kind: str, **labels: str) -> dict[str, str]:
    """Return the labels that routes, inhibitions and people use."""
    return {"alertname": alert, "severity": severity, "kind": kind, "component": "tracejudge", **labels}


@at_pace
def test_a_service_that_is_bad_from_its_first_day_burns_its_budget(picture: Picture, tmp_path: Path) -> None:
    """There is no better time before, so nothing drops; and of the alerts on one series the loudest speaks."""
    picture.watch("faithfulness", "groundedness", "safety", config=picture.beside_objectives(tmp_path))
    services = BusyServices(picture.pipeline, FALLING, HEALTHY)
    services.turn(FALLING, {("groundedness", "bad"): 1.0})
    with services:
        picture.wait_for(f'tracejudge:evaluations:1h{{service="{FALLING}", judge="groundedness"}} >= 60')
        picture.look()
        told = picture.hear(FAST, "firing")
        # The slow one would fire after an hour only.
        picture.wait_silenced(MEDIUM, FALLING, by={FAST})
    # On a busy machine a quieter one may be told before. In which order messages come that are sent at the same time
    # nobody knows.
    heard = picture.heard()
    assert {alert.about for alert in heard} <= {(name, "firing", FALLING) for name in (FAST, MEDIUM, SLOW, BELOW)}
    assert [alert for alert in heard if alert.began >= told.began] == [told]
    assert picture.fired(HEALTHY) == set()
    judge = {"judge": "groundedness", "metric": "groundedness", "version": version("groundedness")}
    of = {"service": FALLING, "environment": ENVIRONMENT, **judge, "judge_model": JUDGE_MODEL}
    assert told.labels == labels_of(FAST, "page", "quality", **of)
    # Its text is of the golden file of the scenes; here with figures of a real worker.
    said = told.annotations
    match = re.match(PASSED, said["description"])
    assert match, said["description"]
    passed, judged, lower, upper = map(float, match.groups())
    assert (passed, lower) == (0, 0)
    assert judged >= 30
    assert upper < 28
    variables = f"var-service={FALLING}&var-environment={ENVIRONMENT}&var-judge=groundedness"
    assert said["dashboard_url"] == f"{DASHBOARD}?{variables}"
    assert said["runbook_url"] == f"{RUNBOOKS}/quality.md#{FAST.lower()}"
    # What a person reads is what programs get.
    page = picture.alertmanager.inbox.wait_for_titled("page", said["summary"]).attachment
    assert (page["title"], page["title_link"]) == (f"[PAGE] {said['summary']}", said["dashboard_url"])
    assert page["text"].startswith(said["description"])


@pytest.mark.endurance("waits for two hours at 75 times their pace; promtool plays the alert too")
def test_a_judge_that_gets_stricter_is_told_and_no_fall(picture: Picture) -> None:
    """The pass mark is raised by a rolling restart; the answers are what they were, and now all of them fail."""
    before, after = (catalogue()[STRICT].configured(settings).version[:8] for settings in ({}, STRICTER))
    former = picture.watch(STRICT)
    with BusyServices(picture.pipeline, FALLING):
        picture.wait_for(f'tracejudge:evaluations:1h{{version="{before}"}} offset {PACE("1h")} > 30')
        latter = picture.worker(STRICT, judges={STRICT: STRICTER})
        picture.prometheus.watch(address(former), address(latter))
        picture.prometheus.watch(address(latter))
        assert former.program.terminate() == 0
        told = picture.hear(CHANGED, "firing", FALLING)
        picture.wait_for(f'tracejudge_verdicts_total{{version="{after}", outcome="fail"}} > 0')
        # The monitor knows both versions for an hour.
        picture.look()
        for of, share in ((before, 1), (after, 0)):
            picture.wait_for(f'tracejudge_quality_share{{version="{of}", segment=""}} == {share}')
    assert picture.fired(FALLING) == {CHANGED}
    # It may be over already: an hour after the first verdict of the new version, which is a moment on a busy machine.
    heard = [alert.about for alert in picture.heard()]
    assert heard[:1] == [(CHANGED, "firing", FALLING)]
    assert heard[1:] in ([], [(CHANGED, "resolved", FALLING)])
    of = {"service": FALLING, "environment": ENVIRONMENT, "judge": STRICT, "version": after, "judge_model": JUDGE_MODEL}
    assert told.labels == labels_of(CHANGED, "info", "info", **of)
    summary = f"{STRICT} judges {FALLING} in version {after} by {JUDGE_MODEL} now"
    assert (told.annotations["summary"], before in told.annotations["description"]) == (summary, True)
    (info,) = picture.read("info", 1)
    assert info["title"] == f"[INFO] {told.annotations['summary']}"
    assert picture.read("page", 0) == picture.read("ticket", 0) == []


@at_pace
def test_an_endpoint_that_dies_is_told(picture: Picture) -> None:
    """Nothing is judged then, although the gauges still show the time before."""
    picture.watch("faithfulness")
    with BusyServices(picture.pipeline, FALLING, HEALTHY):
        picture.wait_for(f'tracejudge:evaluations:1h{{service="{FALLING}"}} >= 100')
        picture.endpoint.close()
        told = picture.hear(CIRCUIT, "firing")
        picture.hear(NO_VERDICTS, "firing", FALLING)
        picture.hear(NO_VERDICTS, "firing", HEALTHY)
    assert sorted(alert.about for alert in picture.heard()) == [
        (CIRCUIT, "firing", ""),
        (NO_VERDICTS, "firing", HEALTHY),
        (NO_VERDICTS, "firing", FALLING),
    ]
    assert told.labels == labels_of(CIRCUIT, "ticket", "watcher", judge_model=JUDGE_MODEL)
    assert told.annotations["summary"] == f"Judge model {JUDGE_MODEL} fails, and its circuit is open"
    (ticket,) = picture.read("ticket", 1)
    assert ticket["title"] == f"[TICKET] {told.annotations['summary']}"
    both = picture.alertmanager.inbox.wait_for_titled("page", "2 alerts on the pipeline: No verdicts on ").attachment
    assert all(
        f"* No verdicts on {service} although its traces arrive\n" in both["text"] for service in (HEALTHY, FALLING)
    )
    assert all("No verdicts on " in page["title"] for page in picture.read("page", 1))


@at_pace
def test_three_judgements_that_all_fail_raise_nothing(picture: Picture) -> None:
    """One service was judged once before, and one never."""
    picture.watch(*JUDGES)
    picture.pipeline.publish([call(0, "quiet", {})])
    picture.wait_for('count(tracejudge_verdicts_total{service="quiet", outcome="pass"} == 1) == 3')
    picture.pipeline.publish([call(1, "quiet", ALL_BAD), call(0, "new", ALL_BAD)])
    picture.wait_for('count(tracejudge_verdicts_total{outcome="fail"} == 1) == 6')
    picture.look()
    for service, judgements in (("quiet", 2), ("new", 1)):
        series = f'tracejudge_quality_judgements{{service="{service}", segment=""}}'
        picture.wait_for(f"count({series} == {judgements}) == 3")
    # It is about to be with each scrape that a busy machine misses.
    raised = {each["labels"]["alertname"] for each in picture.prometheus.alerts()} - {MISSED}
    assert raised == set(), "neither firing nor about to"
    assert picture.heard() == []


@at_pace
def test_each_incident_is_one_message(picture: Picture, tmp_path: Path) -> None:
    """One of two models drops; the judge that drifts belongs to no drop; a service is silent for a day.

    A real worker finds them in weeks of judged traffic, written to Redis in the form of the monitor.
    """
    past = Past(picture.pipeline)
    dropped, unsafe = befallen(past)
    past.write()
    # With the usual `judge_error` of 1 % the judge's own errors would nearly explain the failures.
    monitor = {"segments": ["model"], "judge_error": 0.002}
    picture.watch(*JUDGES, monitor=monitor, config=picture.beside_objectives(tmp_path))
    for name, service in ((DROP, SHOP), (SAFETY, SHOP), (DRIFT, ""), (SILENT, QUIET)):
        picture.hear(name, "firing", service)
    picture.wait_silenced(BELOW, SHOP, by={DROP})
    told = sorted((*alert.about, alert.labels.get("judge", "")) for alert in picture.heard())
    assert told == [
        (DRIFT, "firing", "", "relevance_to_query"),
        (DROP, "firing", SHOP, "groundedness"),
        (SILENT, "firing", QUIET, ""),
        (SAFETY, "firing", SHOP, "safety"),
    ]
    pages = {page["title"].partition(":")[0]: page["text"] for page in picture.read("page", 3)}
    (ticket,) = picture.read("ticket", 1)
    drop, safety, drift = (
        pages.pop(f"[PAGE] {title}")
        for title in (
            f"groundedness of {SHOP} in prod dropped",
            f"{SHOP} in prod fails safety more often than the judge errs",
            f"relevance_to_query by {JUDGE_MODEL} judges differently than before",
        )
    )
    assert pages == {}, "each incident is one message"
    assert re.search(rf"What fell: model=large, while the others pass as usual\. {SINCE} .*Example traces: ", drop), (
        drop
    )
    assert set(named(drop)) <= set(dropped)
    assert len(named(drop)) == len(named(safety)) == 3
    assert re.search(rf"What fell: all\. Since {TIME}\. Example traces: ", safety), safety
    assert set(named(safety)) <= set(unsafe)
    assert f"version {version('relevance_to_query')} of the judge" in drift
    assert re.search(rf"Segment: all services that it judges\. Since {TIME}\. Canary traces that fell: \S+", drift), (
        drift
    )
    assert ticket["title"] == f"[TICKET] No judgements of {QUIET} in prod for longer than usual"
    assert "Segment: all of the service." in ticket["text"]


def test_the_shortest_window_at_this_pace_holds_four_scrapes() -> None:
    windows = re.findall(r"\[([0-9]+)ms[\]:]", "".join(generate(scale=SCALE).values()))
    assert min(map(int, windows)) >= 4 * SCRAPE_S * 1000


def befallen(past: Past) -> tuple[list[str], list[str]]:
    """Write the past of two services and of a judge; return the traces that failed by groundedness and by safety."""
    for model in ("large", "small"):
        falls = model == "large"
        for _ in past.series(SHOP, "groundedness", lambda age: 0.5 if falls and age < 12 * HOUR_S else 0.96, 60, model):  # noqa: B023
            pass
    for _ in past.series(SHOP, "groundedness", lambda age: 0.73 if age < 12 * HOUR_S else 0.96):
        pass
    for _ in past.series(QUIET, "groundedness", lambda age: -1 if age < 26 * HOUR_S else 0.96):
        pass
    # Too few failures for a drop: 98.5 % are no fall by 10 points.
    for at, judged, passed in past.series(SHOP, "safety", lambda age: 0.985 if age < 20 * HOUR_S else 0.998):
        if judged > passed:
            past.confirmed(SHOP, "safety", at, judged - passed)
    past.canary("relevance_to_query", lambda number, age: age > 8 * HOUR_S or number % 2 == 0)
    ages = range(600, 6000, 600)
    dropped = [past.failing(SHOP, "groundedness", age, model="large") for age in ages]
    unsafe = [past.failing(SHOP, "safety", age) for age in ages]
    return dropped, unsafe


def named(text: str) -> list[str]:
    """Return the example traces that a message names."""
    return re.findall(r"\b[0-9a-f]{32}\b", text)
