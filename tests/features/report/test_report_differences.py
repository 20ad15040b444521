"""Intervals of differences of two shares, beside statsmodels and in simulated pairs of periods."""

import pytest
from support.lazy import Lazy

from benchmarks import coverage
from judges.agreement.intervals import difference, wilson

proportion = Lazy("statsmodels.stats.proportion")


def test_intervals_of_differences_cover() -> None:
    for name, make in coverage.PAIR_DESIGNS.items():
        for pair in coverage.PAIRS:
            # Three standard errors of 600 runs around what 2,000 runs reach, 94.4 to 96.6 %.
            assert 0.92 <= coverage.difference_coverage(make, *pair, 600) <= 0.99, (name, pair)


def test_unweighted_differences_have_newcombes_interval() -> None:
    for a, m, b, n in ((56, 70, 48, 80), (9, 10, 3, 10), (400, 400, 395, 400), (0, 20, 7, 9)):
        corrected = difference(wilson(a / m, m), wilson(b / n, n))
        expected = proportion.confint_proportions_2indep(a, m, b, n, method="newcomb", compare="diff")
        assert (corrected.low, corrected.high) == pytest.approx(expected, abs=1e-4), (a, m, b, n)
