"""What an endpoint says about its own limits: pauses it asks for, and quotas that are nearly used up."""

import random
from collections.abc import Callable
from typing import Final

from judges.models.quota import Quota, Window

__all__ = ["Pacing"]

_FIRST_PAUSE_S: Final = 1.0
_MAX_PAUSE_S: Final = 20.0
_MAX_ASKED_S: Final = 3600.0
_WEIGHT: Final = 0.05


class _Kept:
    """So much may be used by calls from a number on, until a time."""

    __slots__ = ("left", "number", "until")

    def __init__(self, left: float, number: int, until: float) -> None:
        self.left = left
        self.number = number
        self.until = until


class Pacing:
    """Pauses and quotas of one endpoint. Pure: times and call numbers are passed in."""

    def __init__(self, draw: Callable[[float, float], float] = random.uniform) -> None:
        """Begin without any.

        Args:
            draw: A number between two bounds.
        """
        self._draw = draw
        self._pauses = 0
        self._paused_at = 0
        self._requests: _Kept | None = None
        self._tokens: _Kept | None = None
        self._tokens_a_call = 0.0
        self.is_paused = False
        """A pause holds until a probe was answered after it."""
        self.resumes_at = 0.0
        """From when on a probe may begin, while paused."""

    def pause(self, retry_after_s: float | None, number: int, next_number: int, now: float) -> None:
        """Begin a pause or lengthen it; without a word of how long, each one after the other is longer.

        Of many calls that are turned away together only the first begins a pause, the others may lengthen it.
        """
        is_new = number >= self._paused_at
        if is_new:
            self._pauses += 1
            self._paused_at = next_number
        if is_new or retry_after_s is not None:
            self.is_paused = True
            self.resumes_at = max(self.resumes_at, now + self._length_s(retry_after_s))

    def resume(self) -> None:
        """End the pause, because a probe was answered."""
        self.is_paused = False
        self._pauses = 0

    def learn(self, quota: Quota, number: int, now: float, unix_now: float) -> None:
        """Take what the reply to a call says; what later calls said already stands."""
        if quota.requests is not None:
            self._requests = _newer(self._requests, quota.requests, number, now, unix_now)
        if quota.tokens is not None:
            self._tokens = _newer(self._tokens, quota.tokens, number, now, unix_now)

    def used(self, tokens: int) -> None:
        """Note what a call took."""
        self._tokens_a_call += (_WEIGHT if self._tokens_a_call else 1.0) * (tokens - self._tokens_a_call)

    def waits_until(self, next_number: int, now: float) -> float | None:
        """Say until when no call may begin because a quota is used up; None where one may."""
        # Read by other threads too: nothing is changed here, and each field is read once.
        requests, tokens = self._requests, self._tokens
        found = None
        if requests is not None and now < requests.until and _begun(requests, next_number) >= requests.left:
            found = requests.until
        if tokens is not None and now < tokens.until:
            used = (_begun(tokens, next_number) + 1) * self._tokens_a_call
            if used > tokens.left:
                found = max(found or 0.0, tokens.until)
        return found

    def _length_s(self, asked_s: float | None) -> float:
        if asked_s is not None and self._pauses <= 1:
            return min(_MAX_ASKED_S, asked_s)
        # An endpoint that keeps asking for moments is given longer ones.
        doublings = self._pauses - (1 if asked_s is None else 2)
        longest_s = min(_MAX_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(doublings, 10))
        return max(min(_MAX_ASKED_S, asked_s or 0.0), self._draw(longest_s / 2, longest_s))


def _newer(kept: _Kept | None, window: Window, number: int, now: float, unix_now: float) -> _Kept:
    if kept is not None and kept.number > number and now < kept.until:
        return kept
    reset_s = window.reset_s if window.reset_s is not None else (window.reset_at or 0.0) - unix_now
    return _Kept(window.left, number, now + min(_MAX_ASKED_S, max(0.0, reset_s)))


def _begun(kept: _Kept, next_number: int) -> int:
    """Count the calls that began after the one whose reply is kept."""
    return next_number - kept.number - 1
