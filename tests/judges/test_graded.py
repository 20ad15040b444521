"""The graded form and its five judges: parsing of a model's text, score, material, prompts and heuristic."""

import asyncio
import json
import re
import time
from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from judge_traces import HOSTILE, LONG, SHORT, filled, served
from support.cases import each_case
from tables import misread, outcome, table

from judges.calling.evaluation import evaluate
from judges.catalog import answer_correctness, answer_relevance, answer_similarity, faithfulness, relevance
from judges.core.judge import AnsweredPrompt, Judge, Metric, Reading
from judges.core.model import ModelSettings
from judges.core.prompt import MATERIAL_RULES
from judges.core.verdict import Score
from judges.forms.graded import FORM, SCHEMA, GroundingSettings, Settings, grade, read
from judges.models.scripted import ScriptedModel
from judges.parsing.answer import AnswerError
from tracejudge import Trace

TABLES = table("graded")
GOOD = '{"justification": "It is so.", "score": 4}'
LINES = "score: 4\njustification: It is so."
MODULES = (answer_correctness, answer_relevance, answer_similarity, faithfulness, relevance)
JUDGES = {module.JUDGE.name: module.JUDGE for module in MODULES}
EXAMPLES = {module.JUDGE.name: module.EXAMPLES for module in MODULES}
EXAMPLE = re.compile(r"^Example: .+\n((?:\w+: .+\n)+)Your reply:\n(\{.+\})$", re.MULTILINE)
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
TRACES = [SHORT, LONG, *(trace for text in HOSTILE.values() for trace in filled(text))]
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

    def test_a_justification_that_quotes_hostile_text_is_no_verdict(self) -> None:
        for quoted in HOSTILE.values():
            for score in range(1, 6):
                assert read(json.dumps({"justification": quoted, "score": score}))["score"] == score, quoted

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

    def test_settings_are_described_where_they_are_defined(self) -> None:
        assert Settings() == Settings(pass_at=4)
        assert all(f"\n        {name}: " in (Settings.__doc__ or "") for name in Settings.__struct_fields__)

    def test_a_share_becomes_a_grade(self) -> None:
        cases = {0.0: 1, 0.19: 1, 0.2: 2, 0.4: 3, 0.6: 4, 0.79: 4, 0.8: 5, 1.0: 5}
        assert {share: grade(share) for share in cases} == cases

    def test_the_schema_asks_for_both_keys_reasons_first(self) -> None:
        score = {"type": "integer", "enum": [1, 2, 3, 4, 5]}
        properties = {"justification": {"type": "string"}, "score": score}
        expected = {"type": "object", "properties": properties, "required": [*properties]}
        assert {**expected, "additionalProperties": False} == SCHEMA
        assert list(SCHEMA["properties"]) == SCHEMA["required"]  # type: ignore[call-overload]


class TestDefinition:
    @each_judge
    def test_metric_needs_cuts_and_settings(self, judge: Judge) -> None:
        assert (judge.needs, judge.cuts) == NEEDS_AND_CUTS[judge.name]
        assert judge.metrics == (Metric(judge.name, "1..5", "4 or more", pass_at=0.75),)
        grounding = judge.name in {"faithfulness", "relevance"}
        assert judge.settings == (GroundingSettings(pass_at=4, score_cut=False) if grounding else Settings(pass_at=4))

    @each_judge
    def test_the_fixed_part_goes_from_the_task_over_grades_and_examples_to_the_form(self, judge: Judge) -> None:
        (fixed,) = judge.fixed_parts
        headings = re.findall(r"\n\n(What to decide|How to weigh|The grades|Examples|How to answer)\n", fixed)
        assert headings == ["What to decide", "How to weigh", "The grades", "Examples", "How to answer"]
        assert fixed.endswith(f"\n\n{MATERIAL_RULES}\n\n{FORM}")
        grades = re.findall(r"^- ([0-9]): (.{25,})$", fixed, re.MULTILINE)
        assert [number for number, _ in grades] == ["1", "2", "3", "4", "5"]
        assert len({words for _, words in grades}) == 5

    @each_judge
    def test_examples_hold_what_the_judge_is_shown_and_the_form_that_is_asked(self, judge: Judge) -> None:
        (fixed,) = judge.fixed_parts
        lines = [line for line in fixed.splitlines() if line.startswith('{"')]
        examples = EXAMPLE.findall(EXAMPLES[judge.name])
        assert lines == [reply for _, reply in examples]
        answers = [json.loads(line) for line in lines]
        assert [read(line) for line in lines] == answers
        assert all(list(answer) == judge.schema["required"] for answer in answers)
        assert len(lines) >= 2
        assert len({answer["score"] for answer in answers}) == len(answers)
        assert len(examples) == EXAMPLES[judge.name].count("Example: ")
        for material, _ in examples:
            assert [line.partition(":")[0].lower() for line in material.splitlines()] == names(judge)
        assert "<<" not in fixed.partition(MATERIAL_RULES)[0]


class TestMaterial:
    @each_judge
    def test_is_what_the_judge_needs_and_no_more(self, judge: Judge) -> None:
        (prompt,) = judge.prompts(SHORT)
        assert prompt.blocks == tuple((name, SHOWN[name]) for name in names(judge))

    @each_case("name", ["faithfulness", "relevance"])
    def test_lowest_documents_go_when_the_trace_is_too_long(self, name: str) -> None:
        trace = Trace(trace_id="1", service="s", input="Q?", output="A.", context=["first", "word " * 40_000, "last"])
        model = ScriptedModel([GOOD], ModelSettings(provider="scripted", max_input_tokens=8_000))
        assessment = asyncio.run(evaluate(JUDGES[name].configured({"score_cut": True}), trace, model))
        assert assessment.scores == (Score(name, 0.75, 4.0, passed=True),)
        assert assessment.details == {"left_out": {"context": 2}}


class TestHeuristic:
    @each_judge
    def test_answers_in_the_form_that_was_asked_whatever_the_trace_holds(self, judge: Judge) -> None:
        for trace in TRACES:
            (prompt,) = judge.prompts(served(judge, trace))
            answer = judge.heuristic(served(judge, trace), prompt)
            assert isinstance(answer, dict)
            assert list(answer) == judge.schema["required"]
            assert read(json.dumps(answer)) == answer

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
