"""When calls to a failing endpoint are held back (circuit breaker), and how its return is detected."""

import time
from collections.abc import Callable
from typing import Final

import httpx
import structlog

from judges.core.backoff import Draw, backoff_s
from judges.core.model import ModelError, ModelRejectedError, ModelUnavailableError, RateLimitedError
from judges.endpoints.rate_limits import RateLimitState

log = structlog.get_logger("tracejudge.judging")
_MAX_FAILURES: Final = 10
# Different evaluations: one request that is always refused says nothing about the others.
_MAX_REFUSED: Final = 5
_REFUSED_KEY: Final = frozenset({httpx.codes.UNAUTHORIZED, httpx.codes.PROXY_AUTHENTICATION_REQUIRED})
_FIRST_INTERVAL_S: Final = 1.0
_MAX_INTERVAL_S: Final = 15.0
# Jitter, so that many workers do not probe together.
_MIN_INTERVAL_SHARE: Final = 0.75
# An outage has no known end: even the most patient caller waits no longer for it.
_MAX_OUTAGE_PATIENCE_S: Final = 60.0
_ERROR_LOG_INTERVAL_S: Final = 60.0


class Circuit:
    """Closed, or open with one probe at a time. Pure: times and call numbers are passed in.

    While it is open, results of calls that began earlier change nothing: they describe the endpoint as it was.
    """

    def __init__(self, draw: Draw | None = None) -> None:
        """Start closed; ``draw`` returns a number between two bounds."""
        self._draw = draw
        self._failures = 0
        self._refused: set[str] = set()
        self._refused_from = 0  # Number of the first of these calls.
        self._has_answered = False
        self._failed_probes = 0
        self._valid_from = 0
        self.cause: ModelError | None = None
        """The failure that keeps it open; None while it is closed."""
        self.opened_at = 0.0
        self.probe_at = 0.0
        """When the next probe may begin, while it is open."""

    @property
    def is_open(self) -> bool:
        """Whether calls are held back; a probe may be due or in flight."""
        return self.cause is not None

    def record_answer(self, number: int) -> None:
        """Record, while closed, an outcome that shows a working endpoint, of the call with this number."""
        self._failures = 0
        self._has_answered = True
        if number > self._refused_from:
            # Answers to earlier calls may come after the key was taken away.
            self._refused.clear()

    def record_failure(
        self, error: ModelError, number: int, next_number: int, older: int, now: float, *, evaluation: str = ""
    ) -> bool:
        """Record a failure while closed; return whether it opened the circuit.

        The circuit opens when a key (401, 407) is refused before anything was answered, after rejections of five
        different evaluations with no answer to a call that began in between, and after ten failures in a row.

        Args:
            error: A rejection or a transient failure.
            number: Number of the failed call.
            next_number: Number of the next call to begin.
            older: Calls in flight that began before the failed one.
            now: The time.
            evaluation: What was judged; by default the call counts as an evaluation of its own.
        """
        if number < self._valid_from:
            return False
        # Failures are often quicker than answers: the older calls may still be answered, so wait for as many failures.
        if isinstance(error, ModelRejectedError):
            if not self._refused:
                self._refused_from = number
            self._refused.add(evaluation or str(number))
            # Some gateways refuse a key now and then: among answers this says nothing about the key.
            is_first = error.status in _REFUSED_KEY and not self._has_answered
            if len(self._refused) < max(1 if is_first else _MAX_REFUSED, older):
                return False
        else:
            self._failures += 1
            if self._failures < max(_MAX_FAILURES, older):
                return False
        self.opened_at = now
        self._failed_probes = 0
        self._keep_open(error, next_number, now)
        return True

    def record_failed_probe(self, error: ModelError, next_number: int, now: float) -> None:
        """Stay open and double the probe interval."""
        self._failed_probes += 1
        self._keep_open(error, next_number, now)

    def close(self, next_number: int) -> None:
        """Let calls through again."""
        self.cause = None
        self.record_answer(next_number)
        self._has_answered = False
        self._valid_from = next_number

    def _keep_open(self, error: ModelError, next_number: int, now: float) -> None:
        self.cause = error
        self._valid_from = next_number
        limits = _FIRST_INTERVAL_S, _MAX_INTERVAL_S, _MIN_INTERVAL_SHARE
        self.probe_at = now + backoff_s(self._failed_probes, *limits, self._draw)


