"""The limit finds what an endpoint bears, and when it is left alone: in virtual time, or by hand."""

import asyncio
import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import limit_simulation as sim
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from limit_simulation import OK, Diary, call, calls, make_limiter, rejection, virtually
from structlog.testing import capture_logs
from support.cases import each_case, in_parts
from support.tables import check_golden, read_table
from support.virtual_time import run_virtually

from judges.core.model import ModelTimeoutError, ModelUnavailableError, Quota, Window
from judges.endpoints.availability import Circuit, RateLimitState
from judges.endpoints.circuit_log import CircuitLog
from judges.endpoints.concurrency import AdaptiveLimit

MOST: Final = 1000
TIMEOUT_S: Final = 60.0
LATE = ModelTimeoutError("late")
KINDS = st.sampled_from(["ok", "failed", "refused", "restart", "tick"])


class TestLimit:
    def test_the_limit_begins_at_64_and_is_soon_what_an_endpoint_of_steady_latency_bears(self) -> None:
        assert [AdaptiveLimit(most).limit for most in (1, 7, 64, 65, 5000)] == [1, 7, 64, 64, 64]
        seen = sim.simulate(MOST, sim.steady(lambda _: 2.0), 60)
        assert seen.limit(1) == MOST
        assert seen.rate(10, 60) == pytest.approx(500, rel=0.03)
        latency = sim.lognormal(2.0, 0.7, random.Random(0))
        seen = sim.simulate(MOST, sim.steady(lambda _: latency()), 120)
        assert min(seen.between(60, 120)) >= 700
        assert seen.rate(60, 120) >= 0.95 * 500

    @in_parts(3, rarely=(1, 2))
    @each_case(
        ("kind", "places", "service_s"),
        [(kind, *server) for kind in (sim.queueing, sim.batching) for server in ((32, 0.05), (100, 1.0), (200, 2.0))],
        share="share",
    )
    def test_settles_near_the_knee(self, kind: Callable[..., sim.Server], places: int, service_s: float) -> None:
        seconds = max(40, 200 * service_s)
        seen = sim.simulate(MOST, kind(places, sim.lognormal(service_s, 0.7, random.Random(places))), seconds)
        assert seen.rate(seconds / 2, seconds) >= 0.85 * places / service_s
        assert max(seen.between(seconds * 0.8, seconds)) <= 3 * places

    def test_floods_outages_and_changes_of_latency_are_followed(self) -> None:
        seen = sim.simulate(MOST, sim.queueing(100, lambda: 1.0), 200)
        assert seen.limit(1) == MOST
        assert max(seen.between(150, 200)) <= 300
        assert seen.rate(150, 200) >= 95
        seen = sim.simulate(MOST, sim.steady(lambda now: 20.0 if 60 < now < 120 else 2.0), 240)
        assert min(seen.between(60, 120)) >= 250
        assert seen.limit(200) == MOST
        assert seen.rate(180, 240) >= 0.95 * 500
        assert sim.simulate(256, sim.steady(lambda now: 1.0 if now < 60 else 5.0), 400).limit(400) == 256
        seen = sim.simulate(MOST, sim.rate_limiting(50, 50, 2.0), 300)
        assert max(seen.between(60, 300)) <= 200
        assert seen.rate(60, 300) >= 5

    def test_failures_at_any_limit_are_no_overload(self) -> None:
        seen = sim.simulate(256, sim.failing(0.3, 0.05, 2.0, 0), 300)
        assert min(seen.between(0, 300)) >= 8
        assert min(seen.between(200, 300)) >= 64
        assert min(sim.simulate(MOST, sim.failing(0.02, 60, 2.0), 300).between(0, 300)) >= 64
        # A lowered limit that does not help is undone.
        assert sim.simulate(256, sim.failing(0.25, 0.2, 0.2), 30).rate(5, 30) >= 0.5 * 256 / 0.2 * 0.75

    def test_ten_failures_of_calls_in_flight_halve_it_once_and_so_do_refusals(self) -> None:
        limit, refused = AdaptiveLimit(64), AdaptiveLimit(64)
        for number in range(64):
            assert limit.limit == (64 if number < 10 else 32), f"{number} failures"
            limit.record_failure(number, 64, 1.0, contended=True)
            refused.record_refusal(number, 64)
        assert (limit.limit, refused.limit) == (32, 32)
        refused.record_refusal(64, 65)
        assert refused.limit == 16

    def test_a_limit_that_callers_wait_for_at_most_half_of_the_time_does_not_grow(self) -> None:
        for every in (20_000, 2):
            limit = AdaptiveLimit(MOST)
            for number in range(10_000):
                limit.record_answer(number, number + 1, 1.0, float(number), contended=number % every == 1)
            assert limit.limit == 64, f"waited for at the end of one call in {every}"

    def test_few_failures_among_many_answers_do_not_lower_it(self) -> None:
        limit = AdaptiveLimit(512)
        limit.record_demand(0.0)
        for seconds in range(1, 4):
            limit.tick(64, float(seconds))
        assert limit.limit == 512
        for number in range(200):
            limit.record_answer(number, number + 512, 2.0, 4.0, contended=True)
        for number in range(200, 220):
            limit.record_failure(number, number + 512, 4.0, contended=True)
        assert limit.limit == 512

    def test_the_limit_restarts_at_one_and_climbs_to_half_of_its_former_value(self) -> None:
        simulation = sim.Simulation(AdaptiveLimit(MOST), sim.steady(lambda _: 1.0))
        simulation.run(30)
        simulation.restart()
        assert simulation.limit.limit == 1
        assert simulation.run(3).limit(simulation.now) >= 500
        simulation.restart()
        simulation.restart()
        assert simulation.run(3).limit(simulation.now) >= 250, "a climb that is broken off keeps its goal"
        at_one = AdaptiveLimit(64)
        for _ in range(10):
            at_one.record_refusal(0, 0)
        assert sim.Simulation(at_one, sim.steady(lambda _: 0.1)).run(120).limit(120) == 64, "at one it tries to grow"

    @settings(deadline=None)
    @given(
        st.integers(1, 300),
        st.lists(st.tuples(KINDS, st.floats(0, 100), st.integers(0, 80), st.booleans()), max_size=400),
    )
    def test_is_never_out_of_bounds(self, most: int, happened: list[tuple[str, float, int, bool]]) -> None:
        limit, now, begun = AdaptiveLimit(most), 0.0, 100
        for what, seconds, back, wanted in happened:
            now += seconds / 100
            begun += 1
            number = max(0, begun - back)
            if what == "ok":
                limit.record_answer(number, begun, seconds, now, contended=wanted)
            elif what == "failed":
                limit.record_failure(number, begun, now, contended=wanted)
            elif what == "refused":
                limit.record_refusal(number, begun)
            elif what == "restart":
                limit.restart(begun)
            else:
                limit.record_demand(now)
                limit.tick(begun, now + seconds)
            assert 1 <= limit.limit <= most

    def test_two_lowerings_that_do_not_help_are_undone_together(self) -> None:
        limit, number = AdaptiveLimit(64), 0
        # 16 calls in flight bring 72 answers/s, 64 brought 240.
        for answers, failures, pause, expected in ((30, 10, 64, 32), (16, 10, 32, 16), (36, 4, 0, 64)):
            for index in range(answers + failures):
                if index < answers:
                    limit.record_answer(number, number + limit.limit, 0.2, 1.0, contended=True)
                else:
                    limit.record_failure(number, number + limit.limit, 1.0, contended=True)
                number += 1
            assert limit.limit == expected
            number += pause


