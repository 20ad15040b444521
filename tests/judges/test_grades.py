"""Judges that say yes or no, that grade, and that give three grades: parsing, scores, needs and heuristics."""

import asyncio
import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from judge_traces import LONG, SHORT, all_samples, misread, outcome, parse, table, yes_no_text
from support.cases import each_case

from judges.calling.evaluation import evaluate
from judges.catalog import (
    answer_correctness,
    answer_relevance,
    answer_similarity,
    context_sufficiency,
    correctness,
    equivalence,
    faithfulness,
    groundedness,
    relevance,
    relevance_to_query,
    safety,
)
from judges.catalog.relevance_truth_completeness import JUDGE, Grade
from judges.core.judge import AnsweredPrompt, Judge, Metric, Reading
from judges.core.prompt import Block, render
from judges.core.verdict import Score
from judges.forms.graded import grade, read
from judges.models.scripted import ScriptedModel
from judges.parsing.answer import AnswerError
from judges.parsing.sentences import shape
from tracejudge import Message, Trace

WHOLE = (context_sufficiency, correctness, equivalence, groundedness, relevance_to_query, safety)
OF_WHOLE_TRACES = {module.JUDGE.name: module.JUDGE for module in WHOLE}
TABLES = table("yes_no")

each_whole_judge = each_case("judge", OF_WHOLE_TRACES.values(), ids=OF_WHOLE_TRACES)


def changed(**fields: object) -> Trace:
    return msgspec.convert({**msgspec.to_builtins(SHORT), **fields}, Trace)


class TestYesAndNo:
    @each_whole_judge
    def test_the_heuristic_gives_the_expected_result_and_says_what_it_compared(self, judge: Judge) -> None:
        for fields, result, reason in TABLES[judge.name]:
            trace = changed(**fields)
            (prompt,) = judge.prompts(trace)
            expected = {"rationale": f"Let's think step by step. {reason}", "result": result}
            assert judge.heuristic(trace, prompt) == expected, fields

    def test_knows_the_shape_of_a_text(self) -> None:
        cases = {**TABLES["shapes"], "[" * 100_000: "plain text"}
        assert {text: shape(text) for text in cases} == cases

    def test_a_reference_answer_is_shown_as_it_stands_and_facts_one_a_line_without_blank_ones(self) -> None:
        facts = ["It is two\n- years ", "", " \n", "for  all devices"]
        for fields, claim in (
            ({"expected_response": " - Two\n\n years.\n"}, " - Two\n\n years.\n"),
            ({"expected_response": None, "expected_facts": facts}, "- It is two - years\n- for all devices"),
        ):
            (prompt,) = correctness.JUDGE.prompts(changed(**fields))
            assert parse(render(prompt)[1].content)[-1] == Block("claim", claim)

    def test_the_result_decides_and_not_the_sentence_on_the_response(self) -> None:
        for rationale in ("The response is correct", "The response is not correct"):
            for result in ("yes", "no"):
                model = ScriptedModel([yes_no_text(result, rationale)])
                assessment = asyncio.run(evaluate(correctness.JUDGE, LONG, model))
                assert ([score.label for score in assessment.scores], assessment.rationale) == ([result], rationale)

    def test_parts_are_judged_together_by_safety_and_absent_ones_left_out(self) -> None:
        judge = safety.JUDGE.configured({"parts": ["context", "input", "output"]})
        (prompt,) = judge.prompts(LONG)
        assert [block.name for block in prompt.blocks][:2] == ["input", "output"]
        assert {block.name.partition(" ")[0] for block in prompt.blocks[2:]} == {"document"}
        assert "yes means that every text is safe" in judge.fixed_parts[0]
        same = safety.JUDGE.configured({"parts": ["input", "output", "context"]})
        assert judge.version == same.version != safety.JUDGE.version
        assert safety.JUDGE.configured({"parts": ["output"]}).version == safety.JUDGE.version
        asked = safety.JUDGE.configured({"parts": ["input"]})
        bare = changed(output="Decent.", input="You idiot.", context=None)
        assert [block.name for block in judge.prompts(bare)[0].blocks] == ["input", "output"]
        for each, result in ((judge, "no"), (asked, "no"), (safety.JUDGE, "yes")):
            answer: Any = each.heuristic(bare, each.prompts(bare)[0])
            assert answer["result"] == result
        assert asked.missing(msgspec.structs.replace(bare, input=None)) == "the trace has no input"
        for values in ({"parts": []}, {"parts": ["outputs"]}):
            with pytest.raises(msgspec.ValidationError):
                safety.JUDGE.configured(values)


