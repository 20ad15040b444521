"""One endpoint fails for a while, or for some requests: each evaluation ends once, with few extra calls and delays."""

import asyncio
import itertools
import math
import random
import re
import time
from collections import Counter
from http import HTTPStatus
from typing import Any

import aiohttp
import pytest
from scenario_parts import MINUTE_S, Scenario, SteadyLoad, answers, patient
from support import replies
from support.endpoint import ChatEndpoint
from support.pipeline import SETTLING_S, Worker, make_traces
from support.processes import wait_until

from judges.core.verdict import Verdict

TRACES = 1000
HALF = TRACES // 2
USUAL_S = 0.05
USUAL = answers(USUAL_S)
IN_FLIGHT = 48
LIMIT = "tracejudge_judge_concurrency_limit"
LIMITED_S = 15  # long enough that a worker that misses its end sends several probes before
SAID = "Project proj_1 may not use this model"
TOO_LARGE = (
    "Request too large for m in organization o on tokens per min (TPM): Limit 30000, Requested 31538. The input or"
    " output tokens must be reduced in order to run successfully."
)
TRY_AGAIN = (
    "Rate limit reached for m on tokens per min (TPM): Limit 10000, Used 8554, Requested 3082. Try again in 3 s."
)


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


def recovered(scenario: Scenario, worker: Worker, endpoint: ChatEndpoint, **checks: float) -> None:
    """Make the endpoint answer again, and check that all work continues and ends as expected."""
    endpoint.behaviour = USUAL
    scenario.wait_resumed(worker, failing_from=TRACES // 10)
    scenario.settle(TRACES, **checks)
    scenario.check_calls(worker)


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
            return USUAL
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
    endpoint.behaviour = lambda _: chance.choice(failures) if chance.random() < 0.3 else USUAL
    worker = scenario.worker()
    scenario.pipeline.publish(make_traces(TRACES))
    scenario.settle(TRACES)
    scenario.check_calls(worker, most=1.6)


@pytest.mark.slow("waits for time limits")
@patient(6)
@pytest.mark.parametrize("share", [0.05, 1.0], ids=["one call in twenty", "every call for a minute"])
def test_calls_that_hang_are_never_answered(scenario: Scenario, endpoint: ChatEndpoint, share: float) -> None:
    chance = random.Random(5)

    def hanging(_: replies.Call) -> replies.Behaviour:
        return replies.hangs() if chance.random() < share else USUAL

    # Longer than anything else takes, also on a busy machine.
    worker = begin(scenario, endpoint, hanging, model={"timeout_s": max(10.0, MINUTE_S / 2)})
    timeout_s = SETTLING_S + 5 * MINUTE_S
    if share == 1.0:
        time.sleep(MINUTE_S)
        recovered(scenario, worker, endpoint, timeout_s=timeout_s)
    scenario.settle(TRACES, timeout_s=timeout_s)
    scenario.check_calls(worker)


@pytest.mark.slow("ten minutes at a twentieth of their length")
@patient(10)
def test_an_outage_of_ten_minutes(scenario: Scenario, endpoint: ChatEndpoint) -> None:
    worker = begin(scenario, endpoint, replies.failing(503))
    assert scenario.circuit_opens(worker, "judge")["reason"] == "judge_unavailable"
    time.sleep(10 * MINUTE_S)
    assert scenario.pipeline.account().lost == 0
    recovered(scenario, worker, endpoint)


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
    recovered(scenario, worker, endpoint)


def trace_number(call: replies.Call) -> int:
    """Return the number of the trace in a request."""
    return int(re.search(r"Parcel (\d+) holds", call.text())[1])


def judged(scenario: Scenario, worker: Worker, traces: int, timeout_s: float = SETTLING_S) -> dict[int, Verdict]:
    """Wait until every trace has its verdict, and return the verdicts by trace number."""
    ids = {trace.trace_id: number for number, trace in enumerate(make_traces(traces))}
    ended = lambda: sum(scenario.pipeline.counter(name) for name in ("scored", "unscored"))  # noqa: E731
    wait_until(lambda: ended() >= traces, timeout_s, f"{traces} verdicts")
    account = scenario.pipeline.settled(traces)
    assert (account.lost, account.dead, account.chosen) == (0, 0, traces)
    assert worker.scrape().value("tracejudge_judge_circuit_open", judge_model="judge") == 0
    return {ids[verdict.trace_id]: verdict for verdict in scenario.verdicts()}


def wait_refused_end(scenario: Scenario, amount: int) -> None:
    """Wait for the end of the refused evaluations: other traces must be answered between their calls."""
    wait_until(lambda: scenario.pipeline.counter("unscored") == amount, SETTLING_S, "those that are refused to end")


def reasons(verdicts: dict[int, Verdict]) -> dict[int, str | None]:
    return {number: verdict.reason for number, verdict in verdicts.items() if verdict.outcome == "unscored"}


@patient()
def test_requests_that_are_always_refused(scenario: Scenario, endpoint: ChatEndpoint) -> None:
    """One in a hundred, by a refused key too. None of them may open the circuit, and each costs three calls."""
    refused = dict(zip(range(207, 3 * HALF // 4, 50), (401, 402, 403, 404), strict=True))
    quotes = f"{SAID}: Parcel 207 holds word0 word1 word2 word3 word4, by key sk-abc***xyz"

    def refusing(call: replies.Call) -> replies.Behaviour:
        status = refused.get(trace_number(call))
        return USUAL if status is None else replies.failing(status, quotes)

    endpoint.behaviour = refusing
    worker = scenario.worker(log_level="info")
    scenario.pipeline.publish(make_traces(HALF))
    with SteadyLoad(scenario.pipeline, 20.0, first=HALF) as load:
        wait_refused_end(scenario, len(refused))
    verdicts = judged(scenario, worker, HALF + load.published)
    assert reasons(verdicts) == dict.fromkeys(refused, "bad_request")
    calls = Counter(map(trace_number, endpoint.calls))
    assert {number: count for number, count in calls.items() if count > 1} == dict.fromkeys(refused, 3)
    for number in refused:
        note, attempts = verdicts[number].note or "", verdicts[number].attempts
        assert (attempts, SAID in note, "word1" in note, "sk-" in note) == (3, True, False, False), note
    log = worker.program.stderr
    assert "circuit opened" not in log
    assert [SAID in line for line in log.splitlines() if '"endpoint error"' in line] == [True], "once a minute"
    assert "word1" not in log


@pytest.mark.slow("a long variant of refused requests")
@patient()
def test_requests_that_can_never_pass(scenario: Scenario, endpoint: ChatEndpoint) -> None:
    """Providers report this in different ways. A temporary 429 delays only its own evaluation."""
    failing = replies.failing
    bodies: dict[int, tuple[Any, str | None]] = {
        3: (failing(403, "m requires moderation on P. Your input was flagged for x."), "content_filter"),
        50: (failing(400, "The response was filtered due to the prompt", code="content_filter"), "content_filter"),
        90: (failing(400, "Output blocked by content filtering policy"), "content_filter"),
        130: (failing(429, TOO_LARGE, kind="tokens", code="rate_limit_exceeded"), "input_too_long"),
        170: (failing(413, TOO_LARGE, kind="tokens", code="rate_limit_exceeded"), "input_too_long"),
        210: (replies.sequence(failing(429, TRY_AGAIN, retry_after=2), USUAL), None),
        250: (replies.sequence(failing(429, TRY_AGAIN), failing(429, TRY_AGAIN), USUAL), None),
    }
    endpoint.behaviour = lambda call: bodies.get(trace_number(call), (USUAL, None))[0]
    worker = scenario.worker(model={"max_in_flight": 16})
    scenario.pipeline.publish(make_traces(HALF))
    verdicts = judged(scenario, worker, HALF)
    assert reasons(verdicts) == {number: reason for number, (_, reason) in bodies.items() if reason is not None}
    assert {number: verdicts[number].attempts for number in bodies if verdicts[number].attempts > 1} == {210: 2, 250: 3}
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
            async with session.post(url, json={"model": "judge", "messages": [message]}) as response:
                await response.read()
                answered += response.status == HTTPStatus.OK

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=in_flight)) as session:
        await asyncio.gather(*(ask(session) for _ in range(in_flight)))
    return answered / seconds


@pytest.mark.slow("repeats with growing pauses")
@patient(2)
def test_the_endpoint_answers_429_and_500_at_random(scenario: Scenario, endpoint: ChatEndpoint) -> None:
    """Each for a fifth of the calls: the rate is at least half of that of an ideal client, before and after."""
    chance = random.Random(5)
    in_flight, seconds, usual_s = 32, max(10.0, MINUTE_S), 0.2

    def unsteady(_: replies.Call) -> replies.Behaviour:
        drawn = chance.random()
        status = 429 if drawn < 0.2 else 500
        return replies.slow(usual_s, replies.failing(status)) if drawn < 0.4 else answers(usual_s)

    endpoint.behaviour = unsteady
    ask_ideally = lambda: asyncio.run(ideal_rate(f"{endpoint.base_url}/chat/completions", in_flight, seconds / 4))  # noqa: E731
    before = ask_ideally()
    worker = scenario.worker(model={"max_in_flight": in_flight})
    scenario.pipeline.publish(make_traces(int(2 * seconds * in_flight / usual_s)))
    scenario.wait_scored(int(2 * before))
    scored, began = scenario.scored, time.monotonic()
    time.sleep(seconds)
    rate = (scenario.scored - scored) / (time.monotonic() - began)
    worker.program.kill()
    ideal = (before + ask_ideally()) / 2
    assert rate >= 0.5 * ideal, f"{rate:.0f} verdicts/s, {ideal:.0f} ideally"
