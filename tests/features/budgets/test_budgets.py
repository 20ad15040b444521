"""Budgets in Redis and in the worker: what calls reserve and cost, refused calls, and what a mistake is."""

import asyncio
import json
import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from support.judging import MODEL, YES, Workers, assert_settled, choose, output
from support.processes import wait_until
from support.stages import Keyspace, make_trace, rules_of, settings_of
from support.tables import read_table

from judges.core.model import ChatRequest, ChatResponse, ModelSettings, ModelTimeoutError, ModelUnavailableError, Price
from judges.endpoints.client import LimitedModel, Retries
from judges.models.lexical import LexicalModel
from judges.models.registry import PROVIDERS
from worker.base.doctor.lint import lint, setting_warnings
from worker.base.monitor.feature import Monitor
from worker.core.config.loading import load
from worker.core.config.settings import Rule, SettingsError
from worker.core.queue.batch import CascadeStep, Evaluation
from worker.core.storage.client import ScriptCall, Store
from worker.features.budgets.control import NOT_REDUCED, read_demand
from worker.features.budgets.feature import Budget, BudgetKeys
from worker.features.budgets.reservations import Budgets, demand_terms

DAY_MS = 86_400_000
HOUR_MS = 3_600_000
SAFETY = Evaluation("e", "472222", "safety", "v", 0.5)
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

    def read(self, *places: int) -> tuple[int, ...]:
        spent, _ = self._keyspace.store.run("budget_state", self.keys, ())
        return tuple(int(spent[place] or 0) for place in places)

    @property
    def state(self) -> tuple[int, ...]:
        """USD of the day and of the hour, reserved USD, refused calls."""
        return self.read(0, 1, 4, 6)

    @property
    def tokens(self) -> tuple[int, ...]:
        """Tokens of the day, reserved ones, and how many calls are reserved."""
        return (*self.read(2, 5), self._keyspace.client.zcard(self.keys[1]))

    @property
    def demand(self) -> dict[str, int]:
        """The cost at full rates by unit."""
        amounts: dict[str, int] = {}
        for key in self._keyspace.client.scan_iter(f"{self.keys[2]}:*"):
            for field, amount in self._keyspace.client.hgetall(key).items():
                unit = field.decode().split(":")[0]
                amounts[unit] = amounts.get(unit, 0) + int(amount)
        return amounts


class Endpoint:
    """Answers each request with its reply, or raises it; ``None`` never answers."""

    def __init__(self, reply: ChatResponse | Exception | None, settings: ModelSettings = MODEL) -> None:
        self.settings = settings
        self.reached = 0
        self._reply = reply

    async def complete(self, request: ChatRequest) -> ChatResponse:  # noqa: ARG002 - the protocol's
        self.reached += 1
        if self._reply is None:
            await asyncio.Event().wait()
        if isinstance(self._reply, Exception):
            raise self._reply
        assert self._reply is not None
        return self._reply

    async def aclose(self) -> None:
        pass


def budgets_of(**fields: Any) -> dict[str, Budget]:
    return {"all": Budget(**fields)}


def paying(keyspace: Keyspace, **settings: Any) -> Budgets:
    options = {"models": {"default": MODEL}, "budgets": budgets_of(tokens_per_day=10**9), **settings}
    loaded = settings_of(keyspace, **options)
    return Budgets(loaded, keyspace.store, rules_of(loaded))


REQUEST = ChatRequest((), "safety", {}, heuristic=dict, max_output_tokens=100)


def call(budgets: Budgets, *replies: ChatResponse | Exception, model: ModelSettings = MODEL) -> None:
    """Make calls at the same time, and wait until all costs are written."""

    async def run() -> None:
        limited = [LimitedModel(Endpoint(reply, model), retries=Retries(attempts=1)) for reply in replies]
        paid = [budgets.wrap(each, make_trace(number), SAFETY) for number, each in enumerate(limited)]
        ends = await asyncio.gather(*(each.complete(REQUEST) for each in paid), return_exceptions=True)
        await budgets.aclose()
        assert [isinstance(end, Exception) for end in ends] == [isinstance(reply, Exception) for reply in replies], ends

    asyncio.run(run())


