"""Calls that budgets pay for: what they reserve, and what remains when they end in another way than with an answer."""

import asyncio
import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from support.judging_parts import MODEL, YES, Workers, assert_settled, choose, output
from support.processes import wait_until
from support.stage_parts import Keyspace, make_trace, rules_of, settings_of

from judges.core.model import ChatRequest, ChatResponse, ModelSettings, ModelTimeoutError, ModelUnavailableError, Price
from judges.endpoints.client import LimitedModel, Retries
from judges.models.lexical import LexicalModel
from judges.models.registry import PROVIDERS
from worker.base.doctor.lint import setting_warnings
from worker.base.monitor.feature import Monitor
from worker.core.config.settings import Rule, Settings
from worker.core.queue.batch import Evaluation
from worker.core.storage.client import ScriptCall, Store
from worker.features.budgets.control import NOT_REDUCED, read_demand
from worker.features.budgets.feature import Budget, BudgetKeys
from worker.features.budgets.reservations import Budgets, demand_terms

DAY_MS = 86_400_000
WORKERS = 50
SAFETY = Evaluation("e", "472222", "safety", "v", 0.5)


class Endpoint:
    """Answers each request with the next reply, or raises it; ``None`` never answers."""

    def __init__(self, *replies: ChatResponse | Exception | None, settings: ModelSettings = MODEL) -> None:
        self.settings = settings
        self.reached = 0
        self._replies = list(replies)

    async def complete(self, request: ChatRequest) -> ChatResponse:  # noqa: ARG002 - the protocol's
        self.reached += 1
        reply = self._replies.pop(0)
        if reply is None:
            await asyncio.Event().wait()
        if isinstance(reply, Exception):
            raise reply
        assert reply is not None
        return reply

    async def aclose(self) -> None:
        pass


def request() -> ChatRequest:
    return ChatRequest((), "safety", {}, heuristic=dict, max_output_tokens=100)


def spent(keyspace: Keyspace, name: str = "all") -> tuple[int, int, int]:
    """Read the settled tokens of the day, the reserved ones, and how many calls are reserved."""
    (state, _), open_key = (
        keyspace.store.run("budget_state", BudgetKeys(keyspace.keys.prefix).budget(name), ()),
        BudgetKeys(keyspace.keys.prefix).budget(name)[1],
    )
    return int(state[2] or 0), int(state[5] or 0), keyspace.client.zcard(open_key)


def of(keyspace: Keyspace, **settings: Any) -> tuple[Settings, Budgets]:
    config = settings_of(
        keyspace, **{"models": {"default": MODEL}, "budgets": {"all": Budget(tokens_per_day=10**9)}, **settings}
    )
    return config, Budgets(config, keyspace.store, rules_of(config))


def test_only_a_known_cost_replaces_a_reservation(keyspace: Keyspace) -> None:
    cases: Sequence[tuple[ChatResponse | Exception, tuple[int, int, int]]] = (
        (ChatResponse(YES, input_tokens=30, output_tokens=7), (37, 0, 0)),
        (ModelUnavailableError("away"), (37, 0, 0)),
        (ChatResponse(YES), (37, 100, 1)),
        (ModelTimeoutError("late"), (37, 200, 2)),
        (ChatResponse(YES, output_tokens=7, invalid=("usage",)), (37, 300, 3)),
    )

    async def run() -> None:
        _, budgets = of(keyspace)
        for number, (reply, expected) in enumerate(cases):
            model = LimitedModel(Endpoint(reply), retries=Retries(attempts=1))
            paid = budgets.wrap(model, make_trace(number), SAFETY)
            try:
                await paid.complete(request())
            except (ModelUnavailableError, ModelTimeoutError):
                assert isinstance(reply, Exception)
            await drained(budgets)
            assert spent(keyspace) == expected, reply

    asyncio.run(run())


def test_tokens_from_a_cache_are_charged_at_their_own_price(keyspace: Keyspace) -> None:
    async def run() -> None:
        model = msgspec.structs.replace(MODEL, price=Price(input=10.0, output=1.0, cached_input=1.0))
        _, budgets = of(keyspace, models={"default": model}, budgets={"all": Budget(usd_per_day=1.0)})
        answer = ChatResponse(YES, input_tokens=1000, output_tokens=10, cached_tokens=600, written_tokens=200)
        paid = budgets.wrap(LimitedModel(Endpoint(answer, settings=model)), make_trace(1), SAFETY)
        await paid.complete(request())
        await drained(budgets)
        (state, _) = keyspace.store.run("budget_state", BudgetKeys(keyspace.keys.prefix).budget("all"), ())
        # 10^-9 USD: 400 tokens at 10 USD a million, 600 at 1, a quarter more for 200, and the answer.
        assert int(state[0]) == 1000 * (400 * 10 + 600 * 1 + 200 * 2.5 + 10)

    asyncio.run(run())


