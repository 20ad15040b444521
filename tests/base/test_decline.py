"""Notices of slow declines: the fit, what is left out, and how often they are wrong or late."""

import numpy as np
import pytest

from tests.base import declines
from tests.base.declines import Days
from worker.base.monitor.baseline import Day, find_decline


def certain(shares: np.ndarray, judged: float = 7200.0) -> list[Day]:
    return [Day(day, float(share), judged) for day, share in enumerate(shares)]


def test_the_slope_is_that_of_least_squares_with_days_of_the_week() -> None:
    chance, days = np.random.default_rng(5), np.arange(42)
    weekly = np.array([0.0, 0.01, -0.04, -0.05, 0.0, 0.005, 0.0])[days % 7]
    shares = 0.93 + weekly - 0.012 * days / 7 + chance.normal(0, 0.006, 42)
    kept = np.delete(days, [3, 17, 18, 30])
    decline = find_decline([Day(int(day), float(shares[day]), 7200.0) for day in kept], 42)
    assert decline is not None
    design = np.stack([*(kept % 7 == weekday for weekday in range(7)), (kept - kept.mean()) / 7], 1).astype(float)
    solution = np.linalg.lstsq(design, shares[kept], rcond=None)[0]
    rests = shares[kept] - design @ solution
    pairs = [(rests[k], rests[k - 1]) for k in range(1, len(kept)) if kept[k] == kept[k - 1] + 1]
    agreement = np.clip(sum(left * right for left, right in pairs) / (rests @ rests) + 4 / len(kept), 0, 0.6)
    error = np.sqrt(np.linalg.inv(design.T @ design)[7, 7] * (rests @ rests) / (len(kept) - 8))
    error *= np.sqrt((1 + agreement) / (1 - agreement))
    assert decline.slope == pytest.approx(solution[7])
    # Student's t of 30 degrees of freedom.
    assert decline.high - decline.slope == pytest.approx(2.0423 * error, rel=1e-3)
    assert (decline.told_day, decline.since_day) == (42, 0)
    assert decline.text.startswith(f"falls by {-100 * decline.slope:.1f} points a week (")
    assert decline.text.endswith(") since about 1970-01-01")


def test_what_is_no_notice() -> None:
    days = np.arange(42)
    fall = 0.95 - 0.01 * days / 7
    for name, some, is_told in (
        ("a point a week", certain(fall), True),
        ("four weeks of six", certain(fall)[14:], True),
        ("a rise", certain(0.85 + 0.01 * days / 7), False),
        ("less than 1.5 points in all", certain(0.95 - 0.002 * days / 7), False),
        ("few judgements", certain(fall, 60.0), False),
        ("weekdays only", [day for day in certain(fall) if day.number % 7 < 5], False),
        ("nothing of the last weeks", certain(fall)[:20], False),
    ):
        assert (find_decline(some, 42) is not None) is is_told, name


def test_notices_in_short() -> None:
    assert declines.notices(1, Days(300, 0.01), series=40).false <= 0.5
    found = declines.notices(2, Days(300, 0.01), series=30, weeks=6, slope=-0.01).delays
    assert 14 <= np.median(found) <= 24
    assert np.isfinite(found).mean() >= 0.95
