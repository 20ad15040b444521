"""Drift of a judge: rare without a change, seen within hours, and never because of one trace."""

import numpy as np
import pytest
from support.lazy import Lazy

from tests.features.canary import canary_runs
from worker.features.canary.canary import LEAST_BEFORE, OPENS_AT, Verdicts, agreement, shift

scipy = Lazy("scipy.stats")


def traces(*misses: int, total: int) -> dict[str, Verdicts]:
    return {f"{place}": Verdicts(total, total - missed) for place, missed in enumerate(misses)}


def test_agreement_counts_traces_and_not_judgings() -> None:
    for total in (1, 24):
        corrected = agreement(traces(0, 0, 0, total, 0, total=total))
        assert corrected == pytest.approx((0.8, 0.3755, 0.9638), abs=1e-3), total
    assert agreement({}) is None
    assert agreement({"a": Verdicts()}) is None


def test_the_probability_is_that_of_beta_binomial_sums() -> None:
    # The last trace fells most and is left out.
    before, recent = traces(1, 30, 0, total=100), traces(1, 3, 4, total=6)
    few, two = (scipy.betabinom(6, missed + 0.5, 100.5 - missed).pmf(np.arange(7)) for missed in (1, 30))
    sums = np.convolve(few, two)
    drift = shift(recent, before)
    assert drift is not None
    assert drift.probability == pytest.approx(sums[4:].sum(), rel=1e-9)
    assert drift.before == pytest.approx(1 - 31 / 300)
    assert drift.now == pytest.approx(1 - 8 / 18)
    assert drift.fallen == ("2", "1", "0")


def test_a_single_trace_or_a_short_history_is_no_drift() -> None:
    before = traces(*[0] * 20, total=168)
    single = shift(traces(6, *[0] * 19, total=6), before)
    assert single is not None
    assert single.probability == 1
    two = shift(traces(6, 6, *[0] * 18, total=6), before)
    assert two is not None
    assert two.probability < OPENS_AT
    better = shift(traces(*[0] * 20, total=6), traces(*[84] * 20, total=168))
    assert better is not None
    assert better.probability == 1
    assert shift(traces(6, 6, 6, total=6), traces(0, 0, 0, total=LEAST_BEFORE - 1)) is None
    assert shift(traces(6, 6, total=6), {}) is None


def test_false_drifts_are_rare() -> None:
    for judge in canary_runs.JUDGES:
        assert canary_runs.false_drifts(1, judge, weeks=4, judges=4) == 0, judge


def test_changes_are_seen_within_hours() -> None:
    median_delays = {
        (judge, changed): np.quantile(canary_runs.delays(2, judge, changed, runs=40), 0.5)
        for judge, changed in (("steady", 2), ("steady", 4), ("borderline", 3), ("borderline", 6), ("scattered", 6))
    }
    for (judge, changed), hours in median_delays.items():
        assert hours <= 6, (judge, changed, hours)


@pytest.mark.endurance("about 5 minutes")
@pytest.mark.timeout(3600)
def test_false_drifts_at_full_length() -> None:
    for judge in canary_runs.JUDGES:
        assert canary_runs.false_drifts(3, judge, weeks=12, judges=100) <= 0.005, judge
