"""Calls that hang, in virtual time: they take no place from others while somebody is answered."""

import asyncio
import random
from collections import Counter
from typing import NamedTuple

from limit_simulation import lognormal
from support.cases import each_case
from support.virtual_time import run_virtually

from judges.core.model import ChatResponse, ModelError, ModelRejectedError, ModelTimeoutError, ModelUnavailableError
from judges.endpoints.availability import LimiterEvents
from judges.endpoints.concurrency import AdaptiveLimit
from judges.endpoints.limiter import EndpointLimiter, LimiterClock

OK = ChatResponse("yes")
TIMEOUT_S = 60.0
SECONDS = 130.0


def refused_key() -> ModelRejectedError:
    error = ModelRejectedError("no")
    error.status = 401
    return error


class Counted(LimiterEvents):
    def __init__(self) -> None:
        self.events = Counter[str]()

    def circuit_opened(self, error: ModelError, seconds: float) -> None:  # noqa: ARG002 - the name of the base class
        self.events[error.reason] += 1


def make_limiter(most: int, events: LimiterEvents | None = None) -> EndpointLimiter:
    loop = asyncio.get_running_loop()
    timing = LimiterClock(loop.time, loop.time, lambda _low, high: high)
    return EndpointLimiter(most, patience_s=600.0, clock=timing, events=events or Counted())


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


async def rate(endpoint: Endpoint, most: int, events: LimiterEvents) -> float:
    """Return the answers per second to callers who always want more."""
    draw, loop = random.Random(1), asyncio.get_running_loop()
    latency, limiter = lognormal(endpoint.latency_s, 0.5, draw), make_limiter(most, events)
    served = answered = 0

    async def caller() -> None:
        nonlocal served, answered
        while True:
            permit, drawn = await limiter.acquire(str(draw.random())), draw.random()
            result: ChatResponse | ModelError = OK
            if drawn < endpoint.hang:
                await asyncio.sleep(TIMEOUT_S)
                result = ModelTimeoutError("late")
            elif drawn < endpoint.hang + endpoint.refuse:
                await asyncio.sleep(0.02)
                result = refused_key()
            else:
                served += 1
                await asyncio.sleep(latency() * max(1.0, served / endpoint.knee))
                served -= 1
                answered += 1
            limiter.release(permit, result)

    callers = [asyncio.ensure_future(caller()) for _ in range(2 * most)]
    await asyncio.sleep(SECONDS)
    assert limiter.in_flight <= most
    for task in callers:
        task.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    return answered / (loop.time() or 1.0)


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
    ids=str,
)
def test_hanging_calls_leave_the_others_nearly_the_rate_that_the_slots_allow(
    endpoint: Endpoint, most: int, share: float
) -> None:
    events = Counted()
    reached = run_virtually(rate(endpoint, most, events))
    assert reached >= share * endpoint.allowed(most)
    assert not events.events, "the circuit stays closed"


async def call(limiter: EndpointLimiter, result: ChatResponse | ModelError = OK, seconds: float = 1.0) -> float:
    """Make one call, and return when it began."""
    permit = await limiter.acquire()
    await asyncio.sleep(seconds)
    limiter.release(permit, result)
    return permit.began


def test_an_unanswering_endpoint_gets_a_few_more_calls_and_then_none() -> None:
    async def run() -> None:
        events = Counted()
        limiter = make_limiter(256, events)
        limiter._limit = AdaptiveLimit(64)
        await asyncio.gather(*(call(limiter) for _ in range(640)))
        silent = [asyncio.ensure_future(call(limiter, ModelTimeoutError("late"), TIMEOUT_S)) for _ in range(1000)]
        await asyncio.sleep(TIMEOUT_S - 1)
        assert 64 < limiter.in_flight <= 64 + 6, "no answer shows that only some of them hang"
        await asyncio.sleep(5)
        assert events.events == {"timeout": 1}
        for task in silent:
            task.cancel()
        await asyncio.gather(*silent, return_exceptions=True)

    run_virtually(run())


def test_calls_that_hang_at_every_place_are_found_out_by_another() -> None:
    async def run() -> None:
        limiter = make_limiter(16)
        limiter._limit = AdaptiveLimit(2)
        for _ in range(20):
            await call(limiter)
        hung = [await limiter.acquire() for _ in range(2)]
        began = asyncio.get_running_loop().time()
        assert await call(limiter) == began + 3.0, "three times the usual second"
        await asyncio.gather(*(call(limiter) for _ in range(20)))
        assert limiter.limit == 4, "both are overtaken"
        for permit in hung:
            limiter.release(permit, ModelTimeoutError("late"))
        assert (limiter.in_flight, limiter.limit, limiter.circuit_open) == (0, 2, False)

    run_virtually(run())


def test_calls_that_hang_delay_neither_the_circuit_nor_a_probe_nor_its_prefetch() -> None:
    async def run() -> None:
        events = Counted()
        limiter = make_limiter(256, events)
        hung = [await limiter.acquire() for _ in range(30)]
        for _ in range(10):
            await call(limiter)
        for _ in range(10):
            assert not limiter.circuit_open
            await call(limiter, ModelUnavailableError("away"), 0.0)
        assert limiter.circuit_open, "nobody waits for answers of the 30"
        assert limiter.limit == 30
        await asyncio.sleep(1)
        assert limiter.limit == 31, "there is room for a probe to be fetched"
        probe = await limiter.acquire()
        began = probe.began
        assert await call(limiter) == began + 3.0, "a second probe, at three times the usual latency"
        assert not limiter.circuit_open
        for permit in (probe, *hung):
            limiter.release(permit, ModelTimeoutError("late"))
        assert not limiter.circuit_open

    run_virtually(run())
