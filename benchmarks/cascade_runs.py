"""Days of traffic through a cascade: coverage and width of its share, also where second verdicts are missing.

A trace is good with a probability p; the second model's verdict says so. The first model has a score, normal around 0
for bad and around d for good ones, with sensitivity .85 and specificity .80 at the same limit; its probability is
calibrated to the second model's verdicts, or distorted.
"""

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.random import Generator

from benchmarks.coverage import sums_of
from judges.agreement import cascade_share
from judges.agreement.cascade import CascadeSums, ClassKey, estimate_cascade, second_floor
from judges.agreement.intervals import wilson
from judges.agreement.shares import design_effect
from worker.features.cascades.shares import fitted_factor

HOURS = 24
SHARES = (0.8, 0.9, 0.95, 0.98, 0.99)
CELLS = (
    (100, 0.2, 1.0, (1.02, 1.09, 1.16, 1.17, 1.18)),
    (200, 0.3, 1.0, (1.01, 1.0, 1.02, 1.03, 1.07)),
    (400, 0.2, 1.0, (1.01, 1.01, 1.02, 1.03, 1.1)),
    (1000, 0.05, 1.0, (1.01, 1.02, 1.05, 1.11, 1.16)),
    (1000, 0.2, 1.0, (1.0, 1.0, 1.0, 1.01, 1.04)),
    (3000, 0.2, 1.0, (1.0, 1.0, 1.0, 1.01, 0.99)),
    (20_000, 0.05, 1.0, (1.0, 1.0, 1.0, 1.0, 0.99)),
    (20_000, 0.2, 1.0, (1.0, 1.0, 1.0, 1.0, 1.0)),
    (400, 0.2, 10.0, (1.0, 1.02, 1.02, 1.05, 1.1)),
    (3000, 0.2, 10.0, (1.0, 1.0, 1.0, 1.0, 1.02)),
)
"""First verdicts of a day, rate of second ones, weight of the first ones, and the largest width at each share."""
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
_Outcome = Literal["pass", "fail", "refused", "waiting"]
_OUTCOMES: Final[tuple[_Outcome | None, ...]] = (None, "pass", "fail", "refused", "waiting")


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
    return math.log(share / (1 - share)) + _DISTANCE * score - _DISTANCE**2 / 2