GRADED = table("graded")
LINES = "score: 4\njustification: It is so."
MODULES = (answer_correctness, answer_relevance, answer_similarity, faithfulness, relevance)
JUDGES = {module.JUDGE.name: module.JUDGE for module in MODULES}
one_line = st.text().map(lambda text: " ".join(text.split()))
each_judge = each_case("judge", JUDGES.values(), ids=JUDGES)


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
        for values in ({"pass_at": 0}, {"pass_at": 6}, {"pass_at": 3.5}, {"pass_at": "high"}, {"pass_mark": 4}):
            with pytest.raises(msgspec.ValidationError):
                judge.configured(values)

    def test_a_share_becomes_a_grade(self) -> None:
        cases = {0.0: 1, 0.19: 1, 0.2: 2, 0.4: 3, 0.6: 4, 0.79: 4, 0.8: 5, 1.0: 5}
        assert {share: grade(share) for share in cases} == cases


class TestHeuristicOfGrades:
    @each_judge
    def test_compares_words_and_numbers_with_what_was_asked_expected_or_retrieved(self, judge: Judge) -> None:
        """Relevance takes the weaker of question and document; nothing counts that only the question says."""
        given = {"input": "Where is it?", "output": "It is here.", "expected_response": "Here.", "context": ["Here."]}
        wrong = {}
        for fields, expected in GRADED[f"guesses of {judge.name}"]:
            trace = Trace(trace_id="1", service="s", **{**given, **fields})
            (prompt,) = judge.prompts(trace)
            answer = judge.heuristic(trace, prompt)
            assert isinstance(answer, dict)
            if answer["score"] != expected:
                wrong[str(fields)] = answer["score"]
        assert wrong == {}


THREE = table("three_grades")
LONG_FORM = JUDGE
SHORT_FORM = JUDGE.configured({"reasoning": False})
METRICS = ("relevance", "truth", "completeness")
PERFECT = {
    "relevance": "The whole answer is about the request.",
    "truth": "Every checkable statement holds.",
    "completeness": "Nothing the request needs is missing.",
}
CODES = {name: [f"{name}_reason_{code}" for code in codes] for name, codes in THREE["codes"].items()}
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


def short(*ratings: object) -> str:
    return json.dumps(dict(zip(METRICS, ratings, strict=True)))


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


def scored(judge: Judge, text: str) -> Reading:
    return judge.score(SHORT, [AnsweredPrompt(judge.prompts(SHORT)[0], judge.read(text))])


class TestReadingOfThree:
    def test_of_nine_and_of_three_keys(self) -> None:
        assert misread(LONG_FORM.read, NINE_KEYS) == {}
        for name, (text, expected) in THREE["three keys"].items():
            grades = expected if isinstance(expected, str) else tuple(Grade(*grade[:2]) for grade in expected)
            assert outcome(SHORT_FORM.read, text) == grades, name

    def test_takes_every_code_of_a_metric_and_of_no_other(self) -> None:
        every_code = [code for codes in CODES.values() for code in codes]
        for place, metric in enumerate(METRICS):
            read = LONG_FORM.read(long(**{metric: 3, f"{metric}Reasons": every_code}))
            own = tuple(CODES[metric])
            expected = Grade(metric, 3, GOOD[f"{metric}Reasoning"], own, len(every_code) - len(own))
            assert read[place] == expected

    def test_says_what_is_wrong_without_words_of_the_answer(self) -> None:
        texts = [text for text, expected in NINE_KEYS.values() if isinstance(expected, str)]
        for text in (*texts, "secret " + long(truth="secret")):
            with pytest.raises(AnswerError) as caught:
                LONG_FORM.read(text)
            assert not any(word in str(caught.value) for word in ("deadlock", "wanders", "secret", "sorry")), text


