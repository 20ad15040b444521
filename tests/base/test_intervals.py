"""Sums of weighted verdicts and their intervals, beside scipy, statsmodels and simulated windows."""

import itertools

import msgspec
import numpy as np
import pytest
from support.lazy import Lazy

from judges.agreement.intervals import wilson
from judges.agreement.shares import Sums, design_effect, estimate_share, merge_sums, student, weight_class
from tests.base import coverage
from tests.base.coverage import DESIGNS, conversations, sums_of

scipy, models, proportion = Lazy("scipy.stats"), Lazy("statsmodels.api"), Lazy("statsmodels.stats.proportion")


def counted(weights: np.ndarray, passed: np.ndarray, sessions: np.ndarray, buckets: int = 3) -> list[Sums]:
    """Count verdict by verdict, sessions spread over the buckets."""
    bucket_sums = [Sums() for _ in range(buckets)]
    before: dict[int, tuple[float, float]] = {}
    for position, (w, y, c) in enumerate(zip(weights.tolist(), passed.tolist(), sessions.tolist(), strict=True)):
        total, kept = before.get(c, (0.0, 0.0))
        bucket_sums[position % buckets].count(w, passed=bool(y), before=(total, kept))
        before[c] = (total + w, kept + w * y)
    return bucket_sums


def test_merged_buckets_hold_the_sums_of_the_whole_window() -> None:
    chance = np.random.default_rng(5)
    weights = 2.0 ** chance.integers(0, 4, 200) * 1.25
    passed, sessions = (chance.random(200) < 0.8).astype(float), chance.integers(0, 60, 200)
    window = merge_sums(counted(weights, passed, sessions))
    at_once = sums_of(weights, passed, sessions)
    assert window.classes.keys() == at_once.classes.keys() == {0, 1, 2, 3}
    for key, of_class in window.classes.items():
        assert msgspec.structs.astuple(of_class) == pytest.approx(msgspec.structs.astuple(at_once.classes[key]))
    assert msgspec.structs.astuple(window.over_sessions) == pytest.approx(
        msgspec.structs.astuple(at_once.over_sessions)
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(window), type=Sums) == window


def test_the_design_effect_is_that_of_cluster_robust_regression() -> None:
    chance = np.random.default_rng(6)
    window = conversations(chance, 0.8, 90, 0.3)
    weights = np.repeat(chance.choice([1.0, 2.0, 8.0], 90), 5)
    model = models.WLS(window.passed, np.ones(len(weights)), weights=weights)
    clustered = model.fit(cov_type="cluster", cov_kwds={"groups": window.sessions, "use_correction": False})
    single = model.fit(cov_type="HC0")
    sums = sums_of(weights, window.passed, window.sessions)
    share, history = sums.total.passed / sums.total.weight, merge_sums([sums] * 3)
    ratio = sums.over_sessions.residual_squares(share) / sums.total.residual_squares(share)
    # With 200 sessions of history, the window and the history together.
    assert ratio == pytest.approx((clustered.bse[0] / single.bse[0]) ** 2) == design_effect(sums, history)


def test_the_variance_of_a_weighted_share_is_that_of_a_survey() -> None:
    """The figures are those of svy 0.35.0 (mean, Taylor), which is not installed: it needs 400 MB of packages."""
    number = np.arange(200)
    sessions = number // 5
    weights = np.where(sessions % 2 == 0, 1.0, 4.0)
    passed = (((number * 7 + sessions * 3) % 11 > 2) & (sessions % 7 != 0)).astype(float)
    window = merge_sums(counted(weights, passed, sessions))
    total, over = window.total, window.over_sessions
    share = total.passed / total.weight
    clustered = over.residual_squares(share) * over.sessions / (over.sessions - 1)
    single = total.residual_squares(share) * len(number) / (len(number) - 1)
    estimate = share, np.sqrt(clustered) / total.weight, np.sqrt(single) / total.weight
    assert estimate == pytest.approx((0.628, 0.0518247144289385, 0.039926203282339714))


def test_one_class_of_independent_verdicts_has_wilsons_interval() -> None:
    window = sums_of(np.full(400, 8.0), np.arange(400) < 320, np.arange(400))
    share = estimate_share(window)
    assert share is not None
    assert share.judgements == 400
    assert share.effective == pytest.approx(400, abs=2)
    assert share.interval[1:] == pytest.approx(proportion.proportion_confint(320, 400, method="wilson"), abs=2e-4)
    assert estimate_share(Sums()) is None


def test_verdicts_that_all_pass_count_as_sessions() -> None:
    window = sums_of(np.ones(500), np.ones(500), np.arange(500) // 5)
    # Wholly alike, with a prior of .25 that is worth two sessions.
    assert design_effect(window) == pytest.approx(1 + 4 * 100.5 / 102)
    history = sums_of(np.ones(2000), np.arange(2000) % 10 > 0, np.arange(2000))
    assert design_effect(window, history) == 1


def test_few_failing_sessions_have_few_degrees_of_freedom() -> None:
    # 60 sessions of five: one fails as a whole, two with one verdict; (5 + 1 + 1)² / (25 + 1 + 1) = 1.8 sessions.
    passed = np.ones(300)
    passed[[*range(5), 10, 20]] = 0
    history = sums_of(np.ones(2000), np.arange(2000) % 10 > 0, np.arange(2000) // 5)
    for weight, verdicts in ((1.0, passed), (8.0, passed), (1.0, 1 - passed)):
        window = sums_of(np.full(300, weight), verdicts, np.arange(300) // 5)
        for past, freedom in ((None, 5), (history, 59)):
            share = estimate_share(window, past)
            assert share is not None
            expected = wilson(verdicts.mean(), 300 / share.design_effect, student(freedom))
            assert share.interval == pytest.approx(expected), (weight, freedom)


def test_students_quantiles_and_classes_of_weights() -> None:
    for freedom in (1, 2, 3, 4, 5, 10, 39, 200):
        for tail in (0.05, 0.01):
            assert student(freedom, tail) == pytest.approx(scipy.t.ppf(1 - tail / 2, freedom), rel=1e-4), freedom
    assert [weight_class(w) for w in (1, 1.99, 2, 10, 64)] == [0, 0, 1, 3, 6]


def test_intervals_cover_in_short() -> None:
    for name, design in DESIGNS.items():
        for share in (0.8, 0.95):
            shares = coverage.coverage(lambda c, d=design, p=share: d(c, p, 150), 400, 11)
            assert 0.92 <= shares <= 0.995, (name, share, shares)
    for correlation in (0.1, 0.5):
        shares = coverage.coverage(lambda c, r=correlation: conversations(c, 0.8, 40, r), 400, 12, with_history=10)
        assert 0.92 <= shares <= 0.985, (correlation, shares)


def test_intervals_of_uneven_sessions_cover_without_a_history() -> None:
    for sizes, count, share in itertools.product(coverage.SIZES, (20, 60), (0.8, 0.95)):
        key = sizes, count, share
        covered, width = coverage.uneven_windows(sizes, 0.25, 0, count=count, share=share, runs=200)
        # 94 % less two standard errors; the price is a width that stays useful.
        assert covered >= 0.906, (key, covered)
        assert width < 0.55, (key, width)
