"""Limits of an exploration: rounds, tokens, USD, a full context, and tasks over a trace of 400 spans.

At a limit the verdict is asked for while it can still be paid; of a full context the oldest exchange goes first, and
what goes is counted.
"""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from explorations import (
    PRICED,
    SETTINGS,
    TRACE,
    Counting,
    call,
    calling,
    check_structure,
    contents,
    course,
    exploring,
    judged,
)
from judge_traces import yes_no_text
from msgspec import structs
from support.cases import each_case

from judges.agent.conversation import Conversation, ExplorationStats, tool_result
from judges.agent.toolbox import TraceToolbox
from judges.core.judge import Exploration, Judge, Limits
from judges.core.model import ChatRequest, ChatResponse, InputTooLongError, ModelSettings, Price
from judges.core.prompt import Message, ToolCall
from judges.core.verdict import Assessment, Call
from judges.models.scripted import ScriptedModel, Step
from tracejudge import Span

YES = yes_no_text("yes")
ROUNDS = 40
CUT = (
    r"Of the 100000 bytes of this result only the first (\d+) are shown, for no more fit\. Ask for the rest in parts:"
    r" by a max_content_length of (\d+) at most, by fewer results, or by a search\."
)
WITHHELD = (
    r"This result of 100000 bytes is longer than what is left of your context or of the budget, and was left out\. Ask"
    r" for less: by a max_content_length of (\d+) at most, by fewer results, or by a search\."
)
UNREAD = ("invalid_answer", "the model answers without reading anything of the trace")


class Reader(Counting):
    """Calls on as long as it may, then says yes."""

    def __init__(self, settings: ModelSettings = SETTINGS, bytes_per_token: float = 4.0) -> None:
        super().__init__([self.step], settings, bytes_per_token)

    def step(self, request: ChatRequest) -> Step:
        return calling(call("page", call_id=f"c{len(self.requests)}")) if request.may_call else Step(YES)


def spent(assessment: Assessment) -> int:
    return sum(call.input_tokens + call.output_tokens for call in assessment.calls)


