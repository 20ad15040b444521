"""The share of a cascade: first verdicts by one model on every trace, second ones by another model on some of them.

A first verdict has the weight w = 1 / probability of being judged and the probability g that the metric passes. It was
chosen for a second judging, whose verdict z counts with u = w/π, with the probability π. The g decide only about
classes: by g ≥ ½ and the power of two below u. So the calibration of the first model changes the width of the interval,
and not its coverage.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import add, mul
from typing import Final, NamedTuple

from judges.agreement.intervals import Interval, Z, combine, wilson
from judges.agreement.shares import MOST_UNKNOWN, ShareEstimate

LEAST_SECOND: Final = 10  # Second verdicts below which a cascade has no share.
_MOST_LEVEL: Final = 7
_LEAST_OF_CLASS: Final = 5
_FEW: Final = 3.5  # Fails or passes of a class below which their Poisson limit counts.
_LEAST_WAITING: Final = 2
_LEAST_ANSWERS: Final = 5
_LEAST_FLOOR: Final = 0.5
MOST_FLOOR: Final = 0.85
_LEAST_RATE: Final = 0.1
_LEAST_DAILY: Final = 200
_MOST_SHARE: Final = 0.99

ClassKey = tuple[bool, int]
"""Whether the first model finds a pass likely, and the power of two below the weight of a second verdict."""


class CascadeSums(NamedTuple):
    """Sums over the verdicts of one metric, class and hour; ``refused`` were answered without a usable score."""

    first: float = 0  # First verdicts.
    weight: float = 0  # Σw
    spread: float = 0  # Σw(w - 1)
    second: float = 0  # Second verdicts with a score.
    second_weight: float = 0  # Σu
    passed: float = 0  # Σuz
    squares: float = 0  # Σu²
    refused: float = 0
    refused_weight: float = 0
    refused_squares: float = 0
    waiting: float = 0  # Chosen and not answered.
    waiting_weight: float = 0
    waiting_squares: float = 0

    @property
    def chosen(self) -> float:
        """First verdicts that were chosen for a second judging."""
        return self.second + self.refused + self.waiting

    @property
    def chosen_weight(self) -> float:
        """Σu of these."""
        return self.second_weight + self.refused_weight + self.waiting_weight

    def plus(self, other: "CascadeSums") -> "CascadeSums":
        """Return the sums of both."""
        return CascadeSums(*map(add, self, other))

    def answered(self, *, passed: bool) -> "CascadeSums":
        """Return the sums with all refused and waiting ones as second verdicts that pass or fail."""
        weight = self.refused_weight + self.waiting_weight
        return self._replace(
            second=self.chosen,
            second_weight=self.chosen_weight,
            passed=self.passed + passed * weight,
            squares=self.squares + self.refused_squares + self.waiting_squares,
        )

    def scaled(self, factor: float) -> "CascadeSums":
        """Return the sums without the waiting ones, whose part the weights of the others take over."""
        squared = factor * factor
        return CascadeSums(*map(mul, self, (1, 1, 1, 1, factor, factor, squared, 1, factor, squared, 0, 0, 0)))


def class_key(probability: float, weight: float) -> ClassKey:
    """Return the class of a first verdict by its probability and the weight of a second one."""
    # Two ways to compute a weight differ by rounding, which must not change the class of 8.
    return probability >= 0.5, min(_MOST_LEVEL, math.floor(math.log2(weight) + 1e-9))  # noqa: PLR2004 - likelier


def add_sums(hours: Iterable[Mapping[ClassKey, CascadeSums]]) -> dict[ClassKey, CascadeSums]:
    """Add up the sums of several hours by class."""
    total: dict[ClassKey, CascadeSums] = {}
    for hour in hours:
        for key, sums in hour.items():
            total[key] = total.get(key, CascadeSums()).plus(sums)
    return total


def total_sums(classes: Mapping[ClassKey, CascadeSums]) -> CascadeSums:
    """Add up the sums of all classes."""
    return reduce(CascadeSums.plus, classes.values(), CascadeSums())


def estimate_cascade(hours: Sequence[Mapping[ClassKey, CascadeSums]], effect: float = 1.0) -> ShareEstimate | None:
    """Return the share of a cascade with its 95 % interval, None with fewer than ten second verdicts.

    With ten second judgings of which more than a tenth is unknown the share is not known, and has its limits.

    Second judgings that were refused, and those that wait since an hour in which the second model was away, are
    unknown: the lower limit takes all of them for fails, the upper limit for passes. ``effect`` is the design effect of
    sessions where first verdicts are drawn by session.
    """
    classes = add_sums(_known_waiting(hours))
    total = total_sums(classes)
    if total.chosen < LEAST_SECOND or total.weight <= 0:
        return None
    unknown = (total.refused_weight + total.waiting_weight) / total.chosen_weight
    if total.second < LEAST_SECOND and unknown <= MOST_UNKNOWN:
        return None
    low, high = (
        _interval([(key, sums.answered(passed=passed)) for key, sums in classes.items()], effect)[1 + passed]
        for passed in (False, True)
    )
    share = _interval(list(classes.items()), effect).value if total.second else (low + high) / 2
    effective = total.second_weight**2 / total.squares if total.squares else 0.0
    share = min(high, max(low, share))
    return ShareEstimate(share, low, high, unknown, low, high, round(total.second), effective, effect)


def _known_waiting(hours: Sequence[Mapping[ClassKey, CascadeSums]]) -> list[Mapping[ClassKey, CascadeSums]]:
    """Return the hours with those waiting that are unknown; others are made up for by the answers of their hour."""
    totals = [total_sums(hour) for hour in hours]
    away = _away(totals)
    ordinary = add_sums(hour for hour, is_away in zip(hours, away, strict=True) if not is_away)
    if _depends_on_content(ordinary):
        return list(hours)
    whole = total_sums(ordinary)
    usual = _made_up(whole) if whole.second + whole.refused else 1.0
    results: list[Mapping[ClassKey, CascadeSums]] = []
    for hour, total, is_away in zip(hours, totals, away, strict=True):
        if is_away or not total.waiting:
            results.append(hour)
            continue
        factor = _made_up(total) if total.second + total.refused >= _LEAST_ANSWERS else usual
        results.append({key: sums.scaled(factor) for key, sums in hour.items()})
    return results


def _made_up(sums: CascadeSums) -> float:
    return sums.chosen_weight / (sums.second_weight + sums.refused_weight)


def _away(totals: Sequence[CascadeSums]) -> list[bool]:
    """Return for each hour whether the second model was away: many more wait than usual, or all."""
    parts = sorted(total.waiting / total.chosen for total in totals if total.chosen)
    if not parts:
        return [False] * len(totals)
    place = (len(parts) - 1) / 4
    first, after = parts[int(place)], parts[min(len(parts) - 1, int(place) + 1)]
    quartile = first + (after - first) * (place - int(place))
    usual = [total for total in totals if total.chosen and total.waiting / total.chosen <= quartile + 0.2]
    base = sum(total.waiting for total in usual) / sum(total.chosen for total in usual)
    least = max(base * (1 - base), 0.02)
    return [
        total.chosen > 0
        and (
            total.waiting == total.chosen
            or (
                total.waiting >= _LEAST_WAITING
                and total.waiting / total.chosen > base + max(0.1, 3 * math.sqrt(least / total.chosen))
            )
        )
        for total in totals
    ]


def _depends_on_content(classes: Mapping[ClassKey, CascadeSums]) -> bool:
    """Return whether second judgings wait more often on one side of the first model's verdicts."""
    sides = [
        total_sums({key: sums for key, sums in classes.items() if key[0] is is_likely}) for is_likely in (False, True)
    ]
    if any(side.chosen == 0 for side in sides):
        return False
    shares = [side.waiting / side.chosen for side in sides]
    joint = sum(side.waiting for side in sides) / sum(side.chosen for side in sides)
    error = math.sqrt(joint * (1 - joint) * sum(1 / side.chosen for side in sides))
    return abs(shares[0] - shares[1]) > 3 * error


