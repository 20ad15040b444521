"""Days of traffic through a cascade: coverage and width of its share, also where second verdicts are missing.

A trace is good with a probability p; the second model's verdict says so. The first model has a score, normal around 0
for bad and around d for good ones, with sensitivity .85 and specificity .80 at the same limit; its probability is
calibrated to the second model's verdicts, or distorted.
"""

from collections.abc import Callable
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from benchmarks.coverage import sums_of
from judges.agreement import cascade_share
from judges.agreement.cascade import CascadeSums, ClassKey, estimate_cascade, second_floor
from judges.agreement.intervals import wilson
from judges.agreement.shares import design_effect
from worker.features.cascades.shares import fitted_factor

HOURS = 24
SHARES = (0.8, 0.9, 0.95, 0.98)
CELLS = ((200, 0.3, 1.0), (400, 0.2, 1.0), (1000, 0.2, 1.0), (3000, 0.2, 1.0), (400, 0.2, 10.0))
"""First verdicts of a day, rate of second ones, and weight of the first ones."""
_DISTANCE = NormalDist().inv_cdf(0.85) + NormalDist().inv_cdf(0.80)
_BINS = 50

Distortion = Callable[[np.ndarray], np.ndarray]
"""Of the log odds of the first model."""
JUDGES: dict[str, Distortion] = {
    "calibrated": lambda logits: logits,
    "logits * 2": lambda logits: 2 * logits,
    "logits * 3": lambda logits: 3 * logits,
    "logits + 2": lambda logits: logits + 2,
    "logits - 2": lambda logits: logits - 2,
    "constant": np.zeros_like,
}
NONE, PASS, FAIL, REFUSED, WAITING = range(5)
_OUTCOMES = (None, "pass", "fail", "refused", "waiting")


class Day(NamedTuple):
    """Traces of a day: whether the second model passes each, the first model's log odds, and the hour."""

    good: np.ndarray
    logits: np.ndarray
    hour: np.ndarray


Missing = Callable[[Generator, Day], np.ndarray]
"""Return for each trace which second judging would be refused (1), wait (2), or be answered (0)."""


class Found(NamedTuple):
    """Coverage, mean width of the interval, of a plain sample's, mean unknown part, bias, days that are not known."""

    coverage: float
    width: float
    plain: float
    unknown: float
    bias: float
    not_known: float


def calibrated(chance: Generator, good: np.ndarray, share: float) -> np.ndarray:
    """Draw the log odds of a calibrated first model."""
    score = chance.standard_normal(len(good)) + _DISTANCE * good
    return np.log(share / (1 - share)) + _DISTANCE * score - _DISTANCE**2 / 2


def rates_of(g: np.ndarray, rate: float, floor: float) -> np.ndarray:
    """Return the probabilities of second judgings, with the factor that the product fits to these first verdicts."""
    uncertain = np.maximum(0.005, np.sqrt(g * (1 - g)))
    places = np.minimum(_BINS - 1, 2 * _BINS * uncertain).astype(int)
    numbers, sums = np.bincount(places), np.bincount(places, uncertain)
    has = numbers > 0
    factor = fitted_factor(rate, list(zip(sums[has] / numbers[has], numbers[has], strict=True)), floor)
    return np.clip(factor * uncertain, floor * rate, 1.0)


def fold(
    g: np.ndarray, w: np.ndarray, pi: np.ndarray, ends: np.ndarray, hour: np.ndarray
) -> list[dict[ClassKey, CascadeSums]]:
    """Return the sums that `cascade_share` reaches verdict by verdict."""
    u = w / pi
    level = np.minimum(7, np.floor(np.log2(u) + 1e-9)).astype(int)
    cell = (hour * 2 + (g >= 0.5)) * 8 + level
    amounts = [np.ones_like(w), w, w * (w - 1)]
    scored = ends <= FAIL
    for is_end, columns in (
        (scored & (ends != NONE), (np.ones_like(u), u, u * (ends == PASS), u * u)),
        (ends == REFUSED, (np.ones_like(u), u, u * u)),
        (ends == WAITING, (np.ones_like(u), u, u * u)),
    ):
        amounts += [column * is_end for column in columns]
    totals = np.array([np.bincount(cell, amount, HOURS * 16) for amount in amounts]).T
    hours: list[dict[ClassKey, CascadeSums]] = [{} for _ in range(HOURS)]
    for place in np.unique(cell).tolist():
        at, key = divmod(place, 16)
        hours[at][key >= 8, key % 8] = CascadeSums(*totals[place].tolist())
    return hours


