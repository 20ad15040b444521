"""The graded form and its five judges: parsing of a model's text, score, material, prompts and heuristic."""

import time
from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from judge_traces import SHORT
from support.cases import each_case
from tables import misread, outcome, table

from judges.catalog import answer_correctness, answer_relevance, answer_similarity, faithfulness, relevance
from judges.core.judge import AnsweredPrompt, Judge, Metric, Reading
from judges.core.verdict import Score
from judges.forms.graded import grade, read
from judges.parsing.answer import AnswerError
from tracejudge import Trace

TABLES = table("graded")
LINES = "score: 4\njustification: It is so."
MODULES = (answer_correctness, answer_relevance, answer_similarity, faithfulness, relevance)
JUDGES = {module.JUDGE.name: module.JUDGE for module in MODULES}
NEEDS_AND_CUTS = {
    "answer_correctness": (("input", "output", "expected_response"), ("messages",)),
    "answer_relevance": (("input", "output"), ("messages",)),
    "answer_similarity": (("output", "expected_response"), ()),
    "faithfulness": (("output", "context"), ("context",)),
    "relevance": (("input", "output", "context"), ("messages", "context")),
}
SHOWN = {
    "question": "How long is the warranty?",
    "answer": "The warranty runs for two years.",
    "reference": "Two years.",
    "document": "All devices come with a warranty of two years.",
}
BLOCKS = dict(zip(("input", "output", "expected_response", "context"), SHOWN, strict=True))
"""The names of the parts of a request by the fields that a judge needs."""
one_line = st.text().map(lambda text: " ".join(text.split()))
each_judge = each_case("judge", JUDGES.values(), ids=JUDGES)


def graded(score: int = 4, justification: str = "It is so.") -> Mapping[str, object]:
    return {"justification": justification, "score": score}


def names(judge: Judge) -> list[str]:
    """Return the names of the parts of a request of a judge."""
    return [BLOCKS[need] for need in NEEDS_AND_CUTS[judge.name][0]]


class TestReading:
    def test_each_answer_is_read_as_meant_or_refused(self) -> None:
        for kind in ("object", "lines", "object and lines"):
            assert misread(read, TABLES[kind]) == {}, kind

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
        for text, error in TABLES["errors"].items():
            with pytest.raises(AnswerError) as caught:
                read(text)
            assert str(caught.value) == error

    def test_long_texts_without_an_answer_are_given_up_within_a_second(self) -> None:
        pairs = "score: 5\njustification: {\n" * 2_400 + "score: 1"
        for text in ("score: 5\nscore: 4\n" * 3_500, pairs, "justification " * 4_500, LINES * 9_000):
            began = time.thread_time()
            assert outcome(read, text) == "InvalidAnswerError"
            assert time.thread_time() - began < 1, text[:20]


class TestScoring:
    @each_judge
    def test_value_is_the_place_on_the_scale_and_the_pass_mark_can_be_set(self, judge: Judge) -> None:
        (prompt,) = judge.prompts(SHORT)
        for raw in range(1, 6):
            score = Score(judge.name, (raw - 1) / 4, float(raw), passed=raw >= 4)
            assert judge.score(SHORT, [AnsweredPrompt(prompt, graded(raw))]) == Reading((score,), "It is so.")
        for pass_at, rule in ((1, "1 or more"), (3, "3 or more"), (5, "5")):
            strict = judge.configured({"pass_at": pass_at})
            readings = {raw: strict.score(SHORT, [AnsweredPrompt(prompt, graded(raw))]) for raw in range(1, 6)}
            assert {raw for raw, each in readings.items() if each.scores[0].passed} == {*range(pass_at, 6)}
            assert strict.metrics == (Metric(judge.name, "1..5", rule, pass_at=(pass_at - 1) / 4),)
            assert strict.version != judge.version
            assert strict.configured({}).version == judge.version

    @each_judge
    def test_settings_out_of_bounds_are_refused(self, judge: Judge) -> None:
        for values in ({"pass_at": 0}, {"pass_at": 6}, {"pass_at": 3.5}, {"pass_at": "high"}, {"pass_mark": 4}):
            with pytest.raises(msgspec.ValidationError):
                judge.configured(values)

    def test_a_share_becomes_a_grade(self) -> None:
        cases = {0.0: 1, 0.19: 1, 0.2: 2, 0.4: 3, 0.6: 4, 0.79: 4, 0.8: 5, 1.0: 5}
        assert {share: grade(share) for share in cases} == cases


class TestHeuristic:
    @each_judge
    def test_compares_words_and_numbers_with_what_was_asked_expected_or_retrieved(self, judge: Judge) -> None:
        """Relevance takes the weaker of question and document; nothing counts that only the question says."""
        given = {"input": "Where is it?", "output": "It is here.", "expected_response": "Here.", "context": ["Here."]}
        wrong = {}
        for fields, expected in TABLES[f"guesses of {judge.name}"]:
            trace = Trace(trace_id="1", service="s", **{**given, **fields})
            (prompt,) = judge.prompts(trace)
            answer = judge.heuristic(trace, prompt)
            assert isinstance(answer, dict)
            if answer["score"] != expected:
                wrong[str(fields)] = answer["score"]
        assert wrong == {}
