"""Which failed requests to one endpoint are sent again, after what pause, and how many in all."""

import random
from collections.abc import Callable
from typing import Final

from judges.core.model import ModelError, ModelTimeoutError, ModelUnavailableError, RateLimitedError

_TRANSIENT: Final = (RateLimitedError, ModelTimeoutError, ModelUnavailableError)
_ATTEMPTS: Final = 4
_FIRST_BACKOFF_S: Final = 0.5
_MAX_BACKOFF_S: Final = 8.0
_EARNED: Final = 0.25
_RESERVE: Final = 20.0
_CAP: Final = 100.0
Draw = Callable[[float, float], float]
"""Draws a number between two bounds."""


def is_transient(error: ModelError) -> bool:
    """Return whether the same request may succeed a little later."""
    return isinstance(error, _TRANSIENT)


def backoff_s(failed: int, draw: Draw = random.uniform) -> float:
    """Draw the pause after ``failed`` (1 or more) attempts: full jitter below a bound that doubles."""
    return draw(0.0, min(_MAX_BACKOFF_S, _FIRST_BACKOFF_S * 2 ** min(failed - 1, 10)))


class RetryBudget:
    """A token bucket that keeps retries a share of all calls, so that they do not multiply the load of an outage."""

    def __init__(self, earned: float = _EARNED, reserve: float = _RESERVE, cap: float = _CAP) -> None:
        """Start with ``reserve`` tokens; each first attempt adds ``earned``, up to ``cap``."""
        self._earned = earned
        self._cap = cap
        self._tokens = min(reserve, cap)

    def earn(self) -> None:
        """Add the share of one first attempt."""
        self._tokens = min(self._cap, self._tokens + self._earned)

    def spend(self) -> bool:
        """Pay for one retry; False when the budget is used up."""
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class Retries:
    """The retry policy of one endpoint; all its calls share the budget."""

    def __init__(
        self, attempts: int = _ATTEMPTS, budget: RetryBudget | None = None, draw: Draw = random.uniform
    ) -> None:
        """Allow ``attempts`` requests for one answer at most."""
        self._attempts = attempts
        self._budget = budget or RetryBudget()
        self._draw = draw

    def record_first_attempt(self) -> None:
        """Count a request that is sent for the first time."""
        self._budget.earn()

    def pause_s(
        self, error: ModelError, failed: int, *, is_blocked: bool = False, refused_alone: bool = False
    ) -> float | None:
        """Return the pause before the next attempt, or None when there must be none.

        Args:
            error: Why the last attempt failed.
            failed: Number of attempts that failed so far.
            is_blocked: Whether the limiter holds back all calls, which is pause enough for this one.
            refused_alone: Whether the endpoint rejects this request while it answers others.
        """
        if failed >= self._attempts or not (is_transient(error) or refused_alone):
            return None
        if isinstance(error, RateLimitedError):
            # No token: the endpoint itself bounds how many of these there are.
            return 0.0 if is_blocked else max(error.retry_after_s or 0.0, backoff_s(failed, self._draw))
        return backoff_s(failed, self._draw) if self._budget.spend() else None
