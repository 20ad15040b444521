"""Intervals of differences of two shares, beside statsmodels and in simulated pairs of periods."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.random import Generator
from statsmodels.stats.proportion import confint_proportions_2indep

from judges.agreement.intervals import wilson
from tests.monitor.coverage import Window, conversations, errors_always, sums_of, uniform
from worker.monitor.shares import pass_share
from worker.report.figures import difference

SHORT_RUNS, RUNS = 600, 2_000
Make = Callable[[Generator, float], Window]
DESIGNS: dict[str, Make] = {
    "uniform, 50": lambda chance, share: uniform(chance, share, 50),
    "uniform, 400": lambda chance, share: uniform(chance, share, 400),
    "errors always, 150": lambda chance, share: errors_always(chance, share, 150),
    "sessions of five, correlation .25, 100": lambda chance, share: conversations(chance, share, 100, 0.25),
}
PAIRS = ((0.9, 0.9), (0.9, 0.8), (0.95, 0.85))


def coverage(make: Make, before: float, now: float, runs: int, seed: int = 8) -> float:
    """Return the share of pairs whose interval holds the true difference."""
    chance = np.random.default_rng(seed)
    covered = 0
    for _ in range(runs):
        earlier, later = make(chance, before), make(chance, now)
        sums = [sums_of(one.weights, one.passed, one.sessions) for one in (earlier, later)]
        # As in the report, each period steadies the design effect of the other.
        old, new = pass_share(sums[0], sums[1]), pass_share(sums[1], sums[0])
        assert old is not None
        assert new is not None
        _, low, high = difference(new.interval, old.interval)
        covered += low <= later.truth - earlier.truth <= high
    return covered / runs


@pytest.mark.parametrize("design", DESIGNS)
def test_intervals_of_differences_cover(design: str) -> None:
    for before, now in PAIRS:
        # Three standard errors of 600 runs around what 2,000 runs reach, 94.4 to 96.6 %.
        assert 0.92 <= coverage(DESIGNS[design], before, now, SHORT_RUNS) <= 0.99, (before, now)


def test_unweighted_differences_have_newcombes_interval() -> None:
    for a, m, b, n in ((56, 70, 48, 80), (9, 10, 3, 10), (400, 400, 395, 400), (0, 20, 7, 9)):
        found = difference(wilson(a / m, m), wilson(b / n, n))
        wanted = confint_proportions_2indep(a, m, b, n, method="newcomb", compare="diff")
        assert (found.low, found.high) == pytest.approx(wanted, abs=1e-4), (a, m, b, n)


if __name__ == "__main__":
    for name, make in DESIGNS.items():
        print(name, *(f"{pair}: {coverage(make, *pair, RUNS):.1%}" for pair in PAIRS))  # noqa: T201
