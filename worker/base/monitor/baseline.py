"""The pass share that is normal for each hour of a series' week, from its last four weeks; and slow declines."""

import math
import operator
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Final, NamedTuple

import msgspec

from judges.agreement.shares import Sums, student
from worker.base.monitor.series import DAY_S, utc_minute

LONGEST_DAYS: Final = 42
QUIET_DAYS: Final = 28  # Days after a notice in which there is no other one.
_WINDOWS_DAYS: Final = (28, LONGEST_DAYS)
_LEAST_PART: Final = 0.8
_LEAST_RATIO: Final = 3.8
_LEAST_FALL: Final = 0.015
_PARAMETERS: Final = 8
_MOST_CORRELATION: Final = 0.6
HISTORY_DAYS: Final = 28
LAG_HOURS: Final = 24  # The newest hours stay out: a drop that is not found yet must not become the norm.
LEAST_DAYS: Final = 7
DROPS: Final = (0.10, 0.20)  # Drops that the two sums of a detector are most sensitive to.
_WEEK: Final = 168
_DAYS_OF_WEEK_DAYS: Final = 21
_YOUNG_DAYS: Final = 14
_WEEKEND: Final = frozenset({2, 3})  # Days since the epoch modulo 7: 1 January 1970 was a Thursday.
_NEIGHBOURS: Final = {-2: 1.0, -1: 2.0, 0: 3.0, 1: 2.0, 2: 1.0}
_HOURS_TO_ALARM: Final = 8
_PRIOR_SPREAD: Final = 0.01
_PRIOR_DAYS: Final = 3
_LEAST_WEIGHT: Final = 0.3  # Days and blocks with less of the median weight are left out: part of them is missing.
_MOST_ALLOWANCE: Final = 0.15
_QUIET_PART: Final = 0.23  # A sum stays below its limit for a day at a share that is lower by this part of its drop.
_ALLOWANCE_OF_LEAST_DROP: Final = 0.07
_NOTICEABLE_EFFECT: Final = 1.1
_LEAST_EFFECTIVE: Final = 200
_LEAST, _MOST = 0.02, 0.995  # a share of 0 or 1 has no logarithm


class Hour(NamedTuple):
    """Sums of one hour; see judges.agreement.shares."""

    hour: int  # Hours since the epoch.
    judgements: float
    weight: float
    passed: float
    squares: float
    session_weights: float
    session_products: float
    session_passed: float


class Baseline(msgspec.Struct, array_like=True, frozen=True):
    """The normal values of a series."""

    cells: tuple[float, ...]  # The pass share of each hour of the week.
    spread: float  # Standard deviation of the level between days, or within them, beyond chance.
    error: float  # Standard error of the shares, averaged over the hours a drop takes to be found.
    dispersion: float  # Variance of sessions relative to independent judgements, at least 1.
    days: int
    per_week: float  # Judgements in a week, as many of equal weights as are as precise (Kish's effective size).
    mean_weight: float  # Mean weight per unit of weight, Σw² / Σw, which counts as one judgement.
    unevenness: float = 1.0  # Judgements beside that effective size: 1 if all weights are equal.
    allowances: tuple[tuple[float, float], ...] = ((0.0, 0.0),) * len(DROPS)
    """For each of DROPS by how much lower than usual a weekday and a day of a weekend may be."""

    @property
    def needs_sessions(self) -> bool:
        """Whether scores need a factor: verdicts of sessions agree, or weights differ."""
        return self.dispersion >= _NOTICEABLE_EFFECT or self.unevenness >= _NOTICEABLE_EFFECT

    @property
    def least_drop(self) -> float | None:
        """The drop below which none is told yet; None from 14 days on."""
        return max(self.allowances[0]) + _ALLOWANCE_OF_LEAST_DROP if self.days < _YOUNG_DAYS else None

    @property
    def untold(self) -> str:
        """What is not told yet, in words; empty from 14 days on."""
        least = self.least_drop
        return "" if least is None else f"drops below {math.ceil(100 * least)} points are not told yet"

    def usual(self, hour: int) -> float:
        """Return the share of the hour's cell."""
        return self.cells[hour % len(self.cells)]

    def expected(self, hour: int) -> tuple[float, ...]:
        """Return the share that each of DROPS is measured from: the cell of the hour, less the allowance."""
        usual, is_weekend = self.usual(hour), hour // 24 % 7 in _WEEKEND
        return tuple(min(_MOST, max(_LEAST, usual - allowance[is_weekend])) for allowance in self.allowances)


class _Cell:
    __slots__ = ("passed", "squares", "weight")

    def __init__(self) -> None:
        self.weight = self.passed = self.squares = 0.0