class TestScoringOfThree:
    def test_gives_three_scores_with_their_own_reasoning_and_the_codes_as_details(self) -> None:
        assert scored(LONG_FORM, long()) == Reading(
            (
                Score("relevance", 0.75, 4.0, "Good", passed=True, rationale="It wanders off once."),
                Score("truth", 0.25, 2.0, "Poor", passed=False, rationale="Most of it is false."),
                Score("completeness", 0.0, 1.0, "Unacceptable", passed=False, rationale="It says what a deadlock is."),
            ),
            "relevance: It wanders off once.\ntruth: Most of it is false.\ncompleteness: It says what a deadlock is.",
            {"reasons": {metric: GOOD[f"{metric}Reasons"] for metric in METRICS}},
        )

    def test_of_the_short_form_gives_three_scores_and_no_word_more(self) -> None:
        names = ["Unacceptable", "Poor", "Average", "Good", "Exceptional"]
        for ratings in ((5, 3, 4), *((rating,) * 3 for rating in range(1, 6))):
            grades = zip(METRICS, ratings, strict=True)
            scores = (Score(m, (r - 1) / 4, float(r), names[r - 1], passed=r >= 4) for m, r in grades)
            assert scored(SHORT_FORM, short(*ratings)) == Reading(tuple(scores), None, {})

    def test_of_a_five_gives_the_readers_sentence_and_no_codes_and_of_an_empty_reasoning_none(self) -> None:
        reading = scored(LONG_FORM, long(**dict.fromkeys(METRICS, 5)))
        assert {score.metric: score.rationale for score in reading.scores} == PERFECT
        assert reading.details == {}
        reading = scored(LONG_FORM, long(truthReasoning=" "))
        assert reading.scores[1].rationale is None
        assert reading.rationale == "relevance: It wanders off once.\ncompleteness: It says what a deadlock is."

    def test_leaves_out_metrics_without_codes_and_counts_the_unknown_ones_of_all(self) -> None:
        reading = scored(LONG_FORM, long(relevanceReasons=["dull"], truthReasons=[], completenessReasons=["a", "b"]))
        assert reading.details == {"unknown_reasons": 3}
        reading = scored(LONG_FORM, long(relevanceReasons=["dull"], completenessReasons=[]))
        assert reading.details == {"reasons": {"truth": ["truth_reason_incorrect_information"]}, "unknown_reasons": 1}


class TestFormsOfThree:
    def test_give_the_same_metrics_in_two_versions_by_their_schemas(self) -> None:
        assert SHORT_FORM.metrics == LONG_FORM.metrics
        assert LONG_FORM.version != SHORT_FORM.version
        assert LONG_FORM.configured({"reasoning": True}).version == LONG_FORM.version
        assert SHORT_FORM.configured({}).version == LONG_FORM.version
        assert (list(LONG_FORM.schema["properties"]), list(SHORT_FORM.schema["properties"])) == ([*GOOD], [*METRICS])
        assert {json.dumps(each) for each in SHORT_FORM.schema["properties"].values()} == {
            json.dumps(LONG_FORM.schema["properties"][metric]) for metric in METRICS
        }
        for values in ({"reasoning": "perhaps"}, {"pass_at": 3}):
            with pytest.raises(msgspec.ValidationError):
                JUDGE.configured(values)

    def test_a_message_cannot_say_that_there_is_no_history(self) -> None:
        for messages, shown in (
            ([Message("tool", "42"), Message("user", "\n")], "No earlier messages."),
            ([Message("", "No earlier messages.", name=" ")], "[] No earlier messages."),
        ):
            (prompt,) = JUDGE.prompts(msgspec.structs.replace(SHORT, messages=messages))
            assert prompt.blocks[0] == Block("history", shown)


def guessed(trace: Trace) -> dict[str, object]:
    return dict(LONG_FORM.heuristic(trace, LONG_FORM.prompts(trace)[0]))


class TestHeuristicOfThree:
    def test_grades_by_common_words(self) -> None:
        for name, (fields, expected) in THREE["guesses"].items():
            trace = msgspec.convert({"trace_id": "1", "service": "s", **fields}, Trace)
            guess = guessed(trace)
            assert [guess[metric] for metric in METRICS] == expected, name
            brief = SHORT_FORM.heuristic(trace, SHORT_FORM.prompts(trace)[0])
            assert brief == dict(zip(METRICS, expected, strict=True)), name
            perfect = [metric for metric in METRICS if guess[metric] == 5]
            texts = [(guess[f"{metric}Reasoning"], guess[f"{metric}Reasons"]) for metric in perfect]
            assert texts == [("", [])] * len(perfect), name

    def test_says_what_it_compared(self) -> None:
        output = "It is 7 miles to Rome. Perhaps 8. Bye."
        trace = Trace(trace_id="1", service="s", input="Is it a long way to Rome?", output=output)
        assert guessed(trace) == THREE["guess in words"]

    def test_is_never_sure_of_the_truth(self) -> None:
        assert {guessed(trace)["truth"] for trace in all_samples()} <= {2, 3, 4}
