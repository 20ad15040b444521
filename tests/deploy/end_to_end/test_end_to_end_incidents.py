"""A drop, a judge that drifts, a safety incident and a day of silence are one message each, with all details.

A real worker finds them in weeks of judged traffic, written to Redis in the form of the monitor.
"""

import re
from pathlib import Path

import pytest
from judged_past import Past, version
from whole_picture import JUDGE_MODEL, Picture

from worker.base.monitor.series import HOUR_S

pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow("a whole deployment with Prometheus, at 75 times its pace")]
SHOP, QUIET = "shop", "night-desk"
DROP, SAFETY = "TraceJudgeQualityDrop", "TraceJudgeSafetyFailures"
DRIFT, SILENT = "TraceJudgeJudgeDrift", "TraceJudgeQualitySilent"
BELOW = "TraceJudgeQualityBelowObjective"
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\dZ"
SINCE = rf"Since {TIME} \(between {TIME} and {TIME}\)\."


def test_each_incident_is_one_message(picture: Picture, tmp_path: Path) -> None:
    """One of two models drops; the judge that drifts belongs to no drop."""
    past = Past(picture.pipeline)
    dropped, unsafe = befallen(past)
    past.write()
    judges = ("groundedness", "relevance_to_query", "safety")
    # With the usual `judge_error` of 1 % the judge's own errors would nearly explain the failures.
    monitor = {"segments": ["model"], "judge_error": 0.002}
    picture.watch(*judges, monitor=monitor, config=picture.beside_objectives(tmp_path))
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
