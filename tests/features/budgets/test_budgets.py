"""Budgets in Redis and in the worker: reservations, refused calls, and rates that ingest reduces."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs
from support.judging_parts import MODEL, YES, Workers, assert_settled, choose
from support.replay_parts import Replays, take
from support.stage_parts import Keyspace, make_trace, make_traces, rules_of, sampler_of, settings_of

from judges.core.model import ModelSettings, Price
from judges.endpoints.client import LimitedModel
from worker.base.accounting import read_account
from worker.base.doctor.lint import setting_warnings
from worker.base.monitor.gauges import MonitorParts
from worker.core.config.loading import load
from worker.core.config.settings import NANO, Rule, Settings, SettingsError
from worker.core.telemetry.metrics import Metrics
from worker.features.budgets.control import (
    MIN_FACTOR,
    NOT_REDUCED,
    BudgetController,
    BudgetMetrics,
    read_demand,
    segment_factors,
)
from worker.features.budgets.feature import Budget, BudgetKeys
from worker.features.budgets.rates import RateAdjuster, Rates, read_segments
from worker.features.budgets.reservations import Budgets
from worker.features.budgets.spending import check_spending

HOUR_MS = 3_600_000
# Two texts of the script's answers; a request and its answer cost the same number of tokens.
TOKENS = 2 * len(YES)


class BudgetClient:
    """Calls the scripts of one budget."""

    def __init__(self, keyspace: Keyspace, *limits: int, name: str = "all") -> None:
        self._keyspace = keyspace
        self._limits = [*limits, *[-1] * (4 - len(limits))]
        self.keys = list(BudgetKeys(keyspace.keys.prefix).budget(name))

    def reserve(self, number: int, usd: int, tokens: int = 0, *, weight: str = "1", lifetime_ms: int = HOUR_MS) -> bool:
        reservation = f"{number} {usd} {tokens} {weight} 5"
        return not self._keyspace.store.run("budget_reserve", self.keys, (lifetime_ms, reservation, *self._limits))

    def settle(self, number: int, usd: int, true_usd: int, *, weight: str = "1") -> int:
        return self._keyspace.store.run("budget_settle", self.keys, (true_usd, 7, f"{number} {usd} 0 {weight} 5"))

    @property
    def state(self) -> tuple[int, ...]:
        """USD of the day and of the hour, reserved USD, refused calls."""
        spent, _ = self._keyspace.store.run("budget_state", self.keys, ())
        return tuple(int(spent[place] or 0) for place in (0, 1, 4, 6))

    @property
    def demand(self) -> dict[str, int]:
        """The cost at full rates by unit."""
        amounts: dict[str, int] = {}
        for key in self._keyspace.client.scan_iter(f"{self.keys[2]}:*"):
            for field, amount in self._keyspace.client.hgetall(key).items():
                unit = field.decode().split(":")[0]
                amounts[unit] = amounts.get(unit, 0) + int(amount)
        return amounts


class Ingest:
    """A sampler with the hook that adjusts its rates, as one thread of ingest has them."""

    def __init__(self, keyspace: Keyspace, settings: Settings, *, clock: Callable[[], float]) -> None:
        self._rates = RateAdjuster(settings, keyspace.store, clock)
        self.sampler = sampler_of(settings, self._rates)

    def exchange_due(self) -> None:
        if self._rates.before_read():
            self.sampler.clear()


def test_a_reservation_is_replaced_by_the_true_cost_once(keyspace: Keyspace) -> None:
    budget = BudgetClient(keyspace, 100)
    assert budget.reserve(1, 60)
    assert budget.state == (0, 0, 60, 0)
    assert not budget.reserve(2, 50), "beyond the limit with what is reserved"
    assert budget.settle(1, 60, 20, weight="1") == 1
    assert budget.state == (20, 20, 0, 1)
    assert budget.settle(1, 60, 20) == 0, "settled twice"
    assert budget.reserve(3, 80, weight="4")
    assert budget.settle(3, 80, 30, weight="4") == 1
    assert budget.state == (50, 50, 0, 1)
    assert budget.demand == {"usd": 20 + 4 * 30, "tokens": 7 + 4 * 7}
    assert all(keyspace.client.ttl(key) > 0 for key in keyspace.client.scan_iter(f"{budget.keys[0]}*"))


def test_an_expired_reservation_counts_as_it_was_reserved(keyspace: Keyspace) -> None:
    budget = BudgetClient(keyspace, 100)
    assert budget.reserve(1, 60, lifetime_ms=0)
    assert budget.state == (60, 60, 0, 0)
    assert budget.settle(1, 60, 20) == 0
    assert budget.state == (60, 60, 0, 0)


def test_a_call_reserves_in_all_its_budgets_or_in_none(keyspace: Keyspace) -> None:
    wide, narrow = BudgetClient(keyspace, 100, name="wide"), BudgetClient(keyspace, 10, name="narrow")
    keys, priorities = wide.keys + narrow.keys, (5, NOT_REDUCED)

    def reservations(number: int, usd: int) -> list[str]:
        return [f"{number} {usd} 0 1 {priority}" for priority in priorities]

    def reserve(number: int, usd: int) -> int:
        first, second = reservations(number, usd)
        arguments = (HOUR_MS, first, 100, -1, -1, -1, second, 10, -1, -1, -1)
        return keyspace.store.run("budget_reserve", keys, arguments)

    assert [reserve(number, usd) for number, usd in enumerate((8, 8, 2))] == [0, 2, 0]
    assert (wide.state, narrow.state) == ((0, 0, 10, 0), (0, 0, 10, 1))
    assert keyspace.store.run("budget_settle", keys, (3, 0, *reservations(0, 8))) == 2
    assert (wide.state, narrow.state) == ((3, 3, 2, 0), (3, 3, 2, 1))
    day = keyspace.store.now_ms() // 86_400_000
    demand = [read_demand(keyspace.store, name, day)["usd"] for name in ("wide", "narrow")]
    assert [list(each) for each in demand] == [[5], [NOT_REDUCED]], "each budget has its own priority"


def test_every_limit_refuses_amounts_beyond_it(keyspace: Keyspace) -> None:
    for number in range(4):
        limits = [-1] * 4
        limits[number] = 10
        budget = BudgetClient(keyspace, *limits, name=f"limit{number}")
        unit = ("usd", "tokens")[number // 2]
        assert budget.reserve(1, **{"usd": 0, "tokens": 0, unit: 10}), unit
        assert not budget.reserve(2, **{"usd": 0, "tokens": 0, unit: 1}), unit


def test_fifty_workers_overshoot_by_no_more_than_their_calls_in_flight(keyspace: Keyspace) -> None:
    # Each call costs four times what it reserves, the worst that an estimate may be wrong.
    budget, limit, dearest = BudgetClient(keyspace, 1_000), 1_000, 8
    number, flights = 0, 50
    while True:
        begun = [number + flight for flight in range(flights) if budget.reserve(number + flight, 2)]
        if not begun:
            break
        for call in begun:
            assert budget.settle(call, 2, dearest) == 1
        number += flights
    spent = budget.state[0]
    assert limit < spent <= limit + flights * dearest


def budgets_of(**fields: Any) -> dict[str, Budget]:
    return {"all": Budget(**fields)}


def test_calls_beyond_the_budget_are_unscored_and_the_rest_is_charged(keyspace: Keyspace, new_worker: Workers) -> None:
    cost = MODEL.price.cost_usd(len(YES), len(YES)) if MODEL.price else 0.0
    # A reservation is a little more than one call costs.
    budgets = budgets_of(usd_per_day=0.005)
    worker = new_worker(limited=LimitedModel, budgets=budgets)
    asked = 0
    for first in range(0, 40, 4):
        (batch_id,) = choose(keyspace, 4, first=first, budgets=budgets)
        worker.run(batch_id)
        asked = len(worker.judged_texts)
        if asked < first + 4:
            break
    account = read_account(keyspace.store)
    refused = account.reasons["unscored:over_budget"]
    assert asked > 0
    assert refused > 0
    worker.judging.stop(0.1)
    state = BudgetClient(keyspace, 0).state
    assert state[0] == round(asked * cost * NANO)
    assert state[0] <= 0.005 * NANO
    assert state[2:] == (0, refused)


def test_an_exempt_judge_is_charged_but_never_refused(keyspace: Keyspace, new_worker: Workers) -> None:
    budgets = budgets_of(tokens_per_hour=1, exempt=("safety",))
    (batch_id,) = choose(keyspace, 2, budgets=budgets)
    worker = new_worker(limited=LimitedModel, budgets=budgets)
    worker.run(batch_id)
    assert_settled(keyspace, scored=2)
    worker.judging.stop(0.1)
    state, _ = keyspace.store.run("budget_state", BudgetKeys(keyspace.keys.prefix).budget("all"), ())
    assert int(state[2]) == 2 * TOKENS


def test_budgets_pay_for_their_rules_judges_and_models(keyspace: Keyspace) -> None:
    rules = (
        Rule.from_keys(name="a", judges=("safety",), budget="own"),
        Rule.from_keys(name="b", judges=("groundedness", "safety"), priority=7, rate=0.5),
    )
    names = {
        "all": Budget(tokens_per_day=1),
        "own": Budget(tokens_per_day=1),
        "judge": Budget(tokens_per_day=1, judges=("groundedness",)),
        "rule": Budget(tokens_per_day=1, rules=("b",)),
        "model": Budget(tokens_per_day=1, models=("other",)),
    }
    models = {"default": MODEL, "other": ModelSettings(provider="lexical")}
    settings = settings_of(keyspace, rules=rules, budgets=names, models=models)
    own = rules_of(settings)
    budgets = Budgets(settings, keyspace.store, own)

    def paying(judge: str, model: str = "scripted") -> set[str]:
        asking = own.find_rules(make_trace(1, context=["x"]), judge, model)
        return {name for name, each in names.items() if budgets.pays(name, each, asking, judge, model)}

    assert paying("safety") == {"all", "own", "rule"}
    assert paying("groundedness") == {"all", "judge", "rule"}
    assert paying("relevance_to_query") == {"all"}, "no rule asks for it, as in a replay"
    assert paying("relevance_to_query", "lexical") == {"all", "model"}


def test_without_redis_no_call_is_made_and_the_evaluation_waits(keyspace: Keyspace, new_worker: Workers) -> None:
    budgets = budgets_of(tokens_per_hour=10**9)
    (batch_id,) = choose(keyspace, 1, budgets=budgets)
    worker = new_worker(limited=LimitedModel, budgets=budgets)
    keyspace.client.set(BudgetKeys(keyspace.keys.prefix).budget("all")[0], "not a hash")
    worker.run(batch_id)
    assert worker.judged_texts == []
    assert keyspace.client.hget(keyspace.keys.holders, batch_id) == b"parked"
    keyspace.client.delete(BudgetKeys(keyspace.keys.prefix).budget("all")[0])


def test_the_controller_writes_factors_and_ingest_samples_by_them(keyspace: Keyspace) -> None:
    rules = (
        Rule.from_keys(name="cut", judges=("safety",), rate=0.8, always=("error",), priority=1),
        Rule.from_keys(name="kept", judges=("relevance_to_query",), rate=0.8, priority=9),
    )
    # The costs are of priority 5; a lower one is reduced no less.
    settings = settings_of(keyspace, rules=rules, budgets=budgets_of(usd_per_day=1e-6, exempt=("relevance_to_query",)))
    budget = BudgetClient(keyspace)
    for number in range(3):
        assert budget.reserve(number, 1000)
        assert budget.settle(number, 1000, 1000) == 1
    metrics = Metrics(settings)
    assert BudgetController(MonitorParts(settings, keyspace.store, metrics, rules_of(settings))).adjust().factors == {
        "cut": MIN_FACTOR
    }
    own = metrics.table(BudgetMetrics)
    gauges = {
        gauge.describe()[0].name.removeprefix("tracejudge_"): gauge.labels("all")._value.get()
        for gauge in (own.budget_spent, own.budget_limit, own.budget_factor)
    }
    assert gauges == {"budget_spent_usd": 3e-6, "budget_limit_usd": 1e-6, "budget_rate_factor": MIN_FACTOR}
    assert own.budget_spent_ratio.labels("all", "usd_per_day")._value.get() == pytest.approx(3)
    ((result, what),) = [(each.result, each.what) for each in check_spending(settings, keyspace.store)]
    assert (result, "all has spent 300% of usd_per_day" in what) == ("warning", True)
    rich = settings_of(keyspace, rules=rules, budgets=budgets_of(usd_per_day=1.0, tokens_per_hour=10**9))
    assert [each.result for each in check_spending(rich, keyspace.store)] == ["ok"]
    assert check_spending(rich, keyspace.store)[0].what == "no limit of a budget is reached"
    priced = structs.replace(MODEL, price=Price(1, 1), max_output_tokens=2_000)
    for usd, is_refused in ((0.001, True), (1.0, False)):
        asked = settings_of(keyspace, rules=rules, budgets=budgets_of(usd_per_day=usd), models={"default": priced})
        assert ("budget-not-kept" in {fault.code for fault in setting_warnings(asked)}) == is_refused, usd
    small = BudgetClient(keyspace, 1)
    assert not small.reserve(9, 1000)
    assert check_spending(rich, keyspace.store)[0].what.endswith("is reached; 1 call was refused so far")
    rates = json.loads(keyspace.client.get(BudgetKeys(keyspace.keys.prefix).rates))
    assert rates == {"factors": {"cut": MIN_FACTOR}}
    assert 0 < keyspace.client.ttl(BudgetKeys(keyspace.keys.prefix).rates) <= 3600
    keyspace.client.set(BudgetKeys(keyspace.keys.prefix).rates, json.dumps({"factors": {"cut": 0.25}}))
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


def test_settings_of_budgets_are_checked() -> None:
    def error_of(table: dict[str, Any], **rule: Any) -> str:
        tables = {
            "BUDGETS": {"all": table},
            "RULES": [{"name": "one", "judges": ["safety"], **rule}],
            "MODELS": {"default": {"provider": "lexical"}},
        }
        with pytest.raises(SettingsError) as caught:
            load({f"TRACEJUDGE_{name}": json.dumps(table) for name, table in tables.items()})
        return str(caught.value)

    limit = {"tokens_per_day": 5}
    cases = (
        (error_of({}), "budgets.all: has no limit"),
        (error_of({"usd_per_day": 0}), "budgets.all.usd_per_day"),
        (error_of({"usd_per_dya": 1}), "usd_per_dya"),
        (error_of({**limit, "rules": ["two"]}), "budgets.all.rules: there is no rule 'two'"),
        (error_of({**limit, "judges": ["safty"]}), "budgets.all.judges: there is no judge of a rule 'safty'"),
        (error_of({**limit, "exempt": ["groundedness"]}), "budgets.all.exempt: there is no judge of a rule"),
        (error_of({**limit, "models": ["large"]}), "budgets.all.models: there is no model 'large'"),
        (error_of({"usd_per_day": 5, "models": ["default"]}), "no price to keep USD by"),
        (error_of(limit, budget="al"), "rules[0].budget: there is no [budgets.al]"),
        (error_of(limit, priority=10), "priority"),
    )
    for text, expected in cases:
        assert expected in text, text


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
    rule = {"name": "s", "judges": ["user_frustration"], "unit": "session", "first_per_hour": 3}
    with pytest.raises(SettingsError, match=r"first_per_hour: counts traces"):
        load({"TRACEJUDGE_RULES": json.dumps([rule])})


def test_a_replay_chooses_the_first_traces_of_new_values(keyspace: Keyspace) -> None:
    for trace in make_traces(range(20)):
        keyspace.add(trace)
    take(keyspace)
    rule = Rule.from_keys(name="all", judges=("safety",), rate=0.0, first_per_hour=3)
    assert Replays(keyspace, rules=(rule,)).make("safety")["chosen"] == 3
