"""Several workers on one stream: each has its own limits and circuits."""

import pytest
from scenario_parts import Scenario, answers, patient
from support import replies
from support.endpoint import ChatEndpoint
from support.pipeline import make_traces
from support.processes import wait_until


@pytest.mark.slow("waits longer than a lease of 15 s")
@pytest.mark.faults
@patient()
def test_one_of_two_workers_is_killed_under_load(scenario: Scenario, endpoint: ChatEndpoint) -> None:
    traces, in_flight = 1000, 48
    both, killed = replies.Hold(), replies.Hold()
    usual = answers(0.1)
    rest = replies.from_call(traces * 2 // 3, replies.held(killed, usual), before=usual)
    endpoint.behaviour = replies.from_call(2 * in_flight, rest, before=replies.held(both, usual))
    first, second = (scenario.worker() for _ in range(2))
    scenario.pipeline.publish(make_traces(traces))
    wait_until(lambda: endpoint.in_flight == 2 * in_flight, what="both to have work")
    both.release()
    scenario.wait_scored(traces // 3)
    first.program.kill()
    assert scenario.scored < traces, "the kill must fall into the middle of the work"
    killed.release()
    scenario.settle(traces)
    assert len(endpoint.calls) <= traces + in_flight + 128, "what was answered and not yet written may be asked again"
    assert second.program.running
