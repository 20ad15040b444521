"""How far probabilities can be trusted, by labels: calibration error, fitted maps and thresholds.

The maps correct the probabilities of later verdicts: ``Calibration.platt`` (Platt, Advances in Large Margin
Classifiers, 1999) and ``Calibration.isotonic`` (Zadrozny and Elkan, KDD 2002).
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

from judges.agreement.intervals import Interval, wilson
from judges.core.decision import Calibration, logit

_COLUMNS: Final = 40
_SIDE: Final = 300
_LEFT: Final = 60
_TOP: Final = 20
_MAP_STEPS: Final = 100
BINS: Final = 10
_RESAMPLES: Final = 400
_ROWS_RESAMPLED: Final = 1_000_000  # Bounds the time to some seconds: with many rows fewer resamples are enough.
_SEED: Final = 20261123  # The same labels give the same limits.
_MIN_ISOTONIC: Final = 1_000  # With fewer labels the steps of an isotonic map follow their noise.
_EXACT: Final = 1e-10


class Row(NamedTuple):
    """One labelled verdict."""

    probability: float  # That the trace passes, by the judge model.
    passed: bool  # The label.
    weight: float = 1.0  # How many traces it represents.


class Bin(NamedTuple):
    """A tenth of the labelled verdicts, by their probabilities."""

    low: float  # The lowest probability.
    high: float  # The highest probability.
    labels: int  # The number of labels.
    mean: float  # The mean probability.
    passing: Interval  # The share of labels that say pass.


class Reliability(NamedTuple):
    """How probabilities compare with labels."""

    bins: Sequence[Bin]  # Ten of equally many labels, for a reliability diagram.
    error: Interval  # Expected calibration error: the mean distance of probability and share of passes in the bins.
    brier: Interval  # Brier score: the mean squared distance of probability and label.


class Threshold(NamedTuple):
    """A probability from which traces would pass."""

    value: Interval  # The threshold, with the limits between which resampled labels place it.
    agreement: Interval  # The share of other traces that would then be judged as labelled.
    precision: Interval | None  # The share of passing traces that are labelled pass; None if none passes.


class ThresholdNotFoundError(ValueError):
    """No threshold reaches the wished precision."""


class Weighted(Protocol):
    """A row that represents a number of traces."""

    @property
    def weight(self) -> float:
        """The number."""


def effective(rows: Sequence[Weighted]) -> float:
    """Return Kish's effective number of rows."""
    total = sum(row.weight for row in rows)
    return total * total / sum(row.weight**2 for row in rows)


def reliability(rows: Sequence[Row]) -> Reliability:
    """Compare probabilities with labels."""
    # The calibration error of few labels is too high, because noise adds to each distance. The bootstrap shows by how
    # much, and this is taken off; the limits are from the basic bootstrap (Davison and Hinkley, 1997, section 5.2),
    # the upper one at least the percentile method's, since the correction has an error too.
    # The lower limit is 0 if calibrated probabilities would show as large an error in one of forty such samples.
    ordered = sorted(rows, key=attrgetter("probability"))
    bins = [
        Bin(
            group[0].probability,
            group[-1].probability,
            len(group),
            _mean(group, attrgetter("probability")),
            wilson(_mean(group, attrgetter("passed")), effective(group)),
        )
        for low, high in _tenths(len(ordered))
        if (group := ordered[low:high])
    ]
    weights = [row.weight for row in ordered]
    distances = [row.weight * (row.probability - row.passed) for row in ordered]
    squares = [row.weight * (row.probability - row.passed) ** 2 for row in ordered]
    seen, brier = _error(distances, sum(weights)), sum(squares) / sum(weights)
    errors, briers = list[float](), list[float]()
    for picks in _resamples(len(ordered)):
        total = sum(weights[pick] for pick in picks)
        errors.append(_error([distances[pick] for pick in picks], total))
        briers.append(sum(squares[pick] for pick in picks) / total)
    excess = sum(errors) / len(errors) - seen
    low, high = _percentiles(sorted(errors))
    error = max(0.0, seen - excess)
    draw = random.Random(_SEED).random  # noqa: S311 - simulated labels are no secret
    calibrated = [
        _error([row.weight * (row.probability - (draw() < row.probability)) for row in ordered], sum(weights))
        for _ in errors
    ]
    is_calibrated = seen <= _percentiles(sorted(calibrated))[1]
    lowest = 0.0 if is_calibrated else max(0.0, min(error, 2 * seen - high))
    limits = _percentiles(sorted(briers))
    return Reliability(
        bins,
        Interval(error, lowest, max(error, 2 * seen - low, high)),
        Interval(brier, min(brier, limits[0]), max(brier, limits[1])),
    )


