"""How figures are taken and shown."""

import gc
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["Figure", "Percentiles", "each_call", "per_call", "tell"]


class Figure(NamedTuple):
    """One line of the results.

    Attributes:
        what: What was measured.
        value: What came out.
        ratio: How a rival compares, measured in the same run.
        bar: What is asked for, or another absolute figure to compare with.
    """

    what: str
    value: str
    ratio: str = ""
    bar: str = ""


class Percentiles(NamedTuple):
    """Microseconds a call."""

    p50: float
    p99: float
    p999: float

    def __str__(self) -> str:
        """Show them as a table cell."""
        return f"{self.p50:.1f} / {self.p99:.1f} / {self.p999:.1f} µs"


def tell(what: str) -> None:
    """Print the progress of the bench."""
    print(f"  … {what}", flush=True)


def each_call(function: Callable[[], object], calls: int) -> Percentiles:
    """Time single calls; the clock's own cost, some 0.05 µs, is in the figure."""
    function()
    gc.collect()
    times = []
    for _ in range(calls):
        start = time.perf_counter_ns()
        function()
        times.append(time.perf_counter_ns() - start)
    times.sort()
    return Percentiles(*(times[min(calls - 1, int(calls * share))] / 1000 for share in (0.5, 0.99, 0.999)))


def per_call(function: Callable[[], object], *, seconds: float = 0.3, rounds: int = 5) -> float:
    """Return microseconds a call, the median of some rounds."""
    start, calls = time.perf_counter(), 0
    while time.perf_counter() - start < seconds / rounds:
        function()
        calls += 1
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            function()
        taken.append((time.perf_counter() - start) / calls * 1e6)
    return statistics.median(taken)
