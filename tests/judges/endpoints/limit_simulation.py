"""An endpoint under an adaptive limit, simulated in virtual time, and the limiters of the tests."""

import asyncio
import functools
import heapq
import math
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from support.virtual_time import run_virtually

from judges.core.model import ChatResponse, ModelError, ModelRejectedError
from judges.endpoints.availability import LimiterEvents
from judges.endpoints.concurrency import AdaptiveLimit
from judges.endpoints.limiter import EndpointLimiter, LimiterClock

OK = ChatResponse("yes")
Server = Callable[[float, int], tuple[float, str]]
"""At which time and with which end (ok, failed, refused) a call ends that begins now beside so many others."""


def virtually(test: Callable[..., Any]) -> Callable[..., None]:
    """Run a test that is a coroutine in virtual time."""
    return functools.wraps(test)(lambda *values, **fixtures: run_virtually(test(*values, **fixtures)))


def rejection(status: int = 401) -> ModelRejectedError:
    error = ModelRejectedError("no")
    error.status = status
    return error


class Diary(LimiterEvents):
    def __init__(self) -> None:
        self.events = list[tuple[str, float]]()

    def circuit_opened(self, error: ModelError, seconds: float) -> None:
        self.events.append((f"opened {error}", seconds))

    def circuit_closed(self, seconds: float) -> None:
        self.events.append(("closed", seconds))

    def calls_delayed(self, error: ModelError, seconds: float) -> None:
        self.events.append((f"waits {error}", seconds))

    def endpoint_error(self, error: ModelError) -> None:
        self.events.append((f"said {error}", 0.0))


def make_limiter(most: int = 4, patience_s: float = 5.0, diary: Diary | None = None) -> EndpointLimiter:
    """Make a limiter with the longest possible intervals."""
    clock = LimiterClock(now, now, lambda _low, high: high)
    return EndpointLimiter(most, patience_s=patience_s, clock=clock, events=diary or Diary())


def now() -> float:
    return asyncio.get_running_loop().time()


async def call(limiter: EndpointLimiter, result: ChatResponse | ModelError = OK, seconds: float = 1.0) -> float:
    """Make one call, and return when it began."""
    permit = await limiter.acquire()
    await asyncio.sleep(seconds)
    limiter.release(permit, result)
    return permit.began


async def calls(count: int, *arguments: Any, **fields: Any) -> list[Any]:
    """Make calls at the same time, and return when each began, or its error."""
    return await asyncio.gather(*(call(*arguments, **fields) for _ in range(count)), return_exceptions=True)


def steady(latency: Callable[[float], float]) -> Server:
    return lambda at, _: (at + latency(at), "ok")


def queueing(places: int, service: Callable[[], float], timeout_s: float = 60.0) -> Server:
    """Work on so many calls at a time; the others wait in order."""
    free = [0.0] * places

    def arrive(at: float, _: int) -> tuple[float, str]:
        ends = max(at, heapq.heappop(free)) + service()
        is_late = ends - at > timeout_s
        heapq.heappush(free, ends - service() if is_late else ends)
        return (at + timeout_s, "failed") if is_late else (ends, "ok")

    return arrive


def batching(knee: int, latency: Callable[[], float]) -> Server:
    """Slow down with load beyond ``knee`` calls, as a GPU does that works on all at once."""
    return lambda at, in_flight: (at + latency() * max(1.0, in_flight / knee), "ok")


def failing(share: float, after_s: float, latency_s: float, seed: int = 1) -> Server:
    """Fail with a share of the calls, however many there are."""
    draw = random.Random(seed)
    return lambda at, _: (at + after_s, "failed") if draw.random() < share else (at + latency_s, "ok")


def rate_limiting(per_second: float, burst: float, latency_s: float) -> Server:
    """Accept so many calls a second with a burst, and refuse the others at once."""
    tokens, last = burst, 0.0

    def arrive(at: float, _: int) -> tuple[float, str]:
        nonlocal tokens, last
        tokens, last = min(burst, tokens + (at - last) * per_second), at
        if tokens < 1:
            return at + 0.01, "refused"
        tokens -= 1
        return at + latency_s, "ok"

    return arrive


def lognormal(mean: float, cv: float, draw: random.Random) -> Callable[[], float]:
    sigma = math.sqrt(math.log(1 + cv * cv))
    mu = math.log(mean) - sigma * sigma / 2
    return lambda: draw.lognormvariate(mu, sigma)


class Seen(NamedTuple):
    limits: list[tuple[float, int]]
    answered: list[float]

    def limit(self, at: float) -> int:
        return next(limit for time, limit in reversed(self.limits) if time <= at)

    def between(self, since: float, until: float) -> list[int]:
        """Return the limits in a span of time, with the one at its begin."""
        return [self.limit(since), *(limit for time, limit in self.limits if since < time <= until)]

    def rate(self, since: float, until: float) -> float:
        return sum(since < at <= until for at in self.answered) / (until - since)


class Simulation:
    """Callers who always want more calls than there may be, at one endpoint."""

    def __init__(self, limit: AdaptiveLimit, server: Server) -> None:
        self.limit, self._server = limit, server
        self.now, self._tick_at = 0.0, math.inf
        self._number = self._in_flight = 0
        self._events: list[tuple[float, int, str, float]] = []
        self._seen = Seen([(0.0, limit.limit)], [])

    def run(self, seconds: float) -> Seen:
        until = self.now + seconds
        self._begin()
        while self._events and self._events[0][0] <= until:
            self.now, number, how, began = heapq.heappop(self._events)
            self._end(number, how, began)
            self._begin()
        self.now = until
        return self._seen

    def restart(self) -> None:
        self.limit.restart(self._number)

    def _end(self, number: int, how: str, began: float) -> None:
        if how == "tick":
            self._tick_at = math.inf
            self.limit.tick(self._number, self.now)
            return
        self._in_flight -= 1
        if how == "ok":
            self._seen.answered.append(self.now)
            self.limit.record_answer(number, self._number, self.now - began, self.now, contended=True)
        elif how == "failed":
            self.limit.record_failure(number, self._number, self.now, contended=True)
        else:
            self.limit.record_refusal(number, self._number)

    def _begin(self) -> None:
        while self._in_flight < self.limit.limit:
            self._in_flight += 1
            ends, how = self._server(self.now, self._in_flight)
            heapq.heappush(self._events, (ends, self._number, how, self.now))
            self._number += 1
        self.limit.record_demand(self.now)
        looks_at = self.limit.next_tick_at
        if looks_at is not None and looks_at < self._tick_at:
            self._tick_at = max(looks_at, self.now)
            heapq.heappush(self._events, (self._tick_at, -1, "tick", self.now))
        if self._seen.limits[-1][1] != self.limit.limit:
            self._seen.limits.append((self.now, self.limit.limit))


def simulate(most: int, server: Server, seconds: float) -> Seen:
    return Simulation(AdaptiveLimit(most), server).run(seconds)
