"""When calls to an endpoint are held back: after failures (circuit breaker), and by the limits that it announces."""

from http import HTTPStatus
from typing import Final, NamedTuple

from judges.core.backoff import Draw, backoff_s
from judges.core.model import ModelError, ModelRejectedError, ModelUnavailableError, Quota, RateLimitedError, Window

_MAX_FAILURES: Final = 10
_MAX_REFUSED: Final = 5  # Different evaluations: one request that is always refused says nothing about the others.
_REFUSED_KEY: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.PROXY_AUTHENTICATION_REQUIRED})
_HOLD_S: Final = 1.0  # The next call waits at most so long for the end of one in flight.
_FIRST_INTERVAL_S: Final = 1.0
_MAX_INTERVAL_S: Final = 15.0
_MIN_INTERVAL_SHARE: Final = 0.75  # Jitter, so that many workers do not probe together.
_MAX_OUTAGE_PATIENCE_S: Final = 60.0  # An outage has no known end: even the most patient caller waits no longer for it.
_FIRST_PAUSE_S: Final = 1.0
_MAX_PAUSE_S: Final = 20.0
_MAX_ASKED_S: Final = 3600.0
_TOKENS_WEIGHT: Final = 0.05
_MIN_ROW: Final = 5
_SHARE_WEIGHT: Final = 0.02
_MAX_SHARE: Final = 0.5


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
        self._held_until = 0.0  # For how long the next call waits for one in flight, while a key is refused.
        self._has_answered = False
        self._failed_probes = 0
        self._valid_from = 0
        self.cause: ModelError | None = None  # The failure that keeps it open; None while it is closed.
        self.opened_at = 0.0
        self.probe_at = 0.0  # When the next probe may begin, while it is open.

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
            self._held_until = 0.0

    def record_failure(
        self, error: ModelError, number: int, next_number: int, older: int, now: float, *, evaluation: str = ""
    ) -> bool:
        """Record a failure while closed; return whether it opened the circuit.

        The circuit opens when a key (401, 407) is refused before anything was answered, after rejections of five
        different evaluations with no answer to a call that began in between, and after ten failures in a row.
        ``number`` is the failed call's, ``next_number`` the next one's; ``older`` calls in flight began before it.
        Without an evaluation the call counts as one.
        """
        if number < self._valid_from:
            return False
        # Failures are often quicker than answers: the older calls may still be answered, so wait for as many failures.
        if isinstance(error, ModelRejectedError):
            if not self._refused:
                self._refused_from = number
            self._refused.add(evaluation or str(number))
            # Some gateways refuse a key now and then: among answers this says nothing about the key.
            is_key = error.status in _REFUSED_KEY
            if is_key and len(self._refused) >= _MAX_REFUSED:
                self._held_until = now + _HOLD_S
            is_first = is_key and not self._has_answered
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

    def held_until(self, in_flight: int) -> float:
        """Return until when the next call waits for one in flight: their ends show whether the key is valid."""
        return self._held_until if in_flight else 0.0

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


class _Quota(NamedTuple):
    """``left`` units remain until ``until`` for the calls that began after call ``number``."""

    left: float
    number: int
    until: float


