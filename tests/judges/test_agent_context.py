"""A context that is full: the oldest exchange goes first, and what goes is counted."""

import re
from dataclasses import replace

import pytest
from explorations import SETTINGS, TRACE, Counting, call, calling, check_structure, contents, course, exploring, judged
from judge_traces import yes_no_text
from msgspec import structs

from judges.agent.conversation import Conversation, ExplorationStats, tool_result
from judges.agent.toolbox import TraceToolbox
from judges.core.exploration import Exploration, Limits
from judges.core.model import ChatRequest, ChatResponse, InputTooLongError
from judges.core.prompt import Message, ToolCall
from judges.models.scripted import ScriptedModel, Step
from tracejudge import Span

YES = yes_no_text("yes")
CUT = (
    r"Of the 100000 bytes of this result only the first (\d+) are shown, for no more fit\. Ask for the rest in parts:"
    r" by a max_content_length of (\d+) at most, by fewer results, or by a search\."
)
WITHHELD = (
    r"This result of 100000 bytes is longer than what is left of your context or of the budget, and was left out\. Ask"
    r" for less: by a max_content_length of (\d+) at most, by fewer results, or by a search\."
)
SMALL = structs.replace(SETTINGS, max_input_tokens=2_000)


class Full(Counting):
    """An endpoint whose context holds so many characters."""

    def __init__(self, steps: list[Step | str], max_chars: int) -> None:
        super().__init__(steps)
        self.max_chars = max_chars
        self.refused = 0

    async def complete(self, request: ChatRequest) -> ChatResponse:
        if sum(len(message.content) for message in request.messages) > self.max_chars:
            self.refused += 1
            raise InputTooLongError("too long")
        return await super().complete(request)


def numbered(count: int, *, chars: int = 1_500) -> list[Step | str]:
    return [*(calling(call("page", f"{n}" * chars, f"c{n}")) for n in range(count)), YES]


def pages(request: ChatRequest) -> list[str]:
    return [content.split("\n")[1][:1] for content in contents(request)]


class TestKnown:
    def test_the_oldest_exchange_goes_first(self) -> None:
        model = ScriptedModel(numbered(4), structs.replace(SETTINGS, max_input_tokens=3_000))
        assessment = judged(exploring(page=str), model)
        assert (assessment.outcome, course(assessment)["exchanges_dropped"]) == ("scored", 2)
        assert [pages(request) for request in model.requests] == [[], ["0"], ["0", "1"], ["1", "2"], ["2", "3"]]
        for request in model.requests:
            check_structure(request)

    def test_a_result_too_long_by_itself_is_withheld_and_told_of(self) -> None:
        steps = [calling(call(call_id="a"), call("long", call_id="b"), call(call_id="c")), YES]
        model = ScriptedModel(steps, SMALL)
        assessment = judged(exploring(long=lambda _: "x" * 100_000), model)
        assert assessment.outcome == "scored"
        first, second, third = contents(model.requests[1])
        assert first.count("\n") == third.count("\n") == 2
        match = re.fullmatch(rf"<<(.*)>>\n(x+)\n<<end \1>>\n{CUT}", second)
        assert match is not None
        assert int(match[3]) == len(match[2]) > 500
        assert int(match[4]) < 1_000
        assert course(assessment)["results_withheld"] == 1
        assert course(assessment)["exchanges_dropped"] == 0

    def test_one_of_which_not_even_the_beginning_fits_is_left_out(self) -> None:
        model = ScriptedModel(
            [calling(), calling(call("long")), YES], structs.replace(SETTINGS, max_input_tokens=1_000)
        )
        assessment = judged(exploring(long=lambda _: "x" * 100_000), model)
        assert assessment.outcome == "scored"
        match = re.fullmatch(WITHHELD, contents(model.requests[2])[1])
        assert match is not None
        assert 100 <= int(match[1]) < 500
        assert course(assessment)["results_withheld"] == 1

    def test_calls_as_a_model_makes_them_first_get_on_in_a_small_context(self) -> None:
        """Tools give 100 kB unless asked for less; a context of 20,000 tokens holds less than that."""
        trace = structs.replace(TRACE, spans=[Span("a", "run", outputs={"text": "word " * 200_000})])
        judge = replace(exploring(), exploration=Exploration(TraceToolbox))
        parts = range(5)

        def step(request: ChatRequest) -> Step:
            told = contents(request)
            if len(told) == len(parts):
                return Step(YES)
            size = re.search("max_content_length of ([0-9]+)", told[0]) if told else None
            arguments = '{"span_id": "a"}' if size is None else f'{{"span_id": "a", "max_content_length": {size[1]}}}'
            return calling(call("get_span", arguments, f"c{len(told)}"))

        model = Counting([step], structs.replace(SETTINGS, max_input_tokens=20_000))
        assessment = judged(judge, model, trace)
        first, *others = contents(model.requests[-1])
        assert (assessment.outcome, course(assessment)["results_withheld"]) == ("scored", 1)
        assert len(first) > 8_000
        assert all(re.fullmatch(r"<<.*\n.*\n<<end.*>>", other) and len(other) > 4_000 for other in others)
        assert course(assessment)["exchanges_dropped"] == 0

    def test_one_too_long_by_itself_takes_no_older_one_along(self) -> None:
        model = ScriptedModel([calling(), calling(call("long")), YES], SMALL)
        assessment = judged(exploring(long=lambda _: "x" * 100_000), model)
        assert [bool(re.search(CUT, told)) for told in contents(model.requests[2])] == [False, True]
        assert course(assessment)["exchanges_dropped"] == 0

    def test_an_answer_that_is_itself_too_long_is_forgotten(self) -> None:
        model = ScriptedModel([calling(text="word " * 3_000), calling(), YES], SMALL)
        assessment = judged(exploring(), model)
        assert (assessment.outcome, course(assessment)["exchanges_dropped"]) == ("scored", 1)
        assert [len(request.messages) for request in model.requests] == [2, 2, 4]

    @pytest.mark.parametrize(
        "long",
        [calling(call(call_id="b"), text="word " * 3_000), calling(call(arguments=f'["{"x" * 30_000}"]', call_id="b"))],
        ids=["words", "arguments"],
    )
    def test_it_takes_no_older_one_along(self, long: Step) -> None:
        model = ScriptedModel([calling(), long, YES], SMALL)
        assessment = judged(exploring(Limits(max_rounds=2)), model)
        assert (assessment.outcome, course(assessment)["exchanges_dropped"]) == ("scored", 1)
        assert [len(request.messages) for request in model.requests] == [2, 4, 4]

    def test_no_verdict_is_asked_for_when_nothing_read_is_left(self) -> None:
        model = ScriptedModel([calling(text="word " * 3_000)], SMALL)
        assessment = judged(exploring(Limits(max_rounds=1)), model)
        assert (assessment.reason, len(assessment.calls)) == ("input_too_long", 1)
        assert assessment.note == "nothing that the tools returned fits into the last request"

    def test_tools_that_fill_it_alone_are_too_long(self) -> None:
        model = ScriptedModel([YES], structs.replace(SETTINGS, max_input_tokens=80))
        assessment = judged(exploring(), model)
        assert (assessment.reason, model.requests) == ("input_too_long", [])


