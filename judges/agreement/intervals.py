"""95 % intervals of shares."""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

Z: Final = 1.96  # Quantile of the normal distribution for a two-sided interval of 95 %.


class Interval(NamedTuple):
    """A figure with the limits of its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"

    @property
    def percent(self) -> str:
        """The figure and its limits in percent."""
        return f"{self.value:.1%} ({self.low:.1%} to {self.high:.1%})"


def wilson(share: float, total: float, z: float = Z) -> Interval:
    """Return the interval of a share of `total` observations (Wilson, J. Am. Stat. Assoc. 22, 1927)."""
    z2 = z * z / total
    middle = (share + z2 / 2) / (1 + z2)
    half = z * math.sqrt(share * (1 - share) / total + z2 / total / 4) / (1 + z2)
    return Interval(share, max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half)))


def combine(share: float, parts: Sequence[tuple[float, Interval, float]], spread: float) -> Interval:
    """Return the limits, within 0..1, of a share that is made of the shares of classes.

    Args:
        share: The share of all classes together.
        parts: Of each class its weight, the share with its limits, and the variance of the weight.
        spread: Factor of these variances.
    """
    # The method of variance estimates recovery (Zou and Donner, Statistics in Medicine 27, 2008).
    total = sum(weight for weight, _, _ in parts)
    sizes = spread * sum((each.value - share) ** 2 * variance for _, each, variance in parts)
    below = sum((weight * (each.value - each.low)) ** 2 for weight, each, _ in parts) + sizes
    above = sum((weight * (each.high - each.value)) ** 2 for weight, each, _ in parts) + sizes
    return Interval(share, max(0.0, share - math.sqrt(below) / total), min(1.0, share + math.sqrt(above) / total))


def difference(now: Interval, before: Interval) -> Interval:
    """Return the difference of two independent shares with its interval, made of both of theirs."""
    # As in ``combine``; with Wilson's intervals it is method 10 of Newcombe (Statistics in Medicine 17, 1998).
    middle = now.value - before.value
    below = math.hypot(now.value - now.low, before.high - before.value)
    above = math.hypot(now.high - now.value, before.value - before.low)
    return Interval(middle, max(-1.0, middle - below), min(1.0, middle + above))
