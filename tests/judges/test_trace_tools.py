"""The six tools over one trace: what each gives, spans as exporters leave them, wrong calls, and searches."""

import gc
import json
import re
import time
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judge_traces import table
from support.cases import each_case, in_parts
from support.tables import check_golden, expand

from judges.agent import patterns
from judges.agent import spans as span_contents
from judges.agent.patterns import (  # two ways to read escapes are compared
    _ESCAPE,
    Clocks,
    Pieces,
    SearchBudget,
    _meant,
    views,
)
from judges.agent.spans import Steps, as_json
from judges.agent.toolbox import TraceToolbox
from judges.core.prompt import neutralise
from tracejudge import Span, Trace

BEGAN_AT = 1_760_000_000.0
_LINE = "Bestellung 4711: zwei Lampen “hell”, 日本語で返事, ready to ship by noon.\n"


def step(span_id: str, parent_id: str | None = None, start: float | None = 0.0, took: float = 1.0, **more: Any) -> Span:
    """Make a span that begins so many seconds after the trace; without times where the start is None."""
    times = {} if start is None else {"started_at": BEGAN_AT + start, "ended_at": BEGAN_AT + start + took}
    return Span(**{"span_id": span_id, "name": f"step {span_id}", "parent_id": parent_id, **times, **more})


def trace(*spans: Span, **more: Any) -> Trace:
    """Make a trace of spans."""
    return Trace(**{"trace_id": "4b" * 16, "service": "shop", "output": "Done.", "spans": list(spans) or None, **more})


def ask(asked: TraceToolbox | Trace, name: str, /, **arguments: Any) -> dict[str, Any]:
    """Call a tool as a model does."""
    opened = TraceToolbox(asked) if isinstance(asked, Trace) else asked
    answer = json.loads(opened.call(name, json.dumps(arguments)))
    assert isinstance(answer, dict)
    return answer


def long_trace() -> Trace:
    """Make a trace of 400 spans, one of them of 400 kB."""
    outputs = [json.dumps({"found": number, "text": _LINE * 15}) for number in range(399)]
    outputs[333] = json.dumps({"text": _LINE * 5_000}, ensure_ascii=False)
    spans = [step(f"{number:03d}", "root", number * 0.12, outputs=text) for number, text in enumerate(outputs)]
    return trace(step("root", took=60.0), *spans, input="Where is it?")


TABLES = table("trace_tools")
REPORT = "get_span_performance_and_timing_report"
NAMES = ["get_trace_info", "get_root_span", "get_span", "list_spans", "search_trace_regex", REPORT]


@pytest.fixture(scope="module")
def long_box() -> TraceToolbox:
    return TraceToolbox(long_trace())


def pages(toolbox: TraceToolbox, name: str, **arguments: Any) -> Iterator[dict[str, Any]]:
    """Call a tool until it says that there is no more."""
    token = None
    while True:
        answer = ask(toolbox, name, **arguments, page_token=token)
        yield answer
        if (token := answer["page_token"]) is None:
            return


def content(asked: TraceToolbox | Trace, name: str = "get_root_span", /, **arguments: Any) -> dict[str, Any]:
    opened = TraceToolbox(asked) if isinstance(asked, Trace) else asked
    decoded = json.loads("".join(page["content"] for page in pages(opened, name, **arguments)))
    assert isinstance(decoded, dict)
    return decoded


def test_replies_are_those_of_the_golden_file() -> None:
    """It has the tools, and their replies in each scene, to wrong calls, and to searches in any form of escapes."""
    tools = TraceToolbox(trace()).tools
    assert [tool.name for tool in tools] == NAMES
    written = [f"## {tool.name}\n  {tool.description}\n  {json.dumps(tool.parameters)}" for tool in tools]
    for name, (fields, calls) in TABLES["scenes"].items():
        whole = {"trace_id": "4b" * 16, "service": "shop", "output": "Done.", **fields}
        toolbox = TraceToolbox(msgspec.convert(whole, Trace))
        written += [
            f"## {name}",
            *(f"{tool} {more}\n  {json.dumps(ask(toolbox, tool, **more))}" for tool, more in calls),
        ]
    unreadable = ask(trace(Span(span_id="a", name=7)), "list_spans")  # type: ignore[arg-type]
    assert "cannot read this trace" in unreadable["error"]
    toolbox = TraceToolbox(trace(step("a")))
    slips = (("list_spans", text) for text in ("", " ", "{}", '{"max_results": null}', '{"max_results": "100"}'))
    for name, arguments in (*((row[0], row[1]) for row in TABLES["wrong calls"]), *slips):
        written.append(f"## {name} {arguments[:100]}\n  {toolbox.call(name, arguments)}")
    for row in TABLES["searches"]:
        text, calls = json.loads(expand(json.dumps(row, ensure_ascii=False)))
        for pattern, more in calls.items():
            reply = json.dumps(search(text, pattern, **more), ensure_ascii=False).encode("utf-8", "replace").decode()
            written.append(f"## {json.dumps(text)[:100]} searched for {json.dumps(pattern)[:100]}\n  {reply}")
    check_golden(Path(__file__).with_name("golden_tools.txt"), "\n".join(written) + "\n")


