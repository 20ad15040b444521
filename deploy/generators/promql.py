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
    "SCRAPES",
    "SERIES",
    "Pace",
    "but_members",
    "by",
    "grown",
    "lines",
    "watched",
]

SERIES: Final = ("service", "environment", "judge", "version", "judge_model")
"""What a series is; everything else, as instance and job, is summed away: two workers count for one series."""
RATED: Final = (*SERIES, "metric")
_PANELS: Final = f"({'|'.join(get_args(Combine))})[(].*[)]"
PANELS: Final = f'judge_model=~"{_PANELS}"'
NO_PANELS: Final = f'judge_model!~"{_PANELS}"'
"""What counts the verdicts of all judge models together takes these alone: a panel's members are among them already."""

SCRAPES: Final = "tracejudge:scrapes:1d"
"""How often the worker that was scraped most was so in a day: tells a Prometheus that is new from one that is not."""


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


def grown(counter: str, window: str) -> str:
    """Tell by how much a counter has grown, its birth and its worker's absence included.

    A counter with labels appears with its first value, and ``increase`` takes what it finds first for given: of a
    single failure it sees nothing. So where a counter was not there when the window began, what it has more than it
    last had counts, or all of it where it is new or less.

    Not guaranteed: a worker that was never scraped before, and is older than the window, counts as new where another
    one was seen before; so does one that nobody could scrape for longer than two windows.
    """
    return lines(
        "(",
        f"  ({counter} - last_over_time({counter}[{window}] offset {window})) >= 0",
        "  or",
        f"  ({watched(counter, window)})",
        f") unless {counter} offset {window}",
        "or",
        f"increase({counter}[{window}])",
    )


def watched(counter: str, window: str) -> str:
    """Give a counter where Prometheus has seen some worker for longer: it saw the counter begin.

    A Prometheus that is new finds counters that are old. What they count was not in the window, and nobody is to be
    woken for it.
    """
    # Two scrapes more, since workers are scraped at different moments.
    return f"{counter} and count_over_time({counter}[{window}]) < on () group_left () ({SCRAPES} - 1)"


def but_members(matchers: str = "") -> str:
    """Leave out judge models that only panels ask: the verdict of the panel stands for theirs."""
    return f"unless on (judge, judge_model) tracejudge_panel_member{matchers}"


def lines(*parts: str) -> str:
    """Put parts below each other."""
    return "\n".join(parts)
