"""Results that have no value, results as words and lists, and labels of which one passes by its meaning."""

import asyncio
import json
from collections.abc import Mapping

import pytest

from judges.calling.evaluation import evaluate
from judges.core.judge import Judge, Metric
from judges.core.verdict import Assessment
from judges.custom import DefinitionError, define
from judges.models.lexical import LexicalModel
from judges.models.scripted import ScriptedModel
from tracejudge import Trace

TRACE = Trace(trace_id="1", service="s", output="Two years.")
OBJECT = {"object": {"topic": "text", "days": "integer", "share": "number", "open": "boolean", "names": "list"}}
FULL = {"topic": "refund", "days": 3, "share": 0.5, "open": True, "names": ["a"]}

FREE: Mapping[str, tuple[object, object, object]] = {
    "text": ("text", " The customer asks for a refund. ", "The customer asks for a refund."),
    "string": ("string", "a", "a"),
    "list": ("list", ["late", "rude"], ["late", "rude"]),
    "empty list": ("list", [], []),
    "object": ("object", {"a": 1, "b": ["x", 2], "c": None}, {"a": 1, "b": ["x", 2], "c": None}),
    "fields": (OBJECT, {**FULL, "more": 1}, FULL),
}
"""By what is declared: the result, the answer, and what is stored."""
UNREADABLE: Mapping[str, tuple[object, object]] = {
    "no text": ("text", 3),
    "an empty text": ("text", " "),
    "no list": ("list", "late"),
    "a list of numbers": ("list", [1]),
    "no object": ("object", ["a"]),
    "an object in an object": ("object", {"a": {"b": 1}}),
    "a list in a list": ("object", {"a": [[1]]}),
    "a number that no verdict stores": ("object", {"a": 10**30}),
    "a field missing": (OBJECT, {"topic": "refund"}),
    "a boolean for a number": (OBJECT, {**FULL, "share": True}),
    "a fraction for a whole number": (OBJECT, {**FULL, "days": 0.5}),
}


def judge(result: object) -> Judge:
    return define("mine", {"instructions": "Sum up {{ outputs }}.", "result": result})


def assessed(made: Judge, *results: object) -> Assessment:
    answers = [json.dumps({"rationale": "It is so.", "result": result}) for result in results]
    return asyncio.run(evaluate(made, TRACE, ScriptedModel(answers)))


def test_a_text_list_or_object_is_stored_without_a_score() -> None:
    for name, (result, answer, stored) in FREE.items():
        made = judge(result)
        outcome = assessed(made, answer)
        assert (outcome.outcome, outcome.scores, outcome.details) == ("scored", (), {"result": stored}), name
        assert outcome.rationale == "It is so.", name
        assert made.metrics == (Metric("mine", made.metrics[0].scale, None, descriptive=True),), name
        assert asyncio.run(evaluate(made, TRACE, LexicalModel())).outcome == "scored", name


def test_prose_around_an_answer_is_no_other_text() -> None:
    answer = json.dumps({"rationale": "It is so.", "result": "It is late."})
    assessment = asyncio.run(evaluate(judge("text"), TRACE, ScriptedModel([f"{answer}\n\nI hope this helps."] * 2)))
    assert (assessment.details, len(assessment.calls)) == ({"result": "It is late."}, 1)


def test_a_result_of_another_type_is_asked_for_once_more() -> None:
    for name, (result, answer) in UNREADABLE.items():
        outcome = assessed(judge(result), answer, answer)
        assert (outcome.reason, len(outcome.calls)) == ("invalid_answer", 2), name


def test_an_object_with_declared_fields_has_a_strict_schema_and_any_object_none() -> None:
    declared = judge(OBJECT).schema
    assert declared["properties"]["result"] == {  # type: ignore[index]
        "type": "object",
        "properties": {
            "topic": {"type": "string"},
            "days": {"type": "integer"},
            "share": {"type": "number"},
            "open": {"type": "boolean"},
            "names": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["topic", "days", "share", "open", "names"],
        "additionalProperties": False,
    }
    assert judge("object").schema == {}


def test_words_and_lists_work_or_name_the_form_to_write() -> None:
    assert judge("bool").version == judge("boolean").version
    assert judge("string").version == judge("text").version
    forms = {
        "integer": "needs a scale; write it as result = { integer = [1, 5], pass_at = 4 }",
        "float": "needs a scale; write it as result = { number = [0, 1] }",
        "labels": 'needs a scale; write it as result = { labels = ["good", "poor"], pass = ["good"] }',
    }
    for word, text in forms.items():
        with pytest.raises(DefinitionError) as caught:
            judge(word)
        assert (caught.value.key, caught.value.fix) == ("result", text), word
    with pytest.raises(DefinitionError) as caught:
        judge(["good", "poor"])
    form = 'result = { labels = ["good", "poor"], pass = ["good"] }'
    assert caught.value.fix == f"does not say which labels pass; write it as {form}"


def test_yes_passes_of_yes_and_no_unless_the_definition_says_otherwise() -> None:
    by_table = {
        "choices": ({"custom_prompt": "Is {{ outputs }} rude? [[yes]] [[no]]"}, "yes"),
        "choices in capitals": ({"custom_prompt": "Is {{ outputs }} rude? [[No]] or [[Yes]]"}, "Yes"),
        "said otherwise": ({"custom_prompt": "Is {{ outputs }} rude? [[yes]] [[no]]", "pass": ["no"]}, "no"),
        "a list": ({"instructions": "Is {{ outputs }} kind?", "result": ["pass", "fail"]}, "pass"),
        "labels": ({"instructions": "Is {{ outputs }} kind?", "result": {"labels": ["no", "yes"]}}, "yes"),
    }
    for name, (table, passes) in by_table.items():
        made = define("mine", table)
        result = assessed(made, passes)
        assert (made.metrics[0].pass_rule, result.scores[0].passed) == (passes, True), name
