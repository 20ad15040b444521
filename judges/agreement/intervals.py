"""95 % intervals of shares."""

import math
from typing import Final, NamedTuple

Z: Final = 1.96
"""Quantile of the normal distribution for a two-sided interval of 95 %."""


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
