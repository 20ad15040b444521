"""Endpoints under load: a slow one, a fast one, one of two that is down, and several workers."""

import re
import time
from collections import Counter

import pytest
from scenario_parts import MINUTE_S, Scenario, SteadyLoad, answers, patient
from support import replies
from support.endpoint import ChatEndpoint
from support.pipeline import SETTLING_S, Worker, make_traces
from support.processes import wait_until

BOUND_BYTES = 200_000
RATE = 20.0  # traces a second; low enough for a busy machine
WATCHED_S = max(5.0, MINUTE_S)
IN_FLIGHT = 48


@pytest.mark.slow("thousands of traces")
@patient()
def test_a_slow_model_above_its_limit_pauses_ingest_without_loss(scenario: Scenario, endpoint: ChatEndpoint) -> None:
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


def keeps_up(worker: Worker) -> bool:
    return worker.scrape().value("tracejudge_stream_lag") <= 2 * RATE


def check_keeps_up(pair: Scenario, worker: Worker, load: SteadyLoad) -> None:
    """Check for a while that ingest and the healthy model keep up with the load."""
    ends = time.monotonic() + WATCHED_S
    while time.monotonic() < ends:
        published = load.published + int(RATE)
        wait_until(lambda least=published: load.published >= least, what="more to be published")
        wait_until(lambda least=published: pair.judged(worker, "well") >= least, what="the healthy model to judge it")
        wait_until(lambda: keeps_up(worker), what="reading to keep up")


def received(endpoint: ChatEndpoint, number: int) -> bool:
    """Return whether an endpoint received a trace with this number or a later one."""
    matches = [re.search(r"[Pp]arcel (\d+)", call.text()) for call in endpoint.calls]
    return any(match is not None and int(match[1]) >= number for match in matches)


@patient()
@pytest.mark.parametrize(
    "dies", ["takes no connection", pytest.param("answers nothing", marks=pytest.mark.slow("a second variant"))]
)
def test_a_dead_model_uses_no_capacity_of_the_other(
    pair: Scenario, endpoint: ChatEndpoint, other_endpoint: ChatEndpoint, dies: str
) -> None:
    """Its rate stays the same: as many calls as allowed are under way, and all its work is done."""
    traces, well, ill = 500, replies.Hold(), replies.Hold()
    endpoint.behaviour, other_endpoint.behaviour = replies.held(well), replies.held(ill)
    worker = pair.worker(model={"max_in_flight": IN_FLIGHT, "timeout_s": 600})
    if dies == "takes no connection":
        other_endpoint.close()
    pair.pipeline.publish(make_traces(traces))
    if dies == "takes no connection":
        line = pair.circuit_opens(worker, "ill")
        assert line["reason"] == "judge_unavailable"
        assert line["note"].startswith("no connection to http://")
    else:
        wait_until(lambda: other_endpoint.in_flight == IN_FLIGHT, what="all calls to the dead one to hang")
    wait_until(lambda: endpoint.in_flight == IN_FLIGHT, what="all calls to the healthy one to be under way")
    well.release()
    wait_until(lambda: pair.judged(worker, "well") == traces, SETTLING_S, "the healthy one to judge all")
    assert pair.judged(worker, "ill") == 0
    if dies == "takes no connection":
        other_endpoint.start()
    ill.release()
    pair.settle(traces)
    pair.check_calls(worker, seen=False)


@pytest.mark.slow("an outage and a replay")
@patient(2)
def test_work_of_a_dead_model_above_its_limit_is_shed_and_judged_by_replay(
    pair: Scenario, endpoint: ChatEndpoint, other_endpoint: ChatEndpoint
) -> None:
    endpoint.behaviour = other_endpoint.behaviour = answers(0.05)
    worker = pair.worker(max_waiting_bytes=200_000)
    with SteadyLoad(pair.pipeline, RATE, words=200) as load:
        pair.wait_scored(int(RATE))
        other_endpoint.behaviour = replies.failing(503)
        pair.circuit_opens(worker, "ill")
        wait_until(lambda: pair.pipeline.counter("shed:ill") > 0, what="work to be shed")
        # Before that ingest was paused.
        wait_until(lambda: keeps_up(worker), what="reading to have caught up")
        check_keeps_up(pair, worker, load)
        other_endpoint.behaviour = answers(0.05)
        pair.wait_resumed(worker, "ill")
        back = load.published
        wait_until(lambda: received(other_endpoint, back), what="it to be given new work")
    account = pair.pipeline.settled(load.published)
    shed = account.reasons["shed:ill"]
    assert (account.shed, account.lost, account.chosen) == (0, 0, 2 * load.published - shed)
    assert worker.scrape().value("tracejudge_shed_total", judge_model="ill") == shed
    assert worker.scrape().value("tracejudge_shed_total", judge_model="well") == 0

    replayed = pair.replay(pair.judges["ill"])
    assert (replayed["finished"], replayed["chosen"]) == (True, shed)
    pair.settle(load.published)
    pair.check_calls(worker)
    verdicts = pair.verdicts()
    assert Counter((verdict.judge_model, verdict.origin) for verdict in verdicts) == {
        ("well", "live"): load.published,
        ("ill", "live"): load.published - shed,
        ("ill", "replay"): shed,
    }
    assert len({(verdict.judge_model, verdict.trace_id) for verdict in verdicts}) == 2 * load.published