class RateLimitState:
    """Pauses and quotas of one endpoint. Pure: times and call numbers are passed in."""

    def __init__(self, draw: Draw | None = None) -> None:
        """Start without pause or quota; ``draw`` returns a number between two bounds."""
        self._draw = draw
        self._pauses = 0
        self._paused_at = 0
        self._requests: _Quota | None = None
        self._tokens: _Quota | None = None
        self._tokens_per_call = 0.0
        self.is_paused = False  # Set until a probe that began after the pause is answered.
        self.resumes_at = 0.0  # When a probe may begin, while paused.
        self._has_answered = False
        self.refused_in_row = 0  # Calls that were rate limited with no answer in between.
        self._enough = 0
        self._refused_share = 0.0
        self._held_until = 0.0

    def record_answer(self) -> None:
        """Record an answer: earlier refusals were meant for single requests."""
        self._has_answered = True
        self.refused_in_row = 0
        self._refused_share -= _SHARE_WEIGHT * self._refused_share

    def record_refusal(self, in_flight: int, now: float) -> bool:
        """Record a rate-limited call; return whether the endpoint means all callers, or only this request."""
        # It means all when it answers nobody, when half of the ``in_flight`` other calls and at least five were refused
        # with no answer in between, or when it refused more calls than it answered of late.
        if self.refused_in_row == 0:
            self._enough = max(_MIN_ROW, (in_flight + 1) // 2)
        self.refused_in_row += 1
        self._refused_share += _SHARE_WEIGHT * (1 - self._refused_share)
        self._held_until = now + _HOLD_S
        means_all = self.refused_in_row >= self._enough or self._refused_share > _MAX_SHARE
        return means_all or not self._has_answered

    def held_until(self, in_flight: int) -> float:
        """Return until when the next call waits for one in flight, whose end shows whom a refusal was meant for."""
        return self._held_until if self.refused_in_row and in_flight else 0.0

    def pause(self, retry_after_s: float | None, number: int, next_number: int, now: float) -> None:
        """Begin a pause, which grows without ``retry_after_s``; further refusals of the same moment may extend it."""
        self._has_answered, self.refused_in_row, self._refused_share = False, 0, 0.0
        is_new = number >= self._paused_at
        if is_new:
            self._pauses += 1
            self._paused_at = next_number
        if is_new or retry_after_s is not None:
            self.is_paused = True
            length_s = min(_MAX_ASKED_S, retry_after_s or 0.0)
            if retry_after_s is None or self._pauses > 1:
                # An endpoint that keeps asking for short pauses gets longer ones.
                doublings = self._pauses - (1 if retry_after_s is None else 2)
                length_s = max(length_s, backoff_s(doublings, _FIRST_PAUSE_S, _MAX_PAUSE_S, 0.5, self._draw))
            self.resumes_at = max(self.resumes_at, now + length_s)

    def resume(self) -> None:
        """End the pause after an answered probe."""
        self.is_paused = False
        self._pauses = 0
        self.record_answer()

    def record_quota(self, quota: Quota, number: int, now: float, unix_now: float) -> None:
        """Store the quota that the reply to call ``number`` states, unless a later call's reply is stored."""
        if quota.requests is not None:
            self._requests = _newer(self._requests, quota.requests, number, now, unix_now)
        if quota.tokens is not None:
            self._tokens = _newer(self._tokens, quota.tokens, number, now, unix_now)

    def record_usage(self, tokens: int) -> None:
        """Update the mean tokens per call."""
        self._tokens_per_call += (_TOKENS_WEIGHT if self._tokens_per_call else 1.0) * (tokens - self._tokens_per_call)

    def exhausted_until(self, next_number: int, now: float) -> float | None:
        """Return when a used-up quota is refilled; None while a call may begin."""
        # Read by other threads too: nothing is changed here, and each field is read once.
        requests, tokens = self._requests, self._tokens
        until = None
        if requests is not None and now < requests.until and _begun_since(requests, next_number) >= requests.left:
            until = requests.until
        if tokens is not None and now < tokens.until:
            used = (_begun_since(tokens, next_number) + 1) * self._tokens_per_call
            if used > tokens.left:
                until = max(until or 0.0, tokens.until)
        return until


def _newer(stored: _Quota | None, window: Window, number: int, now: float, unix_now: float) -> _Quota:
    if stored is not None and stored.number > number and now < stored.until:
        return stored
    reset_s = window.reset_s if window.reset_s is not None else (window.reset_at or 0.0) - unix_now
    # Bounded: a header with an absurd date must not stop the endpoint for ever.
    return _Quota(window.left, number, now + min(_MAX_ASKED_S, max(0.0, reset_s)))


def _begun_since(quota: _Quota, next_number: int) -> int:
    # The reply counts its own call already.
    return next_number - quota.number - 1


class Availability:
    """The joint verdict of circuit and rate limits on the next call. Pure: times and call numbers are passed in."""

    def __init__(self, circuit: Circuit, rate_limits: RateLimitState, patience_s: float) -> None:
        """Combine both; a caller waits for at most ``patience_s`` and is turned away at once if it takes longer."""
        self._circuit = circuit
        self._rate_limits = rate_limits
        self._patience_s = patience_s
        self.is_closed = False  # Whether every caller is turned away because the worker stops.

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
