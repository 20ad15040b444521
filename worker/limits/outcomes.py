"""What the ends of calls teach of an endpoint: how many it bears, whether it works, what it asks us itself."""

from typing import Final, NamedTuple

from judges.models.model import (
    ChatResponse,
    ModelError,
    ModelRejectedError,
    ModelTimeoutError,
    ModelUnavailableError,
    RateLimitedError,
)
from worker.limits.closing import Closing
from worker.limits.concurrency import AdaptiveLimit
from worker.limits.timing import Timing
from worker.limits.witness import Witness

__all__ = ["Outcomes", "Pass", "Standing"]

_FAILURES: Final = (ModelTimeoutError, ModelUnavailableError)


class Pass(NamedTuple):
    """The right to one call, to be given back when it has ended."""

    number: int
    began: float
    is_probe: bool


class Standing(NamedTuple):
    """How things stand when a call ends: the number of the next one, how many are under way, whether more are wanted.

    ``wanted`` where somebody waits because of the limit, and of nothing else.
    """

    next: int
    in_flight: int
    wanted: bool


class Outcomes:
    """Tells limit, circuit and pacing of one endpoint what came of its calls, and the witness what that changed."""

    def __init__(self, limit: AdaptiveLimit, closing: Closing, witness: Witness, timing: Timing) -> None:
        """Take who is told: besides the limit and the witness the circuit and the pacing behind ``closing``."""
        self._limit = limit
        self._closing = closing
        self._circuit = closing.circuit
        self._pacing = closing.pacing
        self._witness = witness
        self._timing = timing

    def learn(self, taken: Pass, result: ChatResponse | ModelError, standing: Standing, now: float) -> None:
        """Draw the conclusions of one call.

        Args:
            taken: The right under which it was made.
            result: What came of it.
            standing: How things stand without it.
            now: The steady time.
        """
        if result.quota is not None:
            self._pacing.learn(result.quota, taken.number, now, self._timing.now())
        if isinstance(result, ChatResponse):
            self._answered(taken, result, standing, now)
        elif isinstance(result, RateLimitedError):
            if taken.is_probe and self._circuit.is_open:
                self._close_circuit(standing, now)
            self._pause(taken, result, standing, now)
        elif isinstance(result, (ModelRejectedError, *_FAILURES)):
            if result.retry_after_s is not None and isinstance(result, _FAILURES):
                self._pause(taken, result, standing, now)
            self._failed(taken, result, standing, now)
        else:
            self._works(taken, standing, now)

    def _answered(self, taken: Pass, response: ChatResponse, standing: Standing, now: float) -> None:
        self._pacing.used(response.input_tokens + response.output_tokens)
        self._works(taken, standing, now)
        if not taken.is_probe:
            self._limit.succeeded(taken.number, standing.next, now - taken.began, now, wanted=standing.wanted)

    def _works(self, taken: Pass, standing: Standing, now: float) -> None:
        """Note that the endpoint does what it is for; a probe that shows it ends the leaving alone."""
        if not taken.is_probe or not self._closing.needs_probe:
            # A probe that hung may be answered long after another one has shown the same.
            self._circuit.answered()
            return
        if self._circuit.is_open:
            self._close_circuit(standing, now)
        self._pacing.resume()
        self._limit.restart(standing.next)

    def _pause(self, taken: Pass, error: ModelError, standing: Standing, now: float) -> None:
        """Do as the endpoint asks us."""
        before = self._pacing.resumes_at
        self._pacing.pause(error.retry_after_s, taken.number, standing.next, now)
        if not taken.is_probe:
            self._limit.refused(taken.number, standing.next)
        if self._pacing.resumes_at > before:
            self._witness.waits(error, self._pacing.resumes_at - now)

    def _failed(self, taken: Pass, error: ModelError, standing: Standing, now: float) -> None:
        if self._circuit.is_open:
            if taken.is_probe:
                self._circuit.probe_failed(error, standing.next, now)
                self._witness.waits(error, self._circuit.opens_at - now)
            return
        if isinstance(error, _FAILURES) and not taken.is_probe:
            self._limit.failed(taken.number, standing.next, now, wanted=standing.wanted)
        older = standing.in_flight - (standing.next - taken.number - 1)
        if self._circuit.failed(error, taken.number, standing.next, older, now):
            self._witness.opened(error, self._circuit.opens_at - now)

    def _close_circuit(self, standing: Standing, now: float) -> None:
        self._witness.closed(now - self._circuit.opened_at)
        self._circuit.close(standing.next)
