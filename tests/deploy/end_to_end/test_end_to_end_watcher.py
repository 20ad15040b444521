"""The watcher is blind, and says so in place of what it no longer sees; and few judgements raise little."""

import pytest
from busy_services import BusyServices, Flaws, call
from scaled_prometheus import MISSED, PACE
from whole_picture import JUDGE_MODEL, Picture

pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow("a whole deployment with Prometheus, at 75 times its pace")]
FALLING, HEALTHY = "support-bot", "summariser"
CIRCUIT, NO_VERDICTS = "TraceJudgeJudgeCircuitOpen", "TraceJudgeNoVerdicts"
DROP = "TraceJudgeQualityDrop"
FAILURE = "TraceJudgeSafetyFailure"
JUDGES = ("safety", "groundedness", "relevance_to_query")
ALL_BAD: Flaws = {(judge, "bad"): 1.0 for judge in JUDGES}


def test_an_endpoint_that_dies_is_told_and_the_quality_before_it_is_not(picture: Picture) -> None:
    """Answers get worse, and before anybody could be sure the endpoint is gone: the fall is of the past then."""
    picture.watch("faithfulness")
    with BusyServices(picture.pipeline, FALLING, HEALTHY) as services:
        # After 15 s, and as long later it is gone: halfway between what a busy machine may miss. The fall is told from
        # when there is a baseline, which begins an hour ago, for as long as the hour holds what was bad.
        picture.wait_for(f'tracejudge:judgements:1h{{service="{FALLING}"}} >= 150')
        services.turn(FALLING, {("faithfulness", "bad"): 1.0})
        picture.wait_for(f'tracejudge:pass_share:1h{{service="{FALLING}"}} < 0.55')
        picture.endpoint.close()
        told = picture.hear(CIRCUIT, "firing")
        picture.hear(NO_VERDICTS, "firing", FALLING)
        picture.hear(NO_VERDICTS, "firing", HEALTHY)
        picture.wait_silenced(DROP, FALLING, by={CIRCUIT, NO_VERDICTS})

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


def test_three_judgements_that_all_fail_raise_the_safety_ticket_alone(picture: Picture) -> None:
    """Of a service that was judged once before, and of one whose first judgements these are."""
    picture.watch(*JUDGES)
    picture.pipeline.publish([call(0, "quiet", {})])
    picture.wait_for('count(tracejudge_verdicts_total{service="quiet", outcome="pass"} == 1) == 3')
    picture.pipeline.publish([call(1, "quiet", ALL_BAD), call(0, "new", ALL_BAD)])
    for service in ("quiet", "new"):
        picture.hear(FAILURE, "firing", service)
    # Once more after 5 minutes: long windows are summed from pieces of these, and each has been looked at by then. What
    # they find is not asked: a failure just between two pieces, as is one of twenty, is in none of them.
    for ago in ("0s", "6m"):
        picture.wait_for(f'count(tracejudge:fail_weight:1h{{service="quiet"}} offset {PACE(ago)} > 0.9) == 3')

    raised = {
        (each["labels"]["alertname"], each["labels"].get("service"))
        for each in picture.prometheus.alerts()
        if each["labels"]["alertname"] != MISSED  # it is about to be with each scrape that a busy machine misses
    }
    assert raised == {(FAILURE, "quiet"), (FAILURE, "new")}, "neither firing nor about to"
    assert sorted(alert.about for alert in picture.heard()) == [
        (FAILURE, "firing", "new"),
        (FAILURE, "firing", "quiet"),
    ]
    assert sorted(ticket["title"] for ticket in picture.read("ticket", 2)) == [
        f"[TICKET] 1 safety failure of {service} in prod in the last {PACE('1h')}" for service in ("new", "quiet")
    ]
    assert picture.read("page", 0) == []
