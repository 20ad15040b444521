"""Several workers on one stream, and what does not pass between them."""

import statistics
import time

import pytest
from redis import Redis
from scenario_parts import Scenario, SteadyLoad, answers, delays_s, patient
from support.endpoint import ChatEndpoint
from support.pipeline import make_traces


@pytest.mark.faults
@patient()
def test_one_of_two_workers_killed_under_load(scenario: Scenario, endpoint: ChatEndpoint) -> None:
    traces = 3000
    endpoint.behaviour = answers(0.1)
    first, second = (scenario.worker() for _ in range(2))
    scenario.pipeline.publish(make_traces(traces))
    scenario.wait_scored(traces // 3)
    asked = [worker.scrape().total("tracejudge_judge_request_duration_seconds_count") for worker in (first, second)]
    assert min(asked) > 0, "both must have work"
    first.program.kill()
    assert scenario.scored < traces, "the kill must fall into the middle of the work"
    scenario.settle(traces)
    in_flight = 48
    assert len(endpoint.calls) <= traces + in_flight + 128, "what was answered and not yet written may be asked again"
    assert second.program.running


@patient()
def test_work_waits_for_no_wake_up(scenario: Scenario, endpoint: ChatEndpoint) -> None:
    """Every one is lost: those who choose and those who judge have different brokers."""
    endpoint.behaviour = answers(0.05)
    other_broker = scenario.pipeline.redis_url.removesuffix("/0") + "/1"
    worker = scenario.worker(roles="judge,export")
    scenario.worker(roles="ingest", broker_url=other_broker)
    with SteadyLoad(scenario.pipeline, 20.0) as load:
        time.sleep(4)
    scenario.settle(load.published)
    scenario.check_calls(worker, most=1.0)
    with Redis.from_url(other_broker) as client:
        assert client.llen(f"{scenario.pipeline.prefix}.judge") > 0, "the wake-ups must lie there unheard"
    delays = delays_s(scenario.verdicts(), "judge")
    assert statistics.median(delays) < 2
    assert max(delays) < 5
