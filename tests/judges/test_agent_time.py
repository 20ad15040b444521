"""The time of an exploration, and its tries: what has been paid for is not paid for again and again."""

import asyncio
from collections.abc import Callable

import pytest
from explorations import TRACE, Counting, call, calling, course, exploring, hanging, judged, run_with_tools
from judge_traces import yes_no_text
from support.cases import each_case

from judges.calling.evaluation import Clock, evaluate
from judges.core.exploration import Limits
from judges.core.model import ChatRequest, ChatResponse
from judges.core.verdict import Assessment, Call
from judges.models.scripted import ScriptedModel, Step

YES = yes_no_text("yes")


class TestDeadline:
    class Waiting(Counting):
        """Reports when a request no longer waits, as a worker's models do; the last one is never answered."""

        def __init__(self, steps: list[Step | str], answered: int = 2) -> None:
            super().__init__(steps)
            self.answered = answered

        async def complete(self, request: ChatRequest) -> ChatResponse:
            assert request.begins is not None
            request.failed.append(Call(1.0, 1.0, "rate_limited"))
            request.begins()
            if len(self.requests) == self.answered:
                await asyncio.Event().wait()
            return await super().complete(request)

    def test_covers_the_whole_loop_and_keeps_the_calls_before(self) -> None:
        assessment = self.judged(self.Waiting([calling()]), 100)
        assert (assessment.reason, assessment.note) == ("over_budget", "the exploration did not end within 100 s")
        assert [call.status for call in assessment.calls] == [*["rate_limited", "ok"] * 2, "rate_limited", "timeout"]
        assert assessment.calls[-1].duration_s > 80
        assert course(assessment)["rounds"] == 2

    def test_covers_the_tools_too(self) -> None:
        with hanging() as hang:
            assessment = self.judged(self.Waiting([calling(call("hang"))]), 3, hang)
        assert (assessment.reason, assessment.is_final) == ("over_budget", True)
        assert [call.status for call in assessment.calls] == ["rate_limited", "ok"]

    @staticmethod
    def judged(model: Counting, deadline_s: float, hang: Callable[[str], str] = str) -> Assessment:
        async def judged() -> Assessment:
            time = asyncio.get_running_loop().time
            return await evaluate(exploring(hang=hang), TRACE, model, Clock(time, time), deadline_s)

        return run_with_tools(judged())

    def test_that_passes_before_any_answer_is_a_timeout(self) -> None:
        """Nothing was paid for, and the endpoint may be back later."""
        assessment = self.judged(self.Waiting([calling()], answered=0), 100)
        assert (assessment.reason, assessment.note) == ("timeout", "no verdict within 100 s")
        assert not assessment.is_final


class Slow(ScriptedModel):
    """Answers after some seconds, and says when a request no longer waits."""

    def __init__(self, took_s: list[float]) -> None:
        super().__init__([self.step])
        self.took_s = took_s

    def step(self, request: ChatRequest) -> Step:
        delay_s = self.took_s[min(len(self.requests), len(self.took_s)) - 1]
        if not request.may_call:
            return Step(YES, delay_s=delay_s)
        return Step(delay_s=delay_s, tool_calls=(call(call_id=f"c{len(self.requests)}"),))

    async def complete(self, request: ChatRequest) -> ChatResponse:
        await asyncio.sleep(1_000)  # waits for its turn; the first time that takes no time of the evaluation
        assert request.begins is not None
        request.begins()
        return await super().complete(request)


class TestTimeAsALimit:
    @staticmethod
    def judged(model: Slow, deadline_s: float) -> Assessment:
        async def judged() -> Assessment:
            time = asyncio.get_running_loop().time
            return await evaluate(exploring(), TRACE, model, Clock(time, time), deadline_s)

        return run_with_tools(judged())

    @pytest.mark.parametrize(
        ("took_s", "rounds"),
        [([1_000.0], 8), ([1_000.0, 1_000.0, 6_000.0], 3)],
        ids=["rounds of the same length", "one that takes longer"],
    )
    def test_asks_for_the_verdict_while_there_is_time(self, took_s: list[float], rounds: int) -> None:
        model = Slow(took_s)
        assessment = self.judged(model, 20_000)
        assert (assessment.outcome, course(assessment)["ended_by"]) == ("scored", "max_time")
        assert course(assessment)["rounds"] == rounds
        assert sum(call.duration_s for call in assessment.calls) < 20_000

    def test_is_none_without_a_deadline(self) -> None:
        assert (
            course(judged(exploring(Limits(max_rounds=2)), ScriptedModel([calling(), calling(), YES])))["rounds"] == 2
        )


class TestTries:
    LIMITS = Limits(max_rounds=5)

    def tried(self, steps: list[Step | str], earlier_calls: int) -> Assessment:
        model = ScriptedModel(steps)
        return asyncio.run(evaluate(exploring(self.LIMITS), TRACE, model, earlier_calls=earlier_calls))

    @each_case("failure", ["rate_limited", "judge_unavailable", "timeout", "judge_rejected"])
    def test_an_exploration_is_over_budget_after_the_calls_of_all_tries(self, failure: str) -> None:
        steps = [calling(), calling(), Step(failure=failure)]  # type: ignore[arg-type]
        before, after = (self.tried(steps, earlier_calls) for earlier_calls in (16, 17))
        assert (before.reason, before.is_final) == (failure, False)
        assert (after.reason, after.is_final, len(after.calls)) == ("over_budget", True, 3)
        assert (
            after.note == f"all tries together used up the calls that max_rounds allows; the last ended with {failure}"
        )

    def test_go_on_where_nothing_was_answered(self) -> None:
        """An outage of hours costs nothing, and must not cost the evaluation either."""
        assessment = self.tried([Step(failure="rate_limited")], 1_000)
        assert (assessment.reason, assessment.is_final) == ("rate_limited", False)

    def test_that_succeed_count(self) -> None:
        assert self.tried([calling(), YES], 1_000).outcome == "scored"

    def test_end_as_they_did_for_a_reason_that_is_final_by_itself(self) -> None:
        assert self.tried([calling(), Step(failure="bad_request")], 1_000).reason == "bad_request"