def test_expectations_feedback_and_users_are_shown_by_no_tool() -> None:
    toolbox = TraceToolbox(trace(step("a"), expected_response="SECRET", guidelines=["SECRET"], user_id="SECRET"))
    read = [toolbox.call(name, "{}") for name in NAMES] + [toolbox.call("get_span", '{"span_id": "trace"}')]
    assert "SECRET" not in "".join(read)


class TestSpan:
    def test_pages_are_as_large_as_is_asked_for(self, long_box: TraceToolbox) -> None:
        for size in (99_999, 200_000, None):
            read = pages(long_box, "get_span", span_id="333", max_content_length=size)
            lengths = [len(page["content"].encode()) for page in read]
            assert len(lengths) == -(-sum(lengths) // (size or 100_000)) > 1
            assert max(lengths) <= (size or 100_000)

    def test_a_page_token_of_another_content_is_refused(self) -> None:
        toolbox = TraceToolbox(trace(step("a", outputs="x" * 500, attributes={"y": "z" * 50})))
        token = ask(toolbox, "get_root_span", max_content_length=100)["page_token"]
        assert "content" in ask(toolbox, "get_root_span", page_token=token)
        for wrong in ({"attributes_to_fetch": [], "page_token": token}, {"page_token": "100"}, {"page_token": "-1-5"}):
            assert "page_token does not belong" in ask(toolbox, "get_root_span", **wrong)["error"]

    def test_only_values_that_json_cannot_hold_are_left_out(self) -> None:
        deep: list[Any] = []
        for _ in range(100_000):
            deep = [deep]
        read = content(trace(step("a", inputs=10**5000, outputs="out", attributes={"deep": deep, "x": 1})))
        assert (read["inputs"], read["outputs"]) == ("[cannot be shown as JSON]", "out")
        assert read["attributes"] == {"deep": "[cannot be shown as JSON]", "x": 1}
        while deep:  # taken apart by hand: freeing it at once would overflow the stack of some versions
            deep = deep.pop()


class TestList:
    def test_pages_are_never_too_large(self) -> None:
        spans = [step(str(number), attributes={f"{name}" * 60: 1 for name in range(60)}) for number in range(100)]
        read = list(pages(TraceToolbox(trace(*spans)), "list_spans"))
        assert all(len(json.dumps(page)) < 105_000 for page in read)
        assert len(read) > 1
        assert sum(len(page["spans"]) for page in read) == 100
        assert (len(read[0]["spans"][0]["attributes"]), read[0]["spans"][0]["attributes_left_out"]) == (30, 30)

    def test_every_step_is_found_by_its_own_id(self) -> None:
        spans = [step("a"), step("a"), step("a#2"), step("y\u200bz"), step("x" * 5000), step("trace"), step("")]
        toolbox = TraceToolbox(trace(*spans, input="q"))
        for row in ask(toolbox, "list_spans")["spans"]:
            assert content(toolbox, "get_span", span_id=row["id"])["id"] == row["id"]
        own = ask(toolbox, "get_trace_info")["id_of_trace_itself"]
        assert content(toolbox, "get_span", span_id=own)["inputs"] == {"input": "q"}


SMALL = settings(max_examples=40)
texts = st.text(st.characters() | st.sampled_from('aé日😀\u200b\r\n"\\\x1b'), max_size=30)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
few_ids = st.sampled_from(["", "a", "b", "a#2", "trace", "\ud800"])
times = st.none() | st.floats() | st.sampled_from([0.0, 1.0, 2.0])
kinds = st.none() | texts | st.sampled_from(["INTERNAL", '"TOOL"'])
any_attributes = st.none() | st.dictionaries(texts | st.just("input.value"), values, max_size=4)
any_spans = st.builds(
    Span, few_ids | texts, texts, st.none() | few_ids, kinds, times, times, kinds, values, values, any_attributes
)
traces = st.builds(
    Trace,
    **dict.fromkeys(("trace_id", "service", "output"), texts),
    **dict.fromkeys(("input", "error"), st.none() | texts),
    **dict.fromkeys(("started_at", "ended_at"), times),
    spans=st.none() | st.lists(any_spans, max_size=6),
)
KEYS = ["span_id", "attributes_to_fetch", "max_content_length", "page_token", "max_results", "pattern", "max_matches"]
tokens = st.sampled_from(["0-0", "1-2", "5-300", "a", "(a+)+$", "error|x", "\ud800"])
given_values = values | few_ids | tokens | st.integers(0, 300)
any_arguments = st.dictionaries(st.sampled_from(KEYS), given_values, max_size=3).map(json.dumps) | texts


class TestProperties:
    """Pages make the whole, places lead back, and nothing is ever raised."""

    @SMALL
    @given(traces, st.lists(st.tuples(st.sampled_from(NAMES) | texts, any_arguments), min_size=1, max_size=3))
    def test_a_call_gives_a_visible_json_object_whatever_is_called(
        self, of: Trace, calls: list[tuple[str, str]]
    ) -> None:
        toolbox = TraceToolbox(of)
        for name, text in calls:
            answer = toolbox.call(name, text)
            assert isinstance(json.loads(answer), dict)
            assert neutralise(answer) == answer
            answer.encode()
        for tool in toolbox.tools:
            required: Any = tool.parameters["required"]
            told = ask(toolbox, tool.name, **dict.fromkeys(required, "trace"))
            assert "cannot read this trace" not in str(told.get("error")), "every tool can read every trace"
        rows = [row for page in pages(toolbox, "list_spans", max_results=2) for row in page["spans"]]
        assert rows == ask(toolbox, "list_spans")["spans"]
        assert len({row["id"] for row in rows}) == max(1, len(of.spans or ()))
        assert any(row["is_root"] for row in rows)

    @SMALL
    @given(values, st.integers(100, 150), st.integers(1, 9))
    def test_pages_put_together_and_slices_of_a_long_text_are_the_content(
        self, outputs: object, size: int, slice_chars: int
    ) -> None:
        toolbox = TraceToolbox(trace(step("a", outputs=outputs)))
        whole = ask(toolbox, "get_root_span")
        pieces = [page["content"] for page in pages(toolbox, "get_root_span", max_content_length=size)]
        assert all(0 < len(piece.encode()) <= size for piece in pieces)
        assert "".join(pieces) == whole["content"]
        assert len(whole["content"].encode()) == whole["content_size_bytes"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(span_contents, "_AT_ONCE_CHARS", slice_chars)  # else only long texts are divided
            assert as_json(outputs) == neutralise(json.dumps(outputs, ensure_ascii=False))

    @SMALL
    @given(texts, texts)
    def test_reading_from_a_match_begins_with_it(self, before: str, behind: str) -> None:
        toolbox = TraceToolbox(trace(step("a", outputs=f"{before}needle{behind}")))
        match, *_ = ask(toolbox, "search_trace_regex", pattern="needle")["matches"]
        read = ask(toolbox, "get_root_span", page_token=match["page_token"])["content"]
        assert read.lower().startswith("needle")

    @SMALL
    @given(st.text(max_size=30), texts, st.text(st.sampled_from('\\\\\\u005c6enr"/\0\né'), max_size=40), st.booleans())
    def test_a_view_shows_what_was_written_and_where_it_stands(
        self,
        text: str,
        inner: str,
        escaped: str,
        ascii_only: bool,  # noqa: FBT001
    ) -> None:
        """A text within a text is seen as it was written first, and both ways to read escapes agree."""

        def written(part: str) -> str:
            return json.dumps(part, ensure_ascii=ascii_only)

        def readable(part: str) -> str:
            return part.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

        first = next(views(written(text)))
        assert first.text == f'"{text}"'
        starts = [len(written(text[:position])) - 1 for position in range(len(text) + 1)]
        assert [first.place(position + 1) for position in range(len(text) + 1)] == starts
        *_, whole = list(views(json.dumps(json.dumps(inner))))[:2]
        assert readable(inner) in readable(whole.text)
        assert next(views(escaped)).text == _ESCAPE.sub(_meant, escaped)


BOUND_S = 3.0
"""Of computing in this thread, which is no longer where others compute; a second is promised."""
WORDS = "error|exception|timeout|failed"


def find(toolbox: TraceToolbox, pattern: str, **more: Any) -> dict[str, Any]:
    return ask(toolbox, "search_trace_regex", pattern=pattern, **more)


def search(text: object, pattern: str, **more: Any) -> dict[str, Any]:
    return find(TraceToolbox(trace(step("a", outputs=text))), pattern, **more)


class TestMatches:
    def test_have_as_much_around_them_wherever_a_piece_begins(self) -> None:
        for place in (50_000, *range(17_500, 20_300, 193)):
            (match,) = search("x" * place + "needle", "needle", surrounding_content_length=1000)["matches"]
            assert match["before"] == "x" * 1000

    def test_are_those_of_one_look_through_all(self) -> None:
        """A piece that began within a quotation would take what stands between two for one."""
        text = "".join(f"'{'q' * (number % 90)}' {'-' * (number % 70)} " for number in range(900))
        reply = search(text, "'[^']*'", max_matches=200)
        found = reply["matches"]
        while reply["there_are_more"]:
            reply = search(text, "'[^']*'", page_token=reply["page_token"])
            found += reply["matches"]
        assert [match["match"] for match in found] == re.findall("'[^']*'", text)

    def test_are_given_once_in_order_and_pieces_of_a_long_text_leave_nothing_out(self) -> None:
        text = "".join(f"\n{number:06d} x" for number in range(20_000))
        reply = search({"a": json.dumps(text)}, r"\d{6}", max_matches=200)
        assert [match["match"] for match in reply["matches"]] == [f"{number:06d}" for number in range(200)]
        assert reply["there_are_more"] is True
        for number in range(0, 20_000, 1_999):
            (match, *_) = search(text, rf"\b{number:06d} x\s", max_matches=1)["matches"]
            assert match["match"] == f"{number:06d} x\n"


class TestBounds:
    @in_parts(4, rarely=(1, 2, 3))
    @each_case("pattern", TABLES["slow patterns"], share="share")
    def test_no_pattern_runs_for_long(self, long_box: TraceToolbox, pattern: str) -> None:
        """Over 400 spans, one of them large."""
        began = time.thread_time()
        answer = find(long_box, pattern)
        assert time.thread_time() - began < BOUND_S
        assert "matches" in answer or "took too long" in answer["error"]

    @each_case("text", ["\n" * 300_000, "\\" * 300_000, '"\\n' * 100_000, "\\u0041" * 50_000, "[" * 900 + "]" * 900])
    def test_no_text_keeps_a_search_for_long(self, text: str) -> None:
        toolbox = TraceToolbox(trace(step("a", outputs=text)))
        began = time.thread_time()
        find(toolbox, "zzz")
        assert time.thread_time() - began < BOUND_S


def ticking(tick_s: float) -> Clocks:
    """Return clocks: two readings of CPU time differ by this much, and the wall clock stands still."""
    looks = count()
    return Clocks(cpu=lambda: next(looks) * tick_s, wall=lambda: 0.0)


def to_the_end(toolbox: TraceToolbox, pattern: str, **more: Any) -> list[dict[str, Any]]:
    """Search as a model does that always goes on."""
    answers = [find(toolbox, pattern, **more)]
    while "error" not in answers[-1] and answers[-1]["page_token"]:
        answers.append(find(toolbox, pattern, page_token=answers[-1]["page_token"], **more))
    return answers


def places(answers: Iterable[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(match["span_id"], match["match"]) for answer in answers for match in answer["matches"]]


def rows_in_rows(size: int) -> str:
    """Return JSON within JSON, as tools return it."""
    row = {"name": "row", "text": 'said "hello"\nand left', "status": "ok"}
    return json.dumps({"rows": json.dumps([row] * (size // 95) + [row | {"text": "it\nfailed"}])})


class TestWords:
    @pytest.fixture(autouse=True)
    def _no_garbage(self) -> Iterator[None]:
        """Collecting that of earlier tests takes CPU of the thread that happens to do it, and words take little."""
        gc.disable()
        yield
        gc.enable()

    def test_are_found_in_large_json_in_json_by_many_searches_at_once(self) -> None:
        sample = trace(step("a", outputs=rows_in_rows(600_000)))
        answers: list[list[dict[str, Any]]] = []
        threads = [Thread(target=lambda: answers.append(to_the_end(TraceToolbox(sample), WORDS))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [places(reply) for reply in answers] == [[("a", "failed")]] * 4


class TestOutOfTime:
    GIVEN = trace(*(step(f"{number:03d}", outputs=f"needle {number}") for number in range(500)))

    def test_a_stopped_search_returns_its_matches_and_can_be_continued(self) -> None:
        for max_matches in (50, 7, 200):
            toolbox = TraceToolbox(self.GIVEN, ticking(0.003))
            answers = to_the_end(toolbox, r"needle \d+", max_matches=max_matches)
            assert places(answers) == [(f"{number:03d}", f"needle {number}") for number in range(500)]
            assert all(len(answer["matches"]) <= max_matches for answer in answers)
            assert answers[-1]["there_are_more"] is False
        answer = find(TraceToolbox(self.GIVEN, ticking(0.02)), "zzz")
        assert (answer["matches"], answer["there_are_more"]) == ([], None)
        assert (answer["page_token"], answer["stopped"], "`015`" in answer["note"]) == ("15-0-501", True, True)

    def test_within_a_long_span_it_goes_on_at_a_piece(self) -> None:
        sample = trace(step("a", outputs="".join(f"\n{number:06d} x" for number in range(20_000))))
        answers = to_the_end(TraceToolbox(sample, ticking(0.05)), r"\d{3}000", max_matches=200)
        assert places(answers) == [("a", f"{number:06d}") for number in range(0, 20_000, 1000)]
        assert [answer["page_token"] for answer in answers if "stopped" in answer] == ["0-100000-2", "0-200000-2"]

    def test_a_machine_that_gives_no_time_ends_a_search_after_two_seconds_and_is_no_fault_of_the_pattern(
        self, patience_with_tools: pytest.MonkeyPatch
    ) -> None:
        wall = count(step=100)
        answer = find(TraceToolbox(self.GIVEN, Clocks(cpu=lambda: 0.0, wall=lambda: next(wall))), "needle")
        assert (places([answer]), answer["stopped"], answer["page_token"]) == ([("000", "needle")], True, "1-0-501")
        patience_with_tools.undo()
        times = iter((100.0, 101.999, 102.001))
        budget = SearchBudget(Clocks(cpu=lambda: 0.0, wall=lambda: next(times)))
        assert [budget.is_spent, budget.is_spent] == [False, True]

    def test_more_than_was_wanted_can_be_asked_for_by_a_page_token_of_this_search(self) -> None:
        first = find(TraceToolbox(self.GIVEN), "needle", max_matches=2)
        assert (first["there_are_more"], "stopped" in first) == (True, False)
        second = find(TraceToolbox(self.GIVEN), "needle", max_matches=2, page_token=first["page_token"])
        assert places([first, second]) == [(f"{number:03d}", "needle") for number in range(4)]
        for token in ("0-0", "100-501", "0-0-500", "501-0-501", "a", "-1-0-501"):
            assert "none of a search" in find(TraceToolbox(self.GIVEN), "needle", page_token=token)["error"], token

    def test_slow_patterns_keep_the_matches_before_and_are_told_so(self) -> None:
        """Matches that cost 3 ms each: 140 of them in one text are too slow."""
        slow = step("slow", outputs="x" * 140)
        toolbox = TraceToolbox(trace(step("a", outputs="needle"), slow), ticking(0.003))
        answer = find(toolbox, "needle|x", max_matches=200)
        assert (places([answer]), answer["stopped"]) == ([("a", "needle")], True)
        assert "Send a simpler pattern" in answer["note"]
        toolbox = TraceToolbox(
            trace(*(step(str(number), outputs="all well") for number in range(50)), slow), ticking(0.003)
        )
        assert "took too long and was stopped" in find(toolbox, "x", max_matches=200)["error"]


class TestKept:
    @staticmethod
    def texts(kept: Pieces, of: Trace) -> list[str]:
        (only,) = Steps(of)
        return [view.text for offset in (0, 20_000, 40_000) for view in kept.read(only, offset).views]

    def test_texts_with_escapes_are_decoded_once_and_no_more_than_a_bound_is_kept(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sample = trace(step("a", outputs=rows_in_rows(50_000)))
        for bound, same in ((None, [True] * 9), (70_000, [True] * 3 + [False] * 6)):
            if bound is not None:
                monkeypatch.setattr(patterns, "_MAX_KEPT_BYTES", bound)  # the product's own is much larger
            kept = Pieces()
            first, again = self.texts(kept, sample), self.texts(kept, sample)
            assert first == again
            assert [each is other for each, other in zip(first, again, strict=True)] == same

    def test_other_threads_need_not_wait_until_a_long_text_is_written(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lengths: list[int] = []
        neutralise = span_contents.neutralise
        monkeypatch.setattr(span_contents, "neutralise", lambda text: lengths.append(len(text)) or neutralise(text))
        TraceToolbox(trace(step("a", outputs="日本語\u200b" * 100_000))).call("get_root_span", "{}")
        assert max(lengths) <= 200_000