async def drained(budgets: Budgets) -> None:
    """Wait until all costs are written."""
    while budgets._scripts._running is not None:
        await asyncio.wait([budgets._scripts._running])


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
        _, budgets = of(keyspace)
        endpoint = Endpoint(None)
        call = asyncio.create_task(budgets.wrap(LimitedModel(endpoint), make_trace(1), SAFETY).complete(request()))
        await reached.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        goes_on.set()
        await drained(budgets)
        assert (endpoint.reached, spent(keyspace)) == (0, (0, 0, 0))

    asyncio.run(run())


def test_a_clock_that_is_set_back_begins_no_period_anew(keyspace: Keyspace) -> None:
    keys = BudgetKeys(keyspace.keys.prefix).budget("all")
    now = keyspace.store.now_ms()
    for back, kept in ((1, True), (2, False)):
        # The hash says that a later period has begun.
        periods = {"day": now // DAY_MS + back, "hour": now // 3_600_000 + back}
        keyspace.client.hset(
            keys[0], mapping={**periods, "usd:day": 5, "usd:hour": 6, "tokens:day": 7, "tokens:hour": 8}
        )
        state, _ = keyspace.store.run("budget_state", keys, ())
        assert [int(value) for value in state[:4]] == ([5, 6, 7, 8] if kept else [0] * 4), f"{back} periods"


def test_amounts_of_lost_reservations_are_released(keyspace: Keyspace) -> None:
    keys = BudgetKeys(keyspace.keys.prefix).budget("all")
    arguments = (60_000, "1 5 5 1 5", -1, -1, 10, -1)
    assert keyspace.store.run("budget_reserve", keys, arguments) == 0
    keyspace.client.delete(keys[1])
    assert spent(keyspace) == (0, 0, 0)


def test_a_script_that_redis_forgot_is_loaded_for_the_whole_group(keyspace: Keyspace) -> None:
    keyspace.client.script_flush()
    _, budgets = of(keyspace)

    async def run() -> None:
        models = [LimitedModel(Endpoint(ChatResponse(YES, input_tokens=1))) for _ in range(3)]
        paid = [budgets.wrap(model, make_trace(number), SAFETY) for number, model in enumerate(models)]
        await asyncio.gather(*(verdict.complete(request()) for verdict in paid))
        await budgets.aclose()

    asyncio.run(run())
    assert spent(keyspace) == (3, 0, 0)


def test_fifty_processes_overshoot_by_no_more_than_their_calls_in_flight(keyspace: Keyspace) -> None:
    # Fifty workers with a connection each. A call costs up to three times what it reserves.
    limit, reserved, dearest = 20_000, 100, 300
    keys = BudgetKeys(keyspace.keys.prefix).budget("all")

    def work(number: int) -> tuple[int, int]:
        store, chance, cost, refused = Store(keyspace.url, keyspace.keys), random.Random(number), 0, 0
        try:
            for call in range(40):
                reservation = f"{number}-{call} 0 {reserved} 1 5"
                if store.run("budget_reserve", keys, (60_000, reservation, -1, -1, limit, -1)):
                    refused += 1
                    continue
                tokens = chance.randint(reserved // 2, dearest)
                cost += tokens
                assert store.run("budget_settle", keys, (0, tokens, reservation)) == 1
        finally:
            store.close()
        return cost, refused

    with ThreadPoolExecutor(WORKERS) as pool:
        spendings = list(pool.map(work, range(WORKERS)))
    total, reserved_now, calls_open = spent(keyspace)
    assert total == sum(cost for cost, _ in spendings), "each call is charged once"
    assert limit - dearest <= total <= limit + WORKERS * dearest
    assert (reserved_now, calls_open) == (0, 0)
    assert int(keyspace.client.hget(keys[0], "refused")) == sum(refused for _, refused in spendings) > 0


def test_reservations_of_a_dead_worker_count_as_reserved_and_nothing_is_lost(
    keyspace: Keyspace, new_worker: Workers
) -> None:
    budgets = {"all": Budget(tokens_per_day=10**9)}
    (batch_id,) = choose(keyspace, 2, budgets=budgets)
    dead = new_worker(limited=LimitedModel, budgets=budgets)
    dead.model.hung = {output(0), output(1)}
    dead.begin(batch_id)
    wait_until(lambda: len(dead.model.reached) == 2, what="both requests")
    settled, reserved, calls = spent(keyspace)
    assert (settled, calls) == (0, 2)
    # Its calls hang, as those of a killed worker; its lease and its reservations expire.
    keyspace.make_due(batch_id)
    keyspace.client.zadd(
        BudgetKeys(keyspace.keys.prefix).budget("all")[1],
        dict.fromkeys(keyspace.client.zrange(BudgetKeys(keyspace.keys.prefix).budget("all")[1], 0, -1), 1),
    )
    successor = new_worker(limited=LimitedModel, budgets=budgets)
    successor.sweep()
    assert_settled(keyspace, scored=2)
    successor.close()
    both = reserved + 2 * 2 * len(YES)
    assert spent(keyspace) == (both, 0, 0)
    dead.model.hung.clear()
    dead.end()
    dead.close()
    assert spent(keyspace) == (both, 0, 0), "the late answers are charged already"
    assert_settled(keyspace, scored=2)


def test_calls_that_no_sampling_rate_reduces_are_charged_apart() -> None:
    halved, full = (
        Rule.from_keys(name="halved", judges=("safety",), rate=0.5, priority=3, always=("error",)),
        Rule.from_keys(name="full", judges=("safety",), priority=7),
    )
    divided = Rule.from_keys(name="divided", judges=("safety",), rate=0.1, stratify=("model",))
    fine, failed = make_trace(1), make_trace(2, error=True)
    cases = (
        ((SAFETY, (halved,), fine), (1.0, 3)),
        ((msgspec.structs.replace(SAFETY, probability=0.125), (halved,), fine), (4.0, 3)),
        ((msgspec.structs.replace(SAFETY, probability=0.25), (halved, full), fine), (4.0, 7)),
        ((msgspec.structs.replace(SAFETY, probability=1.0), (full,), fine), (1.0, 7)),
        ((msgspec.structs.replace(SAFETY, probability=1.0), (halved,), failed), (1.0, NOT_REDUCED)),
        # One of the first traces of a new value.
        ((msgspec.structs.replace(SAFETY, probability=1.0), (halved,), fine), (1.0, NOT_REDUCED)),
        ((msgspec.structs.replace(SAFETY, probability=1.0), (divided,), fine), (1.0, 5)),
        ((msgspec.structs.replace(SAFETY, origin="replay"), (halved,), fine), (1.0, NOT_REDUCED)),
        ((SAFETY, (), fine), (1.0, NOT_REDUCED)),
    )
    for arguments, expected in cases:
        assert demand_terms(*arguments) == expected, arguments


def test_the_cost_of_an_exempt_judge_is_not_counted_as_reducible(keyspace: Keyspace, new_worker: Workers) -> None:
    budgets = {"free": Budget(tokens_per_hour=1, exempt=("safety",)), "kept": Budget(tokens_per_hour=10**9)}
    (batch_id,) = choose(keyspace, 1, budgets=budgets)
    worker = new_worker(limited=LimitedModel, budgets=budgets)
    worker.run(batch_id)
    assert_settled(keyspace, scored=1)
    worker.close()
    day = keyspace.store.now_ms() // DAY_MS
    assert {name: list(read_demand(keyspace.store, name, day)["tokens"]) for name in budgets} == {
        "free": [NOT_REDUCED],
        "kept": [5],
    }


def test_the_rules_of_a_judge_pay_where_no_rule_names_the_model(keyspace: Keyspace) -> None:
    rules = (Rule.from_keys(name="one", judges=("safety",), budget="own", priority=8),)
    models = {"default": MODEL, "second": msgspec.structs.replace(MODEL, model="second")}
    _, budgets = of(keyspace, rules=rules, models=models, budgets={"own": Budget(tokens_per_day=10**6)})

    async def run() -> None:
        model = LimitedModel(Endpoint(ChatResponse(YES, input_tokens=9), settings=models["second"]))
        await budgets.wrap(model, make_trace(1), SAFETY).complete(request())
        await budgets.aclose()

    asyncio.run(run())
    assert spent(keyspace, "own") == (9, 0, 0)


def test_a_heuristic_costs_nothing(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROVIDERS, "words", PROVIDERS["lexical"])
    for settings in (ModelSettings(provider="lexical"), ModelSettings(provider="words")):
        _, budgets = of(keyspace, models={"default": settings})
        model = LexicalModel(settings)
        assert budgets.wrap(model, make_trace(1), SAFETY) is model


def test_doctor_names_models_without_a_price_and_rates_that_stay(keyspace: Keyspace) -> None:
    unpriced = msgspec.structs.replace(MODEL, price=None, model="x")
    priced = {"default": MODEL, "free": unpriced, "words": ModelSettings(provider="lexical")}
    in_usd, in_tokens = Budget(usd_per_day=1.0), Budget(tokens_per_day=10_000)

    def findings(budget: Budget, **settings: Any) -> list[str]:
        config = settings_of(keyspace, **{"models": priced, "budgets": {"all": budget}, **settings})
        return [fault.text for fault in setting_warnings(config) if fault.code == "budget-not-kept"]

    assert findings(in_tokens) == findings(in_usd, models={"default": MODEL}) == []
    (what,) = findings(in_usd)
    assert what.split(": ")[1].split(";")[0] == "free"
    refused = findings(Budget(tokens_per_day=10))
    assert [what.partition(",")[0] for what in refused] == [
        f"all is below the longest answer of {name}" for name in ("default", "free")
    ]
    (what,) = findings(in_tokens, monitor=Monitor(enabled=False))
    assert "monitor is disabled" in what
