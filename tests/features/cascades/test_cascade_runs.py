"""The share of a cascade in simulated days: coverage, and width beside a plain sample at the same cost."""

import pytest

from tests.features.cascades.cascade_runs import BAND, SHARES, simulate
from worker.features.cascades.feature import Cascade
from worker.features.cascades.shares import CascadeSums, estimate, fitted_factor, second_rate, uncertainty

TWENTY = Cascade("first", "second", rate=0.2)


def test_the_interval_covers_and_is_as_narrow_as_a_plain_sample() -> None:
    for share in SHARES:
        simulation = simulate(1, share, TWENTY, 300)
        # Three standard errors of a coverage of 95 % in 300 days.
        assert 0.912 <= simulation.coverage <= 0.988, (share, simulation)
        assert simulation.width <= 1.15, (share, simulation)
        assert simulation.rate == pytest.approx(0.2, rel=0.02), (share, simulation)
        assert abs(simulation.bias) < 0.002, (share, simulation)
    band = simulate(2, 0.8, BAND, 20)
    curve = simulate(2, 0.8, Cascade("first", "second", rate=band.rate), 20)
    assert band.width > 1.5 * curve.width, (band, curve)
    sampled = simulate(3, 0.9, Cascade("first", "second", rate=0.1), 200, sampled=0.25)
    assert 0.9 <= sampled.coverage <= 0.995, sampled


@pytest.mark.endurance("2,000 days of 5,000 traces for each share, 12 s of CPU")
def test_coverage_over_two_thousand_days() -> None:
    for share in SHARES:
        simulation = simulate(4, share, TWENTY, 2000)
        assert 0.935 <= simulation.coverage <= 0.965, (share, simulation)
        assert simulation.width <= 1.15, (share, simulation)


def test_second_judgings_are_as_probable_as_configured() -> None:
    # A usual model; one that is always sure; one that is sure but for two traces in a hundred.
    for probabilities in ({0.995: 500, 0.9: 300, 0.5: 200}, {1.0: 600, 0.0: 400}, {1.0: 980, 0.99: 20}):
        for rate in (0.01, 0.05, 0.5, 1.0):
            spread = [(uncertainty({"a": g}), number) for g, number in probabilities.items()]
            of_rate, factor = Cascade("first", "second", rate=rate), fitted_factor(rate, spread)
            mean = sum(second_rate(of_rate, {"a": g}, factor) * number for g, number in probabilities.items()) / 1000
            assert mean == pytest.approx(rate, rel=1e-6), (probabilities, rate)
    cascade = Cascade("first", "second", rate=0.04)
    cases = (({"a": 0.5}, 0.2, 0.1), ({"a": 1.0}, 0.2, 0.01), ({"a": 1.0, "b": 0.1}, 0.2, 0.06), ({"a": 0.5}, 9.0, 1.0))
    for probabilities, factor, expected in cases:
        assert second_rate(cascade, probabilities, factor) == pytest.approx(expected), probabilities
    assert second_rate(cascade, {"a": 0.5}, None) == 0.04, "never more than the rate before there is history"
    for g, expected in ((0.2, 1.0), (0.8, 1.0), (0.81, 0.02), (0.1, 0.02)):
        assert second_rate(BAND, {"a": g}, None) == expected, g


def test_missing_second_verdicts_are_made_up_for() -> None:
    whole = CascadeSums(1000, 1000.0, 900.0, 0, 0, 100, 1000.0, 100, 1000.0, -50.0, 900.0, 90.0, 0.0, 0)
    half = whole._replace(second=50, second_weight=500.0, correction=-25.0, squares=450.0, sampled_squares=45.0)
    first, second = estimate(whole), estimate(half)
    assert first is not None
    assert second is not None
    assert first.value == second.value == 0.85
    assert half.waiting == 50
    assert second.high - second.low > 1.3 * (first.high - first.low)
    assert estimate(half._replace(second=0, second_weight=0.0)) is None, "the second model is away"
    assert estimate(CascadeSums()) is None
    # Without a difference nothing is known of the variance but that the choice has none.
    assert estimate(whole._replace(correction=0.0, squares=0.0, sampled_squares=0.0)) == (0.9, 0.9, 0.9)
