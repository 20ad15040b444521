"""Judges that say yes or no, that grade, and that give three grades: parsing, scores, needs and heuristics."""

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from judge_traces import misread, outcome, table

from judges.catalog.relevance_truth_completeness import JUDGE, Grade
from judges.forms.graded import grade, read
from judges.parsing.answer import AnswerError
from judges.parsing.sentences import shape

GRADED = table("graded")


def test_the_shape_of_a_text_is_known() -> None:
    cases = {**GRADED["shapes"], "[" * 100_000: "plain text"}
    assert {text: shape(text) for text in cases} == cases


LINES = "score: 4\njustification: It is so."
one_line = st.text().map(lambda text: " ".join(text.split()))


def graded(score: int = 4, justification: str = "It is so.") -> Mapping[str, object]:
    return {"justification": justification, "score": score}


class TestReading:
    def test_each_answer_is_read_as_meant_or_refused(self) -> None:
        for kind in ("object", "lines", "object and lines"):
            assert misread(read, GRADED[kind]) == {}, kind

    @given(st.integers(), one_line)
    @settings(deadline=None)
    def test_two_lines_are_read_whatever_the_justification_says(self, score: int, said: str) -> None:
        assume(said.strip(" `*") == said != "" and "{" not in said)
        text = f"score: {score}\njustification: {said}"
        if 1 <= score <= 5:
            assert read(text) == graded(score, said)
        else:
            with pytest.raises(AnswerError):
                read(text)

    def test_errors_name_keys_and_forms_but_no_text(self) -> None:
        for text, error in GRADED["errors"].items():
            with pytest.raises(AnswerError) as caught:
                read(text)
            assert str(caught.value) == error

    def test_a_share_becomes_a_grade(self) -> None:
        cases = {0.0: 1, 0.19: 1, 0.2: 2, 0.4: 3, 0.6: 4, 0.79: 4, 0.8: 5, 1.0: 5}
        assert {share: grade(share) for share in cases} == cases

    def test_long_texts_without_an_answer_are_given_up_within_a_second(self) -> None:
        pairs = "score: 5\njustification: {\n" * 2_400 + "score: 1"
        for text in ("score: 5\nscore: 4\n" * 3_500, pairs, "justification " * 4_500, LINES * 9_000):
            began = time.thread_time()
            assert outcome(read, text) == "InvalidAnswerError"
            assert time.thread_time() - began < 1, text[:20]


THREE = table("three_grades")
LONG_FORM = JUDGE
SHORT_FORM = JUDGE.configured({"reasoning": False})
METRICS = ("relevance", "truth", "completeness")
READ = {
    "relevance": Grade(
        "relevance", 4, "It wanders off once.", ("relevance_reason_scope_too_large", "relevance_reason_other")
    ),
    "truth": Grade("truth", 2, "Most of it is false.", ("truth_reason_incorrect_information",)),
    "completeness": Grade("completeness", 1, "It says what a deadlock is.", ("completeness_reason_no_solution",)),
}
GOOD: Mapping[str, Any] = {
    f"{metric}{ending}": value
    for metric, grade in READ.items()
    for ending, value in (("", grade.rating), ("Reasoning", grade.reasoning), ("Reasons", [*grade.reasons]))
}


def long(**changes: object) -> str:
    """Write an answer of nine keys."""
    return json.dumps({**GOOD, **changes})


def expected_grades(changes: Mapping[str, Mapping[str, Any]]) -> tuple[Grade, ...]:
    """Return the grades of the good answer, some fields changed."""
    rows = {name: {**fields} for name, fields in changes.items()}
    for fields in rows.values():
        fields.update({"reasons": tuple(fields["reasons"])} if "reasons" in fields else {})
    return tuple(READ[metric]._replace(**rows.get(metric, {})) for metric in METRICS)


def nine_keys() -> Iterator[tuple[str, tuple[str, object]]]:
    """Write the answers of the table: a text, or changes of the good answer and under no name the keys that go."""
    for name, (answer, expected) in THREE["nine keys"].items():
        text = answer
        if isinstance(answer, dict):
            gone = answer.pop("", [])
            text = json.dumps({key: value for key, value in {**GOOD, **answer}.items() if key not in gone})
        yield name, (text, expected if isinstance(expected, str) else expected_grades(expected))


NINE_KEYS = dict(nine_keys())


class TestReadingOfThree:
    def test_of_nine_and_of_three_keys(self) -> None:
        assert misread(LONG_FORM.read, NINE_KEYS) == {}
        for name, (text, expected) in THREE["three keys"].items():
            grades = expected if isinstance(expected, str) else tuple(Grade(*grade[:2]) for grade in expected)
            assert outcome(SHORT_FORM.read, text) == grades, name
        assert [*SHORT_FORM.schema["properties"]] == [*METRICS]

    def test_says_what_is_wrong_without_words_of_the_answer(self) -> None:
        texts = [text for text, expected in NINE_KEYS.values() if isinstance(expected, str)]
        for text in (*texts, "secret " + long(truth="secret")):
            with pytest.raises(AnswerError) as caught:
                LONG_FORM.read(text)
            assert not any(word in str(caught.value) for word in ("deadlock", "wanders", "secret", "sorry")), text
