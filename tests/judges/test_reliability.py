"""Calibration error, maps and thresholds of probabilities, by simulated labels with a known truth."""

import math
import random

import pytest

from judges.agreement.reliability import Row, ThresholdNotFoundError, fit, reliability, threshold
from judges.core.decision import Calibration, logit


def _sigmoid(odds: float) -> float:
    return 1 / (1 + math.exp(-odds))


def _labelled(count: int, seed: int, slope: float, intercept: float) -> list[Row]:
    """Draw probabilities whose truth is ``sigmoid(slope * logit(p) + intercept)``."""
    generator = random.Random(seed)
    rows = []
    for _ in range(count):
        probability = _sigmoid(generator.gauss(0.8, 1.8))
        truth = _sigmoid(slope * logit(probability) + intercept)
        rows.append(Row(round(probability, 4), generator.random() < truth))
    return rows


# Name, slope and intercept of the planted error.
PLANTED = (("calibrated", 1.0, 0.0), ("overconfident", 0.4, 0.0), ("biased", 1.0, -1.2))


def test_planted_errors_are_recovered() -> None:
    for name, slope, intercept in PLANTED:
        drawn = [row.probability for row in _labelled(20_000, 9, slope, intercept)]
        error = sum(abs(p - _sigmoid(slope * logit(p) + intercept)) for p in drawn) / len(drawn)
        covered = 0
        for seed in range(20):
            rows = _labelled(300, seed, slope, intercept)
            difference = reliability(rows)
            covered += difference.error.low <= error <= difference.error.high
            assert difference.error.low <= difference.error.value <= difference.error.high, name
            assert sum(each.labels for each in difference.bins) == len(rows)
        assert covered >= 17, f"{name}: {covered} of 20 intervals hold {error:.3f}"


def test_maps() -> None:
    for name, slope, intercept in PLANTED:
        for kind, count, near in (("platt", 300, 0.09), ("isotonic", 5_000, 0.05)):
            fitted = fit(_labelled(count, 4, slope, intercept), kind)
            held_out = [row.probability for row in _labelled(300, 77, slope, intercept)]
            wrong = [abs(fitted.apply(p) - _sigmoid(slope * logit(p) + intercept)) for p in held_out]
            assert sum(wrong) / len(wrong) < near, f"{name} {kind}: {sum(wrong) / len(wrong):.3f}"
            calibrated = [fitted.apply(step / 100) for step in range(101)]
            assert calibrated == sorted(calibrated), name
            assert all(0 <= value <= 1 for value in calibrated), name


def test_thresholds() -> None:
    rows = _labelled(300, 5, 1.0, -1.2)
    difference = threshold(rows)
    # Truth crosses one half where logit(p) = 1.2.
    assert difference.value.low <= _sigmoid(1.2) <= difference.value.high, difference
    assert difference.agreement.value > threshold(rows, 0.5).agreement.value - 1e-9
    strict = threshold(rows, 0.9)
    assert strict.precision is not None
    assert strict.precision.value >= 0.9
    assert strict.value.value > difference.value.value - 0.2
    with pytest.raises(ThresholdNotFoundError, match=r"99\.0%"):
        threshold([Row(0.9, passed=False), Row(0.2, passed=True)], 0.99)


def test_extremes() -> None:
    with pytest.raises(ValueError, match="all labels say the same"):
        fit([Row(0.3, passed=True)] * 5)
    separable = [Row(0.0, passed=False)] * 20 + [Row(1.0, passed=True)] * 20
    for kind in ("platt", "isotonic"):
        fitted = fit(separable, kind)
        assert fitted.apply(0.0) < 0.1, kind
        assert fitted.apply(1.0) > 0.9, kind
    assert threshold(separable).value.value == 0.5
    assert threshold([Row(0.5, passed=False)] * 3).value.value > 0.5
    falling = fit([Row(0.1, passed=True)] * 30 + [Row(0.9, passed=False)] * 30, "platt")
    assert falling.apply(0.1) == falling.apply(0.9)
    assert Calibration(isotonic=((0.2, 0.1), (0.6, 0.5))).apply(0.4) == pytest.approx(0.3)
    # A row of weight 5 counts as five rows.
    heavy = [Row(0.3, passed=False, weight=5.0), Row(0.6, passed=True, weight=1.0)]
    assert reliability(heavy).brier.value == pytest.approx((5 * 0.09 + 0.16) / 6)
