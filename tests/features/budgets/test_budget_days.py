"""The budget controller: simulated days, and the steps of its computation."""

import pytest

from tests.features.budgets.budget_days import Day, Simulation, bias
from worker.core.config.settings import NANO
from worker.features.budgets.control import (
    BINS,
    MIN_FACTOR,
    NOT_REDUCED,
    BudgetState,
    Forecasts,
    budget_factors,
    distribute,
    power_of_two,
    predict,
    smooth,
)
from worker.features.budgets.feature import Budget

USD = 200.0


def check(days: list[Day], first: int) -> None:
    """Check that each day spends its budget and not more."""
    for number, day in enumerate(days):
        message = f"day {number}: {day}"
        assert day.spent <= USD + day.most_in_flight * day.dearest, message
        if number >= first:
            assert day.spent >= 0.97 * USD, message
            assert day.spent <= USD, message
            assert day.refused <= 0.002 * day.calls, message


def test_a_day_spends_its_budget_from_any_time_of_day() -> None:
    days = Simulation(USD).run(3)
    check(days, first=1)
    # Three days of 36,000 judgements: four standard errors.
    assert abs(bias(days)) < 0.005


def test_a_surge_neither_exceeds_nor_ends_the_budget() -> None:
    noon = 1440 + 720
    for by, minutes in ((2.0, 1440), (20.0, 60)):
        days = Simulation(USD, surges=[(noon, noon + minutes, by)]).run(2)
        for day in days:
            assert day.spent <= USD + day.most_in_flight * day.dearest, f"traffic x{by:g}: {day}"
        assert days[1].spent >= 0.9 * USD, f"traffic x{by:g}: {days[1]}"


def test_costs_of_an_exempt_judge_are_set_aside_for_the_whole_day() -> None:
    # Half of the budget. As long as they were taken for costs that a rate reduces, the evening had nothing left.
    days = Simulation(USD, exempt=0.063, seed=3).run(3)
    check(days, first=1)
    assert abs(bias(days)) < 0.008


@pytest.mark.endurance("simulates two hundred days, about ten minutes")
@pytest.mark.timeout(3600)
def test_a_hundred_days_spend_their_budgets_without_bias() -> None:
    for exempt in (0.0, 0.063):
        days = Simulation(USD, exempt=exempt, seed=18).run(101)
        check(days, first=1)
        assert abs(bias(days[1:])) < 0.001, f"{exempt:.0%} exempt: {bias(days[1:]):.4%}"


def test_factors_are_powers_of_two_and_the_lowest_priority_is_reduced_first() -> None:
    cases = {
        (100.0, (9, 40.0), (5, 40.0)): {9: 1.0, 5: 1.0},
        (60.0, (9, 40.0), (5, 40.0)): {9: 1.0, 5: 0.5},
        (40.0, (9, 40.0), (5, 40.0)): {9: 1.0, 5: MIN_FACTOR},
        (9.0, (9, 40.0), (5, 40.0)): {9: 0.125, 5: 0.0625},
        (-1.0, (9, 40.0)): {9: MIN_FACTOR},
        (-1.0, (9, 0.0)): {9: MIN_FACTOR},
        (1.0, (9, 0.0)): {9: 1.0},
    }
    for (left, *demand), expectation in cases.items():
        assert distribute(left, dict(demand)) == expectation, (left, demand)
    assert [power_of_two(share) for share in (2.0, 1.0, 0.99, 0.5, 0.3)] == [1.0, 1.0, 0.5, 0.5, 0.25]


def test_demand_follows_the_forecast_times_the_last_hour() -> None:
    flat, hour = [1.0] * BINS, 12
    noon, midnight = 43_200.0, 86_400.0
    demand = [0.0] * (2 * BINS)
    demand[BINS + 144 - hour : BINS + 144] = [3.0] * hour
    assert predict(demand, flat, noon, midnight, 9e9) == pytest.approx(3 * 144)
    demand[BINS + 144 - hour : BINS + 144] = [30.0] * hour
    assert predict(demand, flat, noon, midnight, 9e9) == pytest.approx(5 * 144), "at most five times the forecast"
    assert predict(demand, [], noon, midnight, 9e9) == pytest.approx(30 * 144), "without a forecast, as the last hour"
    assert predict(demand, [0.0] * BINS, noon, midnight, 9e9) == pytest.approx(30 * 144), "a forecast of nothing"
    young = [0.0] * (2 * BINS)
    young[BINS + 143] = 10.0
    assert predict(young, [], noon, midnight, 300.0) == pytest.approx(10 * 144), "known for five minutes"
    assert smooth([7.0, *[0.0] * (BINS - 1)])[-3:] == [1.0, 1.0, 1.0]


def test_the_scarcest_limit_decides() -> None:
    noon = 19_000 * 86_400.0 + 43_200
    bins = [0.0] * (2 * BINS)
    bins[BINS + 132 : BINS + 144] = [NANO] * 12
    demand = {"usd": {5: bins}, "tokens": {5: [each * 1000 / NANO for each in bins]}}
    cases = (
        (Budget(usd_per_day=1000.0), BudgetState(since=1), 1.0),
        # In the rest of the day 144 USD and 144,000 tokens, in the next hour a twelfth.
        (Budget(usd_per_day=100.0), BudgetState(since=1), 0.5),
        (Budget(usd_per_day=100.0), BudgetState(30 * NANO, usd_open=30 * NANO, since=1), 0.25),
        (Budget(usd_per_day=1000.0, usd_per_hour=6.1), BudgetState(since=1), 0.5),
        (Budget(usd_per_day=1000.0, tokens_per_day=37_000), BudgetState(since=1), 0.25),
        (Budget(tokens_per_hour=24_000), BudgetState(tokens_hour=23_000, since=1), 0.0625),
    )
    for budget, state, factor in cases:
        assert budget_factors(budget, state, demand, Forecasts(), noon) == {5: factor}, budget
    fixed = {"usd": {5: bins, NOT_REDUCED: bins}}
    for limit, factor in ((288.0, 0.5), (250.0, 0.5), (200.0, 0.25), (144.0, MIN_FACTOR)):
        # What no rate changes costs 144 USD.
        assert budget_factors(Budget(usd_per_day=limit), BudgetState(since=1), fixed, Forecasts(), noon) == {5: factor}
    assert budget_factors(Budget(usd_per_day=1.0), BudgetState(), {"usd": {}, "tokens": {}}, Forecasts(), noon) == {}