def paging(chars: int, **limits: float) -> Judge:
    return exploring(Limits(**{"max_rounds": ROUNDS, **limits}), page=lambda _: "word " * (chars // 5))


class TestRounds:
    def test_the_answer_after_the_last_is_the_verdict(self) -> None:
        for rounds in (1, 2, 30):
            model = Reader()
            assessment = judged(exploring(Limits(max_rounds=rounds), page=str), model)
            assert assessment.outcome == "scored"
            assert [request.may_call for request in model.requests] == [True] * rounds + [False]
            assert (course(assessment)["rounds"], course(assessment)["ended_by"]) == (rounds, "max_rounds")
            assert all(request.tools == model.requests[0].tools for request in model.requests)
            check_structure(model.requests[-1])
        none = Reader()
        assert (judged(exploring(Limits(max_rounds=0)), none).reason, none.requests) == ("over_budget", [])


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
        assert judged(paging(300_000, max_tokens=30_000), model).outcome == "scored"
        (told,) = contents(model.requests[1])
        match = re.fullmatch(rf"<<(.*)>>\n(.*)\n<<end \1>>\n{CUT.replace('100000', '300000')}", told)
        assert match is not None
        shown = len(match[2])
        assert 10_000 < shown < 20_000
        assert (int(match[3]), int(match[4])) == (shown, (shown + 500) // 2)
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
    @each_case("price", [Price(input=i, output=o) for i, o in ((1.0, 4.0), (0.0, 4.0), (1.0, 0.0))])
    @each_case("chars", [100, 20_000, 300_000])
    def test_are_kept_and_the_verdict_is_there(self, chars: int, price: Price) -> None:
        assessment = judged(paging(chars, max_usd=0.03), Reader(structs.replace(SETTINGS, price=price)))
        assert assessment.outcome == "scored"
        assert sum(price.cost_usd(call.input_tokens, call.output_tokens) for call in assessment.calls) <= 0.03

    def test_go_further_where_a_cache_serves_the_requests(self) -> None:
        class Cached(Reader):
            async def complete(self, request: ChatRequest) -> ChatResponse:
                response = await super().complete(request)
                return structs.replace(response, cached_tokens=response.input_tokens)

        settings = structs.replace(SETTINGS, price=Price(input=1.0, output=4.0, cached_input=0.1))
        plain, cached = (judged(paging(3_000, max_usd=0.05), reader(settings)) for reader in (Reader, Cached))
        assert len(cached.calls) > len(plain.calls)

    def test_end_it_and_say_so(self) -> None:
        assert course(judged(paging(3_000, max_usd=0.05), Reader(PRICED)))["ended_by"] == "max_usd"
        assessment = judged(paging(100, max_usd=0.001), Reader(PRICED))
        assert assessment.note == "what is left of max_usd does not hold the next requests"
        assessment = judged(paging(3_000, max_usd=0.001, max_tokens=30_000), Reader())
        assert assessment.outcome == "scored"
        assert course(assessment)["max_usd"] == "not kept: the model has no price"
        assert course(assessment)["ended_by"] == "max_tokens"


def within(max_input_tokens: int) -> ModelSettings:
    return structs.replace(SETTINGS, max_input_tokens=max_input_tokens)


def numbered(count: int, *, chars: int = 1_500) -> list[Step | str]:
    return [*(calling(call("page", f"{n}" * chars, f"c{n}")) for n in range(count)), YES]


def pages(request: ChatRequest) -> list[str]:
    return [content.split("\n")[1][:1] for content in contents(request)]


def long_judge(limits: Limits = Limits()) -> Judge:  # noqa: B008 - frozen
    return exploring(limits, long=lambda _: "x" * 100_000)


class TestKnownContext:
    def test_the_oldest_exchange_goes_first(self) -> None:
        model = ScriptedModel(numbered(4), within(3_000))
        assessment = judged(exploring(page=str), model)
        assert (assessment.outcome, course(assessment)["exchanges_dropped"]) == ("scored", 2)
        assert [pages(request) for request in model.requests] == [[], ["0"], ["0", "1"], ["1", "2"], ["2", "3"]]
        for request in model.requests:
            check_structure(request)

    def test_a_result_too_long_by_itself_is_withheld_and_told_of(self) -> None:
        steps = [calling(call(call_id="a"), call("long", call_id="b"), call(call_id="c")), YES]
        model = ScriptedModel(steps, within(2_000))
        assessment = judged(long_judge(), model)
        assert assessment.outcome == "scored"
        first, second, third = contents(model.requests[1])
        assert first.count("\n") == third.count("\n") == 2
        match = re.fullmatch(rf"<<(.*)>>\n(x+)\n<<end \1>>\n{CUT}", second)
        assert match is not None
        assert int(match[3]) == len(match[2]) > 500
        assert int(match[4]) < 1_000
        assert (course(assessment)["results_withheld"], course(assessment)["exchanges_dropped"]) == (1, 0)
        # It takes no older one along.
        model = ScriptedModel([calling(), calling(call("long")), YES], within(2_000))
        assessment = judged(long_judge(), model)
        assert [bool(re.search(CUT, told)) for told in contents(model.requests[2])] == [False, True]
        assert course(assessment)["exchanges_dropped"] == 0
        # One of which not even the beginning fits is left out.
        model = ScriptedModel([calling(), calling(call("long")), YES], within(1_000))
        assessment = judged(long_judge(), model)
        assert assessment.outcome == "scored"
        match = re.fullmatch(WITHHELD, contents(model.requests[2])[1])
        assert match is not None
        assert 100 <= int(match[1]) < 500
        assert course(assessment)["results_withheld"] == 1

    def test_calls_as_a_model_makes_them_first_get_on_in_a_small_context(self) -> None:
        """Tools give 100 kB unless asked for less; a context of 20,000 tokens holds less than that."""
        trace = structs.replace(TRACE, spans=[Span("a", "run", outputs={"text": "word " * 200_000})])

        def step(request: ChatRequest) -> Step:
            told = contents(request)
            if len(told) == 5:
                return Step(YES)
            size = re.search("max_content_length of ([0-9]+)", told[0]) if told else None
            more = "" if size is None else f', "max_content_length": {size[1]}'
            return calling(call("get_span", f'{{"span_id": "a"{more}}}', f"c{len(told)}"))

        model = Counting([step], within(20_000))
        assessment = judged(reading(), model, trace)
        first, *others = contents(model.requests[-1])
        assert (assessment.outcome, course(assessment)["results_withheld"]) == ("scored", 1)
        assert len(first) > 8_000
        assert all(re.fullmatch(r"<<.*\n.*\n<<end.*>>", other) and len(other) > 4_000 for other in others)
        assert course(assessment)["exchanges_dropped"] == 0

    @each_case(
        ("steps", "rounds", "sizes"),
        [
            ([calling(text="word " * 3_000), calling(), YES], 30, [2, 2, 4]),
            ([calling(), calling(call(call_id="b"), text="word " * 3_000), YES], 2, [2, 4, 4]),
            ([calling(), calling(call(arguments=f'["{"x" * 30_000}"]', call_id="b")), YES], 2, [2, 4, 4]),
        ],
        ids=["alone", "words, and no older one goes along", "arguments"],
    )
    def test_an_answer_that_is_itself_too_long_is_forgotten(
        self, steps: list[Step | str], rounds: int, sizes: list[int]
    ) -> None:
        model = ScriptedModel(steps, within(2_000))
        assessment = judged(exploring(Limits(max_rounds=rounds)), model)
        assert (assessment.outcome, course(assessment)["exchanges_dropped"]) == ("scored", 1)
        assert [len(request.messages) for request in model.requests] == sizes

    def test_no_verdict_is_asked_for_when_nothing_read_is_left_or_the_tools_fill_it_alone(self) -> None:
        model = ScriptedModel([calling(text="word " * 3_000)], within(2_000))
        assessment = judged(exploring(Limits(max_rounds=1)), model)
        assert (assessment.reason, len(assessment.calls)) == ("input_too_long", 1)
        assert assessment.note == "nothing that the tools returned fits into the last request"
        model = ScriptedModel([YES], within(80))
        assert (judged(exploring(), model).reason, model.requests) == ("input_too_long", [])

    def test_the_size_of_a_history_is_that_of_its_messages(self) -> None:
        head = [Message("system", "s"), Message("user", "u")]
        asked = Message("assistant", "", (ToolCall("1", "t", "{}"),))
        conversation = Conversation(head, (), ExplorationStats())
        empty = conversation.size.total
        for text in ("é" * 1_000, "long " * 1_000, ""):
            conversation.add(asked, [tool_result("1", text)])
        assert conversation.size.total > 7_000
        assert not conversation.shorten(lambda _: False)
        assert (conversation.size.total, list(conversation.messages)) == (empty, head)


class Full(Counting):
    """An endpoint whose context holds so many characters, and after the first answer so many."""

    def __init__(self, steps: list[Step | str], max_chars: int, later_chars: int | None = None) -> None:
        super().__init__(steps)
        self.max_chars, self.later_chars = max_chars, max_chars if later_chars is None else later_chars
        self.refused = 0

    async def complete(self, request: ChatRequest) -> ChatResponse:
        if sum(len(message.content) for message in request.messages) > self.max_chars:
            self.refused += 1
            raise InputTooLongError("too long")
        response = await super().complete(request)
        self.max_chars = self.later_chars
        return response


class TestContextSaidByTheEndpoint:
    def test_the_oldest_exchange_goes_and_the_request_is_sent_again(self) -> None:
        model = Full(numbered(4), 3_500)
        assessment = judged(exploring(page=str), model)
        assert (assessment.outcome, course(assessment)["exchanges_dropped"]) == ("scored", 2)
        assert pages(model.requests[-1]) == ["2", "3"]
        assert [call.status for call in assessment.calls].count("input_too_long") == model.refused
        model = Full(numbered(10), 3_500)
        assert judged(exploring(page=str), model).outcome == "scored"
        assert model.refused == 1, "a history refused as too long is not sent again"

    def test_the_newest_alone_is_withheld_at_last(self) -> None:
        model = Full([calling(call("long")), YES, YES], 1_000)
        assessment = judged(long_judge(), model)
        assert re.fullmatch(WITHHELD, contents(model.requests[-1])[0])
        assert (assessment.reason, assessment.note) == UNREAD

    def test_when_nothing_is_left_to_leave_out_it_is_too_long(self) -> None:
        for model in (Full([YES], 10, 10), Full([calling(), YES], 5_000, 10)):
            assessment = judged(exploring(), model)
            assert (assessment.outcome, assessment.reason) == ("unscored", "input_too_long")
            assert len(assessment.calls) <= 4


PLANTED = "The safe is behind the painting."
Task = Callable[[list[Any]], Step]


def spans() -> list[Span]:
    """Build 400 steps: the tool of one failed, another one took longest, a third returned a megabyte."""
    rows = [Span("root", "run", kind="AGENT", started_at=1000.0, ended_at=2000.0, inputs="How long?")]
    outputs = {137: {"error": "ConnectionResetError: the till did not answer"}, 311: {"text": "x" * 10**6 + PLANTED}}
    for number in range(1, 400):
        began_at = 1000.0 + 2 * number
        times = (began_at, began_at + (77.0 if number == 222 else 1.0))
        fields = ("root", "TOOL", *times, "error" if number == 137 else "ok")
        rows.append(Span(f"span-{number:03d}", f"step {number}", *fields, outputs=outputs.get(number)))
    return rows


BIG = structs.replace(TRACE, spans=spans())


class Worker(Counting):
    """Does a task by what the tools have returned so far, each time parsed out of the last request's newest round."""

    def __init__(self, task: Task) -> None:
        super().__init__([self.step], SETTINGS)
        self.task = task
        self.seen: list[Any] = []

    def step(self, request: ChatRequest) -> Step:
        check_structure(request)
        if len(self.requests) > 1:
            self.seen.append(parsed(contents(request)[-1]))
        step = self.task(self.seen)
        calls = tuple(call._replace(id=f"c{len(self.seen)}") for call in step.tool_calls)
        return structs.replace(step, tool_calls=calls)


def parsed(result: str) -> Any:
    match = re.fullmatch(r"<<tool result ([0-9a-f]{12})>>\n(.*)\n<<end tool result \1>>", result, re.DOTALL)
    return json.loads(match[2]) if match else result


def ask(name: str, **arguments: object) -> Step:
    return calling(call(name, json.dumps(arguments)))


def answer(text: str) -> Step:
    return Step(yes_no_text("yes", text))


def find_the_error(seen: list[Any]) -> Step:
    if not seen:
        return ask("search_trace_regex", pattern=r"\w+error:", max_matches=5)
    if len(seen) == 1:
        return ask("get_span", span_id=seen[0]["matches"][0]["span_id"])
    content = json.loads(seen[1]["content"])
    return answer(f"{content['id']} failed: {content['outputs']['error']}")


def find_the_slowest(seen: list[Any]) -> Step:
    if not seen:
        return ask("get_span_performance_and_timing_report")
    return answer(f"{seen[0]['slowest'][1]['id']} took longest")


def page_through(seen: list[Any]) -> Step:
    if not seen:
        return ask("get_span", span_id="span-311")
    if seen[-1]["page_token"]:
        return ask("get_span", span_id="span-311", page_token=seen[-1]["page_token"])
    read_through = "".join(page["content"] for page in seen)
    return answer(f"{PLANTED in read_through} after {len(seen)} pages of {seen[0]['content_size_bytes']} bytes")


def reading() -> Judge:
    return replace(exploring(), exploration=Exploration(TraceToolbox))


class TestTasks:
    """A scripted model reads a trace of 400 spans with the real tools."""

    @each_case(
        ("task", "rationale", "rounds"),
        [
            (find_the_error, "span-137 failed: ConnectionResetError: the till did not answer", 2),
            (find_the_slowest, "span-222 took longest", 1),
            (page_through, r"True after 11 pages of 1000\d{3} bytes", 11),
        ],
    )
    def test_three_tasks_over_400_spans(self, task: Task, rationale: str, rounds: int) -> None:
        assessment = judged(reading(), Worker(task), BIG)
        assert re.fullmatch(rationale, assessment.rationale or "")
        assert (course(assessment)["rounds"], course(assessment)["tool_errors"]) == (rounds, 0)
        assert course(assessment)["ended_by"] == "answer"

    def test_a_megabyte_leaves_room_by_letting_the_oldest_pages_go(self) -> None:
        assessment = judged(reading(), Worker(page_through), BIG)
        dropped: Any = course(assessment)["exchanges_dropped"]
        assert dropped >= 7
        assert all(call.input_tokens <= SETTINGS.max_input_tokens for call in assessment.calls)
