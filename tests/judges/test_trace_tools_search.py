"""Searching a trace: what is found and shown, that no pattern runs for long, and how a stopped search goes on."""

import gc
import json
import re
import time
from collections.abc import Iterable, Iterator
from itertools import count
from threading import Thread
from typing import Any

import pytest
from support.cases import each_case
from tables import table
from trace_spans import ask, long_trace, step, trace

from judges.agent import patterns
from judges.agent import spans as span_contents
from judges.agent.patterns import Clocks, Pieces, SearchBudget
from judges.agent.spans import Steps
from judges.agent.toolbox import TraceToolbox
from tracejudge import Trace

TABLES = table("trace_tools")
BOUND_S = 3.0
"""Of computing in this thread, which is no longer where others compute; a second is promised."""
WORDS = "error|exception|timeout|failed"


@pytest.fixture(scope="module")
def long_box() -> TraceToolbox:
    return TraceToolbox(long_trace())


def find(toolbox: TraceToolbox, pattern: str, **more: Any) -> dict[str, Any]:
    return ask(toolbox, "search_trace_regex", pattern=pattern, **more)


def search(text: object, pattern: str, **more: Any) -> dict[str, Any]:
    return find(TraceToolbox(trace(step("a", outputs=text))), pattern, **more)


def matches(text: object, pattern: str, **more: Any) -> list[str]:
    return [match["match"] for match in search(text, pattern, **more)["matches"]]


class TestMatches:
    def test_have_as_much_around_them_wherever_a_piece_begins(self) -> None:
        for place in (50_000, *range(17_500, 20_300, 97)):
            (match,) = search("x" * place + "needle", "needle", surrounding_content_length=1000)["matches"]
            assert match["before"] == "x" * 1000
        (match,) = search("日本語 here 日本語", "here", surrounding_content_length=8)["matches"]
        assert (match["before"], match["after"]) == ("本語 ", " 日本"), "whole characters"

    def test_are_those_of_one_look_through_all(self) -> None:
        """A piece that began within a quotation would take what stands between two for one."""
        text = "".join(f"'{'q' * (number % 90)}' {'-' * (number % 70)} " for number in range(900))
        reply = search(text, "'[^']*'", max_matches=200)
        found = reply["matches"]
        while reply["there_are_more"]:
            reply = search(text, "'[^']*'", page_token=reply["page_token"])
            found += reply["matches"]
        assert [match["match"] for match in found] == re.findall("'[^']*'", text)

    def test_are_found_behind_line_breaks_and_whatever_the_escapes(self) -> None:
        inner = {"text": "first\nSecond"}
        for said in ("first\nSecond", inner, json.dumps(inner), json.dumps({"text": json.dumps(inner)})):
            assert matches(said, r"\bSecond") == matches(said, r"(?m)^Second") == ["Second"], said
            assert matches(said, r"^Second") == [], said
        for said in ("Müller 😀", json.dumps("Müller 😀"), json.dumps({"a": json.dumps("Müller 😀")})):
            assert matches(said, "MÜLLER 😀") == ["Müller 😀"], "case does not count"
        assert matches(r"C:\new\table", r"C:\\new\\table") == [r"C:\new\table"]
        assert matches(r'{"a": "\ud800 needle"}', "needle") == ["needle"]

    def test_span_keys_and_values(self) -> None:
        for pattern in ('"status": "down"', r'"status":\s*"down"', "status.{1,6}down"):
            assert len(matches({"status": "down"}, pattern)) == 1, pattern
            assert len(matches(json.dumps({"status": "down"}), pattern)) == 1, pattern

    def test_are_given_once_in_order_and_pieces_of_a_long_text_leave_nothing_out(self) -> None:
        text = "".join(f"\n{number:06d} x" for number in range(20_000))
        reply = search({"a": json.dumps(text)}, r"\d{6}", max_matches=200)
        assert [match["match"] for match in reply["matches"]] == [f"{number:06d}" for number in range(200)]
        assert reply["there_are_more"] is True
        for number in range(0, 20_000, 997):
            assert matches(text, rf"\b{number:06d} x\s", max_matches=1) == [f"{number:06d} x\n"]

    def test_as_many_as_there_are_empty_ones_left_out_and_long_ones_cut(self) -> None:
        reply = search("n" * 200, "z|x|q", max_matches=3)
        assert reply == {"matches": [], "there_are_more": False, "page_token": None}
        assert len(search(" ".join(["zz"] * 199), "zz", max_matches=200)["matches"]) == 199
        for pattern in ("q*", r"\b", "^", "|zz"):
            assert matches("zz", pattern) in ([], ["zz"]), pattern
        (match,) = search("é" * 1000, "é+")["matches"]
        assert (match["match"], match["match_size_bytes"]) == ("é" * 500, 2000)


