"""Days of traffic under a budget: calls reserve, cost and end as in Redis, and the controller sets the rate.

Fifty workers sample, and each reads a new rate up to five seconds late, as they do from Redis.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from worker.core.config.settings import NANO
from worker.features.budgets.control import BINS, NOT_REDUCED, BudgetState, Forecasts, budget_factors, next_forecasts
from worker.features.budgets.feature import Budget

DAY_MINUTES = 1440
DAY_S = 86_400.0
WORKERS = 50
READ_EVERY_S = 5.0
CALL_S = 20.0
# Half the calls go to a model that costs a tenth of the other one.
MEAN_USD = (0.001, 0.010)
PASSES = (0.95, 0.80)
RESERVED = 2.5
SAMPLED = 5


class Day(NamedTuple):
    """One simulated day; USD, and the sums of weights."""

    spent: float
    calls: int
    refused: int
    most_in_flight: int
    dearest: float
    passed: float
    weight: float
    true_passed: float
    traces: int


class Call(NamedTuple):
    """One call in flight; ``weight`` is how many calls at full rates it stands for."""

    ends_s: float
    reserved: float
    cost: float
    weight: float
    priority: int


def profile(minute: int, swing: float = 5.0) -> float:
    """Return the traffic at a minute of the day beside its mean: day and night differ by the factor ``swing``."""
    depth = (swing - 1) / (swing + 1)
    return float(1.0 - depth * np.cos(2 * np.pi * minute / DAY_MINUTES))


@dataclass
class Simulation:
    """A budget by the day, one rule, and a rate that the controller changes each minute."""

    usd_per_day: float
    traces_a_minute: float = 200.0
    seed: int = 1
    surges: Sequence[tuple[int, int, float]] = ()
    """From a minute since the begin to another one, the traffic is multiplied."""
    exempt: float = 0.0
    """The share of traces that an exempt judge judges besides, at the same cost."""
    days: list[Day] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._budget = Budget(usd_per_day=self.usd_per_day)
        self._chance = np.random.default_rng(self.seed)
        self._bins = {SAMPLED: [0.0] * (2 * BINS)}
        if self.exempt:
            self._bins[NOT_REDUCED] = [0.0] * (2 * BINS)
        self._forecasts = Forecasts()
        self._open: deque[Call] = deque()
        self._settled = 0.0
        self._reserved = 0.0
        self._rate = 1.0

    def run(self, days: int) -> list[Day]:
        """Simulate days; return them."""
        for _ in range(days):
            self._day(len(self.days))
        return self.days

    def _day(self, number: int) -> None:
        self._bins = {priority: [*bins[BINS:], *[0.0] * BINS] for priority, bins in self._bins.items()}
        self._settled = 0.0
        if number:
            self._forecasts = next_forecasts(number, self._forecasts, {"usd": self._bins})
        calls = refused = most = traces = 0
        dearest = passed = weight = true_passed = 0.0
        for minute in range(DAY_MINUTES):
            now = minute * 60.0
            former, self._rate = self._rate, self._new_rate(now + number * DAY_S)
            rising = np.prod([by for a, b, by in self.surges if a <= number * DAY_MINUTES + minute < b])
            n = int(self._chance.poisson(self.traces_a_minute * profile(minute) * rising))
            kinds = self._chance.integers(0, 2, n)
            # What a trace costs and whether it passes go together, and both change with the time of day.
            size = self._chance.gamma(4.0, 0.25, n)
            share = np.take(PASSES, kinds) - 0.05 * np.minimum(size - 1, 2) - 0.03 * (profile(minute) - 1)
            does_pass = self._chance.random(n) < share
            traces, true_passed = traces + n, true_passed + float(share.sum())
            reads_s = self._chance.integers(0, WORKERS, n) * (READ_EVERY_S / WORKERS)
            rates = np.where(60.0 * np.arange(n) / max(1, n) < reads_s, former, self._rate)
            is_chosen = self._chance.random(n) < rates
            is_exempt = self._chance.random(n) < self.exempt
            for place in np.flatnonzero(is_chosen | is_exempt):
                at = now + 60.0 * place / n
                self._end_calls(at)
                mean, rate = MEAN_USD[kinds[place]], float(rates[place])
                cost = mean * float(size[place])
                if is_exempt[place]:
                    self._begin(Call(at + CALL_S, RESERVED * mean, cost, 1.0, NOT_REDUCED))
                    dearest = max(dearest, cost)
                if is_chosen[place]:
                    if self._settled + self._reserved + RESERVED * mean > self.usd_per_day:
                        refused += 1
                        continue
                    self._begin(Call(at + CALL_S, RESERVED * mean, cost, 1 / rate, SAMPLED))
                    calls, dearest = calls + 1, max(dearest, cost)
                    weight, passed = weight + 1 / rate, passed + does_pass[place] / rate
                most = max(most, len(self._open))
        self._end_calls(DAY_S)
        spent = self._settled
        self.days.append(Day(spent, calls, refused, most, dearest, passed, weight, true_passed, traces))
        # What is still in flight at midnight is settled, and counts, on the next day.
        self._open = deque(call._replace(ends_s=call.ends_s - DAY_S) for call in self._open)

    def _new_rate(self, now_s: float) -> float:
        self._end_calls(now_s % DAY_S)
        state = BudgetState(round(self._settled * NANO), usd_open=round(self._reserved * NANO), since=1)
        demand = {"usd": self._bins, "tokens": {}}
        return budget_factors(self._budget, state, demand, self._forecasts, now_s).get(SAMPLED, 1.0)

    def _begin(self, call: Call) -> None:
        self._open.append(call)
        self._reserved += call.reserved

    def _end_calls(self, now: float) -> None:
        while self._open and self._open[0].ends_s <= now:
            call = self._open.popleft()
            self._reserved -= call.reserved
            self._settled += call.cost
            place = BINS + min(BINS - 1, max(0, int(call.ends_s // 300)))
            self._bins[call.priority][place] += call.cost * call.weight * NANO


def bias(days: list[Day]) -> float:
    """Return the weighted pass share of all judgements beyond the true one."""
    passed, weight = sum(day.passed for day in days), sum(day.weight for day in days)
    return passed / weight - sum(day.true_passed for day in days) / sum(day.traces for day in days)
