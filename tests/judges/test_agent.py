"""A judge model reads a trace by tools: what it is told, how the loop ends, and what limits it."""

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from explorations import (
    SETTINGS,
    TRACE,
    Counting,
    call,
    calling,
    check_structure,
    contents,
    course,
    exploring,
    hanging,
    judged,
    run_with_tools,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from judge_traces import table, told, yes_no_text
from msgspec import convert, structs
from msgspec import json as msgspec_json
from support.cases import each_case
from support.tables import check_golden, expand

from judges.agent import conversation
from judges.agent.toolbox import TraceToolbox
from judges.calling.evaluation import Clock, evaluate
from judges.core.judge import Exploration, Judge, Limits
from judges.core.model import ChatRequest, ChatResponse, InputTooLongError, ModelSettings, Price, Tool
from judges.core.prompt import Block, Prompt, ToolCall
from judges.core.verdict import Assessment, Call
from judges.custom import define
from judges.models.scripted import ScriptedModel, Step
from judges.registry import catalogue
from tracejudge import Span

YES = yes_no_text("yes", "Let's think step by step. It is so.")
NO = yes_no_text("no", "Let's think step by step. It is not.")
BARE_YES = yes_no_text("yes")
MANY_ROUNDS = 40
COPIED = yes_no_text("yes", "Let's think step by step. Every step of the run is in order.\n" + "All is well. " * 6)
GOLDEN = Path(__file__).with_name("golden_explorations.txt")


def breaking(_: str) -> str:
    raise KeyError("the customer's name")


def within(max_input_tokens: int) -> ModelSettings:
    return structs.replace(SETTINGS, max_input_tokens=max_input_tokens)


class Full(Counting):
    """An endpoint whose context holds so many characters, and after the first answer so many."""

    def __init__(self, steps: list[Step | str], max_chars: int, later_chars: int) -> None:
        super().__init__(steps)
        self.max_chars, self.later_chars = max_chars, later_chars

    async def complete(self, request: ChatRequest) -> ChatResponse:
        if sum(len(message.content) for message in request.messages) > self.max_chars:
            raise InputTooLongError("too long")
        response = await super().complete(request)
        self.max_chars = self.later_chars
        return response


STEPS: dict[str, Step | str] = {"yes": YES, "no": NO, "copied": COPIED, "looks": calling()}
TOOLS: dict[str, Callable[[str], str]] = {"echo": str, "breaks": breaking}


def scene(row: dict[str, Any]) -> tuple[Judge, ScriptedModel]:
    """Make the judge and the model of a scene: tools give one text, or are named as a list; so are frequent steps."""
    tools: dict[str, Callable[..., str]] = {
        name: TOOLS[given[0]] if isinstance(given, list) else lambda _, given=given: given
        for name, given in row.get("tools", {}).items()
    }
    judge = exploring(Limits(**row.get("limits", {})), **tools)
    if "shows" in row:  # a part of the trace beside the tools
        prompt = Prompt("Read the trace.", (Block(*row["shows"]),))
        judge = replace(judge, prompts=lambda _: (prompt,))
    steps = [STEPS.get(step, step) if isinstance(step, str) else convert(step, Step) for step in row["steps"]]
    if "holds" in row:
        return judge, Full(steps, *row["holds"])
    return judge, ScriptedModel(steps, within(row["max_input_tokens"]) if "max_input_tokens" in row else None)


def test_scenes_are_those_of_the_golden_file() -> None:
    """Each scene as the model sees it: what each request adds, and the verdict; the golden file has them all."""
    written = []
    for name, row in table("explorations").items():
        judge, model = scene(json.loads(expand(json.dumps(row, ensure_ascii=False))))
        assessment = judged(judge, model)
        for request in model.requests:
            check_structure(request)
            assert request.tools == model.requests[0].tools, name
        written.append(f"## {name}\n{told(model.requests, assessment)}\n")
    check_golden(GOLDEN, "\n".join(written))
    assert Limits().max_rounds == 30


def test_a_tool_that_overruns_is_left_alone(patience_with_tools: pytest.MonkeyPatch) -> None:
    patience_with_tools.undo()
    with hanging() as hang:
        model = ScriptedModel([calling(), calling(call("hang"), call()), YES])
        assessment = run_with_tools(evaluate(exploring(hang=hang), TRACE, model))
    assert (assessment.outcome, course(assessment)["tool_errors"]) == ("scored", 2)
    assert contents(model.requests[2])[1:] == [
        "The tool did not end within 5 s. Ask for less, or in another way.",
        "Not carried out: the tools are still at work on a call that did not end. Answer with what you have read.",
    ]


class Waiting(Counting):
    """Reports when a request no longer waits, as a worker's models do; the last one is never answered."""

    def __init__(self, step: Step, answered: int = 2) -> None:
        super().__init__([step])
        self.answered = answered

    async def complete(self, request: ChatRequest) -> ChatResponse:
        assert request.begins is not None
        request.failed.append(Call(1.0, 1.0, "rate_limited"))
        request.begins()
        if len(self.requests) == self.answered:
            await asyncio.Event().wait()
        return await super().complete(request)


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


class TestTime:
    @staticmethod
    def judged(model: ScriptedModel, deadline_s: float) -> Assessment:
        async def run(hang: Callable[[str], str]) -> Assessment:
            time = asyncio.get_running_loop().time
            return await evaluate(exploring(hang=hang), TRACE, model, Clock(time, time), deadline_s)

        with hanging() as hang:
            return run_with_tools(run(hang))

    def test_the_deadline_covers_the_whole_loop_and_the_tools_and_keeps_the_calls_before(self) -> None:
        """If nothing was answered, nothing was paid for, and the endpoint may be back later."""
        tried = ["rate_limited", "ok"]
        for model, deadline_s, reason, statuses in (
            (Waiting(calling()), 100, "over_budget", [*tried, *tried, "rate_limited", "timeout"]),
            (Waiting(calling(call("hang"))), 3, "over_budget", tried),
            (Waiting(calling(), answered=0), 100, "timeout", ["rate_limited", "timeout"]),
        ):
            assessment = self.judged(model, deadline_s)
            assert (assessment.reason, assessment.is_final) == (reason, reason == "over_budget")
            assert [call.status for call in assessment.calls] == statuses
            assert f"{deadline_s} s" in (assessment.note or "")
            assert statuses[-1] == "ok" or assessment.calls[-1].duration_s > 80
            assert reason == "timeout" or course(assessment)["rounds"] == statuses.count("ok")

    def test_the_verdict_is_asked_for_while_there_is_time(self) -> None:
        for took_s, rounds in (([1_000.0], 8), ([1_000.0, 1_000.0, 6_000.0], 3)):
            assessment = self.judged(Slow(took_s), 20_000)
            assert (assessment.outcome, course(assessment)["ended_by"]) == ("scored", "max_time")
            assert course(assessment)["rounds"] == rounds
            assert sum(call.duration_s for call in assessment.calls) < 20_000


class TestTries:
    """What has been paid for is not paid for again and again."""

    @staticmethod
    def tried(earlier_calls: int, *steps: Step | str) -> Assessment:
        judge = exploring(Limits(max_rounds=5))
        return asyncio.run(evaluate(judge, TRACE, ScriptedModel(steps), earlier_calls=earlier_calls))

    @each_case("failure", ["rate_limited", "judge_unavailable", "timeout", "judge_rejected"])
    def test_an_exploration_is_over_budget_after_the_calls_of_all_tries(self, failure: str) -> None:
        steps = [calling(), calling(), Step(failure=failure)]  # type: ignore[arg-type]
        before, after = (self.tried(earlier_calls, *steps) for earlier_calls in (16, 17))
        assert (before.reason, before.is_final) == (failure, False)
        assert (after.reason, after.is_final, len(after.calls)) == ("over_budget", True, 3)
        assert (after.note or "").endswith(failure)

    def test_go_on_where_nothing_was_answered_and_end_as_they_did_otherwise(self) -> None:
        """An outage of hours costs nothing, and must not cost the evaluation either."""
        assessment = self.tried(1_000, Step(failure="rate_limited"))
        assert (assessment.reason, assessment.is_final) == ("rate_limited", False)
        assert self.tried(1_000, calling(), YES).outcome == "scored"
        assert self.tried(1_000, calling(), Step(failure="bad_request")).reason == "bad_request"


class TestVersion:
    """It changes with what the model is told of the tools, and by the loop."""

    TABLE = {"instructions": "Is all well in {{ trace }}?"}  # noqa: RUF012 - never changed

    def test_changes_with_a_tool(self) -> None:
        def with_tool(**changes: object) -> str:
            tool = structs.replace(Tool("read", "Reads.", {"type": "object"}), **changes)
            judge = exploring()
            assert judge.exploration is not None
            return replace(judge, exploration=structs.replace(judge.exploration, tools=(tool,))).version

        changed = [with_tool(name="look"), with_tool(description="Looks."), with_tool(parameters={})]
        assert len({with_tool(), *changed}) == 4

    def test_changes_with_what_the_loop_says(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before, other = define("mine", self.TABLE).version, replace(catalogue()["safety"]).version
        monkeypatch.setattr("judges.custom.instructions.TEXTS", (*conversation.TEXTS, "More."))
        assert define("mine", self.TABLE).version != before
        assert replace(catalogue()["safety"]).version == other

    def test_the_loop_says_nothing_else_and_the_tools_are_those_of_the_toolbox(self) -> None:
        public = {name: value for name, value in vars(conversation).items() if name.isupper() and name[0] != "_"}
        texts = {text for text in public.values() if isinstance(text, str)}
        assert {*conversation.TEXTS, conversation.TOOL_RESULTS} == texts
        exploration = define("mine", self.TABLE).exploration
        assert isinstance(exploration, Exploration)
        assert tuple(exploration.open(TRACE).tools) == exploration.tools


PRICE = Price(input=3.0, output=15.0)
NAMES = st.sampled_from(["read", "long", "longer", "breaking", "silent", "no such tool", ""])
CALLS = st.builds(ToolCall, st.sampled_from(["", "a", "b", "call00001"]), NAMES, st.text(max_size=10), st.none())
ANSWERS = st.sampled_from([BARE_YES, yes_no_text("perhaps"), "Well.", "", " \n", "<think>" + "so " * 400])
TEXTS = ANSWERS | st.text(max_size=100)
ROUNDS = st.builds(lambda calls, text: calling(*calls, text=text), st.lists(CALLS, min_size=1, max_size=18), TEXTS)
FAILURES = st.sampled_from(["input_too_long", "timeout", "content_filter"]).map(lambda each: Step(failure=each))
ENDS = st.builds(Step, TEXTS) | FAILURES | st.just(Step("", refusal=True))
TOO_LONG = st.builds(lambda: Step(failure="input_too_long"))
LIMITS = st.builds(Limits, st.integers(0, 6), st.integers(100, 60_000), st.none() | st.floats(0.0001, 0.2))


@settings(max_examples=40, deadline=None)
@given(
    steps=st.lists(st.one_of(ROUNDS, ROUNDS, ROUNDS, TOO_LONG, ENDS), min_size=1),
    limits=LIMITS,
    max_input_tokens=st.integers(50, 20_000),
    bytes_per_token=st.floats(2.0, 6.0),
)
def test_any_answers_end_in_order(
    steps: list[Step | str], limits: Limits, max_input_tokens: int, bytes_per_token: float
) -> None:
    """Whatever a model answers, an exploration keeps its limits, and sends messages that both APIs take."""
    tools = {"long": lambda _: "word " * 300, "longer": lambda _: "é" * 20_000, "silent": lambda _: ""}
    judge = exploring(limits, **tools, breaking=breaking)
    model = Counting(steps, structs.replace(SETTINGS, max_input_tokens=max_input_tokens, price=PRICE), bytes_per_token)
    assessment = judged(judge, model)
    msgspec_json.encode(assessment)
    for request in model.requests:
        check_structure(request)
    rounds = course(assessment)["rounds"]
    assert isinstance(rounds, int)
    assert rounds <= limits.max_rounds
    # A verdict and its repair, and for each exchange that was left out the request that was too long.
    assert len(model.requests) <= 2 * rounds + 4
    assert spent(assessment) <= limits.max_tokens
    assert limits.max_usd is None or spent_usd(assessment, PRICE) <= limits.max_usd
    assert len(assessment.calls) == len(model.requests)


class Reader(Counting):
    """Calls on as long as it may, then answers; the endpoint counts nothing, serves from a cache, or fails first."""

    def __init__(self, price: Price | None, kind: str = "", bytes_per_token: float = 4.0, last: str = BARE_YES) -> None:
        super().__init__([self.step], structs.replace(SETTINGS, price=price), bytes_per_token)
        self.last, self.kind = last, kind

    def step(self, request: ChatRequest) -> Step:
        return calling(call("page", call_id=f"c{len(self.requests)}")) if request.may_call else Step(self.last)

    async def complete(self, request: ChatRequest) -> ChatResponse:
        if self.kind == "fails first":
            # A model behind a gate tries again by itself, and what that took is paid for.
            request.failed.append(Call(1.0, 1.0, "truncated", 900, 100))
        response = await super().complete(request)
        if self.kind == "silent":
            return structs.replace(response, input_tokens=0, output_tokens=0)
        return structs.replace(response, cached_tokens=response.input_tokens if self.kind == "cached" else 0)


def spent(assessment: Assessment) -> int:
    return sum(call.input_tokens + call.output_tokens for call in assessment.calls)


def spent_usd(assessment: Assessment, price: Price) -> float:
    return sum(price.cost_usd(call.input_tokens, call.output_tokens) for call in assessment.calls)


def paging(chars: int, **limits: float) -> Judge:
    return exploring(Limits(**{"max_rounds": MANY_ROUNDS, **limits}), page=lambda _: "word " * (chars // 5))


def test_budgets_are_kept_and_the_verdict_is_there() -> None:
    """How each ended, how often was asked, and how much of the budget was used, in tenths."""
    lines = []
    for name, (limits, chars, *how) in json.loads(expand(json.dumps(table("budgets"), ensure_ascii=False))).items():
        price, *more = how or [None]
        price = Price(*price) if price else None
        assessment = judged(paging(chars, **limits), Reader(price, *more))
        used = {"max_tokens": spent(assessment), "max_usd": spent_usd(assessment, price or Price(0.0, 0.0))}
        shares = {limit: used[limit] / most for limit, most in limits.items() if price or limit == "max_tokens"}
        # What a cache serves costs less than is counted here, and one answer may be longer than the whole budget.
        assert max(shares.values()) <= 1 or "cached" in how or assessment.outcome == "unscored", name
        ends = course(assessment) if "exploration" in assessment.details else {}
        seen = [assessment.outcome, assessment.reason, assessment.note, ends.get("ended_by"), ends.get("max_usd")]
        tenths = {limit: int(share * 10) for limit, share in shares.items()}
        lines.append(f"{name}: {' '.join(map(str, filter(None, seen)))}; {len(assessment.calls)} calls, {tenths}\n")
    check_golden(GOLDEN.with_name("golden_budgets.txt"), "".join(lines))


def test_a_result_that_the_budget_does_not_hold_is_begun_and_may_be_asked_for_in_parts() -> None:
    model = Reader(None)
    assert judged(paging(300_000, max_tokens=30_000), model).outcome == "scored"
    (told,) = contents(model.requests[1])
    cut = r"Of the 300000 bytes of this result only the first (\d+) are shown, .* max_content_length of (\d+) .*"
    match = re.fullmatch(rf"<<(.*)>>\n(.*)\n<<end \1>>\n{cut}", told)
    assert match is not None
    shown = len(match[2])
    assert 10_000 < shown < 20_000
    assert (int(match[3]), int(match[4])) == (shown, (shown + 500) // 2)
    assert model.requests[1].may_call


def reading() -> Judge:
    return replace(exploring(), exploration=Exploration(TraceToolbox))


def test_calls_as_a_model_makes_them_first_get_on_in_a_small_context() -> None:
    """Tools give 100 kB unless asked for less; a context of 20,000 tokens holds less than that."""
    trace = structs.replace(TRACE, spans=[Span("a", "run", outputs={"text": "word " * 200_000})])

    def step(request: ChatRequest) -> Step:
        told = contents(request)
        if len(told) == 5:
            return Step(BARE_YES)
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


PLANTED = "The safe is behind the painting."


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


def read_through(seen: list[Any]) -> Step:
    """Look for an error, for the slowest step, and read the megabyte by pages, by what the tools returned so far."""

    def ask(name: str, **arguments: object) -> Step:
        return calling(call(name, json.dumps(arguments), f"c{len(seen)}"))

    match seen:
        case []:
            return ask("search_trace_regex", pattern=r"\w+error:", max_matches=5)
        case [search]:
            return ask("get_span", span_id=search["matches"][0]["span_id"])
        case [_, _]:
            return ask("get_span_performance_and_timing_report")
        case [_, _, _]:
            return ask("get_span", span_id="span-311")
    _, failed, report, *pages = seen
    if pages[-1]["page_token"]:
        return ask("get_span", span_id="span-311", page_token=pages[-1]["page_token"])
    content = json.loads(failed["content"])
    sentences = (
        f"{content['id']} failed: {content['outputs']['error']}",
        f"{report['slowest'][1]['id']} took longest",
        f"{PLANTED in ''.join(page['content'] for page in pages)} after {len(pages)} pages",
        f"{pages[0]['content_size_bytes']} bytes",
    )
    return Step(yes_no_text("yes", "; ".join(sentences)))


def test_a_trace_of_400_spans_is_read_with_the_real_tools_and_the_oldest_pages_go() -> None:
    seen: list[Any] = []

    def step(request: ChatRequest) -> Step:
        check_structure(request)
        if results := contents(request):
            match = re.fullmatch(
                r"<<tool result ([0-9a-f]{12})>>\n(.*)\n<<end tool result \1>>", results[-1], re.DOTALL
            )
            assert match, results[-1]
            seen.append(json.loads(match[2]))
        return read_through(seen)

    assessment = judged(reading(), Counting([step]), structs.replace(TRACE, spans=spans()))
    assert re.fullmatch(
        "span-137 failed: ConnectionResetError: the till did not answer; span-222 took longest; "
        r"True after 11 pages; 1000\d{3} bytes",
        assessment.rationale or "",
    )
    reached = course(assessment)
    assert (reached["rounds"], reached["tool_errors"], reached["ended_by"]) == (14, 0, "answer")
    assert int(str(reached["exchanges_dropped"])) >= 7
    assert all(call.input_tokens <= SETTINGS.max_input_tokens for call in assessment.calls)
