"""One of two judge models is dead, and every trace is for both: the other one's rate does not change."""

import statistics
import time
from collections import Counter
from typing import NamedTuple

from scenario_parts import MINUTE_S, Scenario, SteadyLoad, answers, delays_s, patient
from support import replies
from support.endpoint import ChatEndpoint
from support.pipeline import Worker
from support.processes import wait_until

RATE = 20.0
"""Traces a second: few, so that also a machine that is busy with others keeps up."""
WATCHED_S = max(5.0, MINUTE_S)
PROMPT_S = 10.0
"""A worker that waited for the dead one would wait for as long as that one is dead."""


class Watched(NamedTuple):
    """A part of the steady load, from a time to another, in seconds since the epoch, and how many traces it was."""

    since: float
    until: float
    published: int


def keeps_up(worker: Worker) -> bool:
    return worker.scrape().value("tracejudge_stream_lag") <= 2 * RATE


def judged(pair: Scenario) -> int:
    """Count the verdicts of the healthy model, be it asked at once or later."""
    return sum(verdict.judge_model == "well" for verdict in pair.verdicts())


def watch(pair: Scenario, worker: Worker, load: SteadyLoad) -> Watched:
    """Let the load go on for a while, and see that reading and the healthy model keep up before anything changes."""
    since, before = time.time(), load.published
    time.sleep(WATCHED_S)
    published, until = load.published, time.time()
    wait_until(lambda: judged(pair) >= published, what="the healthy model to judge all of it")
    wait_until(lambda: keeps_up(worker), what="reading to keep up")
    return Watched(since, until, published - before)


def check_healthy(pair: Scenario, *parts: Watched) -> None:
    """Check that the healthy model judged at the rate of the load: what was published then, within a moment."""
    for since, until, published in parts:
        delays = delays_s(pair.verdicts(), "well", since, until)
        assert len(delays) > 0.5 * published
        assert statistics.median(delays) < PROMPT_S


@patient(2)
def test_one_of_two_endpoints_dead(pair: Scenario, endpoint: ChatEndpoint, other_endpoint: ChatEndpoint) -> None:
    endpoint.behaviour = other_endpoint.behaviour = answers(0.05)
    worker = pair.worker()
    with SteadyLoad(pair.pipeline, RATE) as load:
        pair.wait_scored(int(RATE))
        before = watch(pair, worker, load)
        other_endpoint.close()
        line = pair.circuit_opens(worker, "ill")
        assert line["reason"] == "judge_unavailable"
        assert line["note"].startswith("no connection to the endpoint")
        during = watch(pair, worker, load)
        assert worker.scrape().total("tracejudge_shed_total") == 0
        other_endpoint.start()
        pair.goes_on(worker, "ill")
    pair.settle(load.published)
    pair.check_calls(worker, seen=False)
    assert len(endpoint.calls) == load.published
    check_healthy(pair, before, during)


@patient(2)
def test_a_dead_model_s_work_past_the_bound_is_shed_and_brought_back_by_replay(
    pair: Scenario, endpoint: ChatEndpoint, other_endpoint: ChatEndpoint
) -> None:
    endpoint.behaviour = other_endpoint.behaviour = answers(0.05)
    worker = pair.worker(max_waiting_bytes=200_000)
    with SteadyLoad(pair.pipeline, RATE, words=200) as load:
        pair.wait_scored(int(RATE))
        other_endpoint.behaviour = replies.failing(503)
        pair.circuit_opens(worker, "ill")
        wait_until(lambda: pair.pipeline.booked("shed:ill") > 0, what="work to be shed")
        # Up to there reading had paused.
        wait_until(lambda: keeps_up(worker), what="reading to have caught up")
        during = watch(pair, worker, load)
        other_endpoint.behaviour = answers(0.05)
        pair.goes_on(worker, "ill")
        back = time.time()
        wait_until(lambda: delays_s(pair.verdicts(), "ill", back, time.time()), what="it to be given new work")
    account = pair.pipeline.settled(load.published)
    shed = account.reasons["shed:ill"]
    assert (account.shed, account.lost, account.chosen) == (0, 0, 2 * load.published - shed)
    assert worker.scrape().value("tracejudge_shed_total", judge_model="ill") == shed
    assert worker.scrape().value("tracejudge_shed_total", judge_model="well") == 0

    replayed = pair.replay(pair.judges["ill"])
    assert (replayed["finished"], replayed["chosen"]) == (True, shed)
    pair.settle(load.published)
    pair.check_calls(worker)
    check_healthy(pair, during)
    verdicts = pair.verdicts()
    assert Counter((verdict.judge_model, verdict.origin) for verdict in verdicts) == {
        ("well", "live"): load.published,
        ("ill", "live"): load.published - shed,
        ("ill", "replay"): shed,
    }
    assert len({(verdict.judge_model, verdict.trace_id) for verdict in verdicts}) == 2 * load.published
