"""Rounds, tokens and USD of an exploration: at a limit the verdict is asked for while it can still be paid."""

import re

from explorations import PRICED, SETTINGS, Counting, call, calling, check_structure, contents, course, exploring, judged
from judge_traces import yes_no_text
from msgspec import structs
from support.cases import each_case

from judges.core.exploration import Limits
from judges.core.judge import Judge
from judges.core.model import ChatRequest, ChatResponse, ModelSettings, Price
from judges.core.verdict import Assessment, Call
from judges.models.scripted import Step

YES = yes_no_text("yes")
ROUNDS = 40


class Reader(Counting):
    """Calls on as long as it may, then says yes."""

    def __init__(self, settings: ModelSettings = SETTINGS, bytes_per_token: float = 4.0) -> None:
        super().__init__([self.step], settings, bytes_per_token)

    def step(self, request: ChatRequest) -> Step:
        return calling(call("page", call_id=f"c{len(self.requests)}")) if request.may_call else Step(YES)


def spent(assessment: Assessment) -> int:
    return sum(call.input_tokens + call.output_tokens for call in assessment.calls)


def spent_usd(assessment: Assessment, price: Price) -> float:
    return sum(price.cost_usd(call.input_tokens, call.output_tokens) for call in assessment.calls)


def paging(chars: int, **limits: float) -> Judge:
    return exploring(Limits(**{"max_rounds": ROUNDS, **limits}), page=lambda _: "word " * (chars // 5))


class TestRounds:
    @each_case("rounds", [1, 2, 30])
    def test_the_answer_after_the_last_is_the_verdict(self, rounds: int) -> None:
        model = Reader()
        assessment = judged(exploring(Limits(max_rounds=rounds), page=str), model)
        assert assessment.outcome == "scored"
        assert [request.may_call for request in model.requests] == [True] * rounds + [False]
        assert (course(assessment)["rounds"], course(assessment)["ended_by"]) == (rounds, "max_rounds")
        assert all(request.tools == model.requests[0].tools for request in model.requests)
        check_structure(model.requests[-1])

    def test_with_none_there_is_no_verdict(self) -> None:
        model = Reader()
        assessment = judged(exploring(Limits(max_rounds=0)), model)
        assert (assessment.reason, model.requests) == ("over_budget", [])


class TestTokens:
    @each_case("bytes_per_token", [2.0, 3.0, 4.0, 5.0])
    @each_case("chars", [100, 3_000, 20_000, 300_000])
    @each_case("max_tokens", [8_000, 30_000, 200_000])
    def test_are_kept_and_the_verdict_is_there(self, max_tokens: int, chars: int, bytes_per_token: float) -> None:
        model = Reader(bytes_per_token=bytes_per_token)
        assessment = judged(paging(chars, max_tokens=max_tokens), model)
        assert assessment.outcome == "scored"
        assert spent(assessment) <= max_tokens
        assert course(assessment)["ended_by"] in {"max_tokens", "max_rounds"}
        for request in model.requests:
            check_structure(request)

    def test_most_of_them_are_used(self) -> None:
        assessment = judged(paging(3_000, max_tokens=100_000), Reader())
        assert course(assessment)["ended_by"] == "max_tokens"
        assert spent(assessment) > 80_000

    def test_a_result_that_the_budget_does_not_hold_is_begun_and_may_be_asked_for_in_parts(self) -> None:
        model = Reader()
        assessment = judged(paging(300_000, max_tokens=30_000), model)
        assert assessment.outcome == "scored"
        (told,) = contents(model.requests[1])
        match = re.fullmatch(r"<<(.*)>>\n(.*)\n<<end \1>>\n(.*)", told)
        assert match is not None
        shown = len(match[2])
        assert 10_000 < shown < 20_000
        assert match[3] == (
            f"Of the 300000 bytes of this result only the first {shown} are shown, for no more fit. Ask for the rest in"
            f" parts: by a max_content_length of {(shown + 500) // 2} at most, by fewer results, or by a search."
        )
        assert model.requests[1].may_call

    def test_that_do_not_hold_the_first_requests_are_over_budget(self) -> None:
        model = Reader()
        assessment = judged(paging(100, max_tokens=2_000), model)
        assert (assessment.outcome, assessment.reason) == ("unscored", "over_budget")
        assert assessment.note == "what is left of max_tokens does not hold the next requests"
        assert (assessment.is_final, assessment.calls, model.requests) == (True, (), [])

    def test_that_an_endpoint_does_not_count_are_estimated(self) -> None:
        class Silent(Reader):
            async def complete(self, request: ChatRequest) -> ChatResponse:
                return structs.replace(await super().complete(request), input_tokens=0, output_tokens=0)

        assessment = judged(paging(3_000, max_tokens=50_000), Silent())
        assert course(assessment)["ended_by"] == "max_tokens"
        assert len(assessment.calls) < ROUNDS

    def test_of_attempts_that_failed_count(self) -> None:
        """A model behind a gate tries again by itself, and what that took is paid for."""

        class Trying(Reader):
            async def complete(self, request: ChatRequest) -> ChatResponse:
                request.failed.append(Call(1.0, 1.0, "truncated", 900, 100))
                return await super().complete(request)

        assessment = judged(paging(100, max_tokens=20_000), Trying())
        assert assessment.outcome == "scored"
        assert 15_000 < spent(assessment) <= 20_000

    def test_left_for_no_repair_request_unscore(self) -> None:
        class Rambling(Reader):
            def step(self, request: ChatRequest) -> Step:
                return Step("word " * 30_000) if not request.may_call else super().step(request)

        assessment = judged(paging(3_000, max_tokens=30_000), Rambling())
        assert (assessment.outcome, assessment.reason) == ("unscored", "over_budget")


class TestUsd:
    @each_case(
        "price",
        [Price(input=1.0, output=4.0), Price(input=0.0, output=4.0), Price(input=1.0, output=0.0)],
        ids=["both", "answers alone", "requests alone"],
    )
    @each_case("chars", [100, 20_000, 300_000])
    def test_are_kept_and_the_verdict_is_there(self, chars: int, price: Price) -> None:
        settings = structs.replace(SETTINGS, price=price)
        assessment = judged(paging(chars, max_usd=0.03), Reader(settings))
        assert assessment.outcome == "scored"
        assert spent_usd(assessment, price) <= 0.03

    def test_go_further_where_a_cache_serves_the_requests(self) -> None:
        class Cached(Reader):
            async def complete(self, request: ChatRequest) -> ChatResponse:
                response = await super().complete(request)
                return structs.replace(response, cached_tokens=response.input_tokens)

        settings = structs.replace(SETTINGS, price=Price(input=1.0, output=4.0, cached_input=0.1))
        plain, cached = (judged(paging(3_000, max_usd=0.05), reader(settings)) for reader in (Reader, Cached))
        assert len(cached.calls) > len(plain.calls)

    def test_end_it_and_say_so(self) -> None:
        assessment = judged(paging(3_000, max_usd=0.05), Reader(PRICED))
        assert course(assessment)["ended_by"] == "max_usd"

    def test_that_do_not_hold_the_first_requests_are_over_budget(self) -> None:
        assessment = judged(paging(100, max_usd=0.001), Reader(PRICED))
        assert assessment.note == "what is left of max_usd does not hold the next requests"

    def test_cannot_be_kept_without_a_price_and_the_verdict_says_so(self) -> None:
        assessment = judged(paging(3_000, max_usd=0.001, max_tokens=30_000), Reader())
        assert assessment.outcome == "scored"
        assert course(assessment)["max_usd"] == "not kept: the model has no price"
        assert course(assessment)["ended_by"] == "max_tokens"