async def rate(latency_s: float, knee: int, hang: float, most: int, diary: Diary) -> float:
    """Return the answers per second to callers who always want more.

    The endpoint answers more slowly beyond ``knee`` calls, and of all calls the share ``hang`` has no answer.
    """
    draw, loop = random.Random(1), asyncio.get_running_loop()
    latency, limiter = sim.lognormal(latency_s, 0.5, draw), make_limiter(most, 600.0, diary)
    served = answered = 0

    async def caller() -> None:
        nonlocal served, answered
        while True:
            permit = await limiter.acquire(str(draw.random()))
            if draw.random() < hang:
                await asyncio.sleep(TIMEOUT_S)
                limiter.release(permit, LATE)
                continue
            served += 1
            await asyncio.sleep(latency() * max(1.0, served / knee))
            served -= 1
            answered += 1
            limiter.release(permit, OK)

    callers = [asyncio.ensure_future(caller()) for _ in range(2 * most)]
    await asyncio.sleep(100.0)
    assert limiter.in_flight <= most
    for task in callers:
        task.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    return answered / (loop.time() or 1.0)


class TestHangingCalls:
    @each_case(
        ("latency_s", "knee", "hang", "most", "least"),
        [(0.5, 24, 0.2, 256, 0.7), (2.0, 8, 0.1, 32, 0.7), (2.0, 1000, 0.05, 256, 0.9)],
    )
    def test_others_keep_nearly_the_rate_of_all_slots(
        self, latency_s: float, knee: int, hang: float, most: int, least: float
    ) -> None:
        diary = Diary()
        busy = most * (1 - hang) / ((1 - hang) * latency_s + hang * TIMEOUT_S)
        of_all_slots = min(busy, knee / latency_s)
        assert run_virtually(rate(latency_s, knee, hang, most, diary)) >= least * of_all_slots
        assert not [event for event, _ in diary.events if event.startswith("opened")]

    @virtually
    async def test_an_unanswering_endpoint_gets_a_few_more_calls_and_then_none(self) -> None:
        diary = Diary()
        limiter = make_limiter(256, 600.0, diary)
        limiter._limit = AdaptiveLimit(64)  # the public way there needs thousands of calls
        await calls(640, limiter)
        silent = [asyncio.ensure_future(call(limiter, LATE, TIMEOUT_S)) for _ in range(1000)]
        await asyncio.sleep(TIMEOUT_S - 1)
        assert 64 < limiter.in_flight <= 64 + 6, "no answer shows that only some of them hang"
        await asyncio.sleep(5)
        assert [event for event, _ in diary.events if event.startswith("opened")] == ["opened late"]
        for task in silent:
            task.cancel()
        await asyncio.gather(*silent, return_exceptions=True)

    @virtually
    async def test_calls_that_hang_at_every_place_are_found_out_by_another(self) -> None:
        limiter = make_limiter(16, 600.0)
        limiter._limit = AdaptiveLimit(2)  # see above
        for _ in range(20):
            await call(limiter)
        hung = [await limiter.acquire() for _ in range(2)]
        began = asyncio.get_running_loop().time()
        assert await call(limiter) == began + 3.0, "three times the usual second"
        await calls(20, limiter)
        assert limiter.limit == 4, "both are overtaken"
        for permit in hung:
            limiter.release(permit, LATE)
        assert (limiter.in_flight, limiter.limit, limiter.circuit_open) == (0, 2, False)

    @virtually
    async def test_calls_that_hang_delay_neither_the_circuit_nor_a_probe_nor_its_prefetch(self) -> None:
        limiter = make_limiter(256, 600.0)
        hung = [await limiter.acquire() for _ in range(30)]
        for _ in range(10):
            await call(limiter)
        for _ in range(10):
            assert not limiter.circuit_open
            await call(limiter, ModelUnavailableError("away"), 0.0)
        assert (limiter.circuit_open, limiter.limit) == (True, 30), "nobody waits for answers of the 30"
        await asyncio.sleep(1)
        assert limiter.limit == 31, "there is room for a probe to be fetched"
        probe = await limiter.acquire()
        assert await call(limiter) == probe.began + 3.0, "a second probe, at three times the usual latency"
        assert not limiter.circuit_open
        for permit in (probe, *hung):
            limiter.release(permit, LATE)
        assert not limiter.circuit_open


