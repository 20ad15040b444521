"""Keeps budgets: the rates of rules are reduced, from past costs alone, so that each budget lasts until its end.

The demand is the cost at full rates. It is expected to follow the forecast, which is made of former days, times the
ratio of the last hour to its forecast. A rate is halved as often as necessary. A trace never decides about its own
rate, so verdicts that are weighted by 1/probability stay unbiased.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

import msgspec
from prometheus_client import Counter, Gauge

from worker.base.monitor.gauges import MonitorParts, Sample, Watch
from worker.base.monitor.series import DAY_S, HOUR_S
from worker.core.config.loading import models_of_judge
from worker.core.config.settings import NANO, Rule
from worker.core.storage.client import Store
from worker.core.telemetry.metrics import Metric, MetricTable
from worker.features.budgets.feature import BUDGETS, PRIORITY, STRATIFY, Budget, BudgetKeys, budgets_of, changes_rates
from worker.features.budgets.rates import Rates, read_segments

BIN_S: Final = 300
BINS: Final = 288
UNITS: Final = ("usd", "tokens")
MIN_FACTOR: Final = 2.0**-12  # A rate is never 0: without verdicts nothing would show that money is left.
NOT_REDUCED: Final = 10  # The priority of costs that no rate changes, above the priorities of rules.
_USABLE: Final = 0.99  # The rest is kept for calls in flight whose cost is above their reservation.
_KEPT: Final = 0.7
_SMOOTHED_BINS: Final = 3

Demand = Mapping[int, Sequence[float]]
"""The cost at full rates of each five minutes of yesterday and today, by priority."""


class BudgetState(NamedTuple):
    """Settled and reserved costs of a budget, as script `budget_state` returns them; USD in 10^-9, ``since`` in ms."""

    usd_day: int = 0
    usd_hour: int = 0
    tokens_day: int = 0
    tokens_hour: int = 0
    usd_open: int = 0
    tokens_open: int = 0
    refused: int = 0
    since: int = 0

    def list_limits(self, budget: Budget) -> Iterator[tuple[str, int, int]]:
        """Yield the key of each limit that is set, the amount spent, and the limit; USD in 10^-9."""
        keys = ("usd_per_day", "usd_per_hour", "tokens_per_day", "tokens_per_hour")
        for key, spent, most in zip(keys, self, budget.limits, strict=False):
            if most is not None:
                yield key, spent, most


def read_states(store: Store, names: Collection[str]) -> tuple[dict[str, BudgetState], float]:
    """Read the states of budgets by name, and the time in seconds since the epoch."""
    keys_of = BudgetKeys(store.keys.prefix).budget
    *rows, stamp = store.run("budget_state", [key for name in names for key in keys_of(name)], ())
    states = {name: BudgetState(*(int(value or 0) for value in row)) for name, row in zip(names, rows, strict=True)}
    return states, int(stamp) / 1000


class Forecasts(msgspec.Struct, array_like=True):
    """The expected demand of each five minutes of a day, by unit, from the days before ``day``."""

    day: int = 0
    reducible: dict[str, list[float]] = {}
    # The part that no rate changes. Lower rates make the forecast of the other part less precise.
    fixed: dict[str, list[float]] = {}


def next_forecast(former: Sequence[float], yesterday: Sequence[float]) -> list[float]:
    """Return the forecast after one more day."""
    if not former:
        return list(yesterday)
    return [_KEPT * old + (1 - _KEPT) * new for old, new in zip(former, yesterday, strict=True)]


def next_forecasts(day: int, former: Forecasts, demand: Mapping[str, Demand]) -> Forecasts:
    """Return the forecasts of a day, from the forecasts and the demand of the day before."""
    made = Forecasts(day, {}, {})
    for unit, of_unit in demand.items():
        for forecasts, before, part in zip(
            (made.reducible, made.fixed), (former.reducible, former.fixed), divide(of_unit), strict=True
        ):
            forecasts[unit] = next_forecast(before.get(unit, []), add_up(part)[:BINS])
    return made


def smooth(forecast: Sequence[float]) -> list[float]:
    """Average a forecast over fifteen minutes before and after; the day is a circle."""
    width = 2 * _SMOOTHED_BINS + 1
    circle = [*forecast[-_SMOOTHED_BINS:], *forecast, *forecast[:_SMOOTHED_BINS]]
    sums = list(accumulate(circle, initial=0.0))
    return [(after - before) / width for before, after in zip(sums, sums[width:], strict=False)]


def predict(demand: Sequence[float], forecast: Sequence[float], now: float, end: float, history_s: float) -> float:
    """Return the expected demand from now to the end, in seconds since midnight.

    ``demand`` is of each five minutes of yesterday and today, in all priorities; the forecast is smoothed, and empty on
    the first day; ``history_s`` counts from the first cost.
    """
    last_hour = _sum(demand, DAY_S + now - HOUR_S, DAY_S + now)
    if forecast:
        twice = [*forecast, *forecast]
        of_last_hour = _sum(twice, DAY_S + now - HOUR_S, DAY_S + now)
        if of_last_hour > 0:
            # Within bounds, since one unusual hour must not decide about the whole day.
            ratio = min(5.0, max(0.2, last_hour / of_last_hour))
            return ratio * _sum(forecast, now, end)
    # A history below five minutes says too little about a rate.
    return last_hour / min(HOUR_S, max(BIN_S, history_s)) * (end - now)


def distribute(left: float, demand: Mapping[int, float]) -> dict[int, float]:
    """Distribute the rest of a budget over priorities, the highest first; each factor is a power of two, at most 1."""
    shares = {}
    for priority in sorted(demand, reverse=True):
        amount = demand[priority]
        shares[priority] = power_of_two(left / amount if amount > 0 else float(left >= 0))
        left = max(0.0, left - amount * shares[priority])
    return shares


def power_of_two(share: float) -> float:
    """Return the largest power of two that is not above a share, within the bounds of a factor."""
    if share <= MIN_FACTOR:
        return MIN_FACTOR
    return min(1.0, 2.0 ** math.floor(math.log2(share)))


def budget_factors(
    budget: Budget, state: BudgetState, demand: Mapping[str, Demand], forecasts: Forecasts, now_s: float
) -> dict[int, float]:
    """Return the factor of each priority, the smallest that any limit of the budget demands; ``demand`` is by unit."""
    now, lowest = now_s % DAY_S, dict[int, float]()
    settled = (state.usd_day, state.usd_hour, state.tokens_day, state.tokens_hour)
    for number, (limit, spent) in enumerate(zip(budget.limits, settled, strict=True)):
        if limit is None:
            continue
        unit, length = UNITS[number // 2], (DAY_S, HOUR_S)[number % 2]
        reserved = (state.usd_open, state.tokens_open)[number // 2]
        end, history_s = (now // length + 1) * length, now_s - state.since / 1000
        reducible, fixed = divide(demand[unit])
        amount = predict(add_up(reducible), smooth(forecasts.reducible.get(unit, [])), now, end, history_s)
        apart = predict(add_up(fixed), smooth(forecasts.fixed.get(unit, [])), now, end, history_s)
        left = _USABLE * limit - spent - reserved - apart
        for priority, factor in distribute(left, divide_by_priority(reducible, now, amount)).items():
            lowest[priority] = min(factor, lowest.get(priority, 1.0))
    return lowest


def divide(demand: Demand) -> tuple[Demand, Demand]:
    """Divide a demand into the part that rates reduce, and the part that they do not."""
    reducible = {priority: bins for priority, bins in demand.items() if priority != NOT_REDUCED}
    return reducible, {priority: bins for priority, bins in demand.items() if priority == NOT_REDUCED}


def add_up(demand: Demand) -> list[float]:
    """Add up a demand over its priorities."""
    return [*map(sum, zip(*demand.values(), strict=True))] or [0.0] * (2 * BINS)


def divide_by_priority(demand: Demand, now: float, amount: float) -> dict[int, float]:
    """Divide an expected demand among priorities as in the last hour, or as in the last day if the hour had none."""
    for length in (HOUR_S, DAY_S):
        recent = {priority: _sum(bins, DAY_S + now - length, DAY_S + now) for priority, bins in demand.items()}
        if (whole := sum(recent.values())) > 0:
            return {priority: amount * cost / whole for priority, cost in recent.items()}
    return dict.fromkeys(demand, 0.0)


def _sum(bins: Sequence[float], begin: float, end: float) -> float:
    """Add up bins between two times in seconds; the first and last bin count in proportion."""
    first, before_first = divmod(begin, BIN_S)
    last, of_last = divmod(end, BIN_S)
    whole = bins[int(first) : int(last)]
    parts = -before_first * sum(bins[int(first) : int(first) + 1]) + of_last * sum(bins[int(last) : int(last) + 1])
    return sum(whole) + parts / BIN_S


def segment_factors(rate: float, traces: Mapping[str, int]) -> dict[str, float]:
    """Divide a rate over segments for equal numbers of verdicts; each has an eighth of the rate or more, at most 1."""
    if not 0 < rate < 1:
        return {}
    lowest, highest = rate / 8, 1.0
    least, most = 0.0, float(sum(traces.values()))
    # Half the interval each time: the mean rate rises with the verdicts of each segment.
    for _ in range(40):
        verdicts = (least + most) / 2
        rates = {segment: min(highest, max(lowest, verdicts / count)) for segment, count in traces.items()}
        if sum(rates[segment] * count for segment, count in traces.items()) > rate * sum(traces.values()):
            most = verdicts
        else:
            least = verdicts
    # Rounded, so that a rate does not change each minute.
    return {segment: float(f"{of_segment / rate:.2g}") for segment, of_segment in rates.items()}


def read_demand(store: Store, name: str, day: int) -> dict[str, dict[int, list[float]]]:
    """Read the demand of a budget yesterday and today, by unit and priority."""
    prefix = BudgetKeys(store.keys.prefix).budget(name)[2]
    stored = store.read_hashes(f"{prefix}:{number}" for number in (day - 1, day))
    demand: dict[str, dict[int, list[float]]] = {unit: defaultdict(lambda: [0.0] * (2 * BINS)) for unit in UNITS}
    for number, fields in enumerate(stored):
        for field, amount in fields.items():
            unit, place, priority = field.decode().split(":")
            demand[unit][int(priority)][number * BINS + int(place)] += float(amount)
    return demand


class BudgetMetrics(MetricTable):
    """The metrics of budgets."""

    # fmt: off
    budget_spent = Metric(Gauge, "budget_spent_usd", "USD", ("budget",),
        "Cost of judge calls in the current day, or hour for a budget by the hour alone", stability="stable")
    budget_limit = Metric(Gauge, "budget_limit_usd", "USD", ("budget",),
        "Limit of that day or hour", stability="stable")
    budget_spent_ratio = Metric(Gauge, "budget_spent_ratio", "ratio", ("budget", "limit"),
        "Share of each limit of a budget, in USD or tokens, that is spent in the current day or hour")
    budget_factor = Metric(Gauge, "budget_rate_factor", "ratio", ("budget",),
        "Factor by which the budget reduces the rates of rules, the smallest of all priorities", stability="stable")
    budget_refused = Metric(Counter, "budget_refused_total", "calls", ("budget",),
        "Judge calls that an exhausted budget refused")


class BudgetController(Watch):
    """Writes the factors of all rates to Redis, once a minute; ingest reads them there."""

    def __init__(self, parts: MonitorParts, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(parts.store, clock)
        self._settings = parts.settings
        own = parts.metrics.table(BudgetMetrics)
        self._gauges = own.budget_spent, own.budget_limit, own.budget_factor
        self._ratio = own.budget_spent_ratio

    def run(self, now: float) -> None:  # noqa: ARG002 - budgets end by the clock of Redis
        """Adjust the rates; without Redis they stay as they are for an hour."""
        if changes_rates(self._settings):
            self.adjust()

    def adjust(self) -> Rates:
        """Compute and write the factors of rules below 1 and the factors of segments; set the gauges."""
        states, now_s = read_states(self._store, BUDGETS.read(self._settings))
        of_budget, samples = {}, list[Sample]()
        for name, state in states.items():
            budget = BUDGETS.read(self._settings)[name]
            day = int(now_s // DAY_S)
            demand = read_demand(self._store, name, day)
            lowest = budget_factors(budget, state, demand, self._forecasts(name, day, demand, state), now_s)
            of_budget[name] = lowest
            for key, spent_of, most in state.list_limits(budget):
                samples.append((self._ratio, (name, key), spent_of / most if most else 1.0))
            usd_day, usd_hour, *_ = budget.limits
            spent, limit = (state.usd_hour, usd_hour) if usd_day is None and usd_hour else (state.usd_day, usd_day)
            values = spent / NANO, limit / NANO if limit else math.inf, min(lowest.values(), default=1.0)
            samples += [(gauge, (name,), value) for gauge, value in zip(self._gauges, values, strict=True)]
        self.show(samples)
        factors = {rule.name: factor for rule in self._settings.rules if (factor := self._factor(rule, of_budget)) < 1}
        dividing = [rule for rule in self._settings.rules if STRATIFY.read(rule)]
        counts = read_segments(self._store, now_s, hours=3) if dividing else {}
        segments = {rule.name: segment_factors(rule.rate, counts.get(rule.name, {})) for rule in dividing}
        rates = Rates(factors, segments)
        rates.write(self._store)
        return rates

    def _factor(self, rule: Rule, of_budget: Mapping[str, Mapping[int, float]]) -> float:
        models = self._settings.models
        candidates = [1.0]
        for name, budget in budgets_of(self._settings, rule).items():
            paid = {models[model].judge_model for model in budget.models or models}
            judges = {judge for judge in rule.judges if judge not in budget.exempt}
            asked = {
                models[model].judge_model
                for judge in judges.intersection(budget.judges or judges)
                for model in models_of_judge(self._settings, rule, judge)
            }
            if paid & asked:
                # A priority without costs shares its evaluations with higher priorities, or has none yet.
                at_least = (factor for rank, factor in sorted(of_budget[name].items()) if rank >= PRIORITY.read(rule))
                candidates.append(next(at_least, 1.0))
        return min(candidates)

    def _forecasts(self, name: str, day: int, demand: Mapping[str, Demand], state: BudgetState) -> Forecasts:
        key = BudgetKeys(self._store.keys.prefix).budget_forecast(name)
        stored = self._store.call(lambda client: client.get(key))
        former = msgspec.msgpack.decode(stored, type=Forecasts) if stored else Forecasts()
        # A day that the budget has not seen from its begin is no model of a day.
        if former.day == day or state.since == 0 or state.since / 1000 > (day - 1) * DAY_S:
            return former
        made = next_forecasts(day, former, demand)
        self._store.call(lambda client: client.set(key, msgspec.msgpack.encode(made), ex=7 * DAY_S))
        return made
