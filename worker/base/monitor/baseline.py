"""The pass share that is normal for each hour of a series' week, from its last four weeks."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from judges.agreement.shares import Sums

HISTORY_DAYS: Final = 28
LAG_HOURS: Final = 24
"""The newest hours stay out: a drop that is not found yet must not become the norm."""
LEAST_DAYS: Final = 7
_WEEK: Final = 168
_HOURS_OF_WEEK_DAYS: Final = 14
_NEIGHBOURS: Final = {-2: 1.0, -1: 2.0, 0: 3.0, 1: 2.0, 2: 1.0}
_HOURS_TO_ALARM: Final = 8
_MOST_ALLOWANCE: Final = 0.08
_ALLOWED_SPREADS: Final = 2.5
_NOTICEABLE_EFFECT: Final = 1.1
_LEAST_EFFECTIVE: Final = 200
_LEAST, _MOST = 0.02, 0.995  # a share of 0 or 1 has no logarithm


class Hour(NamedTuple):
    """Sums of one hour; see judges.agreement.shares."""

    hour: int
    """Hours since the epoch."""
    judgements: float
    weight: float
    passed: float
    squares: float
    session_weights: float
    session_products: float
    session_passed: float


class Baseline(msgspec.Struct, array_like=True, frozen=True):
    """The normal values of a series."""

    cells: tuple[float, ...]
    """The pass share of each hour of the week."""
    spread: float
    """Standard deviation of the level from day to day, beyond chance."""
    error: float
    """Standard error of the shares, averaged over the hours a drop takes to be found."""
    dispersion: float
    """Variance of sessions relative to independent judgements, at least 1."""
    days: int
    per_week: float
    """Judgements in a week, as many of equal weights as are as precise (Kish's effective size)."""
    mean_weight: float
    """Mean weight per unit of weight, Σw² / Σw, which counts as one judgement."""
    unevenness: float = 1.0
    """Judgements beside that effective size: 1 if all weights are equal."""

    @property
    def needs_sessions(self) -> bool:
        """Whether scores need a factor: verdicts of sessions agree, or weights differ."""
        return self.dispersion >= _NOTICEABLE_EFFECT or self.unevenness >= _NOTICEABLE_EFFECT

    def expected(self, hour: int) -> float:
        """Return the share that a drop is measured from: the cell of the hour, less the spread of days."""
        return min(_MOST, max(_LEAST, self.cells[hour % _WEEK] - min(_ALLOWED_SPREADS * self.spread, _MOST_ALLOWANCE)))


class _Cell:
    """Sums of one hour of the week."""

    __slots__ = ("passed", "squares", "weight")

    def __init__(self) -> None:
        self.weight = self.passed = self.squares = 0.0


def hour_of(hour: int, sums: Sums) -> Hour:
    """Return the sums of an hour in the form the baseline reads."""
    total, over = sums.total, sums.over_sessions
    return Hour(
        hour, total.judgements, total.weight, total.passed, total.squares, over.weights, over.products, over.passed
    )


def baseline(hours: Sequence[Hour]) -> Baseline | None:
    """Return the baseline of the hours, None with fewer than seven days.

    Additive effects in layers, each shrunk to the one above (empirical Bayes by the method of moments: Morris, J. Am.
    Stat. Assoc. 78, 1983): level, hour of day, day of week, hour of week. The caller leaves out masked hours, the last
    24, and those older than 28 days.
    """
    hours = [hour for hour in hours if hour.weight > 0]
    days = len({hour.hour // 24 for hour in hours})
    if days < LEAST_DAYS:
        return None
    table = [_Cell() for _ in range(_WEEK)]
    for hour in hours:
        cell = table[hour.hour % _WEEK]
        cell.weight += hour.weight
        cell.passed += hour.passed
        cell.squares += hour.squares
    cells, error = _layers(table, days, 1.0)
    dispersion = _dispersion(hours, cells)
    if dispersion > 1:
        cells, error = _layers(table, days, dispersion)
    weight, squares = sum(hour.weight for hour in hours), sum(hour.squares for hour in hours)
    effective = weight**2 / squares
    return Baseline(
        tuple(cells),
        _spread(hours, cells, dispersion),
        error,
        dispersion,
        days,
        effective * 7 / days,
        squares / weight,
        sum(hour.judgements for hour in hours) / effective,
    )


def flat(share: float, per_week: float, *, dispersion: float = 1.0, mean_weight: float = 1.0) -> Baseline:
    """Return a baseline with the same share in every hour, of independent judgements of equal weight."""
    return Baseline((share,) * _WEEK, 0.0, 0.0, dispersion, HISTORY_DAYS, per_week, mean_weight)


def level(hours: Sequence[Hour], share: float, error: float = 0.0) -> Baseline | None:
    """Return a flat baseline for a series with these hours, None without judgements.

    Args:
        hours: the newest hours, also of incidents.
        share: the share that is expected.
        error: its standard error.
    """
    hours = [hour for hour in hours if hour.weight > 0]
    if not hours:
        return None
    weight, squares = sum(hour.weight for hour in hours), sum(hour.squares for hour in hours)
    effective = weight**2 / squares
    observed = sum(hour.passed for hour in hours) / weight
    dispersion = _dispersion(hours, [observed] * _WEEK)
    if effective < _LEAST_EFFECTIVE:
        # Each session counts as one judgement, because so few tell nothing of how sessions agree.
        dispersion = max(dispersion, sum(hour.session_weights for hour in hours) / squares)
    weeks = (hours[-1].hour - hours[0].hour + 1) / _WEEK
    return Baseline(
        (share,) * _WEEK,
        0.0,
        error,
        dispersion,
        HISTORY_DAYS,
        effective / weeks,
        squares / weight,
        sum(hour.judgements for hour in hours) / effective,
    )


def _layers(table: Sequence[_Cell], days: int, dispersion: float) -> tuple[list[float], float]:
    """Return the cells and their standard error.

    An error of the level or of a day stays for the whole time that a drop takes to be found, those of hours average
    out within it.
    """
    weight = sum(cell.weight for cell in table)
    level = sum(cell.passed for cell in table) / weight
    cells = [level] * _WEEK
    variance = dispersion * level * (1 - level)
    error = variance * sum(cell.squares for cell in table) / weight**2
    hours = [index % 24 for index in range(_WEEK)]
    # Smooth first, because neighbouring hours are alike in most series, and an hour needs less of its own data then.
    error += _shrink(table, cells, variance, hours, _NEIGHBOURS) / 2
    error += _shrink(table, cells, variance, hours) / _HOURS_TO_ALARM
    error += _shrink(table, cells, variance, [index // 24 for index in range(_WEEK)])
    if days >= _HOURS_OF_WEEK_DAYS:
        error += _shrink(table, cells, variance, range(_WEEK)) / _HOURS_TO_ALARM
    return cells, math.sqrt(error)


def _shrink(
    table: Sequence[_Cell],
    cells: list[float],
    variance: float,
    groups: Sequence[int],
    kernel: Mapping[int, float] = {0: 1.0},
) -> float:
    """Add the effects of one layer to the cells, each times τ² / (τ² + v) with its own variance v.

    The kernel weighs the groups before and after each, in a circle. Return the mean variance of the shrunk effects.
    """
    count = max(groups) + 1
    weights, rests, squares = [0.0] * count, [0.0] * count, [0.0] * count
    for cell, expected, group in zip(table, cells, groups, strict=True):
        weights[group] += cell.weight
        rests[group] += cell.passed - cell.weight * expected
        squares[group] += cell.squares
    effects, chances, excess, total = [0.0] * count, [0.0] * count, 0.0, 0.0
    for group in range(count):
        weight = sum(part * weights[(group + k) % count] for k, part in kernel.items())
        if weight > 0:
            effects[group] = sum(part * rests[(group + k) % count] for k, part in kernel.items()) / weight
            near = sum(part * part * squares[(group + k) % count] for k, part in kernel.items())
            chances[group] = variance * near / weight**2
            excess += weight * (effects[group] ** 2 - chances[group])
            total += weight
    # The variance between groups is that of the deviations less the part that chance explains.
    between = max(0.0, excess / total)
    kept = [between / (between + chance) if chance > 0 else 1.0 for chance in chances]
    for index, group in enumerate(groups):
        cells[index] = min(1.0, max(0.0, cells[index] + effects[group] * kept[group]))
    return sum(part * chance for part, chance in zip(kept, chances, strict=True)) / count


def _dispersion(hours: Sequence[Hour], cells: Sequence[float]) -> float:
    """Return φ: squared residuals of sessions relative to independent judgements, at least 1."""
    clustered = single = 0.0
    for hour in hours:
        p = cells[hour.hour % _WEEK]
        clustered += hour.session_passed - 2 * p * hour.session_products + p * p * hour.session_weights
        single += hour.squares * p * (1 - p)
    return max(1.0, clustered / single) if single > 0 else 1.0


def _spread(hours: Sequence[Hour], cells: Sequence[float], dispersion: float) -> float:
    """Return the standard deviation of residuals between days, less the part that chance explains.

    One standard error of that part is left out as well: with few judgements a day, noise of this estimate
    would lower the expectation of every second series.
    """
    by_day: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for hour in hours:
        p = cells[hour.hour % _WEEK]
        day = by_day[hour.hour // 24]
        day[0] += hour.weight
        day[1] += hour.passed - hour.weight * p
        day[2] += hour.squares * p * (1 - p)
    freedom = len(by_day) - 1
    squares = sum((rest / weight) ** 2 for weight, rest, _ in by_day.values()) / freedom
    chance = dispersion * sum(variance / weight**2 for weight, _, variance in by_day.values()) / freedom
    return math.sqrt(max(0.0, squares - chance * (1 + math.sqrt(2 / freedom))))
