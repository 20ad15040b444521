"""The slots of a judge model: how many calls are under way, what each is counted as, and which are tried again."""

import asyncio
import random
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge_traces import ERRORS
from limit_simulation import rejection, virtually
from msgspec import convert, structs
from prometheus_client.openmetrics.exposition import generate_latest
from support.cases import each_case
from support.scrape import Scrape, parse
from support.tables import check_golden, read_table
from support.virtual_time import run_virtually

from judges.calling.evaluation import evaluate
from judges.core.backoff import backoff_s
from judges.core.model import ChatModel, ChatRequest, ChatResponse, ModelError, ModelSettings, Price
from judges.core.prompt import Message
from judges.core.verdict import Refusals
from judges.endpoints import client as limited_model
from judges.endpoints.client import LimitedModel, Retries, RetryBudget, is_transient
from judges.endpoints.limiter import EndpointLimiter, LimiterClock
from judges.models.scripted import ScriptedModel, Step
from judges.registry import catalogue
from tracejudge import Trace
from worker.core.config.settings import Settings
from worker.core.telemetry.metrics import CallMetrics, Metrics

REQUEST = ChatRequest((Message("user", "Is it?"),), "safety", {}, dict)
TRACE = Trace(trace_id="1", service="s", output="It is.")
ANSWER = "yes!"
"""The scripted model uses as many tokens as its answer has signs, in both directions."""
AWAY = ERRORS["judge_unavailable"]("away")


def settings(max_in_flight: int = 2, price: Price | None = None, label: str | None = None) -> ModelSettings:
    return ModelSettings(provider="scripted", model="m", max_in_flight=max_in_flight, price=price, label=label)


def requesting(**fields: object) -> ChatRequest:
    return structs.replace(REQUEST, failed=[], **fields)


def now() -> float:
    """Return the loop's time, which may be virtual; without a loop, a time that stands still."""
    return asyncio.get_running_loop().time() if asyncio._get_running_loop() else 0.0


class Limited:
    """A limited model and its page."""

    def __init__(self, model: ScriptedModel, attempts: int = 1) -> None:
        self.metrics, self.inside = Metrics(Settings()), model
        timing = LimiterClock(now, now, lambda _low, high: high)
        self.limiter = EndpointLimiter(model.settings.max_in_flight, clock=timing)
        observer = CallMetrics(self.metrics, model.settings.judge_model, self.limiter)
        self.model = LimitedModel(model, self.limiter, Retries(attempts, draw=timing.draw), observer=observer)

    async def ask(self, request: ChatRequest = REQUEST) -> ChatResponse:
        return await self.model.complete(request)

    def asking(self, count: int = 1) -> list["asyncio.Task[ChatResponse]"]:
        return [asyncio.ensure_future(self.ask()) for _ in range(count)]

    async def fails(self, request: ChatRequest, error: type[ModelError] = ModelError) -> ModelError:
        with pytest.raises(error) as caught:
            await self.ask(request)
        return caught.value

    @property
    def page(self) -> Scrape:
        return parse(generate_latest(self.metrics.registry).decode())

    @property
    def in_flight(self) -> float:
        return self.page.value("tracejudge_judge_in_flight")

    def statuses(self) -> dict[str, float]:
        samples = self.page.samples("tracejudge_judge_request_duration_seconds_count")
        return {sample.labels["status"]: sample.value for sample in samples}

    def shown(self) -> str:
        """Write what the page says of calls, what they cost, and the circuit."""
        names = ("request_duration_seconds_count", "tokens_total", "cost_usd_total", "in_flight", "circuit_open")
        page = self.page
        samples = [(name, each) for name in names for each in page.samples(f"tracejudge_judge_{name}")]
        return "\n".join(f"  {name} {' '.join(each.labels.values())}: {each.value:.6g}" for name, each in samples)


def slow(*, seconds: float = 1.0, max_in_flight: int = 2, **fields: Any) -> ScriptedModel:
    return ScriptedModel([Step(ANSWER, delay_s=seconds)], settings(max_in_flight, **fields))