AWAY = ModelUnavailableError("away")


def longest(_low: float, high: float) -> float:
    return high


FAILURES = {
    "away": AWAY,
    "slow": ModelTimeoutError("slow"),
    **{str(status): rejection(status) for status in (401, 402, 403, 404, 405, 407)},
}


def happen(to: Any, what: str, *how: Any) -> object:
    """Record what a table says; of failures one after the other, return those that opened the circuit."""
    if what == "fail":
        error, first, last, older, now, evaluations, begun = how
        named = zip(range(first, last), itertools.cycle(evaluations), strict=False)
        rows = [(number, begun or number + 1, older, now, name) for number, name in named]
        return [row[0] for row in rows if to.record_failure(FAILURES[error], *row[:4], evaluation=row[4])]
    match how:
        case [str(error), *rest]:
            how = FAILURES[error], *rest
        case [{"quota": windows}, *rest]:
            how = Quota(*(window and Window(*window) for window in windows)), *rest
    return getattr(to, what)(*how)


def test_what_happens_to_circuits_and_pauses_is_in_the_golden_file() -> None:
    lines = []
    kinds: dict[str, Callable[[Any], Any]] = {"circuit": Circuit, "rate limits": RateLimitState}
    for kind, make in kinds.items():
        for name, events in read_table(__file__, "gates")[kind].items():
            state = make(longest)
            lines.append(f"## {kind}: {name}")
            for event in events:
                told = happen(state, *event)
                if isinstance(state, Circuit):
                    seen = f"open since {state.opened_at}, {state.cause!r}" if state.is_open else "closed"
                    seen += f", probe at {state.probe_at}"
                else:
                    seen = f"pause until {state.resumes_at}" if state.is_paused else "no pause"
                    seen += f", hold until {state.held_until(20)}"
                lines.append(f"{json.dumps(event)} {told}; {seen}")
    check_golden(Path(__file__).with_name("golden_gates.txt"), "\n".join(lines) + "\n")


