"""Searching: what is found, how it is shown, and that no pattern runs for long."""

import json
import re
import time
from typing import Any

import pytest
from support.cases import each_case
from trace_spans import long_trace, step, trace

from judges.agent.toolbox import TraceToolbox

BOUND_S = 3.0
"""Of computing in this thread, which is no longer where others compute; a second is promised."""


@pytest.fixture(scope="module")
def long_box() -> TraceToolbox:
    return TraceToolbox(long_trace())


def search(text: object, pattern: str, **more: Any) -> dict[str, Any]:
    toolbox = TraceToolbox(trace(step("a", outputs=text)))
    return dict(json.loads(toolbox.call("search_trace_regex", json.dumps({"pattern": pattern, **more}))))


def matches(text: object, pattern: str, **more: Any) -> list[str]:
    return [match["match"] for match in search(text, pattern, **more)["matches"]]


class TestMatches:
    def test_case_does_not_count(self) -> None:
        assert matches("A TIMEOUT.", "timeout") == ["TIMEOUT"]

    def test_have_as_much_before_them_wherever_a_piece_begins(self) -> None:
        reply = search("x" * 50_000 + "needle", "needle", surrounding_content_length=1000)["matches"]
        assert reply[0]["before"] == "x" * 1000
        for place in range(17_500, 20_300, 97):
            (match,) = search("x" * place + "needle", "needle", surrounding_content_length=1000)["matches"]
            assert match["before"] == "x" * 1000

    def test_are_those_of_one_look_through_all(self) -> None:
        """A piece that began within a quotation would take what stands between two for one."""
        text = "".join(f"'{'q' * (number % 90)}' {'-' * (number % 70)} " for number in range(900))
        reply = search(text, "'[^']*'", max_matches=200)
        while reply["there_are_more"]:
            reply |= (more := search(text, "'[^']*'", page_token=reply["page_token"])) | {
                "matches": reply["matches"] + more["matches"]
            }
        assert [match["match"] for match in reply["matches"]] == re.findall("'[^']*'", text)

    def test_have_so_many_bytes_around_them_in_whole_characters(self) -> None:
        (match,) = search("日本語 here 日本語", "here", surrounding_content_length=8)["matches"]
        assert (match["before"], match["after"]) == ("本語 ", " 日本")

    @each_case(
        "said",
        [
            "first\nSecond",
            {"text": "first\nSecond"},
            json.dumps({"text": "first\nSecond"}),
            json.dumps({"text": json.dumps({"text": "first\nSecond"})}),
        ],
        ids=["text", "JSON", "JSON in a text", "JSON in JSON in a text"],
    )
    def test_are_found_behind_a_line_break(self, said: object) -> None:
        assert matches(said, r"\bSecond") == ["Second"]
        assert matches(said, r"^Second") == []
        assert matches(said, r"(?m)^Second") == ["Second"]

    @each_case("said", ["Müller 😀", json.dumps("Müller 😀"), json.dumps({"a": json.dumps("Müller 😀")})])
    def test_are_found_whatever_the_escapes(self, said: str) -> None:
        assert matches(said, "MÜLLER 😀") == ["Müller 😀"]

    @each_case("pattern", ['"status": "down"', r'"status":\s*"down"', "status.{1,6}down"])
    def test_span_keys_and_values(self, pattern: str) -> None:
        assert len(matches({"status": "down"}, pattern)) == 1
        assert len(matches(json.dumps({"status": "down"}), pattern)) == 1

    def test_a_path_keeps_its_backslashes(self) -> None:
        assert matches(r"C:\new\table", r"C:\\new\\table") == [r"C:\new\table"]

    def test_each_is_given_once_in_order(self) -> None:
        text = "".join(f"\n{number:06d} x" for number in range(20_000))
        reply = search({"a": json.dumps(text)}, r"\d{6}", max_matches=200)
        assert [match["match"] for match in reply["matches"]] == [f"{number:06d}" for number in range(200)]
        assert reply["there_are_more"] is True

    @each_case("number", range(0, 20_000, 997))
    def test_the_pieces_of_a_long_text_leave_nothing_out(self, number: int) -> None:
        text = "".join(f"\n{each:06d} x" for each in range(20_000))
        assert matches(text, rf"\b{number:06d} x\s", max_matches=1) == [f"{number:06d} x\n"]

    def test_as_many_as_there_are(self) -> None:
        reply = search("n" * 200, "z|x|q", max_matches=3)
        assert reply == {"matches": [], "there_are_more": False, "page_token": None}
        text = " ".join(["zz"] * 199)
        assert len(search(text, "zz", max_matches=200)["matches"]) == 199

    @each_case("pattern", ["q*", r"\b", "^", "|zz"])
    def test_that_are_empty_are_left_out(self, pattern: str) -> None:
        assert matches("zz", pattern) in ([], ["zz"])

    def test_that_are_long_are_cut(self) -> None:
        (match,) = search("é" * 1000, "é+")["matches"]
        assert (match["match"], match["match_size_bytes"]) == ("é" * 500, 2000)


