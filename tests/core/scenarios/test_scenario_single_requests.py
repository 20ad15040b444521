"""Requests that an endpoint treats differently: they end by themselves and do not delay others."""

import asyncio
import itertools
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

TRACES = 500
USUAL_S = 0.05
USUAL = answers(USUAL_S)
SAID = "Project proj_1 may not use this model"
TOO_LARGE = (
    "Request too large for m in organization o on tokens per min (TPM): Limit 30000, Requested 31538. The input or"
    " output tokens must be reduced in order to run successfully."
)
TRY_AGAIN = (
    "Rate limit reached for m on tokens per min (TPM): Limit 10000, Used 8554, Requested 3082. Try again in 3 s."
)


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
    """One in a hundred. None of them may open the circuit, and each costs three calls."""
    refused = {number: (402, 403, 404)[number % 3] for number in range(207, 3 * TRACES // 4, 50)}
    quotes = f"{SAID}: Parcel 207 holds word0 word1 word2 word3 word4, by key sk-abc***xyz"

    def refusing(call: replies.Call) -> replies.Behaviour:
        status = refused.get(trace_number(call))
        return USUAL if status is None else replies.failing(status, quotes)

    endpoint.behaviour = refusing
    worker = scenario.worker(log_level="info")
    scenario.pipeline.publish(make_traces(TRACES))
    with SteadyLoad(scenario.pipeline, 20.0, first=TRACES) as load:
        wait_refused_end(scenario, len(refused))
    verdicts = judged(scenario, worker, TRACES + load.published)
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
def test_requests_with_a_refused_key(scenario: Scenario, endpoint: ChatEndpoint) -> None:
    """A 401 among answers is one of its request, as a 403 is: it opens no circuit."""
    refused = {40, 80, 120}
    endpoint.behaviour = lambda call: replies.failing(401, "wrong key") if trace_number(call) in refused else USUAL
    worker = scenario.worker()
    scenario.pipeline.publish(make_traces(TRACES // 2))
    with SteadyLoad(scenario.pipeline, 20.0, first=TRACES // 2) as load:
        wait_refused_end(scenario, len(refused))
    verdicts = judged(scenario, worker, TRACES // 2 + load.published)
    assert reasons(verdicts) == dict.fromkeys(refused, "bad_request")
    assert "circuit opened" not in worker.program.stderr


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
    scenario.pipeline.publish(make_traces(TRACES))
    verdicts = judged(scenario, worker, TRACES)
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
