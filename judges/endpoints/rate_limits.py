"""The limits that an endpoint announces: pauses it asks for (429, Retry-After) and quotas that are nearly used up."""

from typing import Final

from judges.core.backoff import Draw, backoff_s
from judges.core.model import Quota, Window

_FIRST_PAUSE_S: Final = 1.0
_MAX_PAUSE_S: Final = 20.0
_MAX_ASKED_S: Final = 3600.0
_TOKENS_WEIGHT: Final = 0.05
_MIN_ROW: Final = 5
_SHARE_WEIGHT: Final = 0.02
_MAX_SHARE: Final = 0.5
_HOLD_S: Final = 1.0


class _Quota:
    """``left`` units remain until ``until`` for the calls that began after call ``number``."""

    __slots__ = ("left", "number", "until")

    def __init__(self, left: float, number: int, until: float) -> None:
        self.left = left
        self.number = number
        self.until = until


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
        self.is_paused = False
        """Set until a probe that began after the pause is answered."""
        self.resumes_at = 0.0
        """When a probe may begin, while paused."""
        self._has_answered = False
        self.refused_in_row = 0
        """Calls that were rate limited with no answer in between."""
        self._enough = 0
        self._refused_share = 0.0
        self.held_until = 0.0

    def record_answer(self) -> None:
        """Record an answer: earlier refusals were meant for single requests."""
        self._has_answered = True
        self.refused_in_row = 0
        self._refused_share -= _SHARE_WEIGHT * self._refused_share

    def record_refusal(self, in_flight: int, now: float) -> bool:
        """Record a rate-limited call; return whether the endpoint means all callers, or only this request.

        It means all when it answers nobody, when half of the ``in_flight`` other calls and at least five were refused
        with no answer in between, or when it refused more calls than it answered of late.
        """
        if self.refused_in_row == 0:
            self._enough = max(_MIN_ROW, (in_flight + 1) // 2)
        self.refused_in_row += 1
        self._refused_share += _SHARE_WEIGHT * (1 - self._refused_share)
        self.held_until = now + _HOLD_S
        means_all = self.refused_in_row >= self._enough or self._refused_share > _MAX_SHARE
        return means_all or not self._has_answered

    def holds(self, in_flight: int, now: float) -> bool:
        """Return whether the next call waits for one in flight, whose end shows whom a refusal was meant for."""
        return self.refused_in_row > 0 and in_flight > 0 and now < self.held_until

    def pause(self, retry_after_s: float | None, number: int, next_number: int, now: float) -> None:
        """Begin or extend a pause; without ``retry_after_s`` consecutive pauses grow.

        Of many calls that are refused together only the first begins a pause; the others may extend it.
        """
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
