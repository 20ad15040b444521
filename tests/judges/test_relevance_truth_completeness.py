"""Relevance, truth and completeness: answers with nine or three keys, the prompt, and results in the pipeline."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest
from judge_traces import SHORT, all_samples
from tables import outcome, table

from judges.catalog.relevance_truth_completeness import JUDGE, Grade
from judges.core.judge import AnsweredPrompt, Judge, Metric, Reading
from judges.core.prompt import Block
from judges.core.verdict import Score
from judges.parsing.answer import AnswerError
from tracejudge import Message, Trace

TABLES = table("three_grades")
LONG_FORM = JUDGE
SHORT_FORM = JUDGE.configured({"reasoning": False})
METRICS = ("relevance", "truth", "completeness")
PERFECT = {
    "relevance": "The whole answer is about the request.",
    "truth": "Every checkable statement holds.",
    "completeness": "Nothing the request needs is missing.",
}
CODES = {name: [f"{name}_reason_{code}" for code in codes] for name, codes in TABLES["codes"].items()}
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
    for name, (answer, expected) in TABLES["nine keys"].items():
        text = answer
        if isinstance(answer, dict):
            gone = answer.pop("", [])
            text = json.dumps({key: value for key, value in {**GOOD, **answer}.items() if key not in gone})
        yield name, (text, expected if isinstance(expected, str) else expected_grades(expected))


NINE_KEYS = dict(nine_keys())


def scored(judge: Judge, text: str) -> Reading:
    return judge.score(SHORT, [AnsweredPrompt(judge.prompts(SHORT)[0], judge.read(text))])


class TestReading:
    def test_of_nine_keys(self) -> None:
        found = {name: outcome(LONG_FORM.read, text) for name, (text, _) in NINE_KEYS.items()}
        assert found == {name: expected for name, (_, expected) in NINE_KEYS.items()}

    def test_of_three_keys(self) -> None:
        for name, (text, expected) in TABLES["three keys"].items():
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


class TestScoring:
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

    def test_of_a_five_gives_the_readers_sentence_and_no_codes(self) -> None:
        reading = scored(LONG_FORM, long(**dict.fromkeys(METRICS, 5)))
        assert {score.metric: score.rationale for score in reading.scores} == PERFECT
        assert reading.details == {}

    def test_leaves_out_metrics_without_codes_and_counts_the_unknown_ones_of_all(self) -> None:
        reading = scored(LONG_FORM, long(relevanceReasons=["dull"], truthReasons=[], completenessReasons=["a", "b"]))
        assert reading.details == {"unknown_reasons": 3}
        reading = scored(LONG_FORM, long(relevanceReasons=["dull"], completenessReasons=[]))
        assert reading.details == {"reasons": {"truth": ["truth_reason_incorrect_information"]}, "unknown_reasons": 1}

    def test_of_an_empty_reasoning_has_none(self) -> None:
        reading = scored(LONG_FORM, long(truthReasoning=" "))
        assert reading.scores[1].rationale is None
        assert reading.rationale == "relevance: It wanders off once.\ncompleteness: It says what a deadlock is."


class TestDefinition:
    def test_of_both_forms_gives_the_same_metrics_for_the_same_input_in_two_versions(self) -> None:
        for judge in (LONG_FORM, SHORT_FORM):
            assert (judge.name, judge.needs, judge.cuts) == (
                *("relevance_truth_completeness", ("input", "output")),
                ("messages",),
            )
            assert judge.metrics == tuple(Metric(metric, "1..5", "4 or more", pass_at=0.75) for metric in METRICS)
        assert LONG_FORM.version != SHORT_FORM.version
        assert LONG_FORM.configured({"reasoning": True}).version == LONG_FORM.version
        assert SHORT_FORM.configured({}).version == LONG_FORM.version
        for values in ({"reasoning": "perhaps"}, {"pass_at": 3}):
            with pytest.raises(msgspec.ValidationError):
                JUDGE.configured(values)

    def test_schemas(self) -> None:
        grade = {"type": "integer", "enum": [1, 2, 3, 4, 5]}
        nine: dict[str, object] = {}
        for metric, codes in CODES.items():
            nine |= {metric: grade, f"{metric}Reasoning": {"type": "string"}}
            nine[f"{metric}Reasons"] = {"type": "array", "items": {"type": "string", "enum": codes}}
        for judge, properties in ((LONG_FORM, nine), (SHORT_FORM, dict.fromkeys(METRICS, grade))):
            schema = {"type": "object", "properties": properties, "required": list(properties)}
            assert judge.schema == {**schema, "additionalProperties": False}
        assert list(LONG_FORM.schema["properties"]) == list(GOOD)


class TestMaterial:
    def test_without_history_says_so_and_with_one_cannot_say_that_there_is_none(self) -> None:
        for messages in (None, [], [Message("tool", "42"), Message("user", "\n")]):
            (prompt,) = JUDGE.prompts(msgspec.structs.replace(SHORT, messages=messages))
            assert prompt.blocks[0] == Block("history", "No earlier messages.")
            assert "`No earlier messages.`" in prompt.fixed
        messages = [Message("", "No earlier messages.", name=" ")]
        (prompt,) = JUDGE.prompts(msgspec.structs.replace(SHORT, messages=messages))
        assert prompt.blocks[0] == Block("history", "[] No earlier messages.")


def guessed(trace: Trace) -> dict[str, object]:
    return dict(LONG_FORM.heuristic(trace, LONG_FORM.prompts(trace)[0]))


class TestHeuristic:
    def test_grades_by_common_words(self) -> None:
        for name, (fields, expected) in TABLES["guesses"].items():
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
        assert guessed(trace) == TABLES["guess in words"]

    def test_is_never_sure_of_the_truth(self) -> None:
        assert {guessed(trace)["truth"] for trace in all_samples()} <= {2, 3, 4}
