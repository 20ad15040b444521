"""Relevance, truth and completeness: parsing and scoring of answers with nine or three keys."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judge_traces import SHORT
from support.cases import each_case

from judges.catalog.relevance_truth_completeness import JUDGE, Grade
from judges.core.judge import AnsweredPrompt, Judge, Metric, Reading
from judges.core.verdict import Score
from judges.parsing.answer import AnswerError, InvalidAnswerError, OutOfRangeError

LONG_FORM = JUDGE
SHORT_FORM = JUDGE.configured({"reasoning": False})
INVALID, OUT_OF_RANGE = InvalidAnswerError, OutOfRangeError
METRICS = ("relevance", "truth", "completeness")
PERFECT = {
    "relevance": "The whole answer is about the request.",
    "truth": "Every checkable statement holds.",
    "completeness": "Nothing the request needs is missing.",
}
CODES = {
    "relevance": ["distant_topic", "scope_too_small", "scope_too_large", "wrong_intent_served", "other"],
    "truth": ["incorrect_information", "outdated_information", "misleading_incorrectforintent", "other"],
    "completeness": [
        "no_solution",
        "lacks_information_about_solution",
        "genericsolution_missingcode",
        "generic_code",
        "failed_to_change_code",
        "incomplete_list",
        "incomplete_code",
        "lazy_unopinionated",
        "missing_warnings",
        "other",
    ],
}
GOOD: Mapping[str, Any] = {
    "relevance": 4,
    "relevanceReasoning": "It wanders off once.",
    "relevanceReasons": ["relevance_reason_scope_too_large", "relevance_reason_other"],
    "truth": 2,
    "truthReasoning": "Most of it is false.",
    "truthReasons": ["truth_reason_incorrect_information"],
    "completeness": 1,
    "completenessReasoning": "It says what a deadlock is.",
    "completenessReasons": ["completeness_reason_no_solution"],
}
READ = (
    Grade("relevance", 4, "It wanders off once.", ("relevance_reason_scope_too_large", "relevance_reason_other")),
    Grade("truth", 2, "Most of it is false.", ("truth_reason_incorrect_information",)),
    Grade("completeness", 1, "It says what a deadlock is.", ("completeness_reason_no_solution",)),
)


def long(**changes: object) -> str:
    """Write an answer of nine keys; a change to ``...`` leaves its key out."""
    return json.dumps({key: value for key, value in {**GOOD, **changes}.items() if value is not ...})


def nested() -> str:
    """Write what belongs to one grade into an object, under ends of keys or under whole keys."""
    endings = {"": "score", "Reasoning": "reasoning", "Reasons": "reasons"}
    ends = {name: {short: GOOD[f"{name}{end}"] for end, short in endings.items()} for name in METRICS[1:]}
    return json.dumps({METRICS[0]: {key: GOOD[key] for key in GOOD if key.startswith(METRICS[0])}, **ends})


def truth_is(**changes: object) -> tuple[Grade, ...]:
    """Return the grades of the good answer with another second grade."""
    return (READ[0], READ[1]._replace(**changes), READ[2])


LONG_ANSWERS: dict[str, tuple[str, tuple[Grade, ...] | type[AnswerError]]] = {
    # readable
    "plain": (long(), READ),
    "extra key": (long(confidence=0.5), READ),
    "other order": (json.dumps(dict(reversed(GOOD.items()))), READ),
    "fence and prose": (f"Here you are:\n```json\n{long()}\n```\nDone.", READ),
    "trailing comma in the object": (long()[:-1] + ",}", READ),
    "trailing comma in a list": (long().replace('incorrect_information"]', 'incorrect_information",]'), READ),
    "two verdicts that agree": (long(truth="2") + "\n" + long(), READ),
    "two verdicts that differ": (long(truth=4) + "\n" + long(), INVALID),
    "digits in a text": (long(truth=" 2. "), READ),
    "two point nought": (long(truth=2.0), READ),
    "empty reasoning": (long(truthReasoning=""), truth_is(reasoning="")),
    "blanks around a reasoning": (long(truthReasoning=" So.\n"), truth_is(reasoning="So.")),
    "long reasoning": (long(truthReasoning="word " * 300), truth_is(reasoning=("word " * 300).strip())),
    "half a surrogate pair": (long(truthReasoning="\ud800"), truth_is(reasoning="\ufffd")),
    # codes
    "no codes": (long(truthReasons=[]), truth_is(reasons=())),
    "code in another case, with blanks and a full stop": (
        long(truthReasons=[" Truth_Reason_INCORRECT_information . "]),
        READ,
    ),
    "code twice": (long(truthReasons=["truth_reason_incorrect_information"] * 2), READ),
    "codes in the order of the model": (
        long(truthReasons=["truth_reason_other", "truth_reason_incorrect_information"]),
        truth_is(reasons=("truth_reason_other", "truth_reason_incorrect_information")),
    ),
    "unknown code": (
        long(truthReasons=["truth_reason_boring", "truth_reason_other"]),
        truth_is(reasons=("truth_reason_other",), unknown_reasons=1),
    ),
    "unknown code twice": (long(truthReasons=["dull", "Dull"]), truth_is(reasons=(), unknown_reasons=1)),
    "two unknown codes": (long(truthReasons=["dull", ""]), truth_is(reasons=(), unknown_reasons=2)),
    "code without its beginning": (
        long(truthReasons=["incorrect_information"]),
        truth_is(reasons=(), unknown_reasons=1),
    ),
    "code of another metric": (
        long(truthReasons=["completeness_reason_other"]),
        truth_is(reasons=(), unknown_reasons=1),
    ),
    "code that the original forgets": (
        long(completenessReasons=["completeness_reason_lazy_unopinionated"]),
        (*READ[:2], READ[2]._replace(reasons=("completeness_reason_lazy_unopinionated",))),
    ),
    # five
    "five with a reasoning and codes": (
        long(truth=5, truthReasoning="Not bad.", truthReasons=["truth_reason_other", "dull"]),
        truth_is(rating=5, reasoning=PERFECT["truth"], reasons=()),
    ),
    "five throughout": (
        long(**dict.fromkeys(METRICS, 5)),
        tuple(Grade(metric, 5, PERFECT[metric]) for metric in METRICS),
    ),
    "five without codes": (long(truth=5, truthReasons=...), truth_is(rating=5, reasoning=PERFECT["truth"], reasons=())),
    "five with codes in one text": (
        long(truth=5, truthReasons="none"),
        truth_is(rating=5, reasoning=PERFECT["truth"], reasons=()),
    ),
    "five with null reasoning and codes": (
        long(truth="5", truthReasoning=None, truthReasons=None),
        truth_is(rating=5, reasoning=PERFECT["truth"], reasons=()),
    ),
    "five without reasoning and codes": (
        long(truth=5, truthReasoning=..., truthReasons=...),
        truth_is(rating=5, reasoning=PERFECT["truth"], reasons=()),
    ),
    "five with codes of another type is not read": (long(truth=5, truthReasons=[3]), INVALID),
    "four without codes is not read": (long(truth=4, truthReasons=...), INVALID),
    "four with null reasoning": (long(truth=4, truthReasoning=None), truth_is(rating=4, reasoning="")),
    "each grade an object with its reasons": (nested(), READ),
    "a grade with two values": (long(truth={"score": 2, "rating": 4}), INVALID),
    # wrong types and keys
    **{f"without {key}": (long(**{key: ...}), INVALID) for key in GOOD},
    **{f"null {key}": (long(**{key: None}), INVALID) for key in GOOD if not key.endswith("Reasoning")},
    "three keys": ('{"relevance": 4, "truth": 4, "completeness": 4}', INVALID),
    "other words in place of the codes": (long(truthReasons="truth_reason_other, see above"), INVALID),
    "a number among the codes": (long(truthReasons=["truth_reason_other", 3]), INVALID),
    "reasoning in a list": (long(truthReasoning=["Most of it is false."]), INVALID),
    "grade in a list": (long(truth=[2]), INVALID),
    "grade by name": (long(truth="Poor"), INVALID),
    "true": (long(truth=True), INVALID),
    "capital keys": (json.dumps({key.capitalize(): value for key, value in GOOD.items()}), READ),
    "list of grades": ("[4, 2, 1]", INVALID),
    "cut off in the last reasoning": (long()[: long().index("what a deadlock")], INVALID),
    "refusal": ("I'm sorry, but I can't help with that.", INVALID),
    "empty": ("", INVALID),
    # off the scale
    **{f"{metric} {value!r}": (long(**{metric: value}), OUT_OF_RANGE) for metric in METRICS for value in (0, 6, 4.5)},
    "minus one": (long(truth=-1), OUT_OF_RANGE),
    "six in a text": (long(truth="6"), OUT_OF_RANGE),
    "off the scale before a wrong type": (long(relevance=6, completeness=None), INVALID),
    "off the scale before a wrong list": (long(relevance=6, completenessReasons="other"), OUT_OF_RANGE),
    "off the scale without reasoning": (long(truth=6, truthReasoning=None, truthReasons=None), OUT_OF_RANGE),
}


def short(*ratings: object) -> str:
    return json.dumps(dict(zip(METRICS, ratings, strict=True)))


def grades(*ratings: int) -> tuple[Grade, ...]:
    return tuple(Grade(metric, rating) for metric, rating in zip(METRICS, ratings, strict=True))


SHORT_ANSWERS: dict[str, tuple[str, tuple[Grade, ...] | type[AnswerError]]] = {
    "plain": (short(4, 2, 1), grades(4, 2, 1)),
    "five": (short(5, 5, 5), grades(5, 5, 5)),
    "digits in texts": (short("4", " 2", "1."), grades(4, 2, 1)),
    "four point nought": (short(4.0, 2, 1), grades(4, 2, 1)),
    "nine keys": (long(), grades(4, 2, 1)),
    "trailing comma": ('{"relevance": 4, "truth": 2, "completeness": 1,}', grades(4, 2, 1)),
    "fence": (f"```\n{short(4, 2, 1)}\n```", grades(4, 2, 1)),
    "two keys": ('{"relevance": 4, "truth": 2}', INVALID),
    "null": (short(4, None, 1), INVALID),
    "false": (short(4, 2, 1).replace("2", "false"), INVALID),
    "cut off before the last grade": ('{"relevance": 4, "truth": 2, "completeness":', INVALID),
    "nought": (short(4, 0, 1), OUT_OF_RANGE),
    "six": (short(6, 2, 1), OUT_OF_RANGE),
    "a fraction": (short(4, 2, 1.5), OUT_OF_RANGE),
    "off the scale before a wrong type": (short(6, 2, None), INVALID),
}


def outcome(read: Callable[[str], object], text: str) -> object:
    try:
        return read(text)
    except AnswerError as error:
        return type(error)


class TestReading:
    @each_case(("text", "expected"), LONG_ANSWERS.values(), ids=LONG_ANSWERS)
    def test_of_nine_keys(self, text: str, expected: object) -> None:
        assert outcome(LONG_FORM.read, text) == expected

    @each_case(("text", "expected"), SHORT_ANSWERS.values(), ids=SHORT_ANSWERS)
    def test_of_three_keys(self, text: str, expected: object) -> None:
        assert outcome(SHORT_FORM.read, text) == expected

    @each_case("metric", METRICS)
    def test_takes_every_code_of_a_metric_and_of_no_other(self, metric: str) -> None:
        every_code = [f"{family}_reason_{ending}" for family, endings in CODES.items() for ending in endings]
        read = LONG_FORM.read(long(**{metric: 3, f"{metric}Reasons": every_code}))
        own = tuple(f"{metric}_reason_{ending}" for ending in CODES[metric])
        expected = Grade(metric, 3, GOOD[f"{metric}Reasoning"], own, len(every_code) - len(own))
        assert read[METRICS.index(metric)] == expected

    @pytest.mark.parametrize("judge", [LONG_FORM, SHORT_FORM], ids=["long", "short"])
    @given(
        st.text()
        | st.fixed_dictionaries(
            {
                key: st.integers(-1, 7) | st.floats() | st.text(max_size=5) | st.lists(st.text(max_size=5)) | st.none()
                for key in GOOD
            }
        ).map(json.dumps)
        | st.fixed_dictionaries(
            {
                **{key: st.just(value) for key, value in GOOD.items()},
                **{metric: st.sampled_from([1, 3, 5, 6, "4"]) for metric in METRICS},
                "truthReasons": st.lists(st.text(max_size=3) | st.just("truth_reason_other")),
            }
        ).map(json.dumps)
    )
    @settings(deadline=None)
    def test_of_any_text_ends_in_three_grades_on_the_scale_or_says_why_not(self, judge: Judge, text: str) -> None:
        try:
            read = judge.read(text)
        except AnswerError:
            return
        scores = judge.score(SHORT, [AnsweredPrompt(judge.prompts(SHORT)[0], read)]).scores
        assert [score.metric for score in scores] == list(METRICS)
        assert all(score.value in (0, 0.25, 0.5, 0.75, 1) for score in scores)
        assert msgspec.json.encode(scores)

    def test_says_what_is_wrong_without_words_of_the_answer(self) -> None:
        for text, expected in (*LONG_ANSWERS.values(), ("secret " + long(truth="secret"), INVALID)):
            if isinstance(expected, type):
                with pytest.raises(expected) as caught:
                    LONG_FORM.read(text)
                assert not any(word in str(caught.value) for word in ("deadlock", "wanders", "secret", "sorry"))


def scored(judge: Judge, text: str) -> Reading:
    return judge.score(SHORT, [AnsweredPrompt(judge.prompts(SHORT)[0], judge.read(text))])


class TestScoring:
    def test_gives_three_scores_with_their_own_reasoning_and_the_codes_as_details(self) -> None:
        assert scored(LONG_FORM, long()) == Reading(
            (
                Score("relevance", 0.75, 4.0, "Good", passed=True, rationale="It wanders off once."),
                Score("truth", 0.25, 2.0, "Poor", passed=False, rationale="Most of it is false."),
                Score("completeness", 0.0, 1.0, "Unacceptable", passed=False, rationale="It says what a deadlock is."),
            ),
            "relevance: It wanders off once.\ntruth: Most of it is false.\ncompleteness: It says what a deadlock is.",
            {
                "reasons": {
                    "relevance": ["relevance_reason_scope_too_large", "relevance_reason_other"],
                    "truth": ["truth_reason_incorrect_information"],
                    "completeness": ["completeness_reason_no_solution"],
                }
            },
        )

    def test_of_the_short_form_gives_three_scores_and_no_word_more(self) -> None:
        assert scored(SHORT_FORM, short(5, 3, 4)) == Reading(
            (
                Score("relevance", 1.0, 5.0, "Exceptional", passed=True),
                Score("truth", 0.5, 3.0, "Average", passed=False),
                Score("completeness", 0.75, 4.0, "Good", passed=True),
            ),
            None,
            {},
        )

    @each_case(
        ("rating", "value", "name", "passed"),
        [
            (1, 0.0, "Unacceptable", False),
            (2, 0.25, "Poor", False),
            (3, 0.5, "Average", False),
            (4, 0.75, "Good", True),
            (5, 1.0, "Exceptional", True),
        ],
        ids=["1", "2", "3", "4", "5"],
    )
    def test_of_each_grade(self, rating: int, value: float, name: str, *, passed: bool) -> None:
        scores = scored(SHORT_FORM, short(rating, rating, rating)).scores
        assert scores == tuple(Score(metric, value, float(rating), name, passed) for metric in METRICS)

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
    @pytest.mark.parametrize("judge", [LONG_FORM, SHORT_FORM], ids=["long", "short"])
    def test_of_both_forms_gives_the_same_metrics_for_the_same_input(self, judge: Judge) -> None:
        assert (judge.name, judge.needs, judge.cuts) == (
            "relevance_truth_completeness",
            ("input", "output"),
            ("messages",),
        )
        assert judge.metrics == tuple(Metric(metric, "1..5", "4 or more", pass_at=0.75) for metric in METRICS)

    def test_of_the_two_forms_makes_two_versions(self) -> None:
        assert LONG_FORM.version != SHORT_FORM.version
        assert LONG_FORM.configured({"reasoning": True}).version == LONG_FORM.version
        assert SHORT_FORM.configured({}).version == LONG_FORM.version

    @pytest.mark.parametrize("values", [{"reasoning": "perhaps"}, {"pass_at": 3}], ids=["a wrong value", "a pass mark"])
    def test_takes_no_other_settings(self, values: Mapping[str, object]) -> None:
        with pytest.raises(msgspec.ValidationError):
            JUDGE.configured(values)

    def test_schema_of_nine_keys(self) -> None:
        grade = {"type": "integer", "enum": [1, 2, 3, 4, 5]}
        properties: dict[str, object] = {}
        for metric, endings in CODES.items():
            codes = [f"{metric}_reason_{ending}" for ending in endings]
            properties[metric] = grade
            properties[f"{metric}Reasoning"] = {"type": "string"}
            properties[f"{metric}Reasons"] = {"type": "array", "items": {"type": "string", "enum": codes}}
        assert LONG_FORM.schema == strict(properties)
        assert list(LONG_FORM.schema["properties"]) == list(GOOD)

    def test_schema_of_three_keys(self) -> None:
        grade = {"type": "integer", "enum": [1, 2, 3, 4, 5]}
        assert SHORT_FORM.schema == strict(dict.fromkeys(METRICS, grade))


def strict(properties: Mapping[str, object]) -> Mapping[str, object]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
