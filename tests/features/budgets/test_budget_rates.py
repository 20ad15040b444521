"""Rates under budgets: what the controller computes and ingest samples by, in simulated days and beside the truth."""

import json
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from support.passes import Replays, take
from support.stages import Keyspace, make_trace, make_traces, rules_of, sampler_of, settings_of
from support.tables import read_table

from benchmarks.budget_days import Simulation, bias
from judges.core.model import ModelSettings
from tracejudge import Trace
from worker.base.monitor.gauges import MonitorParts
from worker.core.config.settings import NANO, Rule, Settings
from worker.core.selection.sampling import Sampler
from worker.core.storage.client import Store
from worker.core.storage.keys import Keys
from worker.core.telemetry.metrics import Metrics
from worker.features.budgets.control import (
    BINS,
    MIN_FACTOR,
    NOT_REDUCED,
    BudgetController,
    BudgetMetrics,
    BudgetState,
    Forecasts,
    budget_factors,
    segment_factors,
    smooth,
)
from worker.features.budgets.feature import STRATIFY, Budget, BudgetKeys
from worker.features.budgets.rates import RateAdjuster, Rates, read_segments
from worker.features.budgets.spending import check_spending

# --- the controller: simulated days, and the steps of its computation ---

USD = 25.0
"""A day; the traffic of 25 traces a minute would cost eight times that."""


@pytest.mark.slow("simulates days")
def test_days_spend_their_budgets_without_bias_and_surges_neither_exceed_nor_end_them() -> None:
    # On the third day twenty times the traffic for an hour, and twice the traffic from the afternoon on.
    surges = [(3600, 3660, 20.0), (3840, 4320, 2.0)]
    # An exempt judge costs half of the budget, which is set aside for the whole day. As long as it was taken for costs
    # that a rate reduces, the evening had nothing left. The bounds of the bias are four standard errors.
    for exempt, seed, count, most_bias in ((0.0, 1, 3, 0.014), (0.063, 3, 2, 0.023)):
        days = Simulation(USD, 25.0, exempt=exempt, seed=seed, surges=surges).run(count)
        for day in days:
            assert day.spent <= USD + day.most_in_flight * day.dearest, day
        assert 0.97 * USD <= days[1].spent <= USD, days[1]
        assert days[1].refused <= 0.002 * days[1].calls, days[1]
        assert abs(bias(days[:2])) < most_bias, (exempt, bias(days[:2]))
        assert all(day.spent >= 0.9 * USD for day in days[2:]), days[2:]


def test_the_scarcest_limit_decides_and_the_lowest_priority_is_reduced_first() -> None:
    """The rest of the day costs 144 USD or tokens for each USD of a bin, the next hour a twelfth.

    99 % of a limit are used. A forecast counts times the last hour, within five times; without one the last hour goes
    on. Of priority 0 is what no rate changes.
    """
    noon = 19_000 * 86_400.0 + 43_200

    def factors(limits: Any, spent: Any, usd: dict[int, float], forecast: float | None, length: int = 12) -> Any:
        """Return the factors after so much in each five minutes of the last hour, by priority."""
        demand = {priority: [0.0] * (2 * BINS) for priority in usd}
        for priority, amount in usd.items():
            demand[priority][BINS + 144 - length : BINS + 144] = [amount * NANO] * length
        tokens = {priority: [each * 1000 / NANO for each in bins] for priority, bins in demand.items()}
        forecasts = Forecasts(reducible={} if forecast is None else {"usd": [forecast * NANO] * BINS})
        state = BudgetState(**{"since": 1} | spent)
        return budget_factors(Budget(**limits), state, {"usd": demand, "tokens": tokens}, forecasts, noon)

    for limits, spent, demand, forecast, expected in read_table(__file__, "factors"):
        usd = {int(priority) or NOT_REDUCED: amount for priority, amount in demand.items()}
        found = factors(limits, spent, usd, forecast)
        assert found == {int(priority): factor for priority, factor in expected.items()}, (limits, spent, demand)
    for limit, expected in ((1460, 1.0), (1440, 0.5)):
        since = {"since": round((noon - 300) * 1000)}
        found = factors({"usd_per_day": limit}, since, {5: 10}, None, length=1)
        assert found == {5: expected}, "known for five minutes"
    assert smooth([7.0, *[0.0] * (BINS - 1)])[-3:] == [1.0, 1.0, 1.0]


