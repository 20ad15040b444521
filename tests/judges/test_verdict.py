"""Verdicts: their ids, and their encoding in the outbox without loss."""

import re
from types import ModuleType
from typing import NamedTuple, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import each_case

from judges.core.verdict import (
    FINAL_REASONS,
    PASSING_REASONS,
    REASONS,
    Assessment,
    Call,
    Reason,
    Score,
    Verdict,
    evaluation_id,
)
from tracejudge import Trace

SCORE = Score("truth", 0.75, 4.0, "Good", passed=True, rationale="Almost all of it holds.")
CALL = Call(1.5, 0.25, "ok", 100, 20, "chatcmpl-1", "m-2", "stop")
FULL = Verdict(
    evaluation_id="0" * 32,
    origin="replay",
    outcome="scored",
    scores=(SCORE, Score("relevance", 0.0, "none")),
    metrics=("truth", "relevance"),
    rationale="„Ja“, 「はい」, \U0001f600, \x00, \u2028.",
    details={"left_out": {"context": 2}, "sentences": [["0a", 1.5, None, True]]},
    trace_id="1",
    span_id="2",
    response_id="3",
    session_id="4",
    user_id="5",
    service="shop",
    environment="prod",
    release="6",
    name="chat",
    model="m",
    judge="rtc",
    judge_version="7",
    judge_model="j",
    probability=0.05,
    weight=20.0,
    input_tokens=100,
    output_tokens=20,
    cost_usd=0.000072,
    attempts=2,
    calls=(CALL, Call(2.0, 60.0, "timeout")),
    trace_ended_at=1.0,
    started_at=1.25,
    duration_s=61.0,
)
SMALL = Verdict(
    evaluation_id="0" * 32,
    outcome="unscored",
    reason="missing_input",
    note="the trace has no input",
    metrics=("safety",),
    trace_id="1",
    service="shop",
    judge="safety",
    judge_version="7",
    judge_model="j",
    started_at=0.0,
    duration_s=0.0,
)


class Parts(NamedTuple):
    """What an evaluation is named after."""

    trace_id: str = "1"
    span_id: str | None = "2"
    publication: str = "3"
    judge: str = "4"
    version: str = "5"
    judge_model: str = "6"
    repeat: int = 0

    @property
    def evaluation_id(self) -> str:
        trace = Trace(trace_id=self.trace_id, service="s", output="", span_id=self.span_id)
        return evaluation_id(
            trace,
            self.publication,
            judge=self.judge,
            version=self.version,
            judge_model=self.judge_model,
            repeat=self.repeat,
        )


names = st.text(st.sampled_from("a1:;0"), max_size=4)
any_parts = st.builds(Parts, names, names, names, names, names, names, st.integers(0, 20))

CONFUSABLE = {
    "moved over a border": (Parts("ab", ""), Parts("a", "b")),
    "model and repeat": (Parts(judge_model="m1", repeat=0), Parts(judge_model="m", repeat=10)),
    "imitated border": (Parts(judge="j;1:v", version=""), Parts(judge="j", version="v")),
    "another imitated border": (Parts(publication="c;1:j", judge=""), Parts(publication="c", judge="j")),
    "swapped": (Parts("a", "b"), Parts("b", "a")),
}


class TestEvaluationId:
    def test_is_the_same_in_every_release(self) -> None:
        """Pinned: with another name, traces that were judged already would be judged again."""
        parts = Parts("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", "p-1", "safety", "v" * 32, "gpt-4.1-mini")
        assert parts.evaluation_id == "ebb9b28286814a10a46708581ef7852c"

    def test_does_not_depend_on_the_texts_of_the_trace(self) -> None:
        def named(text: str) -> str:
            trace = Trace(trace_id="1", service=text, output=text, input=text)
            return evaluation_id(trace, "p", judge="j", version="v", judge_model="m")

        assert named("a") == named("b")

    @each_case("part", Parts._fields)
    def test_differs_with_each_part(self, part: str) -> None:
        changed = Parts()._replace(**{part: 1 if part == "repeat" else "changed"})
        assert changed.evaluation_id != Parts().evaluation_id

    @each_case(("one", "other"), CONFUSABLE.values(), ids=CONFUSABLE)
    def test_borders_between_parts_count(self, one: Parts, other: Parts) -> None:
        assert one.evaluation_id != other.evaluation_id

    @given(any_parts, any_parts)
    @settings(deadline=None)
    def test_no_choice_of_texts_makes_two_evaluations_one(self, one: Parts, other: Parts) -> None:
        assert (one.evaluation_id == other.evaluation_id) == (one == other)

    def test_no_span_is_the_same_as_an_empty_one(self) -> None:
        assert Parts(span_id=None).evaluation_id == Parts(span_id="").evaluation_id

    @given(any_parts)
    @settings(deadline=None)
    def test_is_32_hex_digits(self, parts: Parts) -> None:
        assert re.fullmatch("[0-9a-f]{32}", parts.evaluation_id)


