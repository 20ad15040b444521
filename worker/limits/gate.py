"""The way to one endpoint: who may call now, in the order of asking, and who had better come later."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from judges.models.model import ChatResponse, ModelError
from worker.limits.circuit import Circuit
from worker.limits.closing import Closing
from worker.limits.concurrency import AdaptiveLimit
from worker.limits.outcomes import Outcomes, Pass, Standing
from worker.limits.pacing import Pacing
from worker.limits.timing import Alarm, Timing
from worker.limits.witness import CircuitLog, Witness

__all__ = ["Gate"]

_PROBE_PATIENCE_S: Final = 15.0


class Gate:
    """The way to one endpoint, under its limit, its circuit and what it says itself.

    Lives in one event loop. ``limit``, ``closed_for_s`` and ``circuit_open`` may be read from any thread.
    """

    def __init__(
        self,
        judge_model: str,
        max_in_flight: int,
        *,
        patience_s: float = 5.0,
        timing: Timing = Timing(),  # noqa: B008 - frozen
        witness: Witness | None = None,
    ) -> None:
        """Open the way.

        Args:
            judge_model: The name for log lines.
            max_in_flight: The bound of the limit.
            patience_s: How long callers wait for an endpoint that is left alone. Where it is longer they are turned
                away at once.
            timing: Where times come from; timers are those of the event loop.
            witness: Who is told of what happens; the log unless given.
        """
        self.witness = witness or CircuitLog(judge_model)
        self._timing = timing
        self._limit = AdaptiveLimit(max_in_flight)
        self._circuit = Circuit(timing.draw)
        self._pacing = Pacing(timing.draw)
        self._closing = Closing(self._circuit, self._pacing, patience_s)
        self._outcomes = Outcomes(self._limit, self._closing, self.witness, timing)
        self._next = 0
        self._in_flight = 0
        self._has_heard = False
        self._probe: Pass | None = None
        self._waiters: OrderedDict[asyncio.Future[Pass], None] = OrderedDict()
        self._alarm = Alarm(self._wake)
        self._shown = self._limit.limit, False
        self._watchers: list[Callable[[int, bool], object]] = []

    @property
    def limit(self) -> int:
        """How many calls may be under way: one, the probe, while the endpoint is left alone."""
        return 1 if self._closing.needs_probe else self._limit.limit

    @property
    def circuit_open(self) -> bool:
        """Tell whether the endpoint is left alone because it fails or rejects us."""
        return self._circuit.is_open

    @property
    def open_for_s(self) -> float | None:
        """Say for how long the circuit has been open, 0 while it is closed; None while no call has ended."""
        if not self._has_heard:
            return None
        return max(0.0, self._timing.steady() - self._circuit.opened_at) if self._circuit.is_open else 0.0

    @property
    def closed_for_s(self) -> float:
        """Say in how many seconds a call may begin, or a probe: 0 while one may."""
        now = self._timing.steady()
        until = self._closing.until(self._next, now)
        return 0.0 if until is None else max(0.0, until - now)

    @property
    def waiting(self) -> int:
        """How many callers wait."""
        return len(self._waiters)

    @property
    def is_shut(self) -> bool:
        """Tell whether no call begins any more."""
        return self._closing.is_shut

    def shut(self) -> None:
        """Let no call begin any more, since the worker stops; calls under way go on."""
        self._closing.is_shut = True
        self._go_on(self._timing.steady())

    def watch(self, watcher: Callable[[int, bool], object]) -> None:
        """Tell somebody the limit and whether the circuit is open, now and whenever that changes."""
        self._watchers.append(watcher)
        watcher(*self._shown)

    async def enter(self) -> Pass:
        """Wait for the right to one call.

        Raises:
            ModelError: The endpoint is left alone for longer than the patience; nothing was asked.
        """
        now = self._timing.steady()
        if not self._waiters and self._is_free(now):
            return self._begin(now)
        refusal = self._closing.refusal(self._next, now)
        if refusal is not None:
            raise refusal
        waiter: asyncio.Future[Pass] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        self._look_ahead(now)
        try:
            return await waiter
        except asyncio.CancelledError:
            self._withdraw(waiter)
            raise

    def _withdraw(self, waiter: "asyncio.Future[Pass]") -> None:
        """Forget a waiter that was cancelled; what it was given in the same moment goes to the next."""
        self._waiters.pop(waiter, None)
        if not waiter.cancelled() and waiter.exception() is None:
            self.leave(waiter.result(), None)
        elif not self._waiters:
            # No timer may be left behind in an event loop that ends.
            self._look_ahead(self._timing.steady())

    def leave(self, taken: Pass, result: ChatResponse | ModelError | None) -> None:
        """Give the right back, with what came of the call; None where that is not known, as after a cancellation."""
        now = self._timing.steady()
        self._in_flight -= 1
        if taken == self._probe:
            self._probe = None
        if result is not None:
            self._has_heard = True
            self._outcomes.learn(taken, result, Standing(self._next, self._in_flight, self._is_wanted()), now)
        self._go_on(now)

    def _is_wanted(self) -> bool:
        """Tell whether somebody waits because of the limit, and nothing else."""
        return bool(self._waiters) and self._in_flight + 1 >= self._limit.limit

    def _is_free(self, now: float) -> bool:
        if self._closing.is_shut:
            return False
        if self._closing.needs_probe:
            return now >= self._next_probe_at()
        return self._in_flight < self._limit.limit and self._pacing.waits_until(self._next, now) is None

    def _begin(self, now: float) -> Pass:
        is_probe = self._closing.needs_probe
        taken = Pass(self._next, now, is_probe)
        if is_probe:
            self._probe = taken
        self._next += 1
        self._in_flight += 1
        return taken

    def _next_probe_at(self) -> float:
        """Say when one more call may go first; one that hangs must not hide for long that the endpoint is back."""
        hung_at = 0.0 if self._probe is None else self._probe.began + _PROBE_PATIENCE_S
        return max(self._closing.probe_at, hung_at)

    def _go_on(self, now: float) -> None:
        """Let in who may enter, turn away who would wait too long, and look ahead."""
        if self._waiters:
            self._turn_away(now)
            while self._waiters and self._is_free(now):
                waiter, _ = self._waiters.popitem(last=False)
                if not waiter.done():
                    waiter.set_result(self._begin(now))
        if self._waiters or self._alarm.is_set:
            self._look_ahead(now)
        shown = self.limit, self._circuit.is_open
        if shown != self._shown:
            self._shown = shown
            for watcher in self._watchers:
                watcher(*shown)

    def _turn_away(self, now: float) -> None:
        if self._closing.refusal(self._next, now) is None:
            return
        waiters, self._waiters = self._waiters, OrderedDict()
        for waiter in waiters:
            if not waiter.done() and (refusal := self._closing.refusal(self._next, now)) is not None:
                waiter.set_exception(refusal)

    def _look_ahead(self, now: float) -> None:
        """Set the timer for the time at which who waits may go on without anybody's leaving."""
        self._alarm.set(self._wakes_at(now) if self._waiters else None, now)

    def _wakes_at(self, now: float) -> float | None:
        if self._closing.needs_probe:
            return self._next_probe_at()
        until = self._pacing.waits_until(self._next, now)
        if until is not None:
            return until
        self._limit.wanted(now)
        return self._limit.looks_at

    def _wake(self) -> None:
        now = self._timing.steady()
        if self._waiters and not self._closing.needs_probe:
            self._limit.tick(self._next, now)
        self._go_on(now)