class TestSaidByTheEndpoint:
    def test_the_oldest_exchange_goes_and_the_request_is_sent_again(self) -> None:
        model = Full(numbered(4), 3_500)
        assessment = judged(exploring(page=str), model)
        assert (assessment.outcome, course(assessment)["exchanges_dropped"]) == ("scored", 2)
        assert pages(model.requests[-1]) == ["2", "3"]
        assert [call.status for call in assessment.calls].count("input_too_long") == model.refused

    def test_a_history_refused_as_too_long_is_not_sent_again(self) -> None:
        model = Full(numbered(10), 3_500)
        assert judged(exploring(page=str), model).outcome == "scored"
        assert model.refused == 1

    def test_the_newest_alone_is_withheld_at_last(self) -> None:
        model = Full([calling(call("long")), YES, YES], 1_000)
        assessment = judged(exploring(long=lambda _: "x" * 100_000), model)
        assert re.fullmatch(WITHHELD, contents(model.requests[-1])[0])
        assert (assessment.reason, assessment.note) == (
            "invalid_answer",
            "the model answers without reading anything of the trace",
        )

    @pytest.mark.parametrize("steps", [[YES], [calling(), YES]], ids=["at once", "after a round"])
    def test_when_nothing_is_left_to_leave_out_it_is_too_long(self, steps: list[Step | str]) -> None:
        class Shrinking(Full):
            async def complete(self, request: ChatRequest) -> ChatResponse:
                response = await super().complete(request)
                self.max_chars = 10
                return response

        model = Shrinking(steps, 10 if len(steps) == 1 else 5_000)
        assessment = judged(exploring(), model)
        assert (assessment.outcome, assessment.reason) == ("unscored", "input_too_long")
        assert len(assessment.calls) <= 4


class TestConversation:
    def test_the_size_of_a_history_is_that_of_its_messages(self) -> None:
        head, asked = (
            [Message("system", "s"), Message("user", "u")],
            Message("assistant", "", (ToolCall("1", "t", "{}"),)),
        )
        empty = Conversation(head, (), ExplorationStats()).size.total
        conversation = Conversation(head, (), ExplorationStats())
        for text in ("é" * 1_000, "long " * 1_000, ""):
            conversation.add(asked, [tool_result("1", text)])
        assert conversation.size.total > 7_000
        assert not conversation.shorten(lambda _: False)
        assert (conversation.size.total, list(conversation.messages)) == (empty, head)
