"""Baselines, the detector of drops, notices of declines and intervals, beside simulations and figures of others."""

import math
from collections.abc import Mapping

import msgspec
import numpy as np
import pytest

from benchmarks import coverage, declines, fleets, weighted
from benchmarks.coverage import DESIGNS, conversations, sums_of
from benchmarks.declines import Days
from benchmarks.fleets import BUCKETS_PER_HOUR, Run, Traffic, hours_of, simulate
from judges.agreement.intervals import wilson
from judges.agreement.shares import Sums, design_effect, estimate_share, merge_sums, student, weight_class
from worker.base.monitor.baseline import Baseline, Day, Hour, baseline, find_decline, flat, hour_of
from worker.base.monitor.detector import (
    TRAFFIC_MIX,
    Bucket,
    Evidence,
    Limits,
    Moments,
    Session,
    State,
    delay_hours,
    explain,
    factor,
    limits_of,
    since_interval,
    step,
)

WEEK = np.arange(28 * 24)


def history(traffic: Traffic, hours: np.ndarray = WEEK, seed: int = 1) -> list[Hour]:
    return hours_of(simulate(np.random.default_rng(seed), traffic, int(hours[0]), traffic.shares(hours)))


def certain(hours: np.ndarray, shares: np.ndarray, judged: float = 100.0) -> list[Hour]:
    """Return hours whose shares are exactly these."""
    pairs = zip(hours.tolist(), (judged * shares).tolist(), strict=True)
    return [Hour(hour, judged, judged, passed, judged, judged, passed, passed) for hour, passed in pairs]