def simulate(
    seed: int,
    share: float,
    traces: int,
    rate: float,
    runs: int,
    *,
    w: float = 1.0,
    judge: Distortion = JUDGES["calibrated"],
    missing: Missing | None = None,
    shares: Callable[[np.ndarray, float], np.ndarray] | None = None,
    floor: float | None = None,
    turns: int = 1,
) -> Found:
    """Compare the share of a cascade with the second model's share of all traces of the day.

    Args:
        seed: Of the random numbers.
        share: Share of good traces.
        traces: First verdicts of a day, on average; of w times as many traces.
        rate: Mean rate of second judgings.
        runs: Number of days.
        w: Weight of the first verdicts.
        judge: How the first model's log odds are distorted.
        missing: Which second verdicts are missing.
        shares: The share of good traces of each hour, given the usual one.
        floor: The least probability as a part of the rate; by the product's rule unless given.
        turns: Traces of a session; more than one are good alike, and drawn together.
    """
    chance, outcomes = np.random.default_rng(seed), []
    floor = second_floor(rate * traces * min(share, 1 - share)) if floor is None else floor
    total = round(traces * w)
    hour = np.arange(total) * HOURS // total
    session = np.arange(total) // turns
    for run in range(runs):
        p = np.full(total, share) if shares is None else shares(hour, share)
        if turns > 1:
            # Correlation .25.
            p = np.repeat(chance.beta(3 * share, 3 * (1 - share), total // turns + 1), turns)[:total]
        good = chance.random(total) < p
        logits = judge(calibrated(chance, good, share))
        day = Day(good, logits, hour)
        kinds = np.zeros(total, int) if missing is None else missing(chance, day)
        first = chance.random(session[-1] + 1)[session] < 1 / w
        g = 1 / (1 + np.exp(-day.logits[first]))
        pi = rates_of(g, rate, floor)
        is_chosen = chance.random(len(g)) < pi
        ends = np.where(kinds[first] > 0, 2 + kinds[first], np.where(good[first], PASS, FAIL)) * is_chosen
        weights = np.full(len(g), w)
        effect = 1.0
        if turns > 1:
            effect = design_effect(sums_of(weights, (g >= 0.5).astype(float), session[first]))
        hours = fold(g, weights, pi, ends, hour[first])
        estimate = estimate_cascade(hours, effect)
        if run == 0:
            sessions = session[first].tolist() if turns > 1 else None
            public = cascade_share(
                g, pi, [_OUTCOMES[end] for end in ends], weight=weights, hour=hour[first].tolist(), session=sessions
            )
            assert (public is None) == (estimate is None)
            assert public is None or np.allclose(public, estimate, rtol=1e-9)
        if estimate is None:
            continue
        truth, strong = good.mean(), float(np.count_nonzero(ends))
        size = strong / (1 - strong / total) if strong < total else 1e12
        plain = wilson(truth, size)
        outcomes.append(
            (
                estimate.low - 1e-12 <= truth <= estimate.high + 1e-12,
                estimate.high - estimate.low,
                plain.high - plain.low,
                estimate.unknown,
                estimate.share - truth,
                not estimate.known,
            )
        )
    return Found(*np.mean(outcomes, axis=0))


def _in_hours(first: float, last: float) -> Callable[[Day], np.ndarray]:
    return lambda day: (day.hour >= first) & (day.hour < last)


def _waits(when: Callable[[Day], np.ndarray]) -> Missing:
    return lambda _, day: 2 * when(day)


def _bad_hours(first: int, last: int, bad: float) -> Callable[[np.ndarray, float], np.ndarray]:
    """Set the share of the hours from ``first`` to before ``last``."""
    return lambda hour, share: np.where((hour >= first) & (hour < last), bad, share)


class Scene(NamedTuple):
    """One scene of missing second verdicts; ``lowest`` is the coverage that is claimed."""

    missing: Missing | None
    shares: Callable[[np.ndarray, float], np.ndarray] | None = None
    share: float = 0.9
    judge: Distortion = JUDGES["calibrated"]
    lowest: float = 0.94


def _random(part: float, kind: int) -> Missing:
    return lambda chance, day: kind * (chance.random(len(day.good)) < part)


def _of_fails(part: float, kind: int) -> Missing:
    return lambda chance, day: kind * (~day.good & (chance.random(len(day.good)) < part))


def _away_and_random(chance: Generator, day: Day) -> np.ndarray:
    return np.where(day.hour == 10, 2, 2 * (chance.random(len(day.good)) < 0.2))


SCENES: dict[str, Scene] = {
    "complete": Scene(None),
    "away 1 h, share .6 in it": Scene(_waits(_in_hours(10, 11)), _bad_hours(10, 11, 0.6)),
    "away 1 h, share .3 in it": Scene(_waits(_in_hours(10, 11)), _bad_hours(10, 11, 0.3)),
    "away 4 h, share .6": Scene(_waits(_in_hours(10, 14)), _bad_hours(10, 14, 0.6)),
    "refuses 30 % of the fails": Scene(_of_fails(0.3, 1)),
    "refuses 30 % of the fails, share .98": Scene(_of_fails(0.3, 1), share=0.98),
    "refuses 5 % at random": Scene(_random(0.05, 1)),
    "waiting: 20 % at random": Scene(_random(0.2, 2)),
    "waiting: 20 % at random, share .98": Scene(_random(0.2, 2), share=0.98),
    "waiting: 20 % at random, and away 1 h with .6": Scene(_away_and_random, _bad_hours(10, 11, 0.6)),
    "waiting: 20 % of the fails": Scene(_of_fails(0.2, 2)),
    # The limit of the method: nothing that is known shows it.
    "waiting: 20 % of the fails, constant first model": Scene(_of_fails(0.2, 2), judge=JUDGES["constant"], lowest=0.0),
}
