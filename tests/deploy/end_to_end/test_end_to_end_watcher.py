"""Alerts when nothing is judged any more; no alerts on a few judgements."""

import pytest
from busy_services import BusyServices, Flaws, call
from scaled_prometheus import MISSED
from whole_picture import JUDGE_MODEL, Picture

pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow("a whole deployment with Prometheus, at 75 times its pace")]
FALLING, HEALTHY = "support-bot", "summariser"
CIRCUIT, NO_VERDICTS = "TraceJudgeJudgeCircuitOpen", "TraceJudgeNoVerdicts"
JUDGES = ("safety", "groundedness", "relevance_to_query")
ALL_BAD: Flaws = {(judge, "bad"): 1.0 for judge in JUDGES}


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
    assert told.labels == {
        "alertname": CIRCUIT,
        "severity": "ticket",
        "kind": "watcher",
        "component": "tracejudge",
        "judge_model": JUDGE_MODEL,
    }
    assert told.annotations["summary"] == f"Judge model {JUDGE_MODEL} fails, and its circuit is open"
    (ticket,) = picture.read("ticket", 1)
    assert ticket["title"] == f"[TICKET] {told.annotations['summary']}"
    both = picture.alertmanager.inbox.wait_for_titled("page", "2 alerts on the pipeline: No verdicts on ").attachment
    assert all(
        f"* No verdicts on {service} although its traces arrive\n" in both["text"] for service in (HEALTHY, FALLING)
    )
    assert all("No verdicts on " in page["title"] for page in picture.read("page", 1))


def test_three_judgements_that_all_fail_raise_nothing(picture: Picture) -> None:
    """One service was judged once before, and one never."""
    picture.watch(*JUDGES)
    picture.pipeline.publish([call(0, "quiet", {})])
    picture.wait_for('count(tracejudge_verdicts_total{service="quiet", outcome="pass"} == 1) == 3')
    picture.pipeline.publish([call(1, "quiet", ALL_BAD), call(0, "new", ALL_BAD)])
    for service, judgements in (("quiet", 2), ("new", 1)):
        series = f'tracejudge_quality_judgements{{service="{service}", segment=""}}'
        picture.wait_for(f"count({series} == {judgements}) == 3")

    # It is about to be with each scrape that a busy machine misses.
    raised = {each["labels"]["alertname"] for each in picture.prometheus.alerts()} - {MISSED}
    assert raised == set(), "neither firing nor about to"
    assert picture.heard() == []