# --- ingest ---


class Ingest:
    """A sampler with the hook that adjusts its rates, as one thread of ingest has them."""

    def __init__(self, keyspace: Keyspace, settings: Settings, *, clock: Callable[[], float]) -> None:
        self._rates = RateAdjuster(settings, keyspace.store, clock)
        self.sampler = sampler_of(settings, self._rates)

    def exchange_due(self) -> None:
        if self._rates.before_read():
            self.sampler.clear()


def test_the_controller_writes_factors_and_ingest_samples_by_them(keyspace: Keyspace) -> None:
    rules = (
        Rule.from_keys(name="cut", judges=("safety",), rate=0.8, always=("error",), priority=1),
        Rule.from_keys(name="kept", judges=("relevance_to_query",), rate=0.8, priority=9),
    )
    # The costs are of priority 5; a lower one is reduced no less.
    by_default = Budget(usd_per_day=1e-6, exempt=("relevance_to_query",))
    settings, keys = settings_of(keyspace, rules=rules, budgets={"all": by_default}), BudgetKeys(keyspace.prefix)
    for number in range(3):
        reservation = f"{number} 1000 0 1 5"
        assert not keyspace.store.run("budget_reserve", keys.budget("all"), (10**6, reservation, -1, -1, -1, -1))
        assert keyspace.store.run("budget_settle", keys.budget("all"), (1000, 7, reservation)) == 1
    metrics = Metrics(settings)
    controller = BudgetController(MonitorParts(settings, keyspace.store, metrics, rules_of(settings)))
    assert controller.adjust().factors == {"cut": MIN_FACTOR}
    own = metrics.table(BudgetMetrics)
    gauges = {
        gauge.describe()[0].name.removeprefix("tracejudge_"): gauge.labels("all")._value.get()
        for gauge in (own.budget_spent, own.budget_limit, own.budget_factor)
    }
    assert gauges == {"budget_spent_usd": 3e-6, "budget_limit_usd": 1e-6, "budget_rate_factor": MIN_FACTOR}
    assert own.budget_spent_ratio.labels("all", "usd_per_day")._value.get() == pytest.approx(3)
    ((result, what),) = [(each.result, each.what) for each in check_spending(settings, keyspace.store)]
    assert (result, "all has spent 300% of usd_per_day" in what) == ("warning", True)
    rich = settings_of(keyspace, rules=rules, budgets={"all": Budget(usd_per_day=1.0, tokens_per_hour=10**9)})
    assert [each.result for each in check_spending(rich, keyspace.store)] == ["ok"]
    assert check_spending(rich, keyspace.store)[0].what == "no limit of a budget is reached"
    assert keyspace.store.run("budget_reserve", keys.budget("all"), (10**6, "9 1000 0 1 5", 1, -1, -1, -1))
    assert check_spending(rich, keyspace.store)[0].what.endswith("is reached; 1 call was refused so far")
    rates = json.loads(keyspace.client.get(keys.rates))
    assert rates == {"factors": {"cut": MIN_FACTOR}}
    assert 0 < keyspace.client.ttl(keys.rates) <= 3600
    keyspace.client.set(keys.rates, json.dumps({"factors": {"cut": 0.25}}))
    moments = iter((0.0, 1.0, 10.0))
    ingest = Ingest(keyspace, settings, clock=lambda: 100 + next(moments))
    trace, failed, sampler = make_traces([1])[0], make_trace(1, error=True), ingest.sampler
    ingest.exchange_due()
    probabilities = {
        choice.judge: choice.probability for each in range(200) for choice in sampler.sample(make_trace(each)).choices
    }
    assert probabilities == {"safety": 0.2, "relevance_to_query": 0.8}
    assert {choice.judge: choice.probability for choice in sampler.sample(failed).choices}["safety"] == 1.0
    assert [rule.rate for rule in sampler.rules.find_rules(trace, "safety", "lexical")] == [0.8]


