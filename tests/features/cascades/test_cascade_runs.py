"""The share of a cascade in simulated days: coverage, also where second verdicts are missing, and width."""

import pytest

from tests.features.cascades.cascade_runs import JUDGES, SCENES, missing, simulate
from worker.features.cascades.feature import Cascade
from worker.features.cascades.shares import fitted_factor, second_rate, uncertainty

BAND = Cascade("first", "second", uncertain=(0.2, 0.8), audit=0.02)
_LEAST = 0.94


def least(runs: int, claimed: float = _LEAST) -> float:
    """Return the claim less two standard errors."""
    return claimed - 2 * (claimed * (1 - claimed) / runs) ** 0.5


def test_the_interval_covers_whatever_the_first_model_says() -> None:
    cells = ((0.8, 400, 0.2, 1), (0.98, 1000, 0.05, 1), (0.9, 200, 0.3, 10))
    for judge, distortion in JUDGES.items():
        for share, traces, rate, w in cells:
            found = simulate(1, share, traces, rate, 40, w=w, judge=distortion)
            assert found.coverage >= least(40), (judge, share, traces, found)
            assert found.width < 1.3 * found.plain, (judge, share, traces, found)
    narrow = simulate(2, 0.8, 3000, 0.2, 50)
    assert narrow.width < 0.8 * narrow.plain, narrow
    session = simulate(3, 0.9, 1000, 0.2, 200, w=10, turns=5)
    assert session.coverage >= least(200), session


def test_missing_second_verdicts_are_covered() -> None:
    for name, scene in SCENES.items():
        found = missing(4, scene, 3000, 60)
        assert found.coverage >= least(60, scene.lowest), (name, found)
        assert found.not_known == ("4 h" in name or "6 h" in name), (name, found)
        if scene.lowest < _LEAST:
            assert found.coverage < 0.8, (name, found)


def test_second_judgings_are_as_probable_as_configured() -> None:
    # A usual model; one that is always sure; one that is sure but for two traces in a hundred.
    for probabilities in ({0.995: 500, 0.9: 300, 0.5: 200}, {1.0: 600, 0.0: 400}, {1.0: 980, 0.99: 20}):
        for rate in (0.01, 0.05, 0.5, 1.0):
            for floor in (0.5, 0.85):
                spread = [(uncertainty({"a": g}), number) for g, number in probabilities.items()]
                of_rate, factor = Cascade("first", "second", rate=rate), fitted_factor(rate, spread, floor)
                rates = {g: second_rate(of_rate, {"a": g}, factor, None, floor) for g in probabilities}
                mean = sum(rates[g] * number for g, number in probabilities.items()) / 1000
                assert mean == pytest.approx(rate, rel=1e-6), (probabilities, rate, floor)
                assert min(rates.values()) >= floor * rate, (probabilities, rate, floor)
    cascade = Cascade("first", "second", rate=0.04)
    cases = (({"a": 0.5}, 0.2, 0.1), ({"a": 1.0}, 0.2, 0.02), ({"a": 1.0, "b": 0.1}, 0.2, 0.06), ({"a": 0.5}, 9.0, 1.0))
    for probabilities, factor, expected in cases:
        assert second_rate(cascade, probabilities, factor, None, 0.5) == pytest.approx(expected), probabilities
    assert second_rate(cascade, {"a": 0.5}, None) == 0.04, "never more than the rate before there is history"
    assert second_rate(cascade, {"a": 1.0}, None) == pytest.approx(0.034), "the least probability of few fails"
    for g, expected in ((0.2, 1.0), (0.8, 1.0), (0.81, 0.02), (0.1, 0.02)):
        assert second_rate(BAND, {"a": g}, None) == expected, g
