"""Small pieces of PromQL that more than one rule is made of."""

from collections.abc import Iterable
from textwrap import indent
from typing import Final, get_args

from deploy.generators.table import seconds
from judges.combine import Combine

__all__ = ["NO_PANELS", "PANELS", "RATED", "SERIES", "Pace", "but_members", "by", "grown", "lines"]

SERIES: Final = ("service", "environment", "judge", "version", "judge_model")
"""What a series is; everything else, as instance and job, is summed away: two workers count for one series."""
RATED: Final = (*SERIES, "metric")
_PANELS: Final = f"({'|'.join(get_args(Combine))})[(].*[)]"
PANELS: Final = f'judge_model=~"{_PANELS}"'
NO_PANELS: Final = f'judge_model!~"{_PANELS}"'
"""What counts the verdicts of all judge models together takes these alone: a panel's members are among them already."""


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
    """Tell by how much a counter has grown, its birth included.

    A counter with labels appears with its first value, and ``increase`` takes what it finds first for given: of a
    single failure it sees nothing. So a counter that was nowhere in the window before counts as a whole.

    Not guaranteed: a worker that nobody could scrape for longer than the window counts as new when it is back.
    """
    return f"({counter} unless last_over_time({counter}[{window}] offset {window}))\nor\nincrease({counter}[{window}])"


def but_members(matchers: str = "") -> str:
    """Leave out judge models that only panels ask: the verdict of the panel stands for theirs."""
    return f"unless on (judge, judge_model) tracejudge_panel_member{matchers}"


def lines(*parts: str) -> str:
    """Put parts below each other."""
    return "\n".join(parts)