def test_a_divided_rate_gives_rare_segments_as_many_verdicts_at_the_same_mean_rate(keyspace: Keyspace) -> None:
    traffic = {"large": 900, "small": 90, "tiny": 10}
    settings = settings_of(
        keyspace, rules=(Rule.from_keys(name="one", judges=("safety",), rate=0.1, stratify=("model",)),)
    )
    moments = iter((100.0, 106.0, 112.0, 118.0))
    ingest = Ingest(keyspace, settings, clock=lambda: next(moments))
    traces = [make_trace(number, model=model) for model, many in traffic.items() for number in range(many)]

    def probabilities() -> dict[str | None, set[float]]:
        by_model: dict[str | None, set[float]] = {}
        for trace in traces:
            for choice in ingest.sampler.sample(trace).choices:
                by_model.setdefault(trace.model, set()).add(choice.probability)
        return by_model

    ingest.exchange_due()
    assert probabilities()["large"] == {0.1}, "before anything is known"
    ingest.exchange_due()
    counts = read_segments(keyspace.store, 112.0, 1)
    assert counts == {"one": traffic}
    Rates(segments={"one": segment_factors(0.1, counts["one"])}).write(keyspace.store)
    ingest.exchange_due()
    rates = {model: names.pop() for model, names in probabilities().items()}
    assert rates["tiny"] == 1.0
    # 100 verdicts: 10 of the tiny one, and 45 of each of the others.
    assert rates == pytest.approx({"large": 0.05, "small": 0.5, "tiny": 1.0}, rel=0.03)
    assert sum(rates[model] * many for model, many in traffic.items()) == pytest.approx(100, rel=0.03)
    assert keyspace.client.ttl(BudgetKeys(keyspace.keys.prefix).segments(0)) > 0
    assert segment_factors(1.0, traffic) == {}, "every trace is judged anyway"
    assert segment_factors(0.5, {"only": 7}) == {"only": 1.0}


def test_the_first_traces_an_hour_of_a_new_release_are_chosen_by_all_workers_together(keyspace: Keyspace) -> None:
    settings = settings_of(
        keyspace, rules=(Rule.from_keys(name="one", judges=("safety",), rate=0.0, first_per_hour=3),)
    )
    now = [1_000_000.0]
    workers = [Ingest(keyspace, settings, clock=lambda: now[0]) for _ in range(2)]

    def exchange(seconds: float) -> None:
        now[0] += seconds
        for each in workers:
            each.exchange_due()

    def chosen(worker: int, release: str, many: int) -> int:
        traces = [make_trace(number, release=release, model="m") for number in range(many)]
        choices = [choice for trace in traces for choice in workers[worker].sampler.sample(trace).choices]
        assert {choice.probability for choice in choices} <= {1.0}
        return len(choices)

    exchange(0)
    assert chosen(0, "v1", 2) == 2
    exchange(6)
    assert chosen(1, "v1", 0) == 0
    assert chosen(0, "v1", 10) == 1
    exchange(6)
    exchange(3600)
    assert chosen(0, "v1", 10) == 3, "in the next hour"
    exchange(6)
    exchange(24 * 3600)
    assert chosen(0, "v1", 1) == 1, "until the next exchange"
    exchange(6)
    exchange(3600)
    assert chosen(0, "v1", 10) == 0, "known for a day"
    assert chosen(0, "v2", 10) == 3, "a new release"
    late = Ingest(keyspace, settings, clock=lambda: now[0])
    late.exchange_due()
    assert not late.sampler.sample(make_trace(1, release="v1", model="m")).choices, "a worker that starts later"

    keyspace.next_case("a replay chooses the first traces of new values")
    for trace in make_traces(range(20)):
        keyspace.add(trace)
    take(keyspace)
    assert Replays(keyspace, rules=settings.rules).make("safety")["chosen"] == 3