class TestCircuit:
    def test_answers_to_calls_that_began_before_the_key_was_refused_change_nothing(self) -> None:
        circuit = Circuit(longest)
        circuit.record_answer(0)
        for number in range(50, 75):
            # Of fifty older calls one is answered between two refusals, as where a key is taken away under load.
            if circuit.record_failure(rejection(), number, number + 1, max(0, 98 - number), 5.0):
                break
            circuit.record_answer(number - 49)
        else:
            pytest.fail("it opens once there were as many refusals as older calls are left")

    def test_failures_and_refusals_by_chance_do_not_open_it(self) -> None:
        for error, share, older, seed in ((rejection(), 0.1, 30, 3), (AWAY, 0.3, 0, 7)):
            draw, circuit = random.Random(seed), Circuit(longest)
            for number in range(20_000):
                if draw.random() < share:
                    assert not circuit.record_failure(error, number, number + 1, older, 1.0)
                else:
                    circuit.record_answer(number)

    def test_intervals_differ_from_worker_to_worker(self) -> None:
        probe_times = set()
        for seed in range(50):
            circuit = Circuit(random.Random(seed).uniform)
            assert not circuit.record_failure(AWAY, 0, 1, 0, 0.0)
            circuit.record_failure(rejection(), 1, 2, 0, 0.0)
            probe_times.add(circuit.probe_at)
        assert len(probe_times) == 50
        assert all(0.75 <= at <= 1 for at in probe_times)


class TestLog:
    def test_the_log_names_model_reason_and_duration_of_an_open_circuit(self) -> None:
        with capture_logs() as lines:
            events = CircuitLog("gpt")
            events.circuit_opened(rejection(), 0.96)
            events.calls_delayed(rejection(), 2.0)
            events.circuit_closed(12.34)
        cause = {"reason": "judge_rejected", "note": "no"}
        assert lines == [
            {"event": "circuit opened", "log_level": "warning", "judge_model": "gpt", **cause, "seconds": 1.0},
            {"event": "circuit closed", "log_level": "info", "judge_model": "gpt", "seconds": 12.3},
        ]

    def test_an_endpoint_error_is_logged_once_a_minute_for_each_reason(self) -> None:
        now, error, other = 0.0, rejection(403), ModelUnavailableError("the endpoint fails: HTTP 425")
        error.message, other.status = "You may not.", 425
        with capture_logs() as lines:
            events = CircuitLog("gpt", lambda: now)
            for now in (0.0, 1.0, 59.0, 61.0):  # noqa: B007 - read by the clock
                events.endpoint_error(error)
                events.endpoint_error(other)
        line = {"event": "endpoint error", "log_level": "warning", "judge_model": "gpt"}
        expected = [
            line | {"reason": each.reason, "note": str(each), "status": each.status, "said": each.message}
            for each in (error, other)
        ]
        assert lines == expected * 2


class TestRateLimits:
    @given(st.lists(st.none() | st.floats(0, 1e6), max_size=60))
    def test_pauses_are_bounded(self, asked: list[float | None]) -> None:
        limits, now = RateLimitState(longest), 0.0
        for number, seconds in enumerate(asked):
            limits.pause(seconds, number, number + 1, now)
            assert 0 <= limits.resumes_at - now <= 3600 + 1e-6
            now = limits.resumes_at
