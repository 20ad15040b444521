"""Several workers on one stream, and what does not pass between them."""

import pytest
from redis import Redis
from scenario_parts import Scenario, SteadyLoad, answers, patient
from support import replies
from support.endpoint import ChatEndpoint
from support.pipeline import make_traces
from support.processes import wait_until


@pytest.mark.faults
@patient()
def test_one_of_two_workers_killed_under_load(scenario: Scenario, endpoint: ChatEndpoint) -> None:
    traces, in_flight = 3000, 48
    both, killed = replies.Hold(), replies.Hold()
    usual = answers(0.1)
    rest = replies.from_call(traces * 2 // 3, replies.held(killed, usual), before=usual)
    endpoint.behaviour = replies.from_call(2 * in_flight, rest, before=replies.held(both, usual))
    first, second = (scenario.worker() for _ in range(2))
    scenario.pipeline.publish(make_traces(traces))
    wait_until(lambda: endpoint.in_flight == 2 * in_flight, what="both to have work")
    both.let_go()
    scenario.wait_scored(traces // 3)
    first.program.kill()
    assert scenario.scored < traces, "the kill must fall into the middle of the work"
    killed.let_go()
    scenario.settle(traces)
    assert len(endpoint.calls) <= traces + in_flight + 128, "what was answered and not yet written may be asked again"
    assert second.program.running


@patient()
def test_work_waits_for_no_wake_up(scenario: Scenario, endpoint: ChatEndpoint) -> None:
    """Every one is lost: those who choose and those who judge have different brokers.

    How soon a worker looks by itself is held in `tests/worker/test_sweeper.py`.
    """
    endpoint.behaviour = answers(0.05)
    other_broker = scenario.pipeline.redis_url.removesuffix("/0") + "/1"
    worker = scenario.worker(roles="judge,export")
    scenario.worker(roles="ingest", broker_url=other_broker)
    with SteadyLoad(scenario.pipeline, 20.0) as load:
        wait_until(lambda: load.published >= 80, what="the load to have gone on for a while")
    scenario.settle(load.published)
    scenario.check_calls(worker, most=1.0)
    with Redis.from_url(other_broker) as client:
        assert client.llen(f"{scenario.pipeline.prefix}.judge") > 0, "the wake-ups must lie there unheard"
