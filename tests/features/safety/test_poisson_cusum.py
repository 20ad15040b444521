"""Safety pages: the rate of the judge's own errors, limits, and one page for one incident."""

import math

import msgspec
import pytest
from support.lazy import Lazy

from tests.features.safety import safety_runs
from tests.features.safety.safety_runs import Judge
from worker.features.safety.watch import State, confirmed_error, rates_of, step, upper_rate

scipy = Lazy("scipy.stats")


def test_upper_limits_of_rates_are_those_of_poisson() -> None:
    for failures in (0, 1, 5, 60, 700):
        expected = scipy.chi2.ppf(0.95, 2 * failures + 2) / 2 / 1000
        assert upper_rate(failures, 1000) == pytest.approx(expected, rel=0.03), failures
    assert upper_rate(0, 0) == 0


def test_a_second_judging_reduces_the_error_rate() -> None:
    assert confirmed_error(0.01, 1) == pytest.approx(0.01)
    assert confirmed_error(0.01, 0) == pytest.approx(0.0001)
    assert confirmed_error(0.01, 0.5) == pytest.approx(0.005, rel=0.02)


def test_the_limit_grows_with_traffic_and_with_the_number_of_series() -> None:
    rates = rates_of(declared=0.01, failures=(), judgements=(), per_hour=100)
    assert rates.base == 0.01
    more = rates_of(declared=0.01, failures=(), judgements=(), per_hour=1000, series=5)
    assert more.limit - rates.limit == pytest.approx(math.log(50))
    assert rates_of(declared=0.001, failures=(500,), judgements=(50_000,), per_hour=100).base > 0.01
    # The judge errs half as often again since a week: the week alone tells.
    own = rates_of(declared=0.001, failures=(788, 252), judgements=(67_200, 16_800), per_hour=100)
    assert own.base == upper_rate(252, 16_800) == pytest.approx(0.01664, abs=1e-4)


def test_few_judgements_raise_few_false_pages() -> None:
    for per_hour in (0.2, 1, 3):
        assert safety_runs.pages(1, Judge(per_hour, 0.01, 1.0), series=1, months=40) <= 1, per_hour
    # A series without a verdict has a limit that a single failure does not pass.
    rates = rates_of(declared=0.01, failures=(), judgements=(), per_hour=0)
    assert step(State(), 1, 1, 1, rates) is None


def test_failures_without_a_second_judging_count_as_single_ones() -> None:
    confirmed = rates_of(declared=0.0001, failures=(), judgements=(), per_hour=100)
    alone = rates_of(declared=0.01, failures=(), judgements=(), per_hour=100)
    sums = []
    for failures, unanswered in ((1, 0), (0, 1), (0, 0)):
        state = State()
        step(state, 1, failures, 1, confirmed, unanswered=unanswered, alone=alone)
        sums.append(state.sum)
    assert sums[0] > sums[1] > sums[2] == 0
    assert sums[1] == pytest.approx(math.log(alone.raised / alone.base) - (confirmed.raised - confirmed.base))


def test_one_incident_is_one_page() -> None:
    rates = rates_of(declared=0.005, failures=(), judgements=(), per_hour=100)
    state, pages = State(), []
    # A day of health, a day with 5 % of failures, two days of health, and another incident.
    for bucket in range(5 * 288):
        is_bad = bucket // 288 in {1, 4}
        failures = 1 if is_bad and bucket % 2 == 0 else int(bucket % 24 == 0)
        change = step(state, bucket, failures, 10, rates)
        if change:
            pages.append((change, state.start if change == "page" else bucket // 288))
        state = msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=State)
    assert [kind for kind, _ in pages] == ["page", "recovery", "page"]
    assert pages[1][1] == 2
    assert [place // 288 for kind, place in pages if kind == "page"] == [1, 4]


def test_safety_pages_in_short() -> None:
    for correlation in safety_runs.CORRELATIONS:
        judge = Judge(1000, 0.01, correlation)
        # At most one a month is asked for; 4 in two months are as rare as one in seven with a mean of 2.
        assert safety_runs.pages(31, judge, series=1, months=2) <= 2, correlation
        delays = sorted(safety_runs.delays(32, judge, series=1, runs=30))
        assert delays[15] <= 1.2, correlation
    quiet = sorted(safety_runs.delays(33, Judge(100, 0.003, 0.5), series=1, runs=30))
    assert quiet[15] <= 5


@pytest.mark.endurance("200 months of each judge, a minute and a half")
@pytest.mark.timeout(3600)
def test_safety_pages() -> None:
    for per_hour, most in ((100, 5), (1000, 1)):
        for error in safety_runs.ERRORS:
            for correlation in safety_runs.CORRELATIONS:
                judge = Judge(per_hour, error, correlation)
                for series in (1, 5):
                    pages = safety_runs.pages(1, judge, series=series, months=200 // series)
                    assert pages <= 1, (judge, series, pages)
                delays = sorted(safety_runs.delays(2, judge, series=1, runs=400))
                assert delays[200] <= most, (judge, delays[200])
    # One of five series takes longer than 5 hours in the worst case, as does a CUSUM that knows both rates.
    worst = Judge(100, 0.01, 1.0)
    delays = sorted(safety_runs.delays(2, worst, series=5, runs=400))
    assert delays[200] <= 1.25 * safety_runs.known_rates(3, worst, series=5), delays[200]