class _Block(NamedTuple):
    """A day or a part of it, with the mean residual of its verdicts and the variance that chance gives it."""

    number: int
    residual: float
    variance: float


def hour_of(hour: int, sums: Sums) -> Hour:
    """Return the sums of an hour in the form the baseline reads."""
    total, over = sums.total, sums.over_sessions
    return Hour(
        hour, total.judgements, total.weight, total.passed, total.squares, over.weights, over.products, over.passed
    )


def baseline(hours: Sequence[Hour]) -> Baseline | None:
    """Return the baseline of the hours, None with fewer than seven days."""
    # Additive effects in layers: level, hour of day, weekend, and from 21 days on the day of the week. Hours and days
    # of the week are shrunk to the layer above (empirical Bayes by the method of moments: Morris, J. Am. Stat. Assoc.
    # 78, 1983). The caller leaves out masked hours, the last 24, and those older than 28 days.
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
    weekdays = {hour.hour // 24 % 7 for hour in hours}
    has_weekend = bool(weekdays & _WEEKEND) and len(weekdays - _WEEKEND) > 1
    cells, error = _layers(table, 1.0, has_weekend=has_weekend)
    dispersion = _dispersion(hours, cells)
    if dispersion > 1:
        cells, error = _layers(table, dispersion, has_weekend=has_weekend)
    blocks, kept = _blocks(hours, cells, dispersion, 24), dict[int, float]()
    if days >= _DAYS_OF_WEEK_DAYS:
        kept = _add_days_of_week(cells, blocks)
        blocks = _blocks(hours, cells, dispersion, 24)
    freedom = max(1.0, len(blocks) - 1 - (sum(kept.values()) if kept else has_weekend))
    mean = sum(block.residual for block in blocks) / len(blocks)
    variance = _between([block.residual - mean for block in blocks], blocks, freedom)
    parts_of_days = (_within(_blocks(hours, cells, dispersion, length)) for length in (12, 6))
    spread = math.sqrt(max(variance, *parts_of_days))
    weight, squares = sum(hour.weight for hour in hours), sum(hour.squares for hour in hours)
    effective = weight**2 / squares
    return Baseline(
        tuple(cells),
        spread,
        error,
        dispersion,
        days,
        effective * 7 / days,
        squares / weight,
        sum(hour.judgements for hour in hours) / effective,
        _allowances(blocks, kept, spread, freedom),
    )


def flat(share: float, per_week: float, *, dispersion: float = 1.0, mean_weight: float = 1.0) -> Baseline:
    """Return a baseline with the same share in every hour, of independent judgements of equal weight."""
    return Baseline((share,) * _WEEK, 0.0, 0.0, dispersion, HISTORY_DAYS, per_week, mean_weight)


def level(hours: Sequence[Hour], share: float, error: float = 0.0) -> Baseline | None:
    """Return a flat baseline at a share with a standard error for these newest hours, None without judgements."""
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
    norm = flat(share, effective / weeks, dispersion=dispersion, mean_weight=squares / weight)
    return msgspec.structs.replace(norm, error=error, unevenness=sum(hour.judgements for hour in hours) / effective)


def _layers(table: Sequence[_Cell], dispersion: float, *, has_weekend: bool) -> tuple[list[float], float]:
    """Return the cells and their standard error."""
    # An error of the level stays for the whole time that a drop takes to be found, those of hours average out within
    # it.
    weight = sum(cell.weight for cell in table)
    level = sum(cell.passed for cell in table) / weight
    cells = [level] * _WEEK
    variance = dispersion * level * (1 - level)
    error = variance * sum(cell.squares for cell in table) / weight**2
    hours = [index % 24 for index in range(_WEEK)]
    # Smooth first, because neighbouring hours are alike in most series, and an hour needs less of its own data then.
    error += _shrink(table, cells, variance, hours, _NEIGHBOURS) / 2
    error += _shrink(table, cells, variance, hours) / _HOURS_TO_ALARM
    if has_weekend:
        # Its error is that of few days, which the allowance pays for.
        _shrink(table, cells, variance, [index // 24 in _WEEKEND for index in range(_WEEK)], is_kept=True)
    return cells, math.sqrt(error)


def _shrink(
    table: Sequence[_Cell],
    cells: list[float],
    variance: float,
    groups: Sequence[int],
    kernel: Mapping[int, float] = {0: 1.0},
    *,
    is_kept: bool = False,
) -> float:
    """Add the effects of one layer to the cells, each times τ² / (τ² + v) with its own variance v, or as they are."""
    # The kernel weighs the groups before and after each, in a circle. Return the mean variance of the shrunk effects.
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
    kept = [1.0 if is_kept or chance <= 0 else between / (between + chance) for chance in chances]
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


def _blocks(hours: Iterable[Hour], cells: Sequence[float], dispersion: float, length: int) -> list[_Block]:
    """Return the residuals of days, or of parts of so many hours; those of which much is missing are left out."""
    sums: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for hour in hours:
        p = cells[hour.hour % _WEEK]
        block = sums[hour.hour // length]
        block[0] += hour.weight
        block[1] += hour.passed - hour.weight * p
        block[2] += hour.squares * p * (1 - p)
    least = _LEAST_WEIGHT * sorted(weight for weight, *_ in sums.values())[len(sums) // 2]
    return [
        _Block(number, rest / weight, dispersion * variance / weight**2)
        for number, (weight, rest, variance) in sums.items()
        if weight >= least
    ]


def _between(residuals: Sequence[float], blocks: Sequence[_Block], freedom: float) -> float:
    """Return the variance between days beyond chance, with a prior: few days tell little of how days differ."""
    chance = sum(block.variance for block in blocks) / len(blocks)
    excess = max(0.0, sum(residual**2 for residual in residuals) - freedom * chance)
    return (_PRIOR_DAYS * _PRIOR_SPREAD**2 + excess) / (_PRIOR_DAYS + freedom)


def _within(blocks: Sequence[_Block]) -> float:
    """Return the variance of parts of days beyond chance and its standard error: of changes not aligned to days."""
    chance = sum(block.variance for block in blocks) * (1 + math.sqrt(2 / len(blocks)))
    return max(0.0, sum(block.residual**2 for block in blocks) - chance) / len(blocks)


def _add_days_of_week(cells: list[float], days: Sequence[_Block]) -> dict[int, float]:
    """Add the effects of the days of the week to the cells; return the part of each that is kept."""
    of_weekday: dict[int, list[float]] = defaultdict(list)
    for day in days:
        of_weekday[day.number % 7].append(day.residual)
    means = {weekday: sum(residuals) / len(residuals) for weekday, residuals in of_weekday.items()}
    residuals = [day.residual - means[day.number % 7] for day in days]
    variance = _between(residuals, days, max(1, len(days) - len(means))) + sum(day.variance for day in days) / len(days)
    chances = {weekday: variance / len(of_weekday[weekday]) for weekday in means}
    between = max(0.0, sum(mean**2 - chances[weekday] for weekday, mean in means.items()) / len(means))
    kept = {weekday: between / (between + chance) for weekday, chance in chances.items()}
    for index in range(_WEEK):
        effect = kept.get(index // 24, 0.0) * means.get(index // 24, 0.0)
        cells[index] = min(1.0, max(0.0, cells[index] + effect))
    return kept


def _allowances(
    days: Sequence[_Block], kept: Mapping[int, float], spread: float, freedom: float
) -> tuple[tuple[float, float], ...]:
    """Return for each of DROPS by how much lower than usual a weekday and a day of a weekend may be."""

    def deviation(numbers: Sequence[int]) -> float:
        # A new day differs from a mean of k days; k counts the days that tell of it.
        count = float(len(numbers))
        if numbers and kept:
            own = [(kept[number], numbers.count(number)) for number in set(numbers)]
            rest = 1 - sum(part for part, _ in own) / len(own)
            count = min(count, 1 / (sum(part / seen for part, seen in own) / len(own) + rest / count))
        return spread * math.sqrt(1 + 1 / count) if numbers else math.inf

    def lower(deviation: float, drop: float) -> float:
        return min(_MOST_ALLOWANCE, max(0.0, (3.2 + 16 / freedom) * deviation - _QUIET_PART * drop))

    of_week = [day.number % 7 for day in days]
    weekday = deviation([number for number in of_week if number not in _WEEKEND])
    weekend = deviation([number for number in of_week if number in _WEEKEND])
    return tuple((lower(weekday, drop), lower(weekend, drop)) for drop in DROPS)


class Day(NamedTuple):
    """The verdicts of one day: days since the epoch, pass share, and independent judgements that are as precise."""

    number: int
    share: float
    effective: float


class Decline(msgspec.Struct, array_like=True, frozen=True):
    """A notice: how much a share falls in a week, with the limits of the 95 % interval."""

    told_day: int  # Days since the epoch.
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
    """Return the notice of a decline in the last 28 or 42 days, the clearer of both; None without one."""
    # Least squares on means of the seven days of the week and a slope. Residuals of neighbouring days that agree widen
    # the error (Bartlett, J. R. Stat. Soc. 98, 1935). Days are in order, without those of incidents.
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