def _interval(classes: Sequence[tuple[ClassKey, CascadeSums]], effect: float) -> Interval:
    parts = [(sums.weight, _rate(sums, effect), sums.spread) for sums in _merged(classes)]
    share = sum(weight * rate.value for weight, rate, _ in parts) / sum(weight for weight, _, _ in parts)
    return combine(share, parts, Z * Z * effect)


def _merged(classes: Sequence[tuple[ClassKey, CascadeSums]]) -> list[CascadeSums]:
    """Add classes with fewer than five second verdicts to their less certain neighbours."""
    sides: list[list[CascadeSums]] = []
    for is_likely in (False, True):
        # The most certain first.
        ordered = sorted(((key[1], sums) for key, sums in classes if key[0] is is_likely), reverse=True)
        kept: list[CascadeSums] = []
        open_sums = CascadeSums()
        for _, sums in ordered:
            open_sums = open_sums.plus(sums)
            if open_sums.second >= _LEAST_OF_CLASS:
                kept.append(open_sums)
                open_sums = CascadeSums()
        if any(open_sums):
            kept.append(kept.pop().plus(open_sums) if kept else open_sums)
        sides.append(kept)
    fewer, more = sorted(sides, key=lambda side: sum(sums.second for sums in side))
    if fewer and more and sum(sums.second for sums in fewer) < _LEAST_OF_CLASS:
        for sums in fewer:
            more[-1] = more[-1].plus(sums)
        fewer = []
    return fewer + more