class Availability:
    """The joint verdict of circuit and rate limits on the next call. Pure: times and call numbers are passed in."""

    def __init__(self, circuit: Circuit, rate_limits: RateLimitState, patience_s: float) -> None:
        """Combine both; a caller waits for at most ``patience_s`` and is turned away at once if it takes longer."""
        self._circuit = circuit
        self._rate_limits = rate_limits
        self._patience_s = patience_s
        self.is_closed = False
        """Whether every caller is turned away because the worker stops."""

    @property
    def needs_probe(self) -> bool:
        """Whether one call has to be answered before others may begin."""
        return self._circuit.cause is not None or self._rate_limits.is_paused

    @property
    def probe_at(self) -> float:
        """When the probe may begin."""
        circuit_at = self._circuit.probe_at if self._circuit.is_open else 0.0
        return max(circuit_at, self._rate_limits.resumes_at if self._rate_limits.is_paused else 0.0)

    def blocked_until(self, next_number: int, now: float) -> float | None:
        """Return when a call, or a probe, may begin; None when one may now. Any thread may ask."""
        return self.probe_at if self.needs_probe else self._rate_limits.exhausted_until(next_number, now)

    def refusal(self, next_number: int, now: float) -> ModelError | None:
        """Return the error for callers that should not wait; None when waiting is worth it."""
        if self.is_closed:
            return _refusal(ModelUnavailableError("this worker stops"), 0.0)
        until = self.blocked_until(next_number, now)
        if until is None or until <= now:
            return None
        wait_s, cause = until - now, self._circuit.cause
        if isinstance(cause, ModelRejectedError):
            # The operator must act, and that takes longer than any caller waits.
            return _refusal(cause, wait_s)
        if cause is not None and until - self._circuit.opened_at > min(self._patience_s, _MAX_OUTAGE_PATIENCE_S):
            return _refusal(cause, wait_s)
        if wait_s > self._patience_s:
            return _refusal(cause or RateLimitedError("the endpoint asks for fewer requests"), wait_s)
        return None


def _refusal(cause: ModelError, wait_s: float) -> ModelError:
    refusal = type(cause)(str(cause), wait_s)
    refusal.was_asked = False
    refusal.status, refusal.message = cause.status, cause.message
    return refusal


class LimiterEvents:
    """Callbacks of a limiter, called in its event loop: they must not block. By default they do nothing."""

    def circuit_opened(self, error: ModelError, seconds: float) -> None:
        """Handle an opened circuit; the first probe is due in ``seconds``."""

    def circuit_closed(self, seconds: float) -> None:
        """Handle a circuit that closed after ``seconds``."""

    def calls_delayed(self, error: ModelError, seconds: float) -> None:
        """Handle an error that delays calls for ``seconds``."""

    def endpoint_error(self, error: ModelError) -> None:
        """Handle an HTTP error of the endpoint."""


class CircuitLog(LimiterEvents):
    """Logs the changes of a circuit, and the endpoint's errors, each reason once a minute."""

    def __init__(self, judge_model: str, steady: Callable[[], float] = time.monotonic) -> None:
        self._judge_model = judge_model
        self._steady = steady
        self._logged_at: dict[str, float] = {}

    def circuit_opened(self, error: ModelError, seconds: float) -> None:
        """Log the cause; the text of a ModelError is ours and quotes nothing."""
        fields = {"reason": error.reason, "note": str(error), "seconds": round(seconds, 1)}
        log.warning("circuit opened", judge_model=self._judge_model, **fields)

    def circuit_closed(self, seconds: float) -> None:
        """Log how long it was open."""
        log.info("circuit closed", judge_model=self._judge_model, seconds=round(seconds, 1))

    def endpoint_error(self, error: ModelError) -> None:
        """Log status and message, once a minute for each reason."""
        now = self._steady()
        if now >= self._logged_at.get(error.reason, now - _ERROR_LOG_INTERVAL_S) + _ERROR_LOG_INTERVAL_S:
            self._logged_at[error.reason] = now
            fields = {"reason": error.reason, "note": str(error), "status": error.status, "said": error.message}
            log.warning("endpoint error", judge_model=self._judge_model, **fields)
