"""The limit finds what an endpoint bears, and hanging calls take no place from others: endpoints in virtual time."""

import asyncio
import random
from typing import Final, NamedTuple

import limit_simulation as sim
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from limit_simulation import OK, Diary, call, calls, make_limiter, rejection, virtually
from support.cases import each_case
from support.virtual_time import run_virtually

from judges.core.model import ChatResponse, ModelError, ModelTimeoutError, ModelUnavailableError
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
        for seed in range(4):
            latency = sim.lognormal(2.0, 0.7, random.Random(seed))
            seen = sim.simulate(MOST, sim.steady(lambda _, latency=latency: latency()), 120)
            assert min(seen.between(60, 120)) >= 700, seed
            assert seen.rate(60, 120) >= 0.95 * 500, seed

    @pytest.mark.parametrize("kind", [sim.queueing, sim.batching])
    @each_case(
        ("places", "service_s", "seed"),
        [(*server, seed) for server in ((32, 0.05), (100, 1.0), (200, 2.0)) for seed in range(4)],
    )
    def test_settles_near_the_knee(self, kind: object, places: int, service_s: float, seed: int) -> None:
        seconds = max(60, 300 * service_s)
        seen = sim.simulate(MOST, kind(places, sim.lognormal(service_s, 0.7, random.Random(seed))), seconds)
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
        for seed in range(4):
            seen = sim.simulate(256, sim.failing(0.3, 0.05, 2.0, seed), 300)
            assert min(seen.between(0, 300)) >= 8, seed
            assert min(seen.between(200, 300)) >= 64, seed
        assert min(sim.simulate(MOST, sim.failing(0.02, 60, 2.0), 300).between(0, 300)) >= 64
        # A lowered limit that does not help is undone.
        assert sim.simulate(256, sim.failing(0.25, 0.2, 0.2), 60).rate(5, 60) >= 0.5 * 256 / 0.2 * 0.75

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


class Endpoint(NamedTuple):
    """Answers after `latency_s`, more slowly beyond `knee` calls; of all calls these shares hang or are refused."""

    latency_s: float
    knee: int = 1000
    hang: float = 0.0
    refuse: float = 0.0

    def allowed(self, most: int) -> float:
        """Return the answers per second with `most` calls in flight, and never fewer than `knee`."""
        busy = most * (1 - self.hang) / ((1 - self.hang) * self.latency_s + self.hang * TIMEOUT_S)
        return min(busy, self.knee / self.latency_s)


async def rate(endpoint: Endpoint, most: int, diary: Diary) -> float:
    """Return the answers per second to callers who always want more."""
    draw, loop = random.Random(1), asyncio.get_running_loop()
    latency, limiter = sim.lognormal(endpoint.latency_s, 0.5, draw), make_limiter(most, 600.0, diary)
    served = answered = 0

    async def caller() -> None:
        nonlocal served, answered
        while True:
            permit, drawn = await limiter.acquire(str(draw.random())), draw.random()
            result: ChatResponse | ModelError = OK
            if drawn < endpoint.hang:
                await asyncio.sleep(TIMEOUT_S)
                result = LATE
            elif drawn < endpoint.hang + endpoint.refuse:
                await asyncio.sleep(0.02)
                result = rejection()
            else:
                served += 1
                await asyncio.sleep(latency() * max(1.0, served / endpoint.knee))
                served -= 1
                answered += 1
            limiter.release(permit, result)

    callers = [asyncio.ensure_future(caller()) for _ in range(2 * most)]
    await asyncio.sleep(130.0)
    assert limiter.in_flight <= most
    for task in callers:
        task.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    return answered / (loop.time() or 1.0)


class TestHangingCalls:
    @each_case(
        ("endpoint", "most", "share"),
        [
            (Endpoint(0.05, knee=24, hang=0.05), 256, 0.9),
            (Endpoint(0.5, knee=24, hang=0.05), 256, 0.9),
            (Endpoint(2.0, hang=0.05), 256, 0.9),
            (Endpoint(2.0, hang=0.05, refuse=0.01), 256, 0.9),
            (Endpoint(0.5, knee=24, hang=0.2), 256, 0.7),
            (Endpoint(2.0, knee=8, hang=0.1), 32, 0.7),
            (Endpoint(0.1, knee=16, hang=0.01), 256, 0.95),
            (Endpoint(1.0, refuse=0.01), 64, 0.95),
        ],
    )
    def test_others_keep_nearly_the_rate_of_all_slots(self, endpoint: Endpoint, most: int, share: float) -> None:
        diary = Diary()
        assert run_virtually(rate(endpoint, most, diary)) >= share * endpoint.allowed(most)
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
