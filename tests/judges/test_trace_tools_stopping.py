"""Searches that end before all is searched: what they give, how they go on, and which patterns are slow."""

import gc
import json
from collections.abc import Iterable, Iterator
from itertools import count
from threading import Thread
from typing import Any

import pytest
from support.cases import each_case
from trace_spans import step, trace

from judges.agent import patterns
from judges.agent import spans as content
from judges.agent.patterns import Clocks, Pieces, SearchBudget
from judges.agent.spans import Contents, Steps
from judges.agent.toolbox import TraceToolbox
from tracejudge import Trace

WORDS = "error|exception|timeout|failed"


def ticking(tick_s: float) -> Clocks:
    """Return clocks: two readings of CPU time differ by this much, and the wall clock stands still."""
    looks = count()
    return Clocks(cpu=lambda: next(looks) * tick_s, wall=lambda: 0.0)


def ask(toolbox: TraceToolbox, pattern: str, **more: Any) -> dict[str, Any]:
    return dict(json.loads(toolbox.call("search_trace_regex", json.dumps({"pattern": pattern, **more}))))


def to_the_end(toolbox: TraceToolbox, pattern: str, **more: Any) -> list[dict[str, Any]]:
    """Search as a model does that always goes on."""
    answers = [ask(toolbox, pattern, **more)]
    while "error" not in answers[-1] and answers[-1]["page_token"]:
        answers.append(ask(toolbox, pattern, page_token=answers[-1]["page_token"], **more))
    return answers


def matches(answers: Iterable[dict[str, Any]]) -> list[tuple[str, str]]:
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
        toolbox = TraceToolbox(trace(step("a", outputs=rows_in_rows(3_000_000))))
        answers = to_the_end(toolbox, WORDS)
        assert [answer for answer in answers if "error" in answer] == []
        assert matches(answers) == [("a", "failed")]

    def test_are_found_by_many_searches_at_once(self) -> None:
        sample = trace(step("a", outputs="the quick brown fox " * 25_000 + "failed"))
        answers: list[list[dict[str, Any]]] = []
        threads = [Thread(target=lambda: answers.append(to_the_end(TraceToolbox(sample), WORDS))) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [matches(reply) for reply in answers] == [[("a", "failed")]] * 16


class TestOutOfTime:
    GIVEN = trace(*(step(f"{number:03d}", outputs=f"needle {number}") for number in range(500)))

    @each_case("max_matches", [50, 7, 200])
    def test_a_stopped_search_returns_its_matches_and_can_be_continued(self, max_matches: int) -> None:
        toolbox = TraceToolbox(self.GIVEN, ticking(0.003))
        answers = to_the_end(toolbox, r"needle \d+", max_matches=max_matches)
        assert matches(answers) == [(f"{number:03d}", f"needle {number}") for number in range(500)]
        assert all(len(answer["matches"]) <= max_matches for answer in answers)
        assert answers[-1]["there_are_more"] is False

    def test_it_is_said_where_it_stopped(self) -> None:
        answer = ask(TraceToolbox(self.GIVEN, ticking(0.02)), "zzz")
        assert answer == {
            "matches": [],
            "there_are_more": None,
            "page_token": "15-0-501",
            "stopped": True,
            "note": "Time ran out in span `015`. All before it is searched. To search the rest, call again with the "
            "same pattern and this page_token.",
        }

    def test_within_a_long_span_it_goes_on_at_a_piece(self) -> None:
        sample = trace(step("a", outputs="".join(f"\n{number:06d} x" for number in range(20_000))))
        answers = to_the_end(TraceToolbox(sample, ticking(0.05)), r"\d{3}000", max_matches=200)
        assert matches(answers) == [("a", f"{number:06d}") for number in range(0, 20_000, 1000)]
        assert [answer["page_token"] for answer in answers if "stopped" in answer] == ["0-100000-2", "0-200000-2"]

    def test_a_machine_that_gives_no_time_is_no_fault_of_the_pattern(self) -> None:
        wall = count(step=100)
        toolbox = TraceToolbox(self.GIVEN, Clocks(cpu=lambda: 0.0, wall=lambda: next(wall)))
        answer = ask(toolbox, "needle")
        assert (matches([answer]), answer["stopped"], answer["page_token"]) == ([("000", "needle")], True, "1-0-501")

    def test_it_has_run_out_after_two_seconds_on_the_wall(self, patience_with_tools: pytest.MonkeyPatch) -> None:
        patience_with_tools.undo()
        now_s = 100.0
        budget = SearchBudget(Clocks(cpu=lambda: 0.0, wall=lambda: now_s))
        now_s += 1.999
        assert not budget.is_spent
        now_s += 0.002
        assert budget.is_spent

    @each_case("token", ["0-0", "100-501", "0-0-500", "501-0-501", "a", "-1-0-501"])
    def test_a_page_token_that_is_none_of_this_search_is_refused(self, token: str) -> None:
        assert "none of a search" in ask(TraceToolbox(self.GIVEN), "needle", page_token=token)["error"]

    def test_more_than_was_wanted_can_be_asked_for(self) -> None:
        first = ask(TraceToolbox(self.GIVEN), "needle", max_matches=2)
        assert (first["there_are_more"], "stopped" in first) == (True, False)
        second = ask(TraceToolbox(self.GIVEN), "needle", max_matches=2, page_token=first["page_token"])
        assert matches([first, second]) == [(f"{number:03d}", "needle") for number in range(4)]


class TestSlowPatterns:
    """Matches that cost 3 ms each: 140 of them in one text are too slow."""

    SLOW = step("slow", outputs="x" * 140)

    def test_keep_the_matches_before(self) -> None:
        toolbox = TraceToolbox(trace(step("a", outputs="needle"), self.SLOW), ticking(0.003))
        answer = ask(toolbox, "needle|x", max_matches=200)
        assert (matches([answer]), answer["stopped"]) == ([("a", "needle")], True)
        assert "Send a simpler pattern" in answer["note"]

    def test_are_told_so_even_behind_much_that_was_searched(self) -> None:
        short = [step(str(number), outputs="all well") for number in range(50)]
        toolbox = TraceToolbox(trace(*short, self.SLOW), ticking(0.003))
        assert "took too long and was stopped" in ask(toolbox, "x", max_matches=200)["error"]


class TestKept:
    OUTPUTS = rows_in_rows(50_000)

    def texts(self, kept: Pieces, of: Trace) -> list[str]:
        (only,) = Steps(of)
        return [view.text for offset in (0, 20_000, 40_000) for view in kept.read(only, offset).views]

    def test_texts_with_escapes_are_decoded_once(self) -> None:
        sample, kept = trace(step("a", outputs=self.OUTPUTS)), Pieces(Contents())
        for first, again in zip(self.texts(kept, sample), self.texts(kept, sample), strict=True):
            assert first is again

    def test_no_more_than_a_bound_is_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(patterns, "_MAX_KEPT_BYTES", 70_000)
        sample, kept = trace(step("a", outputs=self.OUTPUTS)), Pieces(Contents())
        first, again = self.texts(kept, sample), self.texts(kept, sample)
        assert first == again
        assert [each is other for each, other in zip(first, again, strict=True)] == [True] * 3 + [False] * 6


def test_other_threads_need_not_wait_until_a_long_text_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    neutralise = content.neutralise
    monkeypatch.setattr(content, "neutralise", lambda text: lengths.append(len(text)) or neutralise(text))
    TraceToolbox(trace(step("a", outputs="日本語\u200b" * 250_000))).call("get_root_span", "{}")
    assert max(lengths) <= 200_000