class Refusing(ScriptedModel):
    """Refuses evaluations whose name begins with `a`, and answers all others."""

    status = 403
    refused = 0

    async def complete(self, request: ChatRequest) -> ChatResponse:
        if request.evaluation.startswith("a"):
            self.refused += 1
            error = rejection(self.status)
            error.message = "You may not."
            raise error
        return await super().complete(request)


def step_of(row: Any) -> Any:
    """Read a step of a table: a text, fields, or the reason of an error with the wait that it asks for."""
    if isinstance(row, str):
        return row
    if isinstance(row, dict):
        return convert(row, Step)
    reason, seconds = row

    def fail(_: ChatRequest) -> str:
        raise ERRORS[reason]("wait", seconds)

    return fail


async def asked(limited: Limited) -> str:
    """Ask once; tell when, what came of it, and which attempts failed before."""
    begun = list[float]()
    request = requesting(begins=lambda: begun.append(now()))
    try:
        outcome = repr((await limited.ask(request)).text)
    except ModelError as error:
        outcome = f"{error.reason}, wait {error.retry_after_s}{', not asked' * (not error.was_asked)}"
    return f"{now()} {outcome}; begun at {begun}, failed before: {[call.status for call in request.failed]}"


def test_scenes_are_those_of_the_golden_file() -> None:
    """How often is asked at a time, one after the other; in the golden file is what is told and counted."""

    async def play(name: str, scene: dict[str, Any]) -> str:
        price = Price(*scene["price"]) if "price" in scene else None
        model = ScriptedModel(map(step_of, scene["steps"]), settings(scene.get("most", 2), price))
        limited, lines = Limited(model, scene.get("attempts", 1)), [f"## {name}"]
        for times in scene["asks"]:
            if times == "wait":
                lines.append(limited.shown())
                await asyncio.sleep(30)  # after the pause or the open circuit that some failures cause
            else:
                lines += await asyncio.gather(*(asked(limited) for _ in range(times)))
        return "\n".join((*lines, limited.shown(), ""))

    scenes = read_table(__file__, "gates")["calls"]
    check_golden(
        Path(__file__).with_name("golden_calls.txt"), "".join(run_virtually(play(*scene)) for scene in scenes.items())
    )


