"""Verdicts: their ids, and their encoding in the outbox without loss."""

import re
from typing import NamedTuple, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import table

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

TABLES = table("verdict")
SCORE = Score("truth", 0.75, 4.0, "Good", passed=True, rationale="Almost all of it holds.")
CALL = Call(1.5, 0.25, "ok", 100, 20, "chatcmpl-1", "m-2", "stop")
FULL, SMALL = (msgspec.convert(TABLES[name], Verdict) for name in ("full", "small"))


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
        return evaluation_id(trace, self.publication, **dict(list(self._asdict().items())[3:]))


names = st.text(st.sampled_from("a1:;0"), max_size=4)
any_parts = st.builds(Parts, names, names, names, names, names, names, st.integers(0, 20))


class TestEvaluationId:
    def test_is_the_same_in_every_release(self) -> None:
        """Pinned: with another name, traces that were judged already would be judged again."""
        parts = Parts("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", "p-1", "safety", "v" * 32, "gpt-4.1-mini")
        assert parts.evaluation_id == "ebb9b28286814a10a46708581ef7852c"

    def test_does_not_depend_on_the_texts_of_the_trace(self) -> None:
        traces = [Trace(trace_id="1", service=text, output=text, input=text) for text in "ab"]
        one, other = (evaluation_id(trace, "p", judge="j", version="v", judge_model="m") for trace in traces)
        assert one == other
        assert Parts(span_id=None).evaluation_id == Parts(span_id="").evaluation_id

    def test_differs_with_each_part_and_by_the_borders_between_them(self) -> None:
        changed = [Parts()._replace(**{part: 1 if part == "repeat" else "changed"}) for part in Parts._fields]
        assert len({each.evaluation_id for each in (Parts(), *changed)}) == 8
        for one, other in (
            (Parts("ab", ""), Parts("a", "b")),
            (Parts(judge_model="m1", repeat=0), Parts(judge_model="m", repeat=10)),
            (Parts(judge="j;1:v", version=""), Parts(judge="j", version="v")),
            (Parts(publication="c;1:j", judge=""), Parts(publication="c", judge="j")),
            (Parts("a", "b"), Parts("b", "a")),
        ):
            assert one.evaluation_id != other.evaluation_id, (one, other)

    @given(any_parts, any_parts)
    @settings(deadline=None)
    def test_no_choice_of_texts_makes_two_evaluations_one(self, one: Parts, other: Parts) -> None:
        assert (one.evaluation_id == other.evaluation_id) == (one == other)
        assert re.fullmatch("[0-9a-f]{32}", one.evaluation_id)


class TestReasons:
    def test_are_those_of_the_contract_each_final_or_passing(self) -> None:
        assert (set(TABLES["final"]), set(TABLES["passing"])) == (FINAL_REASONS, PASSING_REASONS)
        assert len(REASONS) == len(set(REASONS))
        every = {name for part in get_args(Reason) for name in get_args(part)}
        assert set(REASONS) == FINAL_REASONS | PASSING_REASONS == every
        assert not FINAL_REASONS & PASSING_REASONS

    def test_only_final_ones_or_an_answer_end_an_evaluation(self) -> None:
        for reason in REASONS:
            assert Assessment("unscored", reason).is_final == (reason in FINAL_REASONS)
        assert Assessment("scored").is_final
        assert Assessment("abstained").is_final


class TestEncoding:
    def test_a_verdict_and_an_assessment_come_back_as_they_went(self) -> None:
        for verdict in (FULL, SMALL):
            for wire in (msgspec.json, msgspec.msgpack):
                assert wire.decode(wire.encode(verdict), type=Verdict) == verdict
        details = ("why", {"a": [1]}, (CALL,))
        assessment = Assessment("unscored", "rate_limited", (SCORE,), *details, note="wait", retry_after_s=2.5)
        assert msgspec.json.decode(msgspec.json.encode(assessment), type=Assessment) == assessment

    def test_absent_fields_are_not_written(self) -> None:
        assert msgspec.json.decode(msgspec.json.encode(SMALL)) == TABLES["small"]
        failed = msgspec.json.encode(Score("safety", 1.0, passed=False))
        assert failed == b'{"metric":"safety","value":1.0,"passed":false}'

    raw = st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
    text = st.none() | st.text()

    @given(st.builds(Score, st.text(), st.floats(0, 1), raw, text, st.none() | st.booleans(), text))
    @settings(deadline=None)
    def test_any_score_comes_back_as_it_went(self, score: Score) -> None:
        assert msgspec.json.decode(msgspec.json.encode(score), type=Score) == score

    def test_a_field_of_a_later_version_is_passed_over_and_a_word_off_the_lists_refused(self) -> None:
        later = {**msgspec.to_builtins(SMALL), "colour": "blue"}
        assert msgspec.json.decode(msgspec.json.encode(later), type=Verdict) == SMALL
        for change in ({"outcome": "fine"}, {"reason": "tired"}, {"origin": "dream"}):
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