def rates_of(uncertain: np.ndarray, rate: float, floor: float) -> np.ndarray:
    """Return the probabilities of second judgings, with the factor that the product fits to these first verdicts."""
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
    later: float | None = None,
    errors: float = 0.0,
    metrics: int = 1,
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
        later: The rate from noon on.
        errors: Share of traces that fail twice as often and are always judged the first time, with weight 1.
        metrics: Of the first model; the rate follows the least certain one.
    """
    chance, outcomes = np.random.default_rng(seed), []
    floor = second_floor(rate * traces * min(share, 1 - share)) if floor is None else floor
    total = round(traces * w)
    clock = np.arange(total) * HOURS / total
    hour = clock.astype(int)
    session = np.arange(total) // turns
    for run in range(runs):
        p = np.full(total, share) if shares is None else shares(clock, share)
        if turns > 1:
            # Correlation .25.
            p = np.repeat(chance.beta(3 * share, 3 * (1 - share), total // turns + 1), turns)[:total]
        is_error = chance.random(total) < errors
        good = chance.random(total) < 1 - (1 - p) * (1 + is_error) / (1 + errors)
        logits = judge(calibrated(chance, good, share))
        day = Day(good, logits, clock)
        kinds = np.zeros(total, int) if missing is None else missing(chance, day)
        of_trace = np.where(is_error, 1.0, w)
        first = chance.random(session[-1] + 1)[session] < 1 / of_trace
        g = 1 / (1 + np.exp(-day.logits[first]))
        others = [1 / (1 + np.exp(-calibrated(chance, chance.random(len(g)) < 0.9, 0.9))) for _ in range(1, metrics)]
        uncertain = np.max([np.maximum(0.005, np.sqrt(each * (1 - each))) for each in (g, *others)], 0)
        pi = rates_of(uncertain, rate, floor)
        if later is not None:
            pi = np.where(clock[first] < HOURS / 2, pi, rates_of(uncertain, later, floor))
        is_chosen = chance.random(len(g)) < pi
        ends = np.where(kinds[first] > 0, 2 + kinds[first], np.where(good[first], PASS, FAIL)) * is_chosen
        weights = of_trace[first]
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
            assert public is None or estimate is None or np.allclose(public, estimate, rtol=1e-9)
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


def _bad_hours(first: float, last: float, bad: float) -> Callable[[np.ndarray, float], np.ndarray]:
    """Set the share of the hours from ``first`` to before ``last``."""
    return lambda hour, share: np.where((hour >= first) & (hour < last), bad, share)


class Scene(NamedTuple):
    """One scene of missing second verdicts; ``lowest`` is the coverage that is claimed."""

    missing: Missing | None
    shares: Callable[[np.ndarray, float], np.ndarray] | None = None
    share: float = 0.9
    judge: Distortion = JUDGES["calibrated"]
    lowest: float = 0.94
    traces: int = 6000  # First verdicts of a day.
    w: float = 1.0


def _random(part: float, kind: int) -> Missing:
    return lambda chance, day: kind * (chance.random(len(day.good)) < part)


def _of_fails(part: float, kind: int) -> Missing:
    return lambda chance, day: kind * (~day.good & (chance.random(len(day.good)) < part))


def _away_and_random(chance: Generator, day: Day) -> np.ndarray:
    return np.where(day.hour.astype(int) == 10, 2, 2 * (chance.random(len(day.good)) < 0.2))


SCENES: dict[str, Scene] = {
    "complete": Scene(None),
    "away 1 h, share .6 in it": Scene(_waits(_in_hours(10, 11)), _bad_hours(10, 11, 0.6)),
    "away 1 h, share .3 in it": Scene(_waits(_in_hours(10, 11)), _bad_hours(10, 11, 0.3)),
    "away 10:30 to 11:30, share .6, logits * 3": Scene(
        _waits(_in_hours(10.5, 11.5)), _bad_hours(10.5, 11.5, 0.6), judge=JUDGES["logits * 3"]
    ),
    "away 20 minutes, share .6": Scene(_waits(_in_hours(10, 10 + 1 / 3)), _bad_hours(10, 10 + 1 / 3, 0.6)),
    "away 4 h, share .6": Scene(_waits(_in_hours(10, 14)), _bad_hours(10, 14, 0.6)),
    "away 4 h, share .6, logits + 3": Scene(
        _waits(_in_hours(10, 14)), _bad_hours(10, 14, 0.6), judge=lambda logits: logits + 3
    ),
    "away 6 h, share .6, logits - 2": Scene(
        _waits(_in_hours(10, 16)), _bad_hours(10, 16, 0.6), judge=JUDGES["logits - 2"]
    ),
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
for _traces, _w, _names in (
    (1000, 1.0, ("complete", "away 1 h, share .6 in it", "refuses 30 % of the fails", "waiting: 20 % at random")),
    (20_000, 1.0, ("complete", "away 1 h, share .6 in it", "refuses 30 % of the fails", "waiting: 20 % at random")),
    (2000, 10.0, ("complete", "away 1 h, share .6 in it", "away 4 h, share .6", "refuses 30 % of the fails")),
    (2000, 10.0, ("waiting: 20 % at random",)),
):
    for _name in _names:
        SCENES[f"{_traces:,} a day, weight {_w:g}: {_name}"] = SCENES[_name]._replace(traces=_traces, w=_w)


def missing(seed: int, scene: Scene, traces: int, runs: int) -> Found:
    """Simulate days of a scene."""
    kind: dict[str, Any] = {"missing": scene.missing, "shares": scene.shares, "judge": scene.judge, "w": scene.w}
    return simulate(seed, scene.share, traces, 0.2, runs, **kind)


_HALF_A_DAY = 12
KINDS: tuple[tuple[str, int, float, tuple[float, ...], dict[str, Any]], ...] = (
    ("errors always judged, others one of ten", 1000, 0.2, SHARES[1:], {"w": 10.0, "errors": 0.05}),
    ("by the less certain of two metrics", 1000, 0.2, SHARES[1:], {"metrics": 2}),
    (
        "rate from .3 to .075 at noon, share from .95 to .85",
        *(1000, 0.3, (0.95,)),
        {"later": 0.075, "shares": _bad_hours(_HALF_A_DAY, HOURS, 0.85)},
    ),
    (
        "rate from .075 to .3 at noon, share from .85 to .95",
        *(1000, 0.075, (0.95,)),
        {"later": 0.3, "shares": _bad_hours(0, _HALF_A_DAY, 0.85)},
    ),
    ("second judgings of version 0.2, at least a quarter of the rate", 1000, 0.2, SHARES, {"floor": 0.25}),
    ("sessions of five, drawn one by one", 1000, 0.2, (0.9, 0.98), {"turns": 5}),
    ("sessions of five, drawn by session, weight 10", 1000, 0.2, (0.9, 0.98), {"w": 10.0, "turns": 5}),
)
"""Name, first verdicts of a day, rate, shares, and the rest of ``simulate``."""