def _rate(sums: CascadeSums, effect: float) -> Interval:
    """Return the share of passes among the second verdicts of a class, for the finite number of its first ones."""
    if sums.second_weight <= 0:
        return Interval(0.5, 0.0, 1.0)
    rate = min(1.0, sums.passed / sums.second_weight)
    excess = sums.squares - sums.second_weight
    if effect > 1 and sums.weight > 0:
        # Σu(w - 1) over the second verdicts has this expectation.
        excess += (effect - 1) * sums.spread * sums.second_weight / sums.weight
    if excess <= 1e-9 * sums.squares:
        return Interval(rate, rate, rate)
    number = sums.second_weight**2 / excess
    _, low, high = wilson(rate, number)
    fails, passes = number * (1 - rate), number * rate
    if 0 < fails <= _FEW:
        high = max(high, 1 - _poisson_low(fails) / number)
    if 0 < passes <= _FEW:
        low = min(low, _poisson_low(passes) / number)
    return Interval(rate, low, high)


def _poisson_low(events: float) -> float:
    """Return the lower 95 % limit of a Poisson mean (Wilson and Hilferty, PNAS 17, 1931)."""
    return events * max(0.0, 1 - 1 / (9 * events) - Z / (3 * math.sqrt(events))) ** 3


def second_floor(fails: float) -> float:
    """Return the least probability of a second judging, as a part of the mean rate.

    ``fails`` would meet a plain sample of that rate in 24 hours: rate · first verdicts · min(θ, 1 - θ) with the last
    known share θ.
    """
    return min(MOST_FLOOR, max(_LEAST_FLOOR, 3 / math.sqrt(fails))) if fails > 0 else MOST_FLOOR


def plain_is_as_good(rate: float, second: float | None = None, share: float | None = None) -> str:
    """Return why a plain sample of a rate, with so many ``second`` verdicts a day, is as good as a cascade; else ""."""
    reasons = [
        (rate < _LEAST_RATE, f"its rate of {rate:.3g} is below {_LEAST_RATE:g}"),
        (second is not None and second < _LEAST_DAILY, f"{second or 0:,.0f} second verdicts a day are fewer than 200"),
        (share is not None and share >= _MOST_SHARE, f"its share of {share or 0:.1%} is {_MOST_SHARE:.0%} or more"),
    ]
    reason = next((text for holds, text in reasons if holds), "")
    return reason and f"a plain sample for the second model is as good: {reason}"