class TestCalls:
    @virtually
    async def test_never_more_calls_than_slots_which_two_models_of_one_endpoint_share(self) -> None:
        for slots in (1, 3, 64):
            limited, began = Limited(slow(max_in_flight=slots)), now()
            calls = limited.asking(100)
            await asyncio.sleep(0.5)
            assert limited.in_flight == len(limited.inside.requests) == slots
            assert [response.text for response in await asyncio.gather(*calls)] == [ANSWER] * 100
            assert (limited.in_flight, limited.statuses(), now() - began) == (0, {"ok": 100}, -(-100 // slots))
        first, other = Limited(slow()), slow()
        second = LimitedModel(other, first.limiter)
        calls = [*first.asking(2), *(asyncio.ensure_future(second.complete(REQUEST)) for _ in range(2))]
        await asyncio.sleep(0.5)
        assert (len(first.inside.requests), len(other.requests), first.in_flight) == (2, 0, 2)
        await asyncio.gather(*calls)
        assert (len(other.requests), first.in_flight) == (2, 0)

    @virtually
    async def test_the_bound_is_shown_under_the_model_s_name_and_follows_the_limit(self) -> None:
        limit = "tracejudge_judge_concurrency_limit"
        labelled = Limited(slow(max_in_flight=17, label="m at b"))
        assert labelled.page.value(limit, judge_model="m at b") == 17
        assert labelled.page.value("tracejudge_judge_in_flight", judge_model="m at b") == 0
        assert labelled.model.settings.judge_model == "m at b"
        limited = Limited(slow(seconds=5, max_in_flight=200))
        assert limited.page.value(limit, judge_model="m") == 64
        calls = limited.asking(400)
        await asyncio.sleep(2)
        assert limited.page.value(limit, judge_model="m") == 200 == limited.in_flight
        await asyncio.gather(*calls)

    @virtually
    async def test_a_cancelled_call_gives_its_slot_back_and_one_without_a_slot_was_never_made(self) -> None:
        limited = Limited(slow(max_in_flight=1))
        call, waiting = limited.asking(2)
        await asyncio.sleep(0.5)
        for task, in_flight, statuses in ((waiting, 1, {}), (call, 0, {"cancelled": 1})):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert (task.cancelled(), limited.in_flight, limited.statuses()) == (True, in_flight, statuses)
        await limited.ask()
        assert (limited.in_flight, limited.statuses()) == (0, {"cancelled": 1, "ok": 1})
        assert len(limited.inside.requests) == 2

    @virtually
    async def test_any_exception_releases_the_permit_and_is_no_cancellation(self) -> None:
        def stumble(*_: object) -> str:
            raise ZeroDivisionError

        cases: tuple[tuple[Any, ChatRequest], ...] = ((stumble, REQUEST), (ANSWER, requesting(begins=stumble)))
        for step, request in cases:
            limited = Limited(ScriptedModel([step], settings(1)))
            for _ in range(3):
                with pytest.raises(ZeroDivisionError):
                    await limited.ask(request)
            assert (limited.in_flight, limited.statuses()) == (0, {"internal_error": 3})
        async with asyncio.timeout(5):
            assert (await limited.ask()).text == ANSWER

    @virtually
    async def test_it_is_a_chat_model_and_closes_the_one_inside(self) -> None:
        limited, closed = Limited(slow()), list[str]()

        async def aclose() -> None:
            closed.append("inside")

        limited.inside.aclose = aclose  # type: ignore[method-assign]
        assert isinstance(limited.model, ChatModel)
        await limited.model.aclose()
        assert closed == ["inside"]

    @virtually
    async def test_the_attempts_of_an_evaluation_are_its_calls(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(limited_model, "time", SimpleNamespace(perf_counter=now, time=time.time))
            steps = [
                Step(failure="judge_unavailable", delay_s=2),
                Step('{"rationale": "So.", "result": "yes"}', delay_s=3),
            ]
            limited = Limited(ScriptedModel(steps, settings()), attempts=4)
            assessment = await evaluate(catalogue()["safety"], TRACE, limited.model)
        # The pause between is in neither.
        assert [(call.status, call.duration_s) for call in assessment.calls] == [("judge_unavailable", 2), ("ok", 3)]

    @virtually
    async def test_an_evaluation_that_is_refused_while_others_are_answered_is_a_bad_request_in_the_end(self) -> None:
        limited = Limited(Refusing([Step(ANSWER, delay_s=0.01)], settings(4)), attempts=4)
        stop = asyncio.Event()

        async def others() -> None:
            while not stop.is_set():
                await limited.ask()

        going_on = asyncio.ensure_future(others())
        await asyncio.sleep(1)
        request = requesting(evaluation="a")
        error = await limited.fails(request, ERRORS["bad_request"])
        assert "refused 3 times while other requests were answered" in str(error)
        assert (len(request.failed), error.message) == (2, "You may not.")
        later = requesting(evaluation="a", refusals=Refusals(2, 0.5))
        await limited.fails(later, ERRORS["bad_request"])
        assert later.failed == [], "what was refused in earlier rounds counts"
        stop.set()
        await going_on
        await asyncio.sleep(0.1)
        alone = await limited.fails(requesting(evaluation="a", refusals=Refusals(2, 100.0)), ERRORS["judge_rejected"])
        assert alone.refusals == Refusals(2, 100.0), "nobody was answered since"

    @each_case("earlier", [0, 1, 2])
    @virtually
    async def test_a_request_that_was_refused_alone_before_opens_no_circuit(self, earlier: int) -> None:
        """Else the last of its calls would leave a circuit open that nobody's call closes."""
        model = Refusing([ANSWER], settings(4))
        model.status = 401
        limited = Limited(model)
        await asyncio.sleep(1)
        await limited.ask()
        refusals = Refusals(earlier, 0.5 if earlier else 0.0)
        for evaluation in ("a1", "a2", "a3", "a4", "a5"):
            assert not limited.limiter.circuit_open, "an answer came before: one refused key says nothing of the others"
            kind = ERRORS["bad_request"] if earlier == 2 else ERRORS["judge_rejected"]
            error = await limited.fails(requesting(evaluation=evaluation, refusals=refusals), kind)
            assert error.refusals.times == earlier + 1
        assert limited.limiter.circuit_open == (earlier == 0)

    @virtually
    async def test_a_request_that_is_refused_alone_is_not_asked_again_before_others_were_answered(self) -> None:
        """A call that could not count is paid for in vain."""
        model = Refusing([Step(ANSWER, delay_s=100)], settings(4))
        limited = Limited(model, attempts=4)
        await limited.ask()
        (others,) = limited.asking()
        refusals = Refusals()
        for times in (1, 2):
            request = requesting(evaluation="a", refusals=refusals)
            refusals = (await limited.fails(request, ERRORS["judge_rejected"])).refusals
            assert (model.refused, request.failed, refusals.times) == (times, [], times)
            await others

    @virtually
    async def test_odd_fields_of_a_reply_are_counted(self) -> None:
        class Odd(ScriptedModel):
            async def complete(self, request: ChatRequest) -> ChatResponse:
                return structs.replace(await super().complete(request), invalid=("id", "usage"))

        limited = Limited(Odd([ANSWER], settings()))
        await limited.ask()
        samples = limited.page.samples("tracejudge_judge_reply_invalid_total", judge_model="m")
        assert {sample.labels["field"]: sample.value for sample in samples} == {"id": 1, "model": 0, "usage": 1}


class TestRetries:
    def test_only_what_may_pass_is_tried_again_four_times_at_most(self) -> None:
        kinds = {"model": ModelError, **ERRORS}
        passing = {reason for reason, kind in kinds.items() if is_transient(kind("x"))}
        assert passing == {"rate_limited", "timeout", "judge_unavailable"} < kinds.keys()
        assert {Retries().pause_s(kind("x"), 1) for reason, kind in kinds.items() if reason not in passing} == {None}
        retries = Retries(draw=lambda _low, high: high)
        assert [retries.pause_s(AWAY, failed) for failed in (1, 2, 3, 4)] == [0.5, 1.0, 2.0, None]
        retries = Retries(budget=RetryBudget(reserve=0))
        closed = [retries.pause_s(ERRORS["rate_limited"]("x"), failed, is_blocked=True) for failed in (1, 2, 3, 4)]
        assert closed == [0.0, 0.0, 0.0, None], "the limiter's pause is long enough"
        alone = [retries.pause_s(ERRORS["rate_limited"]("x", 3.0), failed) for failed in (1, 2, 3, 4)]
        assert alone == [3.0, 3.0, 3.0, None], "as long as the endpoint says"
        assert retries.pause_s(AWAY, 1) is None, "a rate limit needs no budget, and this does"

    def test_backoff_without_jitter_and_with_all_of_it(self) -> None:
        assert [backoff_s(failed, 0.5, 8.0) for failed in range(6)] == [0.5, 1, 2, 4, 8, 8]
        assert backoff_s(5, 0.5, 8.0, 0.0, lambda low, _high: low) == 0, "full jitter"

    @given(st.integers(0, 10**9), st.integers())
    def test_backoff_doubles_and_is_bounded(self, failed: int, seed: int) -> None:
        pause_s = backoff_s(failed, 0.5, 8.0, 0.75, random.Random(seed).uniform)
        assert 0.75 <= pause_s / min(8.0, 0.5 * 2 ** min(failed, 20)) <= 1

    @given(st.lists(st.booleans(), max_size=2000))
    def test_the_budget_never_pays_for_more_than_was_earned_and_reserved(self, first: list[bool]) -> None:
        budget, attempts, paid = RetryBudget(), 0, 0
        for is_first in first:
            if is_first:
                attempts += 1
                budget.earn()
            else:
                paid += budget.spend()
            assert paid <= 20 + 0.25 * attempts

    def test_the_retry_budget_is_bounded_and_an_outage_costs_the_reserve_and_a_quarter(self) -> None:
        budget, retries, again = RetryBudget(), Retries(draw=lambda _low, high: high), 0
        for _ in range(10_000):
            budget.earn()
        assert sum(budget.spend() for _ in range(1000)) == 100
        for _ in range(1000):
            retries.record_first_attempt()
            again += retries.pause_s(AWAY, 1) is not None
        assert again == 20 + 250
