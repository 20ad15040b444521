"""Exponential backoff with jitter: pauses that grow while something fails, and that differ between processes."""

import random
from collections.abc import Callable

Draw = Callable[[float, float], float]  # Draws a number between two bounds.


def backoff_s(
    failures: int, first_s: float, longest_s: float, least_share: float = 1.0, draw: Draw | None = None
) -> float:
    """Return the pause before the next attempt: it doubles with each failure up to a bound.

    ``failures`` in a row before the last one. The pause is drawn between ``least_share`` of its bound and the bound:
    0 is full jitter, 1 none.
    """
    # The power stays small after a week of failures.
    bound_s = min(longest_s, first_s * 2.0 ** min(failures, 30))
    return bound_s if least_share == 1 else (draw or random.uniform)(least_share * bound_s, bound_s)