class TestBounds:
    @pytest.mark.parametrize(
        "pattern",
        [
            r"(a+)+$",
            r"(a|a)*[bc]$",
            r"(\w+\s?)*[~^]",
            r"(.*)*[~^]",
            r"(?:.*\n?)*[~^]",
            r"(?s).*.*.*.*[~^]",
            r"(?s)(?:[a-z].*zzz[~^])|[a-z]x",
            r"(?:\w|\s|.){1,1000}[~^]",
            r"(?:(?:.{1,30}){1,30})[~^]",
            r"(?s)(?:[a-z].{900}.{100}[~^])|[a-z]x",
            "(" * 20 + "a|b|\\w" + ")" * 20 + "*[~^]",
            r"(x?)*",
        ],
    )
    def test_no_pattern_runs_for_long(self, long_box: TraceToolbox, pattern: str) -> None:
        """Over 400 spans and one of 1 MB."""
        began = time.thread_time()
        answer = json.loads(long_box.call("search_trace_regex", json.dumps({"pattern": pattern})))
        assert time.thread_time() - began < BOUND_S
        assert "matches" in answer or "took too long" in answer["error"]

    def test_one_that_is_exponential_elsewhere_searches_all(self) -> None:
        assert matches("a" * 5000 + "!" + "a" * 1_000_000 + "~", r"(a|a)*[~^]") == ["a" * 1000]

    @each_case(
        ("pattern", "message"),
        [
            ("(?:a{1000}){1000}", "invalid repetition size: {1000}"),
            ("(?:(?:ab){80}c){80}", "invalid repetition size: {80}"),
            (r"\pL{0,200}", "pattern too large"),
            ("a" * 501, "longer than 500 characters"),
            ("a(?=b)", "invalid perl operator: (?="),
            ("(?<=a)b", "invalid perl operator: (?<"),
            (r"(a)\1", r"invalid escape sequence: \1"),
            (r"end\Z", r"invalid escape sequence: \Z"),
            ("(?R)?a(?R)?b", "invalid perl operator: (?R"),
            ("(?x)a b", "invalid perl operator: (?x"),
            ("\ud800", "a lone surrogate"),
        ],
    )
    def test_one_that_is_too_large_or_that_re2_does_not_know_is_refused(self, pattern: str, message: str) -> None:
        error = search("abc", pattern)["error"]
        assert message in error
        assert "Send a" in error

    def test_a_lone_surrogate_in_a_text_is_searched_over(self) -> None:
        assert matches(r'{"a": "\ud800 needle"}', "needle") == ["needle"]

    @each_case(
        "pattern",
        [
            r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
            r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}",
            r"(?:\d{1,3}\.){3}\d{1,3}",
            r"error.{0,500}timeout|timeout.{0,500}error",
            r"(?i)(?:exception|error|fail(?:ed|ure)?|timeout|refused|denied)\b",
            r"(?:[0-9a-f]{2}:){5}[0-9a-f]{2}",
        ],
    )
    def test_usual_search_patterns_are_accepted(self, pattern: str) -> None:
        assert "matches" in search("abc", pattern)

    @each_case(
        "text", ["\n" * 1_000_000, "\\" * 1_000_000, '"\\n' * 300_000, "\\u0041" * 150_000, "[" * 900 + "]" * 900]
    )
    def test_no_text_keeps_a_search_for_long(self, text: str) -> None:
        toolbox = TraceToolbox(trace(step("a", outputs=text)))
        began = time.thread_time()
        toolbox.call("search_trace_regex", '{"pattern": "zzz"}')
        assert time.thread_time() - began < BOUND_S
