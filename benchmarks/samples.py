"""A count that grows, looked at again and again, and its rate."""

import statistics
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from benchmarks.programs import Program

__all__ = ["Sample", "rate", "reached_at", "slope", "watch"]


class Sample(NamedTuple):
    """What the count was, and when, in seconds of the steady clock."""

    at_s: float
    total: int


def watch(
    read: Callable[[], int],
    *programs: Program,
    begin: Sample,
    target: int | None = None,
    for_s: float = 240.0,
    every_s: float = 0.05,
) -> list[Sample]:
    """Read the count until it reaches a target, or for some time where there is none.

    Raises:
        TimeoutError: The target was not reached within `for_s`.
        RuntimeError: One of the programs has ended.
    """
    samples = [begin]
    deadline = begin.at_s + for_s
    while target is None or samples[-1].total < target:
        if time.perf_counter() > deadline:
            if target is None:
                break
            raise TimeoutError(f"{samples[-1].total:,} of {target:,} within {for_s:g} s")
        for one in programs:
            one.check()
        time.sleep(every_s)
        count = read()
        samples.append(Sample(time.perf_counter(), count))
    return samples


def reached_at(samples: Sequence[Sample], count: int) -> float:
    """Return when the count was reached, between two samples by proportion."""
    for earlier, later in pairwise(samples):
        if earlier.total <= count <= later.total and earlier.total < later.total:
            share = (count - earlier.total) / (later.total - earlier.total)
            return earlier.at_s + share * (later.at_s - earlier.at_s)
    raise ValueError(f"the count never reached {count}")


def rate(samples: Sequence[Sample], first: int, last: int) -> float:
    """Return how many a second came between two counts."""
    return (last - first) / (reached_at(samples, last) - reached_at(samples, first))


def slope(samples: Sequence[Sample]) -> float:
    """Return how many a second came: the line closest to all samples, as answers of a slow endpoint come in bursts."""
    return statistics.linear_regression([one.at_s for one in samples], [one.total for one in samples]).slope
