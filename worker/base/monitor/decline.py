"""Notices of a slow decline: a share that falls by a point a week is no drop, since its baseline follows it."""

import math
import operator
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Final, NamedTuple

import msgspec

from judges.agreement.shares import student
from worker.base.monitor.series import DAY_S, utc_minute

LONGEST_DAYS: Final = 42
QUIET_DAYS: Final = 28
"""Days after a notice in which there is no other one."""
_WINDOWS_DAYS: Final = (28, LONGEST_DAYS)
_LEAST_PART: Final = 0.8
_LEAST_RATIO: Final = 3.8
_LEAST_FALL: Final = 0.015
_PARAMETERS: Final = 8
_MOST_CORRELATION: Final = 0.6


class Day(NamedTuple):
    """The verdicts of one day: days since the epoch, pass share, and independent judgements that are as precise."""

    number: int
    share: float
    effective: float


class Decline(msgspec.Struct, array_like=True, frozen=True):
    """A notice: how much a share falls in a week, with the limits of the 95 % interval."""

    told_day: int
    """Days since the epoch."""
    since_day: int
    slope: float
    low: float
    high: float

    @property
    def text(self) -> str:
        """The notice in words."""
        low, high = (f"{100 * limit:+.1f}" for limit in (self.low, self.high))
        since = utc_minute(self.since_day * DAY_S).partition("T")[0]
        return f"falls by {-100 * self.slope:.1f} points a week ({low} to {high}) since about {since}"


def find_decline(days: Sequence[Day], today: int) -> Decline | None:
    """Return the notice of a decline in the last 28 or 42 days, the clearer of both; None without one.

    Least squares on means of the seven days of the week and a slope. Residuals of neighbouring days that agree widen
    the error (Bartlett, J. R. Stat. Soc. 98, 1935). Days are in order, without those of incidents.
    """
    declines = []
    for length in _WINDOWS_DAYS:
        window = [day for day in days if today - length <= day.number < today]
        if len(window) < _LEAST_PART * length:
            continue
        slope, error = _slope(window)
        if slope * length / 7 < -_LEAST_FALL and slope < -_LEAST_RATIO * error:
            reach = student(len(window) - _PARAMETERS) * error
            declines.append((slope / error, Decline(today, today - length, slope, slope - reach, slope + reach)))
    return min(declines, key=lambda pair: pair[0])[1] if declines else None


def _slope(days: Sequence[Day]) -> tuple[float, float]:
    """Return by how much the share changes in a week, with its standard error."""
    weeks = _without_weekdays(days, [day.number / 7 for day in days])
    shares = _without_weekdays(days, [day.share for day in days])
    squares = sum(week * week for week in weeks)
    slope = sum(map(operator.mul, weeks, shares)) / squares
    rests = [share - slope * week for share, week in zip(shares, weeks, strict=True)]
    total = sum(rest * rest for rest in rests)
    share = fmean(day.share for day in days)
    chance = share * (1 - share) * fmean(1 / day.effective for day in days)
    variance = max(total / (len(days) - _PARAMETERS), chance)
    neighbours = [place for place in range(1, len(days)) if days[place].number == days[place - 1].number + 1]
    together = sum(rests[place] * rests[place - 1] for place in neighbours)
    agreement = min(_MOST_CORRELATION, max(0.0, together / total + 4 / len(days))) if total > 0 else 0.0
    return slope, math.sqrt(variance / squares * (1 + agreement) / (1 - agreement))


def _without_weekdays(days: Sequence[Day], values: Sequence[float]) -> list[float]:
    of_weekday: dict[int, list[float]] = defaultdict(list)
    for day, value in zip(days, values, strict=True):
        of_weekday[day.number % 7].append(value)
    means = {weekday: fmean(some) for weekday, some in of_weekday.items()}
    return [value - means[day.number % 7] for day, value in zip(days, values, strict=True)]
