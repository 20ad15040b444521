"""How long to wait before trying Redis again."""

from collections.abc import Callable
from random import Random

_BASE_S = 0.05
_CAP_S = 5.0
_MAX_DOUBLINGS = 10  # passes the cap; keeps the power small after a week without Redis


class Backoff:
    """Exponential backoff with full jitter, so that a fleet of producers does not return in step."""

    def __init__(self, draw: Callable[[float, float], float] | None = None) -> None:
        self._draw = draw or Random().uniform  # noqa: S311 - spreads load, keeps no secret
        self._failures = 0

    def next_delay_s(self) -> float:
        """Draw the next delay, between 0 and a bound that doubles each time up to 5 s."""
        bound_s = min(_CAP_S, _BASE_S * 2**self._failures)
        self._failures = min(self._failures + 1, _MAX_DOUBLINGS)
        return self._draw(0.0, bound_s)

    def reset(self) -> None:
        """Begin with short delays again."""
        self._failures = 0
