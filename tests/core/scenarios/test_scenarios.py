"""Endpoints that fail for a while, refuse some requests, or are slow: each evaluation ends once, with few calls."""

import asyncio
import itertools
import math
import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import aiohttp
import pytest
from scenario_parts import MINUTE_S, SCALE, Scenario, answers, patient
from support import replies
from support.endpoint import ChatEndpoint
from support.pipeline import SETTLING_S, Pipeline, SteadyLoad, Worker, make_traces
from support.processes import wait_until

TRACES = 600
FEWER = 500
IN_FLIGHT = 48
USUAL = answers(0.05)
LIMIT = "tracejudge_judge_concurrency_limit"
LIMITED_S = 8  # long enough that a worker that misses its end sends several probes before
OUTAGE_S = 10 * MINUTE_S if SCALE >= 1 else 12.0  # not shorter than the longest pause between two probes
BOUND_BYTES = 200_000
RATE = 20.0  # traces a second; low enough for a busy machine
WATCHED_S = max(3.0, MINUTE_S)
SAID = "Project proj_1 may not use this model"
TOO_LARGE = (
    "Request too large for m in organization o on tokens per min (TPM): Limit 30000, Requested 31538. The input or"
    " output tokens must be reduced in order to run successfully."
)
TRY_AGAIN = (
    "Rate limit reached for m on tokens per min (TPM): Limit 10000, Used 8554, Requested 3082. Try again in 3 s."
)
pytestmark = pytest.mark.scenarios


@pytest.fixture
def scenario(pipeline: Pipeline, endpoint: ChatEndpoint) -> Scenario:
    """A scenario with one judge model, `judge`."""
    return Scenario(pipeline, {"judge": endpoint})


@pytest.fixture
def other_endpoint() -> Iterator[ChatEndpoint]:
    with ChatEndpoint() as server:
        yield server


@pytest.fixture
def pair(pipeline: Pipeline, endpoint: ChatEndpoint, other_endpoint: ChatEndpoint) -> Scenario:
    """A scenario with two judge models, `well` and `ill`; both judge every trace."""
    return Scenario(pipeline, {"well": endpoint, "ill": other_endpoint})