def fit(rows: Sequence[Row], kind: str | None = None) -> Calibration:
    """Fit a map: ``platt``, ``isotonic``, or by the number of labels; ``ValueError`` if all labels say the same."""
    if len({row.passed for row in rows}) < 2:  # noqa: PLR2004 - pass and fail
        raise ValueError("all labels say the same: a map needs labels that say pass and labels that say fail")
    if (kind or ("isotonic" if len(rows) >= _MIN_ISOTONIC else "platt")) == "isotonic":
        return Calibration(isotonic=_isotonic(rows))
    return Calibration(platt=_platt(rows))


def threshold(rows: Sequence[Row], precision: float | None = None) -> Threshold:
    """Find the threshold that maximises agreement, or the lowest one with a wished precision.

    The labels that choose the threshold find it better than others will. The mean difference between the agreement of a
    resample and that of all labels, by the resample's threshold, is taken off (Efron, JASA 78, 1983).
    ``ThresholdNotFoundError`` if none reaches the precision.
    """
    ordered = sorted(rows, key=attrgetter("probability"))
    value = _threshold(ordered, precision)
    if value is None:
        raise ThresholdNotFoundError(f"no threshold reaches a precision of {precision:.1%} on these labels")
    placed, optimism = list[float](), list[float]()
    for picks in _resamples(len(ordered)):
        sample = [ordered[pick] for pick in picks]
        if (limit := _threshold(sample, precision)) is not None:
            placed.append(limit)
            optimism.append(_agreement(sample, limit) - _agreement(ordered, limit))
    low, high = _percentiles(sorted(placed) or [value])
    size = effective(rows)
    agreed = _agreement(rows, value) - max(0.0, sum(optimism) / len(optimism) if optimism else 0.0)
    passing = [row for row in rows if row.probability >= value]
    right = wilson(_mean(passing, attrgetter("passed")), effective(passing)) if passing else None
    return Threshold(Interval(value, min(value, low), max(value, high)), wilson(agreed, size), right)


def _agreement(rows: Sequence[Row], threshold: float) -> float:
    return _mean(rows, lambda row: (row.probability >= threshold) == row.passed)


def _mean(rows: Sequence[Row], of: Callable[[Row], float]) -> float:
    return sum(row.weight * of(row) for row in rows) / sum(row.weight for row in rows)


