"""Days of traffic through a cascade, and beside it a plain sample for the second model at the same cost.

A trace is good with a probability p. The first model has a score, normal around 0 for bad and around d for good ones,
with sensitivity .85 and specificity .80 at the same limit, and its probability is calibrated to the second model's
verdicts. The second model has sensitivity and specificity .95. A verdict of the second costs twelve of the first.
"""

from statistics import NormalDist
from typing import Final, NamedTuple

import numpy as np

from judges.agreement.intervals import Z
from worker.features.cascades.feature import Cascade
from worker.features.cascades.shares import CascadeSums, estimate, fitted_factor, second_rate

TRACES: Final = 5_000
PRICE: Final = 12
SHARES: Final = (0.8, 0.9, 0.95)
BAND: Final = Cascade("first", "second", uncertain=(0.2, 0.8), audit=0.02)
_DISTANCE: Final = NormalDist().inv_cdf(0.85) + NormalDist().inv_cdf(0.80)
_BINS: Final = 50


class Found(NamedTuple):
    """Coverage of the interval, its mean width beside that of a plain sample, mean share of second judgings, bias."""

    coverage: float
    width: float
    rate: float
    bias: float


def _day(random: np.random.Generator, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the first model's probabilities and the second model's verdicts of a day."""
    good = random.random(TRACES) < share
    score = random.standard_normal(TRACES) + _DISTANCE * good
    odds = share / (1 - share) * np.exp(_DISTANCE * score - _DISTANCE**2 / 2)
    return 0.05 + 0.9 * odds / (1 + odds), np.where(good, random.random(TRACES) < 0.95, random.random(TRACES) < 0.05)


def _rates(cascade: Cascade, g: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Return the probabilities of second judgings, with the factor of the day before."""
    if cascade.uncertain is not None:
        low, high = cascade.uncertain
        return np.where((low <= g) & (g <= high), 1.0, cascade.audit)
    rate = cascade.rate or 0.0
    uncertain = np.sqrt(before * (1 - before))
    places = np.minimum(_BINS - 1, 2 * _BINS * uncertain).astype(int)
    numbers, sums = np.bincount(places), np.bincount(places, uncertain)
    has_verdicts = numbers > 0
    factor = fitted_factor(
        rate, list(zip(sums[has_verdicts] / numbers[has_verdicts], numbers[has_verdicts], strict=True))
    )
    rates = np.clip(factor * np.sqrt(g * (1 - g)), rate / 4, 1.0)
    # The formula of the product, at one trace.
    assert abs(rates[0] - second_rate(cascade, {"metric": float(g[0])}, factor)) < 1e-12
    return rates


def simulate(seed: int, share: float, cascade: Cascade, runs: int, *, sampled: float = 1.0) -> Found:
    """Compare the share of a cascade with the second model's share of all traces of the same day.

    Args:
        seed: Of the random numbers.
        share: Share of good traces.
        cascade: The cascade.
        runs: Number of days.
        sampled: Probability by which the first model judges a trace.
    """
    random, outcomes, w = np.random.default_rng(seed), [], 1 / sampled
    g, _ = _day(random, share)
    for _ in range(runs):
        before, (g, z) = g, _day(random, share)
        truth, rates = z.mean(), _rates(cascade, g, before)
        judged = random.random(TRACES) < sampled
        chosen = judged & (random.random(TRACES) < rates)
        of_first, pi, difference = g[judged], rates[chosen], (z - g)[chosen]
        sums = CascadeSums(
            first=len(of_first),
            weight=w * len(of_first),
            expected=w * of_first.sum(),
            spread=w * (w - 1) * len(of_first),
            expected_spread=w * (w - 1) * of_first.sum(),
            chosen=len(pi),
            chosen_weight=(w / pi).sum(),
            second=len(pi),
            second_weight=(w / pi).sum(),
            correction=(w / pi * difference).sum(),
            squares=((w / pi * difference) ** 2).sum(),
            sampled_squares=(w * w / pi * difference**2).sum(),
            correction_spread=(w * (w - 1) / pi * difference).sum(),
        )
        estimated = estimate(sums)
        assert estimated is not None
        plain = len(pi) + len(of_first) / PRICE
        width = 2 * Z * np.sqrt(truth * (1 - truth) / plain * (1 - min(1.0, plain / TRACES)))
        covered = estimated.low <= truth <= estimated.high
        outcomes.append(
            (covered, (estimated.high - estimated.low) / width, len(pi) / len(of_first), estimated.value - truth)
        )
    return Found(*np.mean(outcomes, axis=0))
