"""A small simulation of an endpoint under an adaptive limit: events in virtual time, callers that always want more."""

import heapq
import math
import random
from collections.abc import Callable
from typing import NamedTuple, Protocol

from judges.endpoints.concurrency import AdaptiveLimit


class Ended(NamedTuple):
    """When a call ends, and how: an answer, a failure, or a refusal."""

    at: float
    how: str = "ok"


class Server(Protocol):
    def arrive(self, now: float, in_flight: int) -> Ended: ...


class Steady:
    """Answers after a latency that does not depend on load."""

    def __init__(self, latency: Callable[[float], float]) -> None:
        self._latency = latency

    def arrive(self, now: float, in_flight: int) -> Ended:  # noqa: ARG002 - the protocol's name
        return Ended(now + self._latency(now))


class Queueing:
    """Works on ``places`` calls at a time, the others wait in order."""

    def __init__(self, places: int, service: Callable[[], float], timeout_s: float = 60.0) -> None:
        self._free = [0.0] * places
        self._service = service
        self._timeout_s = timeout_s

    def arrive(self, now: float, in_flight: int) -> Ended:  # noqa: ARG002 - the protocol's name
        ends = max(now, heapq.heappop(self._free)) + self._service()
        if ends - now > self._timeout_s:
            heapq.heappush(self._free, ends - self._service())
            return Ended(now + self._timeout_s, "failed")
        heapq.heappush(self._free, ends)
        return Ended(ends)


class Batching:
    """Slows down with load beyond ``knee`` calls, as a GPU does that works on all at once."""

    def __init__(self, knee: int, latency: Callable[[], float]) -> None:
        self._knee = knee
        self._latency = latency

    def arrive(self, now: float, in_flight: int) -> Ended:
        return Ended(now + self._latency() * max(1.0, in_flight / self._knee))


class RateLimiter:
    """Accepts this many calls a second with a burst, and refuses the others at once."""

    def __init__(self, per_second: float, burst: float, latency_s: float) -> None:
        self._per_second, self._burst, self._latency_s = per_second, burst, latency_s
        self._tokens, self._at = burst, 0.0

    def arrive(self, now: float, in_flight: int) -> Ended:  # noqa: ARG002 - the protocol's name
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._per_second)
        self._at = now
        if self._tokens < 1:
            return Ended(now + 0.01, "refused")
        self._tokens -= 1
        return Ended(now + self._latency_s)


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
        self.limit = limit
        self.now = 0.0
        self._server = server
        self._number = self._in_flight = 0
        self._events: list[tuple[float, int, str, float]] = []
        self._tick_at = math.inf
        self._limits = [(0.0, limit.limit)]
        self._answered: list[float] = []

    def run(self, seconds: float) -> Seen:
        until = self.now + seconds
        self._begin()
        while self._events and self._events[0][0] <= until:
            self.now, number, how, began = heapq.heappop(self._events)
            self._end(number, how, began)
            self._begin()
        self.now = until
        return Seen(self._limits, self._answered)

    def restart(self) -> None:
        self.limit.restart(self._number)

    def _end(self, number: int, how: str, began: float) -> None:
        if how == "tick":
            self._tick_at = math.inf
            self.limit.tick(self._number, self.now)
            return
        self._in_flight -= 1
        if how == "ok":
            self._answered.append(self.now)
            self.limit.record_answer(number, self._number, self.now - began, self.now, contended=True)
        elif how == "failed":
            self.limit.record_failure(number, self._number, self.now, contended=True)
        else:
            self.limit.record_refusal(number, self._number)

    def _begin(self) -> None:
        while self._in_flight < self.limit.limit:
            self._in_flight += 1
            ended = self._server.arrive(self.now, self._in_flight)
            heapq.heappush(self._events, (ended.at, self._number, ended.how, self.now))
            self._number += 1
        self.limit.record_demand(self.now)
        looks_at = self.limit.next_tick_at
        if looks_at is not None and looks_at < self._tick_at:
            self._tick_at = max(looks_at, self.now)
            heapq.heappush(self._events, (self._tick_at, -1, "tick", self.now))
        if self._limits[-1][1] != self.limit.limit:
            self._limits.append((self.now, self.limit.limit))


def simulate(limit: AdaptiveLimit, server: Server, seconds: float) -> Seen:
    return Simulation(limit, server).run(seconds)
