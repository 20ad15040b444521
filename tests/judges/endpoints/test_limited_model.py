"""The slots of a judge model: how many calls are under way, and what each call is counted as."""

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from msgspec import structs
from prometheus_client.openmetrics.exposition import generate_latest
from support.cases import each_case
from support.scrape import Scrape, parse
from support.virtual_time import run_virtually

from judges.calling.evaluation import evaluate
from judges.core.model import (
    BadModelRequestError,
    ChatModel,
    ChatRequest,
    ChatResponse,
    ModelError,
    ModelRejectedError,
    ModelSettings,
    Price,
    RateLimitedError,
)
from judges.core.prompt import Message
from judges.core.verdict import Refusals
from judges.endpoints import client as limited_model
from judges.endpoints.client import LimitedModel, Retries
from judges.endpoints.limiter import EndpointLimiter, LimiterClock
from judges.models.scripted import ScriptedModel, Step
from judges.registry import catalogue
from tracejudge import Trace
from worker.core.config.settings import Settings
from worker.core.telemetry.metrics import CallMetrics, Metrics

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

    def __init__(self, model: ChatModel, attempts: int = 1) -> None:
        self.metrics = Metrics(Settings())
        # The loop's time, which may be virtual; without a loop, a time that stands still.
        now = lambda: asyncio.get_running_loop().time() if asyncio._get_running_loop() else 0.0  # noqa: E731
        timing = LimiterClock(now, now, lambda _low, high: high)
        self.limiter = EndpointLimiter(model.settings.max_in_flight, clock=timing)
        retries = Retries(attempts, draw=timing.draw)
        observer = CallMetrics(self.metrics, model.settings.judge_model, self.limiter)
        self.model = LimitedModel(model, self.limiter, retries, observer=observer)

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
    """Run other coroutines until a condition holds."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0)
    pytest.fail("it never came")


@each_case("slots", [1, 3, 64])
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


def test_unusable_answers_are_counted_as_paid() -> None:
    steps = [Step(ANSWER, refusal=True), Step(ANSWER, finish_reason="length"), Step("no JSON")]
    limited = Limited(ScriptedModel(steps, settings()))
    for _ in steps:
        asyncio.run(limited.model.complete(REQUEST))
    assert limited.spent("tokens") == {"input": 15, "output": 15}
    assert limited.statuses() == {"ok": 3}


@each_case("reason", ["timeout", "rate_limited", "judge_unavailable", "judge_rejected", "bad_request"])
def test_a_failed_call_bears_its_reason_costs_nothing_and_gives_its_slot_back(reason: str) -> None:
    async def run() -> None:
        limited = Limited(ScriptedModel([Step(failure=reason), ANSWER], settings(1, Price(1.0, 1.0))))
        with pytest.raises(ModelError) as caught:
            await limited.model.complete(REQUEST)
        assert caught.value.reason == reason
        assert limited.statuses() == {reason: 1}
        assert limited.in_flight == 0
        assert (limited.spent("tokens"), limited.spent("cost_usd")) == ({}, {})
        # After the pause or the open circuit that some failures cause.
        await asyncio.sleep(30)
        await limited.model.complete(REQUEST)
        assert limited.statuses() == {reason: 1, "ok": 1}

    run_virtually(run())


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


def test_an_unexpected_error_gives_its_slot_back_and_is_no_cancellation() -> None:
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


def test_two_models_of_one_endpoint_share_its_places() -> None:
    async def run() -> None:
        gated, other = GatedModel(settings(2)), GatedModel(settings(2))
        limited = Limited(gated)
        second = LimitedModel(other, limited.model.limiter)
        models = (limited.model, limited.model, second, second)
        calls = [asyncio.ensure_future(model.complete(REQUEST)) for model in models]
        await settled(lambda: gated.waiting == 2)
        assert other.waiting == 0
        gated.gate.set()
        other.gate.set()
        await asyncio.gather(*calls)
        assert (gated.most_waiting, other.most_waiting <= 2, limited.in_flight) == (2, True, 0)

    asyncio.run(run())


def test_a_failure_that_passes_is_tried_again_and_every_attempt_is_noted() -> None:
    steps = [Step(failure="judge_unavailable", delay_s=1), Step(failure="timeout", delay_s=2), Step(ANSWER, delay_s=3)]

    async def run() -> None:
        limited = Limited(ScriptedModel(steps, settings()), attempts=4)
        request = structs.replace(REQUEST, failed=[])
        assert (await limited.model.complete(request)).text == ANSWER
        assert [call.status for call in request.failed] == ["judge_unavailable", "timeout"]
        assert asyncio.get_running_loop().time() == 1 + 0.5 + 2 + 1 + 3
        assert limited.statuses() == {"judge_unavailable": 1, "timeout": 1, "ok": 1}

    run_virtually(run())


def test_the_attempts_of_an_evaluation_are_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    yes = '{"rationale": "So.", "result": "yes"}'
    trace = Trace(trace_id="1", service="s", output="It is.")

    async def run() -> None:
        steady = asyncio.get_running_loop().time
        monkeypatch.setattr(limited_model, "time", SimpleNamespace(perf_counter=steady, time=time.time))
        steps = [Step(failure="judge_unavailable", delay_s=2), Step(yes, delay_s=3)]
        limited = Limited(ScriptedModel(steps, settings()), attempts=4)
        assessment = await evaluate(catalogue()["safety"], trace, limited.model)
        assert [call.status for call in assessment.calls] == ["judge_unavailable", "ok"]
        assert [call.duration_s for call in assessment.calls] == [2, 3], "and the pause between is in neither"

    run_virtually(run())


def test_the_failures_before_the_last_one_are_kept() -> None:
    async def run() -> None:
        limited = Limited(ScriptedModel([Step(failure="timeout")], settings()), attempts=3)
        request = structs.replace(REQUEST, failed=[])
        with pytest.raises(ModelError) as caught:
            await limited.model.complete(request)
        assert [call.status for call in request.failed] == ["timeout", "timeout"]
        assert caught.value.was_asked

    run_virtually(run())


def test_a_call_refused_by_the_open_circuit_is_no_call() -> None:
    async def run() -> None:
        limited = Limited(ScriptedModel([Step(failure="judge_rejected")], settings()))
        request = structs.replace(REQUEST, failed=[])
        for _ in range(3):
            with pytest.raises(ModelRejectedError) as caught:
                await limited.model.complete(request)
        assert (caught.value.was_asked, request.failed) == (False, [])
        assert caught.value.retry_after_s == 1.0
        assert limited.statuses() == {"judge_rejected": 1}
        assert limited.page.value("tracejudge_judge_circuit_open", judge_model="m") == 1
        assessment = await evaluate(
            catalogue()["safety"], Trace(trace_id="1", service="s", output="It is."), limited.model
        )
        assert (assessment.reason, assessment.calls) == ("judge_rejected", ())
        assert assessment.retry_after_s == 1.0

    run_virtually(run())


def test_a_rate_limit_within_the_patience_is_waited_for() -> None:
    class Busy(ScriptedModel):
        async def complete(self, request: ChatRequest) -> ChatResponse:
            if not self.requests:
                await super().complete(request)
                raise RateLimitedError("wait", 4.0)
            return await super().complete(request)

    async def run() -> None:
        limited = Limited(Busy([ANSWER], settings()), attempts=4)
        request = structs.replace(REQUEST, failed=[])
        await limited.model.complete(request)
        assert [call.status for call in request.failed] == ["rate_limited"]
        assert asyncio.get_running_loop().time() == 4.0

    run_virtually(run())


def test_the_limit_that_is_shown_follows_the_limit() -> None:
    async def run() -> None:
        limited = Limited(ScriptedModel([Step(ANSWER, delay_s=5)], settings(1000)))
        assert limited.page.value("tracejudge_judge_concurrency_limit", judge_model="m") == 64
        calls = [asyncio.ensure_future(limited.model.complete(REQUEST)) for _ in range(2000)]
        await asyncio.sleep(2)
        assert limited.page.value("tracejudge_judge_concurrency_limit", judge_model="m") == 1000 == limited.in_flight
        await asyncio.gather(*calls)

    run_virtually(run())


def test_begins_is_called_when_the_waiting_is_over() -> None:
    begun = list[float]()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        limited = Limited(ScriptedModel([Step(ANSWER, delay_s=3)], settings(1)))
        request = structs.replace(REQUEST, begins=lambda: begun.append(loop.time()))
        await asyncio.gather(*(limited.model.complete(request) for _ in range(3)))

    run_virtually(run())
    assert begun == [0, 3, 6]


def test_any_exception_releases_the_permit() -> None:
    def stumble() -> None:
        raise ZeroDivisionError

    async def run() -> None:
        limited = Limited(ScriptedModel([ANSWER], settings(1)))
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                await limited.model.complete(structs.replace(REQUEST, begins=stumble))
        async with asyncio.timeout(5):
            assert (await limited.model.complete(REQUEST)).text == ANSWER
        assert limited.in_flight == 0

    run_virtually(run())


class Refusing(ScriptedModel):
    """Refuses the evaluation `a`, and answers all others."""

    status = 403
    refused = 0

    async def complete(self, request: ChatRequest) -> ChatResponse:
        if request.evaluation.startswith("a"):
            self.refused += 1
            error = ModelRejectedError("no")
            error.status, error.message = self.status, "You may not."
            raise error
        return await super().complete(request)


def test_an_evaluation_that_is_refused_while_others_are_answered_is_a_bad_request_in_the_end() -> None:
    async def run() -> None:
        limited = Limited(Refusing([Step(ANSWER, delay_s=0.01)], settings(4)), attempts=4)
        stop = asyncio.Event()

        async def others() -> None:
            while not stop.is_set():
                await limited.model.complete(REQUEST)

        going_on = asyncio.ensure_future(others())
        await asyncio.sleep(1)
        request = structs.replace(REQUEST, evaluation="a", failed=[])
        with pytest.raises(BadModelRequestError, match="refused 3 times while other requests were answered") as caught:
            await limited.model.complete(request)
        assert (len(request.failed), caught.value.message) == (2, "You may not.")
        later = structs.replace(request, refusals=Refusals(2, 0.5), failed=[])
        with pytest.raises(BadModelRequestError):
            await limited.model.complete(later)
        assert later.failed == [], "what was refused in earlier rounds counts"
        stop.set()
        await going_on
        await asyncio.sleep(0.1)
        with pytest.raises(ModelRejectedError) as alone:
            await limited.model.complete(structs.replace(request, refusals=Refusals(2, 100.0)))
        assert alone.value.refusals == Refusals(2, 100.0), "nobody was answered since"

    run_virtually(run())


@each_case("earlier", [0, 1, 2])
def test_a_request_that_was_refused_alone_before_opens_no_circuit(earlier: int) -> None:
    """Else the last of its calls would leave a circuit open that nobody's call closes."""

    async def run() -> None:
        model = Refusing([ANSWER], settings(4))
        model.status = 401
        limited = Limited(model)
        await asyncio.sleep(1)
        await limited.model.complete(REQUEST)
        refusals = Refusals(earlier, 0.5 if earlier else 0.0)
        for evaluation in ("a1", "a2", "a3", "a4", "a5"):
            assert not limited.limiter.circuit_open, "an answer came before: one refused key says nothing of the others"
            with pytest.raises(BadModelRequestError if earlier == 2 else ModelRejectedError) as caught:
                await limited.model.complete(structs.replace(REQUEST, evaluation=evaluation, refusals=refusals))
            assert caught.value.refusals.times == earlier + 1
        assert limited.limiter.circuit_open == (earlier == 0)

    run_virtually(run())