# --- whatever reduces or divides rates, weighted shares are those of all traces ---

MODELS = {"large": (0.90, 0.95), "small": (0.09, 0.70), "tiny": (0.01, 0.40)}
"""The share of the traffic, and how many of its traces pass."""
TRACES = 12_000


def traffic(seed: int) -> list[tuple[Trace, bool]]:
    """Make traces of three models in conversations of five, and whether each passes. Slow ones fail more often."""
    chance, made = random.Random(seed), []
    for number in range(TRACES):
        (model,) = chance.choices(list(MODELS), [share for share, _ in MODELS.values()])
        seconds = chance.expovariate(0.5)
        does_pass = chance.random() < MODELS[model][1] - (0.3 if seconds > 6 else 0.0)
        trace = make_trace(
            number,
            trace_id=f"{chance.getrandbits(128):032x}",
            model=model,
            session_id=f"session {seed} {number // 5}",
            started_at=1e9,
            ended_at=1e9 + seconds,
        )
        made.append((trace, does_pass))
    return made


def sampler(rule: Rule, rates: Rates | None = None) -> tuple[Sampler, RateAdjuster]:
    """Make a sampler by these rates, and the hook that has them; nothing is exchanged."""
    settings = Settings(rules=(rule,), models={"default": ModelSettings(provider="lexical")})
    adjuster = RateAdjuster(settings, Store("redis://127.0.0.1:1/0", Keys("unused")))
    adjuster.rates = rates or Rates()
    return sampler_of(settings, *([] if rates is None else [adjuster])), adjuster


def test_weighted_shares_are_unbiased_under_every_kind_of_rule() -> None:
    traces = traffic(18)
    truth = sum(does_pass for _, does_pass in traces) / TRACES
    counts = Counter(trace.model or "" for trace, _ in traces)
    everything = {"name": "one", "judges": ("safety",), "stratify": ("model",), "first_per_hour": 200}
    rules = {
        "rate": Rule("one", ("safety",), rate=0.2),
        "slow": Rule("one", ("safety",), rate=0.1, always=("slow",), slow_s=6.0),
        "session": Rule("one", ("safety",), rate=0.2, sample_by="session"),
        "stratify": Rule.from_keys(name="one", judges=("safety",), rate=0.1, stratify=("model",)),
        "first": Rule.from_keys(name="one", judges=("safety",), rate=0.1, first_per_hour=200),
        "all": Rule.from_keys(**everything, rate=0.2, always=("slow",), slow_s=6.0, sample_by="session"),
    }
    for name, rule in rules.items():
        segments = {"one": segment_factors(rule.rate, counts)} if STRATIFY.read(rule) else {}
        under_test, factors = sampler(rule, Rates({"one": 0.5}, segments))
        total = passed = variance = 0.0
        by_session: dict[str, list[float]] = defaultdict(lambda: [0.0, 1.0])
        probabilities = set()
        for number, (trace, does_pass) in enumerate(traces):
            if number == TRACES // 2:
                # A budget recovers. The rate of a trace is that of the moment when it is read.
                factors.rates = Rates({}, segments)
                under_test.clear()
            for choice in under_test.sample(trace).choices:
                weight = 1 / choice.probability
                probabilities.add(choice.probability)
                total, passed = total + weight, passed + weight * does_pass
                sums = by_session[trace.session_id or ""] if rule.sample_by == "session" else by_session[trace.trace_id]
                sums[0] += weight * (does_pass - truth)
                sums[1] = choice.probability
        assert len(probabilities) >= 2, name
        # Horvitz and Thompson: the variance of what independent choices add up to.
        variance = sum(deviation**2 * (1 - probability) for deviation, probability in by_session.values())
        error = 3 * math.sqrt(variance) / total
        assert abs(passed / total - truth) < error, f"{name}: {passed / total:.4f}, true {truth:.4f}"
        assert abs(total / TRACES - 1) < 0.1, f"{name}: the weights stand for {total:.0f} of {TRACES} traces"
