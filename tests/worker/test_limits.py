"""The slots of a judge model: how many calls are under way, and what each call is counted as."""

import asyncio
from collections.abc import Callable

import pytest
from prometheus_client.openmetrics.exposition import generate_latest
from support.scrape import Scrape, parse

from judges.models.model import ChatModel, ChatRequest, ChatResponse, ModelError, ModelSettings, Price
from judges.models.scripted import ScriptedModel, Step
from judges.prompt import Message
from worker.limits import LimitedModel
from worker.metrics import Metrics
from worker.settings import Settings

REQUEST = ChatRequest((Message("user", "Is it?"),), "safety", {}, dict)
ANSWER = "yes!"
"""The scripted model uses as many tokens as its answer has signs, in both directions."""


def settings(max_in_flight: int = 2, price: Price | None = None, label: str | None = None) -> ModelSettings:
    return ModelSettings(provider="scripted", model="m", max_in_flight=max_in_flight, price=price, label=label)


class GatedModel(ScriptedModel):
    """Answers only once its gate is open, and remembers how many calls waited at once."""

    def __init__(self, model_settings: ModelSettings) -> None:
        super().__init__([ANSWER], model_settings)
        self.gate = asyncio.Event()
        self.waiting = 0
        self.most_waiting = 0

    async def complete(self, request: ChatRequest) -> ChatResponse:
        self.waiting += 1
        self.most_waiting = max(self.most_waiting, self.waiting)
        try:
            await self.gate.wait()
        finally:
            self.waiting -= 1
        return await super().complete(request)


class Limited:
    """A limited model and its page."""

    def __init__(self, model: ChatModel) -> None:
        self.metrics = Metrics(Settings())
        self.model = LimitedModel(model, self.metrics)

    @property
    def page(self) -> Scrape:
        return parse(generate_latest(self.metrics.registry).decode())

    @property
    def in_flight(self) -> float:
        return self.page.value("tracejudge_judge_in_flight")

    def statuses(self) -> dict[str, float]:
        samples = self.page.samples("tracejudge_judge_request_duration_seconds_count")
        return {sample.labels["status"]: sample.value for sample in samples}

    def spent(self, name: str, **labels: str) -> dict[str, float]:
        samples = self.page.samples(f"tracejudge_judge_{name}_total", **labels)
        return {sample.labels["direction"]: sample.value for sample in samples}


