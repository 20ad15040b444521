"""The formulas of the rules once more, in Python: the rules are compared with it, and it with chance."""

import math
from collections.abc import Sequence
from typing import NamedTuple

Z = 1.959964
Z_OF_FALLS = 2.575829


class Share(NamedTuple):
    """What the rules record of one window."""

    share: float
    stderr: float
    effective: float
    lower: float
    upper: float


def share(passes: Sequence[float], fails: Sequence[float], z: float = Z) -> Share:
    """Tell the weighted share of passes, from the weight of each judgement."""
    whole = sum(passes) + sum(fails)
    p = sum(passes) / whole
    squared, squared_fails = sum(weight**2 for weight in passes), sum(weight**2 for weight in fails)
    variance = ((1 - p) ** 2 * squared + p**2 * squared_fails) / whole**2
    if passes and fails:
        n = min(p * (1 - p) / variance, len(passes) + len(fails))
    else:
        n = whole**2 / (squared + squared_fails)
    middle, half = p + z**2 / (2 * n), z * math.sqrt(p * (1 - p) / n + z**2 / (4 * n * n))
    stretch = 1 + z**2 / n
    return Share(p, math.sqrt(variance), n, max(0.0, (middle - half) / stretch), min(1.0, (middle + half) / stretch))


def least_fall(before: Share, now: Share) -> float:
    """Tell how much a share fell at least (Newcombe 1998, method 10)."""
    return before.share - now.share - math.hypot(before.share - before.lower, now.upper - now.share)
