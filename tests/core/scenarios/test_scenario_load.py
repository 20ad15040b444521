"""Healthy endpoints under load: a slow one pauses ingest, a fast one gets a thousand calls at once."""

import pytest
from scenario_parts import Scenario, answers, patient
from support import replies
from support.endpoint import ChatEndpoint
from support.pipeline import make_traces
from support.processes import wait_until

BOUND_BYTES = 200_000


@pytest.mark.slow("thousands of traces")
@patient()
def test_a_slow_model_above_its_limit_pauses_ingest_and_loses_nothing(
    scenario: Scenario, endpoint: ChatEndpoint
) -> None:
    traces = 800
    hold = replies.Hold()
    endpoint.behaviour = replies.held(hold, answers(0.5))
    worker = scenario.worker(model={"max_in_flight": 16, "timeout_s": 300}, max_waiting_bytes=BOUND_BYTES)
    scenario.pipeline.publish(make_traces(traces, words=200))
    wait_until(lambda: worker.scrape().value("tracejudge_stream_lag") > traces // 4, what="the stream to hold them")
    worker.program.wait_for("ingest paused")
    hold.release()
    scenario.wait_scored(scenario.scored + 64)
    account = scenario.pipeline.account()
    assert account.unread > traces // 4
    assert (account.lost, account.reasons) == (0, {})
    endpoint.behaviour = answers(0.0)
    assert scenario.settle(traces).reasons == {}
    scenario.check_calls(worker, most=1.0)
    assert endpoint.max_in_flight <= 16


@pytest.mark.slow("a thousand connections")
@patient()
def test_a_thousand_calls_in_flight(scenario: Scenario, endpoint: ChatEndpoint) -> None:
    traces = 2000
    hold = replies.Hold()
    # No call is answered before all have arrived, as with an endpoint with long response times.
    endpoint.behaviour = replies.held(hold, answers(1.0))
    worker = scenario.worker(model={"max_in_flight": 1000, "timeout_s": 300})
    scenario.pipeline.publish(make_traces(traces))
    wait_until(lambda: endpoint.in_flight == 1000, what="a thousand calls to be under way")
    hold.release()
    scenario.settle(traces)
    scenario.check_calls(worker, most=1.0)
    assert endpoint.max_in_flight == 1000
