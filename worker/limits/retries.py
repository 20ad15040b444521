"""Which failures are tried again, when, and how often altogether."""

import random
from collections.abc import Callable
from typing import Final

from judges.models.model import ModelError, ModelTimeoutError, ModelUnavailableError, RateLimitedError

__all__ = ["Retries", "RetryBudget", "backoff_s", "may_pass"]

_PASSING: Final = (RateLimitedError, ModelTimeoutError, ModelUnavailableError)
_ATTEMPTS: Final = 4
_FIRST_BACKOFF_S: Final = 0.5
_MAX_BACKOFF_S: Final = 8.0
_EARNED: Final = 0.25
_RESERVE: Final = 20.0
_CAP: Final = 100.0

Draw = Callable[[float, float], float]


def may_pass(error: ModelError) -> bool:
    """Tell whether the same request may be answered a little later."""
    return isinstance(error, _PASSING)


def backoff_s(failed: int, draw: Draw = random.uniform) -> float:
    """Choose how long to wait after so many failed attempts: anything up to a bound that doubles.

    Args:
        failed: 1 or more.
        draw: A number between two bounds.
    """
    return draw(0.0, min(_MAX_BACKOFF_S, _FIRST_BACKOFF_S * 2 ** min(failed - 1, 10)))


class RetryBudget:
    """A token bucket: retries stay a share of the calls, so that they do not multiply the load of an outage."""

    def __init__(self, earned: float = _EARNED, reserve: float = _RESERVE, cap: float = _CAP) -> None:
        """Begin with the reserve.

        Args:
            earned: By each first attempt.
            reserve: What is there at first.
            cap: What may be there at most.
        """
        self._earned = earned
        self._cap = cap
        self._held = min(reserve, cap)

    def earn(self) -> None:
        """Note a first attempt."""
        self._held = min(self._cap, self._held + self._earned)

    def spend(self) -> bool:
        """Pay for a retry; False where there is not enough."""
        if self._held < 1:
            return False
        self._held -= 1
        return True


class Retries:
    """What is tried again at one endpoint."""

    def __init__(
        self, attempts: int = _ATTEMPTS, budget: RetryBudget | None = None, draw: Draw = random.uniform
    ) -> None:
        """Begin.

        Args:
            attempts: How often one request is sent at most.
            budget: Shared by all calls of the endpoint; one of its own unless given.
            draw: A number between two bounds.
        """
        self._attempts = attempts
        self._budget = budget or RetryBudget()
        self._draw = draw

    def first(self) -> None:
        """Note that a request is sent for the first time."""
        self._budget.earn()

    def pause_s(self, error: ModelError, failed: int) -> float | None:
        """Say how long to wait before the next attempt, or None where there shall be none.

        Args:
            error: Why the last attempt failed.
            failed: How many attempts failed, this one included.
        """
        if failed >= self._attempts or not may_pass(error):
            return None
        if isinstance(error, RateLimitedError):
            # The endpoint's own pause is waited for at the gate.
            return 0.0
        return backoff_s(failed, self._draw) if self._budget.spend() else None
