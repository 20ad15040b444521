"""The limiter of one endpoint: permits for calls in order, or an error for those that should come later.

It combines pure parts: the adaptive limit on calls in flight (``concurrency``), and the circuit breaker with the
endpoint's own limits (``availability``).
"""

import asyncio
import math
import random
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from judges.core.model import (
    ChatResponse,
    ModelError,
    ModelRejectedError,
    ModelTimeoutError,
    ModelUnavailableError,
    RateLimitedError,
)
from judges.core.verdict import Refusals
from judges.endpoints.availability import Availability, Circuit, LimiterEvents, RateLimitState
from judges.endpoints.concurrency import AdaptiveLimit, InFlight

_FAILURES: Final = (ModelTimeoutError, ModelUnavailableError)
# Rejections of one evaluation, with an answer to another in between: they say nothing about the endpoint.
_MAX_OWN_REFUSALS: Final = 2
_PROBE_PATIENCE_S: Final = 15.0


class LimiterClock(NamedTuple):
    """Sources of time and chance: steady seconds, seconds since the epoch, a draw between two bounds."""

    steady: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    draw: Callable[[float, float], float] = random.uniform


class Permit(NamedTuple):
    """The right to one call for one evaluation, released when the call has ended."""

    number: int
    began: float
    is_probe: bool
    evaluation: str = ""


