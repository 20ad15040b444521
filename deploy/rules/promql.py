"""PromQL fragments that several rules and panels share."""

from collections.abc import Iterable
from textwrap import indent
from typing import Any, Final, get_args

from deploy.rules.table import seconds
from judges.core.combine import Combine

Rule = dict[str, Any]  # A recording or alerting rule, as Prometheus reads it.

# Labels of a quality series. Others, as instance and job, are summed away: two workers count for one series.
SERIES: Final = ("service", "environment", "judge", "version", "judge_model")
RATED: Final = (*SERIES, "metric")
_PANELS: Final = f"({'|'.join(get_args(Combine))})[(].*[)]"
PANELS: Final = f'judge_model=~"{_PANELS}"'
# Sums over all judge models leave panels out: the verdicts of a panel's members are already in the sum.
NO_PANELS: Final = f'judge_model!~"{_PANELS}"'

# A process may have started this much earlier: Prometheus finds it some time later, and clocks of hosts differ.
_START_TOLERANCE: Final = "5m"


class TimeScale:
    """Writes durations divided by one number, so that a test runs through an hour in seconds."""

    def __init__(self, divisor: float = 1.0) -> None:
        self._divisor = divisor

    def __call__(self, duration: str) -> str:
        """Write a duration as Prometheus reads it."""
        if self._divisor == 1:
            return duration
        return f"{max(1, round(seconds(duration) * 1000 / self._divisor))}ms"

    def seconds(self, duration: str) -> float:
        """Return the scaled duration in seconds."""
        return seconds(duration) / self._divisor


def recording(name: str, expr: str, **labels: str) -> Rule:
    """Make a recording rule."""
    return {"record": name, "expr": expr, **({"labels": labels} if labels else {})}


def by(labels: Iterable[str], expression: str, how: str = "sum") -> str:
    """Aggregate an expression to some labels."""
    return f"{how} by ({', '.join(labels)}) (\n{indent(expression, '  ')}\n)"


def lines(*parts: str) -> str:
    """Join parts with line breaks."""
    return "\n".join(parts)


def full_increase(counter: str, window: str, time: TimeScale) -> str:
    """Return the growth of a counter in a window, with its first value and the growth while it was not scraped.

    ``increase`` ignores the first value it finds, and a counter with labels first appears with a value of 1 or more: a
    single failure would not be seen. So if the counter did not exist when the window began, the growth is the
    difference to its last value, or the whole value if that is smaller or if the counter is new.

    Not guaranteed: growth on a worker that was not scraped for longer than two windows is ignored.
    """
    scaled = time(window)
    before = f"last_over_time({counter}[{scaled}] offset {scaled})"
    longest = time.seconds(window) + time.seconds(_START_TOLERANCE)
    watched = time(f"{seconds(window) + seconds(_START_TOLERANCE):.0f}s")
    scrapes = f"max by (job, instance) (count_over_time(tracejudge_ready[{watched}]))"
    return lines(
        "(",
        f"  ({counter} - {before}) >= 0",
        "  or",
        f"  {counter} and {before}",
        # A new counter whose value was counted within the window: its process started within it, or its worker was
        # scraped before the counter appeared. Otherwise an old worker was only just found, by a new Prometheus or as a
        # new target, and no alert must fire for what it counted before. Not guaranteed: without `/proc` a worker has no
        # start time, so its first scrape is ignored.
        "  or",
        f"  {counter} and on (job, instance) (time() - process_start_time_seconds < {longest:g})",
        "  or",
        f"  {counter} and count_over_time({counter}[{scaled}]) < on (job, instance) group_left () {scrapes}",
        f") unless {counter} offset {scaled}",
        "or",
        f"increase({counter}[{scaled}])",
    )


def but_members(matchers: str = "") -> str:
    """Exclude judge models that only panels ask: the panel's verdict replaces theirs."""
    return f"unless on (judge, judge_model) tracejudge_panel_member{matchers}"