class TestReasons:
    def test_are_those_of_the_contract(self) -> None:
        final = {
            "missing_input", "input_too_long", "content_filter", "refusal", "truncated", "invalid_answer",
            "out_of_range", "incomplete", "over_budget", "bad_request", "judge_failed", "disagreement",
        }  # fmt: skip
        passing = {
            "timeout", "rate_limited", "judge_unavailable", "judge_rejected", "unknown_judge_version",
            "internal_error",
        }  # fmt: skip
        assert (final, passing) == (FINAL_REASONS, PASSING_REASONS)

    def test_each_is_final_or_passing(self) -> None:
        assert len(REASONS) == len(set(REASONS))
        assert (
            set(REASONS)
            == FINAL_REASONS | PASSING_REASONS
            == {name for part in get_args(Reason) for name in get_args(part)}
        )
        assert not FINAL_REASONS & PASSING_REASONS

    @each_case("reason", REASONS)
    def test_only_final_ones_end_an_evaluation(self, reason: Reason) -> None:
        assert Assessment("unscored", reason).is_final == (reason in FINAL_REASONS)

    @pytest.mark.parametrize("outcome", ["scored", "abstained"])
    def test_an_answer_ends_an_evaluation(self, outcome: str) -> None:
        assert Assessment(outcome).is_final


class TestEncoding:
    @each_case("verdict", [FULL, SMALL], ids=["full", "small"])
    @each_case("wire", [msgspec.json, msgspec.msgpack], ids=["json", "msgpack"])
    def test_a_verdict_comes_back_as_it_went(self, wire: ModuleType, verdict: Verdict) -> None:
        assert wire.decode(wire.encode(verdict), type=Verdict) == verdict

    def test_an_assessment_comes_back_as_it_went(self) -> None:
        assessment = Assessment(
            "unscored", "rate_limited", (SCORE,), "why", {"a": [1]}, (CALL,), note="wait", retry_after_s=2.5
        )
        assert msgspec.json.decode(msgspec.json.encode(assessment), type=Assessment) == assessment

    def test_absent_fields_are_not_written(self) -> None:
        assert msgspec.json.decode(msgspec.json.encode(SMALL)) == {
            "evaluation_id": "0" * 32,
            "outcome": "unscored",
            "reason": "missing_input",
            "note": "the trace has no input",
            "metrics": ["safety"],
            "trace_id": "1",
            "service": "shop",
            "judge": "safety",
            "judge_version": "7",
            "judge_model": "j",
            "started_at": 0.0,
            "duration_s": 0.0,
        }
        assert (
            msgspec.json.encode(Score("safety", 1.0, passed=False)) == b'{"metric":"safety","value":1.0,"passed":false}'
        )

    @given(
        st.builds(
            Score,
            st.text(),
            st.floats(0, 1),
            st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
            st.none() | st.text(),
            st.none() | st.booleans(),
            st.none() | st.text(),
        )
    )
    @settings(deadline=None)
    def test_any_score_comes_back_as_it_went(self, score: Score) -> None:
        assert msgspec.json.decode(msgspec.json.encode(score), type=Score) == score

    def test_a_field_of_a_later_version_is_passed_over(self) -> None:
        later = {**msgspec.to_builtins(SMALL), "colour": "blue"}
        assert msgspec.json.decode(msgspec.json.encode(later), type=Verdict) == SMALL

    @each_case("change", [{"outcome": "fine"}, {"reason": "tired"}, {"origin": "dream"}])
    def test_a_word_off_the_lists_is_refused(self, change: dict[str, str]) -> None:
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({**msgspec.to_builtins(SMALL), **change}, Verdict)


def test_an_explanation_holds_the_reasons_of_all_sentences_that_do_not_pass() -> None:
    sentences = [{"label": "unsupported", "rationale": "No."}, {"label": "supported"}, {"rationale": "Neither."}, 7]
    score, own = Score("grounded", 0.0), Score("relevance", 1.0, rationale="Own.")
    failing = msgspec.structs.replace(FULL, rationale="1 of 3. Sentence 1: No.", details={"sentences": sentences})
    assert failing.explanation(score) == "1 of 3. Sentence 1: No.\nSentence 3: Neither."
    assert failing.explanation(own) == "Own."
    support = [{"response_sentence_key": "b", "explanation": "Too much."}, {"sentence_key": "D1_S2", "explanation": ""}]
    keyed = msgspec.structs.replace(FULL, rationale=None, details={"sentence_support": support, "sentences": "none"})
    assert keyed.explanation(score) == "Sentence b: Too much."
    assert msgspec.structs.replace(FULL, rationale=None, details={}).explanation(score) is None