class EndpointLimiter:
    """Admits calls to one endpoint. Lives in one event loop; other threads may read the properties."""

    def __init__(
        self,
        max_in_flight: int,
        *,
        patience_s: float = 5.0,
        clock: LimiterClock = LimiterClock(),  # noqa: B008 - frozen
        events: LimiterEvents | None = None,
    ) -> None:
        """Bound the adaptive limit by ``max_in_flight``; refuse callers who would wait longer than ``patience_s``."""
        self.events = events or LimiterEvents()
        self.patience_s = patience_s
        self.in_flight = 0  # Permits that have not been released.
        self.backing_off = 0  # Evaluations that wait between two attempts, without a permit.
        self.answered_at = 0.0  # Unix time of the last answer.
        self._clock = clock
        self._most = max_in_flight
        self._limit = AdaptiveLimit(max_in_flight)
        self._calls = InFlight()
        # After so long a silence one call goes beside the others, which may all hang; then after twice as long.
        self._silence_s = self._beside_at = math.inf
        self._circuit = Circuit(clock.draw)
        self._rate_limits = RateLimitState(clock.draw)
        self._availability = Availability(self._circuit, self._rate_limits, patience_s)
        self._next = 0
        self._is_known = False
        self._probe: Permit | None = None
        self._waiters: OrderedDict[asyncio.Future[Permit], str] = OrderedDict()
        # One timer, set to the earliest time at which a waiter may begin without another call's end.
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    @property
    def limit(self) -> int:
        """The number of calls that may be in flight; of an unavailable endpoint, those in flight and a due probe."""
        if self._availability.needs_probe:
            return max(1, self.in_flight + (self._clock.steady() >= self._next_probe_at))
        return min(self._most, self._limit.limit + len(self._calls.hanging))

    @property
    def circuit_open(self) -> bool:
        """Whether the circuit is open."""
        return self._circuit.is_open

    @property
    def open_for_s(self) -> float | None:
        """For how long the circuit has been open, 0 while it is closed; None before the first call has ended."""
        if not self._is_known:
            return None
        return max(0.0, self._clock.steady() - self._circuit.opened_at) if self._circuit.is_open else 0.0

    @property
    def blocked_for_s(self) -> float:
        """Seconds until a call, or a probe, may begin; 0 when one may now."""
        now = self._clock.steady()
        until = self._availability.blocked_until(self._next, now)
        return 0.0 if until is None else max(0.0, until - now)

    @property
    def is_closed(self) -> bool:
        """Whether no call may begin any more."""
        return self._availability.is_closed

    def close(self) -> None:
        """Begin no further call: turn away all waiters, and all that ask later."""
        self._availability.is_closed = True
        self._admit(self._clock.steady())

    def count_refusal(self, error: ModelError, earlier: Refusals) -> Refusals:
        """Add an evaluation's rejection to its earlier ones, if others were answered since the last that counts."""
        is_refusal = isinstance(error, ModelRejectedError) and error.was_asked
        if not is_refusal or self.answered_at <= earlier.last_at:
            return earlier
        return Refusals(earlier.times + 1, self._clock.now())

    async def acquire(self, evaluation: str = "") -> Permit:
        """Wait for a permit for one call; ``ModelError`` if the endpoint is away for longer than the patience."""
        now = self._clock.steady()
        if not self._waiters and self._is_free(now):
            return self._begin(evaluation, now)
        refusal = self._availability.refusal(self._next, now)
        if refusal is not None:
            raise refusal
        waiter: asyncio.Future[Permit] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = evaluation
        self._set_timer(now)
        try:
            return await waiter
        except asyncio.CancelledError:
            self._waiters.pop(waiter, None)
            if not waiter.cancelled() and waiter.exception() is None:
                # The permit came in the same moment: it goes to the next waiter.
                self.release(waiter.result(), None)
            elif not self._waiters:
                # No timer may be left behind in an event loop that ends.
                self._set_timer(self._clock.steady())
            raise

    def release(self, permit: Permit, result: ChatResponse | ModelError | None) -> None:
        """Return a permit with the result of its call; None if it is unknown, as after a cancellation."""
        now = self._clock.steady()
        self.in_flight -= 1
        self._calls.end(permit.number)
        if permit is self._probe:
            self._probe = None
        if result is not None:
            self._is_known = True
            self._learn(permit, result, now)
        self._admit(now)

    def _learn(self, permit: Permit, result: ChatResponse | ModelError, now: float) -> None:
        """Update limit, circuit and rate limits from the result of one call."""
        if result.quota is not None:
            self._rate_limits.record_quota(result.quota, permit.number, now, self._clock.now())
        if isinstance(result, ChatResponse):
            self._rate_limits.record_usage(result.input_tokens + result.output_tokens)
            self._calls.record_answer(permit.began, now)
            self._silence_s = self._calls.silence_s
            self._beside_at = now + self._silence_s
            # Before the circuit closes below, which changes who waits for what.
            contended = self._is_contended
            self._record_working(permit, now)
            if not permit.is_probe:
                self._limit.record_answer(permit.number, self._next, now - permit.began, now, contended=contended)
        elif isinstance(result, RateLimitedError):
            if permit.is_probe and self._circuit.is_open:
                self._close_circuit(now)
            self._record_rate_limit(permit, result, now)
        elif isinstance(result, (ModelRejectedError, *_FAILURES)):
            contended = self._is_contended
            if result.retry_after_s is not None and isinstance(result, _FAILURES):
                self._record_rate_limit(permit, result, now)
            self._record_failure(permit, result, now, contended=contended)
        else:
            self._record_working(permit, now)

    @property
    def _is_contended(self) -> bool:
        """Whether a caller waits because of the limit, or of the short hold after a refusal, and nothing else."""
        is_limited = len(self._calls.running) + 1 >= self._limit.limit or self._rate_limits.refused_in_row > 0
        return bool(self._waiters) and is_limited

    def _record_working(self, permit: Permit, now: float) -> None:
        """Record that the endpoint works; a probe that shows it makes the endpoint available again."""
        self.answered_at = self._clock.now()
        if not permit.is_probe or not self._availability.needs_probe:
            # A probe that hung may be answered long after another one has shown the same.
            self._circuit.record_answer(permit.number)
            if not self._availability.needs_probe:
                self._rate_limits.record_answer()
            return
        if self._circuit.is_open:
            self._close_circuit(now)
        self._rate_limits.resume()
        self._limit.restart(self._next)

    def _record_rate_limit(self, permit: Permit, error: ModelError, now: float) -> None:
        """Pause all calls, unless the endpoint refused only this request while it answers others."""
        limits = self._rate_limits
        means_all = limits.is_paused or permit.is_probe
        if not means_all and not limits.record_refusal(len(self._calls.running), now):
            return
        before = limits.resumes_at
        limits.pause(error.retry_after_s, permit.number, self._next, now)
        if not permit.is_probe:
            self._limit.record_refusal(permit.number, self._next)
        if limits.resumes_at > before:
            self.events.calls_delayed(error, limits.resumes_at - now)

    def _record_failure(self, permit: Permit, error: ModelError, now: float, *, contended: bool) -> None:
        circuit = self._circuit
        if circuit.is_open:
            if permit.is_probe:
                circuit.record_failed_probe(error, self._next, now)
                self.events.calls_delayed(error, circuit.probe_at - now)
            return
        if isinstance(error, ModelRejectedError) and error.refusals.times >= _MAX_OWN_REFUSALS:
            return
        if isinstance(error, _FAILURES) and not permit.is_probe:
            self._limit.record_failure(permit.number, self._next, now, contended=contended)
        if self._calls.hangs(permit.began):
            # Later calls were answered: it says nothing about the endpoint.
            return
        older = len(self._calls.running) - (self._next - permit.number - 1)
        if circuit.record_failure(error, permit.number, self._next, older, now, evaluation=permit.evaluation):
            self.events.circuit_opened(error, circuit.probe_at - now)

    def _close_circuit(self, now: float) -> None:
        self.events.circuit_closed(now - self._circuit.opened_at)
        self._circuit.close(self._next)

    def _is_free(self, now: float) -> bool:
        if self._availability.is_closed:
            return False
        if self._availability.needs_probe:
            return now >= self._next_probe_at
        if self.in_flight >= self.limit or now < self._held_until:
            return False
        return self._rate_limits.exhausted_until(self._next, now) is None

    def _begin(self, evaluation: str, now: float) -> Permit:
        is_probe = self._availability.needs_probe
        permit = Permit(self._next, now, is_probe, evaluation)
        if is_probe:
            self._silence_s = self._calls.silence_s if self._probe is None else 2 * self._silence_s
            self._probe = permit
        else:
            self._calls.running[self._next] = now
            self._beside_at = now + self._silence_s
        self._next += 1
        self.in_flight += 1
        return permit

    @property
    def _held_until(self) -> float:
        in_flight = len(self._calls.running)
        return max(self._circuit.held_until(in_flight), self._rate_limits.held_until(in_flight))

    @property
    def _next_probe_at(self) -> float:
        # A probe that hangs must not hide for long that the endpoint is back.
        probe = self._probe
        hung_at = 0.0 if probe is None else probe.began + min(_PROBE_PATIENCE_S, self._silence_s)
        return max(self._availability.probe_at, hung_at)

    def _admit(self, now: float) -> None:
        """Turn away waiters that would wait too long, admit those that may begin, and set the timer for the rest."""
        if self._waiters:
            if self._availability.refusal(self._next, now) is not None:
                waiters, self._waiters = self._waiters, OrderedDict()
                for waiter in waiters:
                    # One error each: whoever catches it writes into it.
                    if not waiter.done() and (refusal := self._availability.refusal(self._next, now)) is not None:
                        waiter.set_exception(refusal)
            while self._waiters and self._is_free(now):
                waiter, evaluation = self._waiters.popitem(last=False)
                if not waiter.done():
                    waiter.set_result(self._begin(evaluation, now))
        if self._waiters or self._timer is not None:
            self._set_timer(now)

    def _set_timer(self, now: float) -> None:
        at = math.inf
        if self._waiters:
            if self._availability.needs_probe:
                at = self._next_probe_at
            elif (refilled_at := self._rate_limits.exhausted_until(self._next, now)) is not None:
                at = refilled_at
            elif now < self._held_until:
                at = self._held_until
            else:
                self._limit.record_demand(now)
                beside_at = self._beside_at if self.in_flight < self._most else math.inf
                at = min(self._limit.next_tick_at or math.inf, beside_at)
        if self._timer is not None:
            if self._timer_at <= at < math.inf:
                return
            self._timer.cancel()
            self._timer = None
        if at < math.inf:
            self._timer_at = at
            self._timer = asyncio.get_running_loop().call_later(max(0.0, at - now), self._wake)

    def _wake(self) -> None:
        self._timer = None
        now = self._clock.steady()
        if self._waiters and not self._availability.needs_probe:
            self._limit.tick(self._next, now)
            if now >= self._beside_at:
                self._calls.give_up_oldest()
                self._silence_s *= 2
                self._beside_at = now + self._silence_s
        self._admit(now)