def _tenths(count: int) -> list[tuple[int, int]]:
    return list(pairwise(place * count // BINS for place in range(BINS + 1)))


def _error(distances: Sequence[float], total: float) -> float:
    """Return the calibration error by weighted distances of probability and label, in order of probability."""
    return sum(abs(sum(distances[low:high])) for low, high in _tenths(len(distances))) / total


def _resamples(count: int) -> Iterator[list[int]]:
    """Yield resamples of rows by their indices, in order: resamples of ordered rows need no sorting."""
    generator = random.Random(_SEED)  # noqa: S311 - a resample is no secret
    for _ in range(max(40, min(_RESAMPLES, _ROWS_RESAMPLED // count))):
        yield sorted(generator.choices(range(count), k=count))


def _percentiles(ordered: Sequence[float]) -> tuple[float, float]:
    last = len(ordered) - 1
    return ordered[round(0.025 * last)], ordered[round(0.975 * last)]


def _platt(rows: Sequence[Row]) -> tuple[float, float]:
    """Fit slope and intercept by Newton's method, with Platt's targets, which keep separable labels finite."""
    passing = sum(row.passed for row in rows)
    targets = (1 / (len(rows) - passing + 2), (passing + 1) / (passing + 2))
    points = [(logit(row.probability), targets[row.passed], row.weight) for row in rows]
    slope, intercept = 1.0, 0.0

    def loss(slope: float, intercept: float) -> float:
        odds = [(slope * x + intercept, target, weight) for x, target, weight in points]
        # log(1 + exp(z)) without overflow.
        return sum(weight * (max(z, 0) + math.log1p(math.exp(-abs(z))) - target * z) for z, target, weight in odds)

    reached = loss(slope, intercept)
    for _ in range(100):
        gradient, offset, xx, x1, total = 0.0, 0.0, _EXACT, 0.0, _EXACT
        for x, target, weight in points:
            p = 1 / (1 + math.exp(-max(-500.0, min(500.0, slope * x + intercept))))
            excess, curve = weight * (p - target), weight * p * (1 - p)
            gradient += excess * x
            offset += excess
            xx += curve * x * x
            x1 += curve * x
            total += curve
        determinant = xx * total - x1 * x1
        step = (total * gradient - x1 * offset) / determinant, (xx * offset - x1 * gradient) / determinant
        share = 1.0
        while share > _EXACT and (now := loss(slope - share * step[0], intercept - share * step[1])) > reached:
            share /= 2
        if share <= _EXACT or reached - now < _EXACT * max(1.0, reached):
            break
        slope, intercept, reached = slope - share * step[0], intercept - share * step[1], now
    # A falling map would reverse the verdicts of the judge; a constant one has no information from them.
    return (slope, intercept) if slope > 0 else (0.0, logit(_mean(rows, attrgetter("passed"))))


def _isotonic(rows: Sequence[Row]) -> tuple[tuple[float, float], ...]:
    """Pool adjacent violators (Ayer et al., Ann. Math. Stat. 26, 1955); each pool gives its first and last point."""
    pools: list[tuple[float, float, float, float]] = []  # First and last probability, weight, weighted passes.
    for probability, same in groupby(sorted(rows, key=attrgetter("probability")), attrgetter("probability")):
        group = list(same)
        pool = (
            probability,
            probability,
            sum(row.weight for row in group),
            sum(row.weight * row.passed for row in group),
        )
        while pools and pools[-1][3] * pool[2] >= pool[3] * pools[-1][2]:
            earlier = pools.pop()
            pool = (earlier[0], pool[1], earlier[2] + pool[2], earlier[3] + pool[3])
        pools.append(pool)
    points = [(edge, passes / weight) for low, high, weight, passes in pools for edge in sorted({low, high})]
    return tuple(points)


def _threshold(ordered: Sequence[Row], precision: float | None) -> float | None:
    passes = sum(row.weight for row in ordered)
    right = sum(row.weight for row in ordered if row.passed)
    agreed, best = right, -1.0
    previous: float | None = None
    limit: float | None = None
    for probability, same in groupby(ordered, attrgetter("probability")):
        # Half-way between two probabilities, so that a verdict of either is not decided by rounding.
        middle: float = probability if previous is None else (previous + probability) / 2
        if precision is None:
            if agreed > best:
                best, limit = agreed, middle
        elif passes > 0 and right / passes >= precision:
            return middle
        for row in same:
            passes -= row.weight
            right -= row.weight * row.passed
            agreed += row.weight * (-1 if row.passed else 1)
        previous = probability
    if precision is None and agreed > best and previous is not None:
        # Above all probabilities nothing passes.
        return min(1.0, math.nextafter(previous, 2))
    return limit


def as_text(group: Bin) -> str:
    """Draw one bin on a line from 0 to 1: the interval of the share as dashes, the share as o, the mean as |."""
    share = group.passing
    low, middle, high, mean = (round(_COLUMNS * at) for at in (share.low, share.value, share.high, group.mean))
    line = [" "] * (_COLUMNS + 1)
    line[low : high + 1] = "-" * (high + 1 - low)
    line[mean] = "|"
    line[middle] = "o"
    return "".join(line)


def as_svg(reliability: Reliability, calibration: Calibration, title: str) -> str:
    """Draw the bins of uncorrected probabilities with intervals, the diagonal and the map; the title is escaped."""
    width, height = _LEFT + _SIDE + 20, _TOP + _SIDE + 60
    curve = " ".join(_at(step / _MAP_STEPS, calibration.apply(step / _MAP_STEPS)) for step in range(_MAP_STEPS + 1))
    marks = []
    for group in reliability.bins:
        ends = f"{_at(group.mean, group.passing.low)} {_at(group.mean, group.passing.high)}"
        x, y = _at(group.mean, group.passing.value).split(",")
        marks += [
            f'<polyline points="{ends}" stroke="#247" fill="none"/><circle cx="{x}" cy="{y}" r="3.5" fill="#247"/>'
        ]
    for tenths in range(0, 11, 2):
        x, bottom = _at(tenths / 10, 0).split(",")
        y = _at(0, tenths / 10).split(",")[1]
        marks += [
            f'<text x="{x}" y="{float(bottom) + 14:.1f}" text-anchor="middle">{tenths / 10:.1f}</text>',
            f'<text x="{_LEFT - 6}" y="{float(y) + 4:.1f}" text-anchor="end">{tenths / 10:.1f}</text>',
        ]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f'<title>{title}</title><g font-family="system-ui, sans-serif" font-size="11" fill="#555">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<rect x="{_LEFT}" y="{_TOP}" width="{_SIDE}" height="{_SIDE}" fill="none" stroke="#ccc"/>',
        f'<polyline points="{_at(0, 0)} {_at(1, 1)}" stroke="#999" stroke-dasharray="4 4" fill="none"/>',
        f'<polyline points="{curve}" stroke="#c60" stroke-width="1.5" fill="none"/>',
        *marks,
        f'<text x="{_LEFT}" y="13">{title}</text>',
        f'<text x="{_LEFT + _SIDE / 2}" y="{height - 24}" text-anchor="middle">probability by the judge model</text>',
        f'<text transform="translate(16 {_TOP + _SIDE / 2}) rotate(-90)" text-anchor="middle">labelled pass</text>',
        f'<text x="{_LEFT}" y="{height - 6}">dots: labels, with limits; dashed: exact; line: fitted map</text>',
        "</g></svg>",
    ]
    return "\n".join(parts) + "\n"


def _at(probability: float, share: float) -> str:
    return f"{_LEFT + _SIDE * probability:.1f},{_TOP + _SIDE * (1 - share):.1f}"