class TestBounds:
    @each_case("pattern", TABLES["slow patterns"])
    def test_no_pattern_runs_for_long(self, long_box: TraceToolbox, pattern: str) -> None:
        """Over 400 spans and one of 1 MB."""
        began = time.thread_time()
        answer = find(long_box, pattern)
        assert time.thread_time() - began < BOUND_S
        assert "matches" in answer or "took too long" in answer["error"]

    def test_one_that_is_exponential_elsewhere_searches_all(self) -> None:
        assert matches("a" * 5000 + "!" + "a" * 1_000_000 + "~", r"(a|a)*[~^]") == ["a" * 1000]

    def test_one_that_is_too_large_or_that_re2_does_not_know_is_refused_and_usual_ones_are_not(self) -> None:
        for pattern, message in TABLES["refused patterns"]:
            error = search("abc", pattern)["error"]
            assert message in error, pattern
            assert "Send a" in error, pattern
        for pattern in TABLES["usual patterns"]:
            assert "matches" in search("abc", pattern), pattern

    @each_case(
        "text", ["\n" * 1_000_000, "\\" * 1_000_000, '"\\n' * 300_000, "\\u0041" * 150_000, "[" * 900 + "]" * 900]
    )
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

    def test_are_found_in_large_json_in_json(self) -> None:
        answers = to_the_end(TraceToolbox(trace(step("a", outputs=rows_in_rows(3_000_000)))), WORDS)
        assert [answer for answer in answers if "error" in answer] == []
        assert places(answers) == [("a", "failed")]

    def test_are_found_by_many_searches_at_once(self) -> None:
        sample = trace(step("a", outputs="the quick brown fox " * 25_000 + "failed"))
        answers: list[list[dict[str, Any]]] = []
        threads = [Thread(target=lambda: answers.append(to_the_end(TraceToolbox(sample), WORDS))) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [places(reply) for reply in answers] == [[("a", "failed")]] * 16


class TestOutOfTime:
    GIVEN = trace(*(step(f"{number:03d}", outputs=f"needle {number}") for number in range(500)))

    def test_a_stopped_search_returns_its_matches_and_can_be_continued(self) -> None:
        for max_matches in (50, 7, 200):
            toolbox = TraceToolbox(self.GIVEN, ticking(0.003))
            answers = to_the_end(toolbox, r"needle \d+", max_matches=max_matches)
            assert places(answers) == [(f"{number:03d}", f"needle {number}") for number in range(500)]
            assert all(len(answer["matches"]) <= max_matches for answer in answers)
            assert answers[-1]["there_are_more"] is False

    def test_it_is_said_where_it_stopped(self) -> None:
        note = (
            "Time ran out in span `015`. All before it is searched. To search the rest, call again with the same "
            "pattern and this page_token."
        )
        expected = {"matches": [], "there_are_more": None, "page_token": "15-0-501", "stopped": True, "note": note}
        assert find(TraceToolbox(self.GIVEN, ticking(0.02)), "zzz") == expected

    def test_within_a_long_span_it_goes_on_at_a_piece(self) -> None:
        sample = trace(step("a", outputs="".join(f"\n{number:06d} x" for number in range(20_000))))
        answers = to_the_end(TraceToolbox(sample, ticking(0.05)), r"\d{3}000", max_matches=200)
        assert places(answers) == [("a", f"{number:06d}") for number in range(0, 20_000, 1000)]
        assert [answer["page_token"] for answer in answers if "stopped" in answer] == ["0-100000-2", "0-200000-2"]

    def test_a_machine_that_gives_no_time_is_no_fault_of_the_pattern(self) -> None:
        wall = count(step=100)
        answer = find(TraceToolbox(self.GIVEN, Clocks(cpu=lambda: 0.0, wall=lambda: next(wall))), "needle")
        assert (places([answer]), answer["stopped"], answer["page_token"]) == ([("000", "needle")], True, "1-0-501")

    def test_it_has_run_out_after_two_seconds_on_the_wall(self, patience_with_tools: pytest.MonkeyPatch) -> None:
        patience_with_tools.undo()
        now_s = 100.0
        budget = SearchBudget(Clocks(cpu=lambda: 0.0, wall=lambda: now_s))
        now_s += 1.999
        assert not budget.is_spent
        now_s += 0.002
        assert budget.is_spent

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
        TraceToolbox(trace(step("a", outputs="日本語\u200b" * 250_000))).call("get_root_span", "{}")
        assert max(lengths) <= 200_000