def test_a_baseline_follows_day_night_and_weekend() -> None:
    traffic = Traffic(2000, 0.85, 0.1, 0.05)
    baseline_shares = baseline(history(traffic))
    assert baseline_shares is not None
    assert np.abs(np.array(baseline_shares.cells) - traffic.shares(np.arange(168))).max() < 0.025
    assert baseline_shares.per_week == pytest.approx(2000 * 168, rel=0.01)
    assert (baseline_shares.days, baseline_shares.spread) == (28, pytest.approx(0, abs=0.005))
    # Noise shrinks to the level, and has a standard error.
    hours = history(Traffic(10, 0.9))
    baseline_shares, busy = baseline(hours), baseline(history(Traffic(1000, 0.9)))
    assert baseline_shares is not None
    assert busy is not None
    assert np.std(baseline_shares.cells) < 0.012
    # The shares of single hours of the week scatter five times as much.
    cells = [hours[k::168] for k in range(168)]
    raw = [sum(hour.passed for hour in cell) / sum(hour.judgements for hour in cell) for cell in cells]
    assert np.std(raw) > 0.04
    assert 0.002 < baseline_shares.error < 0.01
    assert busy.error < 0.001
    # Days, deviation between days: the allowances of weekdays and weekends for drops of 10 and of 20 points.
    for days, jitter, allowances in (
        # 7 days: the spread of parts of 12 hours √(.00272 / 7) exceeds √((.0003 + .00272) / 8); factor 3.2 + 16/5.
        (7, 0.02, ((0.1151, 0.1315), (0.0921, 0.1085))),
        # Without weekdays whose days differ the spread is the jitter; factors 3.2 + 16/12 and 3.2 + 16/27.
        (14, 0.02, ((0.0721, 0.0784), (0.0491, 0.0554))),
        (28, 0.02, ((0.0547, 0.0575), (0.0317, 0.0345))),
        (28, 0.1, ((0.15, 0.15), (0.15, 0.15))),
        (7, 0.0, ((0.0199, 0.0250), (0.0, 0.0020))),
        (28, 0.0, ((0.0, 0.0), (0.0, 0.0))),
    ):
        shares = 0.85 + np.repeat(np.resize([jitter, -jitter], days), 24)
        shares_of_days = baseline(certain(np.arange(24 * days), shares, 1e6))
        assert shares_of_days is not None
        assert np.array(shares_of_days.allowances) == pytest.approx(np.array(allowances), abs=2e-4), (days, jitter)
        told = None if days >= 14 else pytest.approx(allowances[0][1] + 0.07, abs=2e-4)
        assert shares_of_days.least_drop == told, (days, jitter)
        hours_of_week = np.array([shares_of_days.expected(24 * day) for day in range(7)])
        usual = np.array([shares_of_days.usual(24 * day) for day in range(7)])
        lower = usual[:, None] - hours_of_week
        assert lower == pytest.approx(np.array(allowances)[:, [0, 0, 1, 1, 0, 0, 0]].T, abs=2e-4), (days, jitter)
    # A Monday that is lower by eight points is noise between days at first, and then a cell of its own.
    for days, cell in ((14, 0.89), (27, 0.82)):
        hours = np.arange(24 * days)
        shares = np.where(hours // 24 % 7 == 4, 0.82, 0.9)
        shares_of_week = baseline(certain(hours, shares, 1e6))
        assert shares_of_week is not None
        assert shares_of_week.usual(24 * 4) == pytest.approx(cell, abs=0.012), days
        assert (shares_of_week.spread > 0.02) is (days == 14), days


def test_a_baseline_needs_seven_days_and_knows_sessions_weights_and_masked_hours() -> None:
    assert baseline(history(Traffic(100, 0.9), np.arange(6 * 24))) is None
    assert baseline([]) is None
    weekend = baseline(certain(np.arange(168), Traffic(100, 0.9, weekend=0.05).shares(np.arange(168))))
    assert weekend is not None
    assert weekend.cells[60] < weekend.cells[150] - 0.03
    clustered = baseline(history(Traffic(100, 0.9, correlation=0.25)))
    assert clustered is not None
    assert clustered.dispersion == pytest.approx(2.0, abs=0.2)
    sums = Sums()
    for position in range(40):
        sums.count(8.0, passed=position % 4 > 0)
    hours = [hour_of(hour, sums) for hour in range(14 * 24)]
    of_weights = baseline(hours)
    assert of_weights is not None
    assert (of_weights.mean_weight, of_weights.per_week) == (8.0, 40 * 168)
    assert of_weights.cells[0] == pytest.approx(0.75)
    series = simulate(np.random.default_rng(9), Traffic(100, 0.9), 0, np.repeat([0.9, 0.4], [27 * 24, 3 * 24]))
    run = Run(series)
    run.state.masks.append((27 * 24 * BUCKETS_PER_HOUR, 30 * 24 * BUCKETS_PER_HOUR))
    run.learn(30 * 24)
    assert isinstance(run.norm, Baseline)
    assert run.norm.expected(0)[0] > 0.87


def test_limits_follow_the_formula_and_the_budget() -> None:
    norm = flat(0.9, 60 * 168)
    log_limits = limits_of(norm, Moments(), series=100)
    # ln(370 units of information a week) + ln(100 series) less the slack
    assert log_limits.limits[0] == pytest.approx(math.log(10080 * 0.0367) + math.log(100) - 0.15, abs=0.01)
    doubled = limits_of(norm, Moments(), series=100, false_alarms_per_week=2)
    assert doubled.limits[0] == pytest.approx(log_limits.limits[0] - math.log(2))
    unsure = limits_of(msgspec.structs.replace(norm, error=0.01), Moments(), series=100)
    assert log_limits.limits[0] + 2 < unsure.limits[0] < log_limits.limits[0] + 2.5
    assert log_limits.limits[1] + 0.5 < unsure.limits[1] < log_limits.limits[1] + 0.7
    # Five judgements an hour find 20 points within a day.
    few = flat(0.9, 5 * 168)
    limits = limits_of(few, Moments(), series=20)
    assert (delay_hours(few, limits, 0.2) < 15, delay_hours(few, limits, 0.01)) == (True, math.inf)
    # The factor solves Lundberg's equation.
    alike = {Session(5, 0, (0.9, 0.9)): 800.0, Session(4, 1, (0.9, 0.9)): 120.0, Session(0, 5, (0.9, 0.9)): 80.0}
    # Many short sessions and a few long ones that fail as a whole, at day and at night, with weights.
    mixed = {Session(1, 0, (0.95, 0.95)): 9500.0, Session(0, 1, (0.95, 0.95)): 400.0, Session(0, 12, (0.95, 0.95)): 2.0}
    mixed |= {
        Session(0.3, 0.1, (0.8, 0.8)): 2000.0,
        Session(4.5, 0, (0.8, 0.8)): 900.0,
        Session(0, 2.5, (0.8, 0.8)): 30.0,
    }
    for name, sessions in (("alike", alike), ("mixed", mixed)):
        norm = flat(0.9, 60 * 168, dispersion=1.2)
        for position, drop in enumerate((0.1, 0.2)):
            kappa = factor(norm, moments_of(sessions), position)
            mean = 0.0
            for (passed, failed, (p, _)), number in sessions.items():
                score = passed * math.log((p - drop) / p) + failed * math.log((1 - p + drop) / (1 - p))
                mean += number * math.exp(kappa * score) / sum(sessions.values())
            assert 0.99 < mean <= 1.001, (name, drop)
            assert 1 / 9.6 < kappa < 1 / 1.2, (name, drop)
    # It has bounds, and needs sessions.
    failing = moments_of({Session(5, 0, (0.9, 0.9)): 300.0, Session(0, 500, (0.9, 0.9)): 100.0})
    singles = moments_of({Session(1, 0, (0.9, 0.9)): 950.0, Session(0, 1, (0.9, 0.9)): 50.0})
    clustered = flat(0.9, 1, dispersion=1.6)
    assert factor(clustered, failing, 1) == pytest.approx(0.125 / 1.6)
    assert factor(clustered, singles, 1) == 1 / 1.6
    assert factor(clustered, moments_of({Session(0, 500, (0.9, 0.9)): 1.0}), 1) == 1 / 1.6
    assert factor(flat(0.9, 1), failing, 1) == 1
    # Unequal weights need it as well: a judgement may count as many.
    uneven = msgspec.structs.replace(flat(0.9, 1), unevenness=3.0)
    assert factor(uneven, moments_of({Session(1, 0, (0.9, 0.9)): 900.0, Session(0, 4, (0.9, 0.9)): 90.0}), 1) < 0.7
    # Moments forget.
    norm = flat(0.9, 1, dispersion=1.2)
    moments = moments_of({Session(5, 0, (0.9, 0.9)): 800.0, Session(0, 5, (0.9, 0.9)): 150.0})
    before = factor(norm, moments, 0)
    for _ in range(300):
        moments.fade(0.97)
        moments.add(Session(5, 0, (0.9, 0.9)), 90.0)
        moments.add(Session(4, 1, (0.9, 0.9)), 10.0)
    assert factor(norm, moments, 0) > 1.5 * before


def moments_of(sessions: Mapping[Session, float]) -> Moments:
    moments = Moments()
    for session, number in sessions.items():
        moments.add(session, number)
    return moments


LIMITS = Limits((1.0, 1.0), (10.0, 10.0))


def steps(state: State, first: int, number: int, passed: float, failed: float) -> list[str]:
    states = [step(state, first + k, passed, failed, expected=(0.9, 0.9), limits=LIMITS) for k in range(number)]
    return [f"{change.kind} since {change.since}" for change in states if change]


def test_one_incident_is_one_alarm_and_its_buckets_are_masked() -> None:
    state = State()
    assert steps(state, 0, 500, 9, 1) == []
    assert steps(state, 500, 300, 6, 4) == ["drop since 500"]
    assert state.since == 500
    assert state.is_masked(600, 700)
    assert not state.is_masked(400, 500)
    # Recovery to the old level is no drop, and the next incident is found.
    assert steps(state, 800, 400, 9, 1) == ["recovery since 800"]
    assert (state.since, state.masks) == (None, [(500, 800)])
    assert [state.is_masked(k, k + 12) for k in (488, 490, 790, 800)] == [False, True, True, False]
    assert steps(state, 1200, 50, 6, 4) == ["drop since 1200"]
    # The state survives storage, and is small.
    state = State()
    steps(state, 5_000_000, 300, 6, 4)
    packed = msgspec.msgpack.encode(state)
    assert len(packed) < 120
    assert msgspec.msgpack.decode(packed, type=State) == state
    for expected in (0.02, 0.05, 0.5, 0.995):
        for passed, failed in ((0, 50), (50, 0)):
            state = State()
            for bucket in range(50):
                step(state, bucket, passed, failed, expected=(expected, expected), limits=LIMITS)
            assert all(math.isfinite(each) for each in (*state.sums, state.recovery)), (expected, passed)


def test_the_begin_of_a_drop_has_an_interval_and_the_segment_that_fell_is_named() -> None:
    buckets = [Bucket(k, 45, 5, 0.9) for k in range(100)] + [Bucket(k, 35, 15, 0.9) for k in range(100, 130)]
    interval = since_interval(buckets, 0.2, 1.0)
    assert interval.low <= 100 <= interval.high
    assert interval.high - interval.low < 10
    assert since_interval(buckets[:1], 0.2, 1.0) == (0, 0, 0)
    healthy, fallen = Evidence(90, 10, 90), Evidence(70, 30, 90)
    names = [f"model-{k}" for k in range(8)]
    explanation = explain(Evidence(700, 100, 720), dict.fromkeys(names, healthy) | {"model-3": fallen})
    assert explanation.segment == "model-3"
    assert explanation.confidence > 0.9
    everything = explain(Evidence(560, 240, 720), dict.fromkeys(names, fallen))
    assert everything.segment is None
    assert explain(fallen, {}) == (None, 1.0)
    # A weak part that has grown fourfold: each part passes as usual, and the whole as these parts should.
    parts = {"weak": Evidence(240, 160, 240), "strong": Evidence(570, 30, 570)}
    mixed = explain(Evidence(810, 190, 915), parts, mixes=[810, 900])
    assert (mixed.segment, mixed.confidence > 0.99) == (TRAFFIC_MIX, True)
    # A small part of the fall is the mix, and the rest a fall of all.
    both = {"weak": Evidence(350, 150, 400), "strong": Evidence(400, 100, 450)}
    assert explain(Evidence(750, 250, 860), both, mixes=[850]).segment is None
    assert Evidence(0, 10, 9).gain(1.0) == pytest.approx(10 * math.log(10))
    assert Evidence(0, 0, 0).gain(1.0) == 0


@pytest.mark.slow("thousands of simulated hours")
def test_drops_are_found_and_false_alarms_keep_their_budget_in_short() -> None:
    plain = fleets.incident(21, Traffic(60, 0.9), [0.1] * 48, 3)
    assert plain.median <= 4.5
    assert min(plain.alarms) == max(plain.alarms) == 1
    deep = fleets.incident(22, Traffic(100, 0.97), [0.27] * 44, 3, after=24)
    assert deep.median <= 0.5
    assert sum(deep.alarms) <= 3
    assert fleets.incident(23, Traffic(60, 0.9, correlation=0.25), [0.1] * 48, 3).median <= 7
    assert fleets.second_incident(24, Traffic(60, 0.9), 0.1, 2) == (1.0, 0.0)
    # The budget of one alarm a week allows 4 in four weeks; 8 or more are as rare as one in twenty with a mean of 4.
    # Sessions raise more than independent verdicts, whose incidents of above had one alarm each.
    assert 4 * fleets.false_alarms(27, count=3, weeks=4, correlation=0.25) <= 7
    design = weighted.Design(60, 0.95, turns=5, correlation=0.25)
    assert 3 * weighted.false_alarms(1, design, series=2, history=2, weeks=3) <= 4
    assert weighted.median_delay(2, design, 0.3, 1) <= 2


def certain_days(shares: np.ndarray, judged: float = 7200.0) -> list[Day]:
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
    days = np.arange(42)
    fall = 0.95 - 0.01 * days / 7
    for name, some, is_told in (
        ("a point a week", certain_days(fall), True),
        ("four weeks of six", certain_days(fall)[14:], True),
        ("a rise", certain_days(0.85 + 0.01 * days / 7), False),
        ("less than 1.5 points in all", certain_days(0.95 - 0.002 * days / 7), False),
        ("few judgements", certain_days(fall, 60.0), False),
        ("weekdays only", [day for day in certain_days(fall) if day.number % 7 < 5], False),
        ("nothing of the last weeks", certain_days(fall)[:20], False),
    ):
        assert (find_decline(some, 42) is not None) is is_told, name


def test_notices_in_short() -> None:
    assert declines.notices(1, Days(300, 0.01), series=8).false <= 0.5
    found = declines.notices(2, Days(300, 0.01), series=12, weeks=6, slope=-0.01).delays
    assert 14 <= np.median(found) <= 24
    assert np.isfinite(found).mean() >= 0.95


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
    over_sessions = (msgspec.structs.astuple(each.over_sessions) for each in (window, at_once))
    assert next(over_sessions) == pytest.approx(next(over_sessions))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(window), type=Sums) == window
    chance = np.random.default_rng(6)
    window = conversations(chance, 0.8, 90, 0.3)
    weights = np.repeat(chance.choice([1.0, 2.0, 8.0], 90), 5)
    residuals = weights * (window.passed - np.average(window.passed, weights=weights))
    of_sessions = np.bincount(window.sessions, residuals)
    sums = sums_of(weights, window.passed, window.sessions)
    # With 200 sessions of history, the window and the history together: the variance of sessions over that of verdicts.
    expected = of_sessions @ of_sessions / (residuals @ residuals)
    assert design_effect(sums, merge_sums([sums] * 3)) == pytest.approx(expected)
    # The figures are those of svy 0.35.0 (mean, Taylor), which is not installed: it needs 400 MB of packages.
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
    assert share.interval[1:] == pytest.approx((0.7580, 0.8362), abs=2e-4)
    assert estimate_share(Sums()) is None
    # Verdicts that all pass count as sessions.
    window = sums_of(np.ones(500), np.ones(500), np.arange(500) // 5)
    # Wholly alike, with a prior of .25 that is worth two sessions.
    assert design_effect(window) == pytest.approx(1 + 4 * 100.5 / 102)
    history = sums_of(np.ones(2000), np.arange(2000) % 10 > 0, np.arange(2000))
    assert design_effect(window, history) == 1
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
    # Quantiles of Student's t by scipy.
    quantiles = {1: (12.70620, 63.65674), 2: (4.30265, 9.92484), 4: (2.77645, 4.60409), 39: (2.02269, 2.70791)}
    for freedom, expected in quantiles.items():
        assert (student(freedom), student(freedom, 0.01)) == pytest.approx(expected, rel=1e-4), freedom
    assert [weight_class(w) for w in (1, 1.99, 2, 10, 64)] == [0, 0, 1, 3, 6]


def test_intervals_cover_in_short() -> None:
    # A share of .95 has the fewest failures, by which the width is estimated.
    for name, design in DESIGNS.items():
        shares = coverage.coverage(lambda c, d=design: d(c, 0.95, 150), 200, 11)
        assert 0.92 <= shares <= 0.995, (name, shares)
    with_history = coverage.coverage(lambda c: conversations(c, 0.8, 40, 0.5), 200, 12, with_history=10)
    assert 0.92 <= with_history <= 0.985
