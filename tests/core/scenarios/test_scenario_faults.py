"""One endpoint fails for a while in different ways: every evaluation is scored once, with few extra calls."""

import math
import random
import time
from typing import Any

import pytest
from scenario_parts import MINUTE_S, Scenario, answers, patient
from support import replies
from support.endpoint import ChatEndpoint
from support.pipeline import SETTLING_S, Worker, make_traces
from support.processes import wait_until

TRACES = 1000
USUAL_S = 0.05
IN_FLIGHT = 48
LIMIT = "tracejudge_judge_concurrency_limit"
LIMITED_S = 15
"""Long enough that a worker that misses its end sends several probes before."""


def begin(
    scenario: Scenario, endpoint: ChatEndpoint, fault: replies.Behaviour, traces: int = TRACES, **settings: Any
) -> Worker:
    """Start a worker, publish, and wait until work is under way and the fault has begun."""
    endpoint.behaviour = replies.from_call(traces // 10, fault, before=answers(USUAL_S))
    worker = scenario.worker(**settings)
    scenario.pipeline.publish(make_traces(traces))
    scenario.wait_scored(traces // 10)
    wait_until(lambda: len(endpoint.calls) > traces // 10, what="the fault to begin")
    return worker


@patient(1)
@pytest.mark.parametrize(
    "asks", [pytest.param("until the end", marks=pytest.mark.slow("waits for the end")), "for a second"]
)
def test_the_endpoint_answers_429_for_a_minute(scenario: Scenario, endpoint: ChatEndpoint, asks: str) -> None:
    lasts_s = max(LIMITED_S, MINUTE_S) if asks == "until the end" else MINUTE_S
    hold, ends = replies.Hold(), math.inf

    def limited(_: replies.Call) -> replies.Behaviour:
        rest_s = min(lasts_s, ends - time.monotonic())
        if rest_s <= 0:
            return answers(USUAL_S)
        refusal = replies.failing(429, retry_after=math.ceil(rest_s) if asks == "until the end" else 1)
        return replies.held(hold, refusal)

    worker = begin(scenario, endpoint, limited, model={"max_in_flight": IN_FLIGHT, "timeout_s": 300})
    # All calls that may be under way have arrived when the first is refused, so any further call ignores the refusal.
    wait_until(lambda: endpoint.in_flight >= worker.scrape().value(LIMIT), what="as many calls as may be under way")
    ends = time.monotonic() + lasts_s
    hold.release()
    time.sleep(lasts_s)
    scenario.wait_resumed(worker, failing_from=TRACES // 10)
    scenario.settle(TRACES)
    scenario.check_calls(worker)
    assert worker.scrape().value("tracejudge_judge_circuit_open", judge_model="judge") == 0
    if asks == "until the end":
        refused = [call for call in endpoint.calls if call.status == 429]
        assert len(refused) <= IN_FLIGHT, "nobody asks before the time that was named"


@pytest.mark.slow("repeats with growing pauses")
@patient()
def test_thirty_percent_of_calls_fail_at_random(scenario: Scenario, endpoint: ChatEndpoint) -> None:
    chance = random.Random(5)
    failures = (replies.failing(500), replies.failing(503), replies.failing(408), replies.cuts(0), replies.cuts(0.5))

    def unsteady(_: replies.Call) -> replies.Behaviour:
        return chance.choice(failures) if chance.random() < 0.3 else answers(USUAL_S)

    endpoint.behaviour = unsteady
    worker = scenario.worker()
    scenario.pipeline.publish(make_traces(TRACES))
    scenario.settle(TRACES)
    scenario.check_calls(worker, most=1.6)


@pytest.mark.slow("a minute, scaled")
@patient(1)
def test_latency_is_ten_times_higher_for_a_minute(scenario: Scenario, endpoint: ChatEndpoint) -> None:
    traces = TRACES + int(IN_FLIGHT / (10 * USUAL_S) * MINUTE_S)
    worker = begin(scenario, endpoint, answers(10 * USUAL_S), traces)
    time.sleep(MINUTE_S)
    assert scenario.scored < traces, "the slow minute must lie in the middle of the work"
    endpoint.behaviour = answers(USUAL_S)
    scenario.settle(traces)
    scenario.check_calls(worker, most=1.0)


@pytest.mark.slow("waits for time limits")
@patient(6)
@pytest.mark.parametrize("share", [0.05, 1.0], ids=["one call in twenty", "every call for a minute"])
def test_calls_that_hang_are_never_answered(scenario: Scenario, endpoint: ChatEndpoint, share: float) -> None:
    chance = random.Random(5)

    def hanging(_: replies.Call) -> replies.Behaviour:
        return replies.hangs() if chance.random() < share else answers(USUAL_S)

    # Longer than anything else takes, also on a busy machine.
    worker = begin(scenario, endpoint, hanging, model={"timeout_s": max(10.0, MINUTE_S / 2)})
    if share == 1.0:
        time.sleep(MINUTE_S)
        endpoint.behaviour = answers(USUAL_S)
        scenario.wait_resumed(worker, failing_from=TRACES // 10)
    scenario.settle(TRACES, timeout_s=SETTLING_S + 5 * MINUTE_S)
    scenario.check_calls(worker)


@pytest.mark.slow("ten minutes at a twentieth of their length")
@patient(10)
def test_an_outage_of_ten_minutes(scenario: Scenario, endpoint: ChatEndpoint) -> None:
    worker = begin(scenario, endpoint, replies.failing(503))
    assert scenario.circuit_opens(worker, "judge")["reason"] == "judge_unavailable"
    time.sleep(10 * MINUTE_S)
    assert scenario.pipeline.account().lost == 0
    endpoint.behaviour = answers(USUAL_S)
    scenario.wait_resumed(worker, failing_from=TRACES // 10)
    scenario.settle(TRACES)
    scenario.check_calls(worker)


@pytest.mark.slow("a minute, scaled")
@patient(1)
def test_a_wrong_key_causes_no_more_probes_than_needed(scenario: Scenario, endpoint: ChatEndpoint) -> None:
    worker = begin(scenario, endpoint, replies.failing(401, "Incorrect API key provided", code="invalid_api_key"))
    line = scenario.circuit_opens(worker, "judge")
    assert (line["reason"], line["note"]) == ("judge_rejected", "the endpoint rejects the request: HTTP 401")
    opened = time.monotonic()
    time.sleep(MINUTE_S)
    refused = [call for call in endpoint.calls if call.status == 401]
    probes = 6 + (time.monotonic() - opened) / 11  # the longest pause between two probes is 11 to 15 s
    assert len(refused) <= IN_FLIGHT + probes
    endpoint.behaviour = answers(USUAL_S)
    scenario.wait_resumed(worker, failing_from=TRACES // 10)
    scenario.settle(TRACES)
    scenario.check_calls(worker)
