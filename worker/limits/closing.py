"""Whether an endpoint is left alone, until when, and who had better not wait for it."""

from typing import Final

from judges.models.model import ModelError, ModelRejectedError, ModelUnavailableError, RateLimitedError
from worker.limits.circuit import Circuit
from worker.limits.pacing import Pacing

__all__ = ["Closing"]

_MAX_OUTAGE_PATIENCE_S: Final = 60.0
"""An outage has no known end: nobody waits longer for it, however patient."""


class Closing:
    """What circuit and pacing say together. Pure: times and call numbers are passed in."""

    def __init__(self, circuit: Circuit, pacing: Pacing, patience_s: float) -> None:
        """Take what is asked, and how long anybody waits for an endpoint that is left alone."""
        self.circuit = circuit
        self.pacing = pacing
        self._patience_s = patience_s
        self.is_shut = False
        """Whether everybody is turned away for good, since the worker stops."""

    @property
    def needs_probe(self) -> bool:
        """Tell whether one call has to go first, and be answered."""
        return self.circuit.cause is not None or self.pacing.is_paused

    @property
    def probe_at(self) -> float:
        """From when on that call may begin."""
        circuit_at = self.circuit.opens_at if self.circuit.is_open else 0.0
        return max(circuit_at, self.pacing.resumes_at if self.pacing.is_paused else 0.0)

    def until(self, next_number: int, now: float) -> float | None:
        """Say until when no call may begin, a probe aside; None where one may. Any thread may ask."""
        return self.probe_at if self.needs_probe else self.pacing.waits_until(next_number, now)

    def refusal(self, next_number: int, now: float) -> ModelError | None:
        """Say why nobody should wait now; None where that is worth it."""
        if self.is_shut:
            return _refusal_for(ModelUnavailableError("this worker stops"), 0.0)
        until = self.until(next_number, now)
        if until is None or until <= now:
            return None
        rest_s, cause = until - now, self.circuit.cause
        if isinstance(cause, ModelRejectedError):
            # The operator must act, and that is no matter of seconds.
            return _refusal_for(cause, rest_s)
        if cause is not None and until - self.circuit.opened_at > min(self._patience_s, _MAX_OUTAGE_PATIENCE_S):
            return _refusal_for(cause, rest_s)
        if rest_s > self._patience_s:
            return _refusal_for(cause or RateLimitedError("the endpoint asks for fewer requests"), rest_s)
        return None


def _refusal_for(cause: ModelError, seconds: float) -> ModelError:
    refusal = type(cause)(str(cause), seconds)
    refusal.was_asked = False
    return refusal