def test_a_request_that_is_refused_alone_is_not_asked_again_before_others_were_answered() -> None:
    """A call that could not count is paid for in vain."""

    async def run() -> None:
        model = Refusing([Step(ANSWER, delay_s=100)], settings(4))
        limited = Limited(model, attempts=4)
        await limited.model.complete(REQUEST)
        others = asyncio.ensure_future(limited.model.complete(REQUEST))
        request = structs.replace(REQUEST, evaluation="a", failed=[])
        with pytest.raises(ModelRejectedError) as caught:
            await limited.model.complete(request)
        assert (model.refused, request.failed, caught.value.refusals.times) == (1, [], 1)
        await others
        again = structs.replace(request, refusals=caught.value.refusals)
        with pytest.raises(ModelRejectedError) as caught:
            await limited.model.complete(again)
        assert (model.refused, again.failed, caught.value.refusals.times) == (2, [], 2)

    run_virtually(run())


def test_odd_fields_of_a_reply_are_counted() -> None:
    class Odd(ScriptedModel):
        async def complete(self, request: ChatRequest) -> ChatResponse:
            return structs.replace(await super().complete(request), invalid=("id", "usage"))

    limited = Limited(Odd([ANSWER], settings()))
    asyncio.run(limited.model.complete(REQUEST))
    samples = limited.page.samples("tracejudge_judge_reply_invalid_total", judge_model="m")
    assert {sample.labels["field"]: sample.value for sample in samples} == {"id": 1, "model": 0, "usage": 1}
