"""Small pieces of PromQL that more than one rule is made of."""

from collections.abc import Iterable
from textwrap import indent
from typing import Final, get_args

from deploy.generators.table import seconds
from judges.combine import Combine

__all__ = [
    "NO_PANELS",
    "PANELS",
    "RATED",
    "SERIES",
    "Pace",
    "born",
    "but_members",
    "by",
    "grown",
    "lines",
    "whole",
]

SERIES: Final = ("service", "environment", "judge", "version", "judge_model")
"""What a series is; everything else, as instance and job, is summed away: two workers count for one series."""
RATED: Final = (*SERIES, "metric")
_PANELS: Final = f"({'|'.join(get_args(Combine))})[(].*[)]"
PANELS: Final = f'judge_model=~"{_PANELS}"'
NO_PANELS: Final = f'judge_model!~"{_PANELS}"'
"""What counts the verdicts of all judge models together takes these alone: a panel's members are among them already."""

_ROOM: Final = "5m"
"""So much earlier a process may have begun: it is found a while after that, and clocks of hosts differ."""


class Pace:
    """Writes durations, all divided by one number: so a test can live through an hour in seconds."""

    def __init__(self, scale: float = 1.0) -> None:
        """Take the number; 1 leaves durations as they are written."""
        self._scale = scale

    def __call__(self, duration: str) -> str:
        """Write a duration as Prometheus reads it."""
        if self._scale == 1:
            return duration
        return f"{max(1, round(seconds(duration) * 1000 / self._scale))}ms"

    def seconds(self, duration: str) -> float:
        """Tell how long a duration is at this pace."""
        return seconds(duration) / self._scale


def by(labels: Iterable[str], expression: str, how: str = "sum") -> str:
    """Aggregate an expression to some labels."""
    return f"{how} by ({', '.join(labels)}) (\n{indent(expression, '  ')}\n)"


def grown(counter: str, window: str, pace: Pace) -> str:
    """Tell by how much a counter has grown, its birth and its worker's absence included.

    A counter with labels appears with its first value, and ``increase`` takes what it finds first for given: of a
    single failure it sees nothing. So where a counter was not there when the window began, what it has more than it
    last had counts, or all of it where it is less, or new and not just found.

    Not guaranteed: a worker that nobody could scrape for longer than two windows is one that was just found.
    """
    paced = pace(window)
    before = f"last_over_time({counter}[{paced}] offset {paced})"
    return lines(
        "(",
        f"  ({counter} - {before}) >= 0",
        "  or",
        indent(whole(counter, before, window, pace), "  "),
        f") unless {counter} offset {paced}",
        "or",
        f"increase({counter}[{paced}])",
    )


def whole(counter: str, before: str, window: str, pace: Pace, *, age: str | None = None) -> str:
    """Give a counter where all of it counts: it is less than it was before, or was born under our eyes."""
    return lines(f"{counter} and {before}", "or", born(counter, window, pace, age=age))


def born(counter: str, window: str, pace: Pace, *, age: str | None = None) -> str:
    """Give a counter of which Prometheus had nothing before the window, where what it counts is news.

    It is where its process began within the window, or where its worker was scraped before it appeared. Else the worker
    is older and was only just found, by a Prometheus that is new or as a target that is: nobody is to be woken for what
    it counted before. Not guaranteed: where there is no ``/proc`` a worker does not tell when it began, and its first
    scrape brings no news.

    Args:
        age: So long ago the process may have begun, if not the window.
    """
    longest = pace.seconds(age or window) + pace.seconds(_ROOM)
    watched = pace(f"{seconds(window) + seconds(_ROOM):.0f}s")
    scrapes = f"max by (job, instance) (count_over_time(tracejudge_ready[{watched}]))"
    return lines(
        f"{counter} and on (job, instance) (time() - process_start_time_seconds < {longest:g})",
        "or",
        f"{counter} and count_over_time({counter}[{pace(window)}]) < on (job, instance) group_left () {scrapes}",
    )


def but_members(matchers: str = "") -> str:
    """Leave out judge models that only panels ask: the verdict of the panel stands for theirs."""
    return f"unless on (judge, judge_model) tracejudge_panel_member{matchers}"


def lines(*parts: str) -> str:
    """Put parts below each other."""
    return "\n".join(parts)