async def settled(condition: Callable[[], bool]) -> None:
    """Let other coroutines run until something holds."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0)
    pytest.fail("it never came")


@pytest.mark.parametrize("slots", [1, 3, 64])
def test_never_more_calls_than_slots(slots: int) -> None:
    async def run() -> None:
        gated = GatedModel(settings(slots))
        limited = Limited(gated)
        calls = [asyncio.ensure_future(limited.model.complete(REQUEST)) for _ in range(100)]
        await settled(lambda: gated.waiting == slots)
        for _ in range(20):
            await asyncio.sleep(0)
        assert gated.waiting == slots
        assert limited.in_flight == slots
        gated.gate.set()
        assert [response.text for response in await asyncio.gather(*calls)] == [ANSWER] * 100
        assert gated.most_waiting == slots
        assert limited.in_flight == 0
        assert limited.statuses() == {"ok": 100}

    asyncio.run(run())


def test_the_bound_is_shown_under_the_model_s_name() -> None:
    limited = Limited(ScriptedModel([ANSWER], settings(17, label="m at b")))
    assert limited.page.value("tracejudge_judge_concurrency_limit", judge_model="m at b") == 17
    assert limited.page.value("tracejudge_judge_in_flight", judge_model="m at b") == 0
    assert limited.model.settings.judge_model == "m at b"


def test_tokens_and_cost_are_counted_by_judge_and_direction() -> None:
    limited = Limited(ScriptedModel([ANSWER], settings(price=Price(input=0.5, output=2.0))))
    for _ in range(3):
        asyncio.run(limited.model.complete(REQUEST))
    labels = {"judge_model": "m", "judge": "safety"}
    assert limited.spent("tokens", **labels) == {"input": 12, "output": 12}
    assert limited.spent("cost_usd", **labels) == pytest.approx({"input": 6e-6, "output": 24e-6})


def test_without_a_price_there_is_no_cost_rather_than_none_to_pay() -> None:
    limited = Limited(ScriptedModel([ANSWER], settings()))
    asyncio.run(limited.model.complete(REQUEST))
    assert limited.spent("tokens") == {"input": 4, "output": 4}
    assert limited.spent("cost_usd") == {}


def test_what_was_answered_is_paid_for_also_when_it_cannot_be_used() -> None:
    steps = [Step(ANSWER, refusal=True), Step(ANSWER, finish_reason="length"), Step("no JSON")]
    limited = Limited(ScriptedModel(steps, settings()))
    for _ in steps:
        asyncio.run(limited.model.complete(REQUEST))
    assert limited.spent("tokens") == {"input": 15, "output": 15}
    assert limited.statuses() == {"ok": 3}


@pytest.mark.parametrize("reason", ["timeout", "rate_limited", "judge_unavailable", "judge_rejected", "bad_request"])
def test_a_failed_call_bears_its_reason_costs_nothing_and_gives_its_slot_back(reason: str) -> None:
    async def run() -> None:
        limited = Limited(ScriptedModel([Step(failure=reason), ANSWER], settings(1, Price(1.0, 1.0))))
        with pytest.raises(ModelError) as caught:
            await limited.model.complete(REQUEST)
        assert caught.value.reason == reason
        assert limited.statuses() == {reason: 1}
        assert limited.in_flight == 0
        assert (limited.spent("tokens"), limited.spent("cost_usd")) == ({}, {})
        await limited.model.complete(REQUEST)
        assert limited.statuses() == {reason: 1, "ok": 1}

    asyncio.run(run())


def test_a_cancelled_call_gives_its_slot_back() -> None:
    async def run() -> None:
        gated = GatedModel(settings(1))
        limited = Limited(gated)
        call = asyncio.ensure_future(limited.model.complete(REQUEST))
        await settled(lambda: gated.waiting == 1)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert call.cancelled()
        assert limited.in_flight == 0
        assert limited.statuses() == {"cancelled": 1}
        gated.gate.set()
        await limited.model.complete(REQUEST)
        assert limited.statuses() == {"cancelled": 1, "ok": 1}

    asyncio.run(run())


def test_a_call_that_is_cancelled_before_it_has_a_slot_was_never_made() -> None:
    async def run() -> None:
        gated = GatedModel(settings(1))
        limited = Limited(gated)
        first, second = (asyncio.ensure_future(limited.model.complete(REQUEST)) for _ in range(2))
        await settled(lambda: gated.waiting == 1)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        assert limited.in_flight == 1
        gated.gate.set()
        await first
        assert limited.in_flight == 0
        assert limited.statuses() == {"ok": 1}
        assert len(gated.requests) == 1

    asyncio.run(run())


def test_an_unforeseen_error_gives_its_slot_back_and_is_no_cancellation() -> None:
    def stumble(request: ChatRequest) -> str:
        raise ZeroDivisionError(request.schema_name)

    limited = Limited(ScriptedModel([stumble], settings()))
    with pytest.raises(ZeroDivisionError):
        asyncio.run(limited.model.complete(REQUEST))
    assert limited.in_flight == 0
    assert limited.statuses() == {"internal_error": 1}


def test_it_is_a_chat_model_and_closes_the_one_inside() -> None:
    class Closing(ScriptedModel):
        closed = False

        async def aclose(self) -> None:
            self.closed = True

    inside = Closing([ANSWER])
    limited = Limited(inside)
    assert isinstance(limited.model, ChatModel)
    asyncio.run(limited.model.aclose())
    assert inside.closed