def begin(scenario: Scenario, endpoint: ChatEndpoint, fault: replies.Behaviour, **settings: Any) -> Worker:
    """Start a worker, publish, and wait until work is under way and the fault has begun."""
    endpoint.behaviour = replies.from_call(TRACES // 10, fault, before=USUAL)
    worker = scenario.worker(**settings)
    scenario.pipeline.publish(make_traces(TRACES))
    scenario.wait_scored(TRACES // 10)
    wait_until(lambda: len(endpoint.calls) > TRACES // 10, what="the fault to begin")
    return worker


def recovered(scenario: Scenario, worker: Worker, endpoint: ChatEndpoint) -> None:
    """Make the endpoint answer again, and check that all work continues and ends as expected."""
    endpoint.behaviour = USUAL
    scenario.wait_resumed(worker, failing_from=TRACES // 10)
    scenario.settle(TRACES)
    scenario.check_calls(worker)


@patient(1)
@pytest.mark.slow("waits for the end")
@pytest.mark.parametrize("asks", ["until the end", "for a second"])
def test_the_endpoint_answers_429_for_a_minute(scenario: Scenario, endpoint: ChatEndpoint, asks: str) -> None:
    lasts_s = max(LIMITED_S, MINUTE_S) if asks == "until the end" else MINUTE_S
    hold, ends = replies.Hold(), math.inf

    def limited(_: replies.Call) -> replies.Behaviour:
        rest_s = min(lasts_s, ends - time.monotonic())
        if rest_s <= 0:
            return USUAL
        refusal = replies.failing(429, retry_after=math.ceil(rest_s) if asks == "until the end" else 1)
        return replies.held(hold, refusal)

    worker = begin(scenario, endpoint, limited, model={"max_in_flight": IN_FLIGHT, "timeout_s": 300})
    # All calls that may be under way have arrived when the first is refused, so any further call ignores the refusal.
    wait_until(lambda: endpoint.in_flight >= worker.scrape().value(LIMIT), what="as many calls as may be under way")
    ends = time.monotonic() + lasts_s
    hold.release()
    time.sleep(lasts_s)
    recovered(scenario, worker, endpoint)
    assert worker.scrape().value("tracejudge_judge_circuit_open", judge_model="judge") == 0
    if asks == "until the end":
        refused = [call for call in endpoint.calls if call.status == 429]
        assert len(refused) <= IN_FLIGHT, "nobody asks before the time that was named"


@pytest.mark.slow("waits for time limits")
@patient(6)
def test_calls_that_hang_are_never_answered(scenario: Scenario, endpoint: ChatEndpoint) -> None:
    chance = random.Random(5)

    def hanging(call: replies.Call) -> replies.Behaviour:
        return replies.hangs() if call.index < TRACES and chance.random() < 0.05 else USUAL

    # Longer than anything else takes, also on a busy machine.
    worker = begin(scenario, endpoint, hanging, model={"timeout_s": max(8.0, MINUTE_S / 2)})
    scenario.settle(TRACES, timeout_s=SETTLING_S + 5 * MINUTE_S)
    scenario.check_calls(worker)


@pytest.mark.slow("outages, scaled")
@patient(10)
@pytest.mark.parametrize("reason", ["judge_unavailable", "judge_rejected"])
def test_an_outage_and_a_wrong_key_cause_no_more_probes_than_needed(
    scenario: Scenario, endpoint: ChatEndpoint, reason: str
) -> None:
    status = 503 if reason == "judge_unavailable" else 401
    worker = begin(scenario, endpoint, replies.failing(status, "Incorrect API key provided", code="invalid_api_key"))
    line = scenario.circuit_opens(worker, "judge")
    assert line["reason"] == reason
    opened = time.monotonic()
    time.sleep(OUTAGE_S if status == 503 else MINUTE_S)
    assert scenario.pipeline.account().lost == 0
    if status == 401:
        assert line["note"] == "the endpoint rejects the request: HTTP 401"
        refused = [call for call in endpoint.calls if call.status == 401]
        probes = 6 + (time.monotonic() - opened) / 11  # the longest pause between two probes is 11 to 15 s
        assert len(refused) <= IN_FLIGHT + probes
    recovered(scenario, worker, endpoint)


def trace_number(call: replies.Call) -> int:
    """Return the number of the trace in a request."""
    return int(re.search(r"[Pp]arcel (\d+)", call.text())[1])


@patient()
def test_requests_that_are_always_refused(scenario: Scenario, endpoint: ChatEndpoint) -> None:
    """Some by a refused key. None of them may open the circuit, and no other trace waits for them.

    Providers report requests that can never pass in different ways. A temporary 429 delays only its own evaluation.
    """
    failing = replies.failing
    quotes = f"{SAID}: Parcel 207 holds word0 word1 word2 word3 word4, by key sk-abc***xyz"
    refused = dict(zip(range(207, 3 * FEWER // 4, 50), (401, 402, 403, 404), strict=True))
    bodies: dict[int, tuple[Any, str | None, int]] = {
        3: (failing(403, "m requires moderation on P. Your input was flagged for x."), "content_filter", 1),
        50: (failing(400, "The response was filtered due to the prompt", code="content_filter"), "content_filter", 1),
        90: (failing(400, "Output blocked by content filtering policy"), "content_filter", 1),
        130: (failing(429, TOO_LARGE, kind="tokens", code="rate_limit_exceeded"), "input_too_long", 1),
        170: (failing(413, TOO_LARGE, kind="tokens", code="rate_limit_exceeded"), "input_too_long", 1),
        210: (replies.sequence(failing(429, TRY_AGAIN, retry_after=2), USUAL), None, 2),
        250: (replies.sequence(failing(429, TRY_AGAIN), failing(429, TRY_AGAIN), USUAL), None, 3),
        **{number: (failing(status, quotes), "bad_request", 3) for number, status in refused.items()},
    }
    endpoint.behaviour = lambda call: bodies.get(trace_number(call), (USUAL,))[0]
    worker = scenario.worker(model={"max_in_flight": 16}, log_level="info")
    scenario.pipeline.publish(make_traces(FEWER))
    with SteadyLoad(scenario.pipeline, RATE, first=FEWER) as load:  # others must be answered between their calls
        ended = sum(reason is not None for _, reason, _ in bodies.values())
        wait_until(lambda: scenario.pipeline.counter("unscored") == ended, SETTLING_S, "those that are refused to end")
    account = scenario.pipeline.settled(traces := FEWER + load.published)
    assert (account.lost, account.dead, account.chosen) == (0, 0, traces)
    assert worker.scrape().value("tracejudge_judge_circuit_open", judge_model="judge") == 0
    ids = {trace.trace_id: number for number, trace in enumerate(make_traces(traces))}
    verdicts = {ids[verdict.trace_id]: verdict for verdict in scenario.verdicts()}
    unscored = {number: verdict.reason for number, verdict in verdicts.items() if verdict.outcome == "unscored"}
    assert unscored == {number: reason for number, (_, reason, _) in bodies.items() if reason is not None}
    expected = {number: calls for number, (*_, calls) in bodies.items() if calls > 1}
    assert {number: each.attempts for number, each in verdicts.items() if each.attempts > 1} == expected
    calls = Counter(map(trace_number, endpoint.calls))
    assert {number: calls[number] for number in expected} == expected
    notes = [verdicts[number].note or "" for number in refused]
    assert [(SAID in note, "word1" in note, "sk-" in note) for note in notes] == [(True, False, False)] * 4, notes
    log = worker.program.stderr
    assert ("circuit opened" in log, "word1" in log) == (False, False)
    assert [SAID in line for line in log.splitlines() if '"endpoint error"' in line].count(True) == 1, "once a minute"
    starts = sorted(call.started_at for call in endpoint.calls if trace_number(call) not in bodies)
    longest = max(later - earlier for earlier, later in itertools.pairwise(starts))
    assert longest < 1.0, f"nobody else was asked about for {longest:.1f} s"


async def ideal_rate(url: str, in_flight: int, seconds: float) -> float:
    """Return the answers per second of a client that keeps all slots busy and repeats each failure at once."""
    until, answered = time.monotonic() + seconds, 0

    async def ask(session: aiohttp.ClientSession) -> None:
        nonlocal answered
        message = {"role": "user", "content": "Parcel 0 holds nothing."}
        while time.monotonic() < until:
            with suppress(aiohttp.ClientError):
                async with session.post(url, json={"model": "judge", "messages": [message]}) as response:
                    await response.read()
                    answered += response.status == HTTPStatus.OK

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=in_flight)) as session:
        await asyncio.gather(*(ask(session) for _ in range(in_flight)))
    return answered / seconds


@pytest.mark.slow("repeats with growing pauses")
@patient(2)
def test_the_endpoint_refuses_and_fails_at_random(scenario: Scenario, endpoint: ChatEndpoint) -> None:
    """Each for a fifth of the calls: the rate is at least half of that of an ideal client, before and after."""
    chance = random.Random(5)
    # Calls so long that a busy machine hardly changes the rates.
    in_flight, seconds, usual_s = 32, max(4.0, MINUTE_S), 0.6
    failures = (replies.failing(500), replies.failing(503), replies.failing(408), replies.cuts(0), replies.cuts(0.5))

    def unsteady(_: replies.Call) -> replies.Behaviour:
        drawn = chance.random()
        failure = replies.failing(429) if drawn < 0.2 else chance.choice(failures)
        return replies.slow(usual_s, failure) if drawn < 0.4 else answers(usual_s)

    endpoint.behaviour = unsteady
    url, ideal_s = f"{endpoint.base_url}/chat/completions", max(3.0, seconds / 4)
    ask_ideally = lambda: asyncio.run(ideal_rate(url, in_flight, ideal_s))  # noqa: E731
    before = ask_ideally()
    worker = scenario.worker(model={"max_in_flight": in_flight})
    scenario.pipeline.publish(make_traces(int(2 * seconds * in_flight / usual_s)))
    scenario.wait_scored(int(2 * before))
    scored, began = scenario.scored, time.monotonic()
    time.sleep(seconds)
    rate = (scenario.scored - scored) / (time.monotonic() - began)
    account, verdicts = scenario.pipeline.account(), scenario.verdicts()
    worker.program.kill()
    ideal = (before + ask_ideally()) / 2
    assert rate >= 0.5 * ideal, f"{rate:.0f} verdicts/s, {ideal:.0f} ideally"
    assert (account.lost, account.dead, account.unscored) == (0, 0, 0)
    assert sum(verdict.attempts for verdict in verdicts) <= 2 * len(verdicts)


@pytest.mark.slow("a thousand connections")
@patient()
def test_a_thousand_calls_in_flight(scenario: Scenario, endpoint: ChatEndpoint) -> None:
    traces = 1200
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


@pytest.mark.slow("several real programs")
@patient()
def test_a_dead_model_uses_no_capacity_of_the_other(
    pair: Scenario, endpoint: ChatEndpoint, other_endpoint: ChatEndpoint
) -> None:
    """Its rate stays the same: as many calls as allowed are under way, and all its work is done."""
    well = replies.Hold()
    endpoint.behaviour = replies.held(well)
    worker = pair.worker(model={"max_in_flight": IN_FLIGHT, "timeout_s": 600})
    other_endpoint.close()
    pair.pipeline.publish(make_traces(FEWER))
    line = pair.circuit_opens(worker, "ill")
    assert line["reason"] == "judge_unavailable"
    assert line["note"].startswith("no connection to http://")
    wait_until(lambda: endpoint.in_flight == IN_FLIGHT, what="all calls to the healthy one to be under way")
    well.release()
    wait_until(lambda: pair.judged(worker, "well") == FEWER, SETTLING_S, "the healthy one to judge all")
    assert pair.judged(worker, "ill") == 0
    other_endpoint.start()
    pair.settle(FEWER)
    pair.check_calls(worker, seen=False)


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


@pytest.mark.slow("an outage and a replay")
@patient(2)
def test_work_of_a_dead_model_above_its_limit_is_shed_and_judged_by_replay(
    pair: Scenario, endpoint: ChatEndpoint, other_endpoint: ChatEndpoint
) -> None:
    endpoint.behaviour = other_endpoint.behaviour = USUAL
    worker = pair.worker(max_waiting_bytes=BOUND_BYTES)
    with SteadyLoad(pair.pipeline, RATE, words=200) as load:
        pair.wait_scored(int(RATE))
        other_endpoint.behaviour = replies.failing(503)
        pair.circuit_opens(worker, "ill")
        wait_until(lambda: pair.pipeline.counter("shed:ill") > 0, what="work to be shed")
        # Before that ingest was paused.
        wait_until(lambda: keeps_up(worker), what="reading to have caught up")
        check_keeps_up(pair, worker, load)
        other_endpoint.behaviour = USUAL
        pair.wait_resumed(worker, "ill")
        back = load.published
        new_work = lambda: any(trace_number(call) >= back for call in other_endpoint.calls)  # noqa: E731
        wait_until(new_work, what="it to be given new work")
    account = pair.pipeline.settled(load.published)
    shed = account.reasons["shed:ill"]
    assert (account.shed, account.lost, account.chosen) == (0, 0, 2 * load.published - shed)
    counted = {name: worker.scrape().value("tracejudge_shed_total", judge_model=name) for name in pair.endpoints}
    assert counted == {"ill": shed, "well": 0}
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