# --- the scripts ---


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
    keyspace.next_case("an expired reservation counts as it was reserved")
    assert budget.reserve(1, 60, lifetime_ms=0)
    assert budget.state == (60, 60, 0, 0)
    assert budget.settle(1, 60, 20) == 0
    assert budget.state == (60, 60, 0, 0)
    keyspace.next_case("amounts of lost reservations are released")
    assert budget.reserve(1, 5, 5)
    keyspace.client.delete(budget.keys[1])
    assert (budget.state, budget.tokens) == ((0, 0, 0, 0), (0, 0, 0))
    for place in range(4):
        keyspace.next_case(f"limit {place} refuses amounts beyond it")
        budget = BudgetClient(keyspace, *[-1] * place, 10)
        usd, tokens = (10, 0) if place < 2 else (0, 10)
        assert budget.reserve(1, usd, tokens)
        assert not budget.reserve(2, usd // 10, tokens // 10)
    now = keyspace.store.now_ms()
    for back, kept in ((1, [5, 6, 7, 8]), (2, [0] * 4)):
        keyspace.next_case(f"a clock that is set back by {back} begins no period anew")
        # The hash says that a later period has begun.
        periods = {"day": now // DAY_MS + back, "hour": now // HOUR_MS + back}
        spent = {"usd:day": 5, "usd:hour": 6, "tokens:day": 7, "tokens:hour": 8}
        keyspace.client.hset(budget.keys[0], mapping={**periods, **spent})
        assert list(budget.read(0, 1, 2, 3)) == kept


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
    day = keyspace.store.now_ms() // DAY_MS
    demand = [read_demand(keyspace.store, name, day)["usd"] for name in ("wide", "narrow")]
    assert [list(each) for each in demand] == [[5], [NOT_REDUCED]], "each budget has its own priority"


def test_fifty_workers_overshoot_by_no_more_than_their_calls_in_flight(keyspace: Keyspace) -> None:
    # A connection for each worker. A call costs up to three times what it reserves.
    workers, limit, reserved, dearest = 50, 10_000, 100, 300
    budget = BudgetClient(keyspace)

    def work(number: int) -> tuple[int, int]:
        chance, cost, refused = random.Random(number), 0, 0
        with closing(Store(keyspace.url, keyspace.keys)) as store:
            for call in range(20):
                reservation = f"{number}-{call} 0 {reserved} 1 5"
                if store.run("budget_reserve", budget.keys, (60_000, reservation, -1, -1, limit, -1)):
                    refused += 1
                    continue
                tokens = chance.randint(reserved // 2, dearest)
                cost += tokens
                assert store.run("budget_settle", budget.keys, (0, tokens, reservation)) == 1
        return cost, refused

    with ThreadPoolExecutor(workers) as pool:
        spendings = list(pool.map(work, range(workers)))
    total, *reserved_now = budget.tokens
    assert total == sum(cost for cost, _ in spendings), "each call is charged once"
    assert limit - dearest <= total <= limit + workers * dearest
    assert reserved_now == [0, 0]
    assert budget.state[3] == sum(refused for _, refused in spendings) > 0


# --- calls ---


def test_only_a_known_cost_replaces_a_reservation(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = BudgetClient(keyspace)
    cases: dict[ChatResponse | Exception, tuple[int, int, int]] = {
        ChatResponse(YES, input_tokens=30, output_tokens=7): (37, 0, 0),
        ModelUnavailableError("away"): (37, 0, 0),
        ChatResponse(YES): (37, 100, 1),
        ModelTimeoutError("late"): (37, 200, 2),
        ChatResponse(YES, output_tokens=7, invalid=("usage",)): (37, 300, 3),
    }
    for reply, expected in cases.items():
        call(paying(keyspace), reply)
        assert budget.tokens == expected, reply
    keyspace.next_case("tokens from a cache are charged at their own price")
    model = structs.replace(MODEL, price=Price(input=10.0, output=1.0, cached_input=1.0))
    answer = ChatResponse(YES, input_tokens=1000, output_tokens=10, cached_tokens=600, written_tokens=200)
    call(paying(keyspace, models={"default": model}, budgets=budgets_of(usd_per_day=1.0)), answer, model=model)
    # 10^-9 USD: 400 tokens at 10 USD a million, 600 at 1, a quarter more for 200, and the answer.
    assert budget.state[0] == 1000 * (400 * 10 + 600 * 1 + 200 * 2.5 + 10)
    keyspace.next_case("Redis has forgotten the script, which is loaded for the whole group")
    keyspace.client.script_flush()
    call(paying(keyspace), *[ChatResponse(YES, input_tokens=1)] * 3)
    assert budget.tokens == (3, 0, 0)
    keyspace.next_case("the rules of a judge pay where no rule names the model")
    rules = (Rule.from_keys(name="one", judges=("safety",), budget="own", priority=8),)
    second = structs.replace(MODEL, model="second")
    own = {"models": {"default": MODEL, "second": second}, "budgets": {"own": Budget(tokens_per_day=10**6)}}
    call(paying(keyspace, rules=rules, **own), ChatResponse(YES, input_tokens=9), model=second)
    assert BudgetClient(keyspace, name="own").tokens == (9, 0, 0)
    monkeypatch.setitem(PROVIDERS, "words", PROVIDERS["lexical"])
    for provider in ("lexical", "words"):
        heuristic = ModelSettings(provider=provider)
        budgets, lexical = paying(keyspace, models={"default": heuristic}), LexicalModel(heuristic)
        assert budgets.wrap(lexical, make_trace(1), SAFETY) is lexical, "a heuristic costs nothing"


def test_a_call_that_is_cancelled_before_it_is_sent_costs_nothing(
    keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, run_each = threading.Event(), keyspace.store.run_each

    async def run() -> None:
        loop, reached = asyncio.get_running_loop(), asyncio.Event()

        def held(calls: Sequence[ScriptCall]) -> list[Any]:
            loop.call_soon_threadsafe(reached.set)
            assert goes_on.wait(10.0)
            return run_each(calls)

        monkeypatch.setattr(keyspace.store, "run_each", held)
        budgets, endpoint = paying(keyspace), Endpoint(None)
        asked = asyncio.create_task(budgets.wrap(LimitedModel(endpoint), make_trace(1), SAFETY).complete(REQUEST))
        await reached.wait()
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        goes_on.set()
        # Its end begins the settling, which `aclose` would not wait for.
        while budgets._scripts._running is not None:
            await asyncio.wait([budgets._scripts._running])
        assert (endpoint.reached, BudgetClient(keyspace).tokens) == (0, (0, 0, 0))

    asyncio.run(run())


def test_calls_that_no_sampling_rate_reduces_are_charged_apart() -> None:
    halved, full = (
        Rule.from_keys(name="halved", judges=("safety",), rate=0.5, priority=3, always=("error",)),
        Rule.from_keys(name="full", judges=("safety",), priority=7),
    )
    divided = Rule.from_keys(name="divided", judges=("safety",), rate=0.1, stratify=("model",))
    fine, failed = make_trace(1), make_trace(2, error=True)
    certain, second = structs.replace(SAFETY, probability=1.0), CascadeStep("both", "v", 0.25, is_chosen=True)
    cases = (
        ((SAFETY, (halved,), fine), (1.0, 3)),
        ((structs.replace(SAFETY, probability=0.125), (halved,), fine), (4.0, 3)),
        ((structs.replace(SAFETY, probability=0.125, cascade=second), (halved,), fine), (1.0, 3)),
        ((structs.replace(SAFETY, probability=0.25), (halved, full), fine), (4.0, 7)),
        ((certain, (full,), fine), (1.0, 7)),
        ((certain, (halved,), failed), (1.0, NOT_REDUCED)),
        # One of the first traces of a new value.
        ((certain, (halved,), fine), (1.0, NOT_REDUCED)),
        ((certain, (divided,), fine), (1.0, 5)),
        ((structs.replace(SAFETY, origin="replay"), (halved,), fine), (1.0, NOT_REDUCED)),
        ((SAFETY, (), fine), (1.0, NOT_REDUCED)),
    )
    for arguments, expected in cases:
        assert demand_terms(*arguments) == expected, arguments


def test_budgets_pay_for_their_rules_judges_and_models(keyspace: Keyspace) -> None:
    rules = (
        Rule.from_keys(name="a", judges=("safety",), budget="own"),
        Rule.from_keys(name="b", judges=("groundedness", "safety"), priority=7, rate=0.5),
    )
    by_kind = {"judges": ("groundedness",), "rules": ("b",), "models": ("other",)}
    names = {name: Budget(tokens_per_day=1) for name in ("all", "own")}
    names |= {kind: Budget(tokens_per_day=1, **{kind: value}) for kind, value in by_kind.items()}
    models = {"default": MODEL, "other": ModelSettings(provider="lexical")}
    settings = settings_of(keyspace, rules=rules, budgets=names, models=models)
    budgets, compiled = Budgets(settings, keyspace.store, rules_of(settings)), rules_of(settings)

    def pay(judge: str, model: str = "scripted") -> set[str]:
        asking = compiled.find_rules(make_trace(1, context=["x"]), judge, model)
        return {name for name, each in names.items() if budgets.pays(name, each, asking, judge, model)}

    assert pay("safety") == {"all", "own", "rules"}
    assert pay("groundedness") == {"all", "judges", "rules"}
    assert pay("relevance_to_query") == {"all"}, "no rule asks for it, as in a replay"
    assert pay("relevance_to_query", "lexical") == {"all", "models"}


# --- a judging worker ---


def test_an_exempt_judge_is_charged_but_never_refused(keyspace: Keyspace, new_worker: Workers) -> None:
    budgets = {"free": Budget(tokens_per_hour=1, exempt=("safety",)), "kept": Budget(tokens_per_hour=10**9)}
    (batch_id,) = choose(keyspace, 2, budgets=budgets)
    worker = new_worker(limited=LimitedModel, budgets=budgets)
    worker.run(batch_id, scored=2)
    worker.judging.stop(0.1)
    day = keyspace.store.now_ms() // DAY_MS
    for name, priority in (("free", NOT_REDUCED), ("kept", 5)):
        assert BudgetClient(keyspace, name=name).tokens == (2 * TOKENS, 0, 0), name
        assert list(read_demand(keyspace.store, name, day)["tokens"]) == [priority], "its cost is not reducible"


def test_without_redis_no_call_is_made_and_the_evaluation_waits(keyspace: Keyspace, new_worker: Workers) -> None:
    budgets = budgets_of(tokens_per_hour=10**9)
    (batch_id,) = choose(keyspace, 1, budgets=budgets)
    worker = new_worker(limited=LimitedModel, budgets=budgets)
    keyspace.client.set(BudgetClient(keyspace).keys[0], "not a hash")
    worker.run(batch_id)
    assert worker.judged_texts == []
    assert keyspace.client.hget(keyspace.keys.holders, batch_id) == b"parked"
    keyspace.client.delete(BudgetClient(keyspace).keys[0])


def test_reservations_of_a_dead_worker_count_as_reserved_and_nothing_is_lost(
    keyspace: Keyspace, new_worker: Workers
) -> None:
    budgets, budget = budgets_of(tokens_per_day=10**9), BudgetClient(keyspace)
    (batch_id,) = choose(keyspace, 2, budgets=budgets)
    dead = new_worker(limited=LimitedModel, budgets=budgets)
    dead.model.hung = {output(0), output(1)}
    dead.begin(batch_id)
    wait_until(lambda: len(dead.model.reached) == 2, what="both requests")
    settled, reserved, calls = budget.tokens
    assert (settled, calls) == (0, 2)
    # Its calls hang, as those of a killed worker; its lease and its reservations expire.
    keyspace.make_due(batch_id)
    keyspace.client.zadd(budget.keys[1], dict.fromkeys(keyspace.client.zrange(budget.keys[1], 0, -1), 1))
    successor = new_worker(limited=LimitedModel, budgets=budgets)
    successor.sweep(scored=2)
    successor.close()
    both = (reserved + 2 * TOKENS, 0, 0)
    assert budget.tokens == both
    dead.model.hung.clear()
    dead.end()
    dead.close()
    assert budget.tokens == both, "the late answers are charged already"
    assert_settled(keyspace, scored=2)


# --- the configuration ---


def test_settings_of_budgets_are_checked() -> None:
    for budget, rule, expected in read_table(__file__, "mistakes"):
        tables = {
            "BUDGETS": {"all": budget},
            "RULES": [{"name": "one", "judges": ["safety"], **rule}],
            "MODELS": {"default": {"provider": "lexical"}},
        }
        with pytest.raises(SettingsError) as caught:
            load({f"TRACEJUDGE_{name}": json.dumps(table) for name, table in tables.items()})
        assert expected in str(caught.value), expected


def test_doctor_and_lint_name_models_without_a_price_and_rates_that_stay(keyspace: Keyspace) -> None:
    models = {"default": MODEL, "free": structs.replace(MODEL, price=None, model="x")}
    priced = {"default": structs.replace(MODEL, price=Price(1, 1), max_output_tokens=2_000)}
    in_usd, in_tokens = Budget(usd_per_day=1.0), Budget(tokens_per_day=10_000)
    below = "all is below the longest answer of"
    cases: list[tuple[Budget, dict[str, Any], list[str]]] = [
        (in_tokens, {}, []),
        (in_usd, {"models": priced}, []),
        (in_usd, {}, ["free"]),
        (Budget(tokens_per_day=10), {}, [f"{below} default", f"{below} free"]),
        (Budget(usd_per_day=0.001), {"models": priced}, [f"{below} default"]),
        (in_tokens, {"monitor": Monitor(enabled=False)}, ["monitor is disabled"]),
    ]
    for budget, settings, expected in cases:
        config = settings_of(keyspace, **{"models": models, "budgets": {"all": budget}, **settings})
        found = [fault.text for fault in setting_warnings(config) if fault.code == "budget-not-kept"]
        assert [names in text for names, text in zip(expected, found, strict=True)] == [True] * len(found), found
    linted = lint({}, str(Path(__file__).parent / "data/budget.toml"))
    assert [(finding.key, finding.code, finding.line) for finding in linted] == [("budgets", "TJ104", 5)]
