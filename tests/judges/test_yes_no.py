"""The yes/no form and its judges: fixed part, material, needs, scoring and heuristic; the reader is in test_answer."""

import asyncio

import msgspec
import pytest
from judge_traces import LONG, SHORT, parse, yes_no_text
from support.cases import each_case
from tables import table

from judges.calling.evaluation import evaluate
from judges.catalog import (
    context_sufficiency,
    correctness,
    equivalence,
    groundedness,
    relevance_to_query,
    safety,
)
from judges.core.judge import Judge
from judges.core.model import ModelSettings
from judges.core.prompt import Block, render
from judges.core.verdict import Assessment
from judges.models.scripted import ScriptedModel
from judges.parsing.sentences import shape
from tracejudge import Trace

WHOLE = (context_sufficiency, correctness, equivalence, groundedness, relevance_to_query, safety)
OF_WHOLE_TRACES = {module.JUDGE.name: module.JUDGE for module in WHOLE}
TABLES = table("yes_no")
BOTH = "expected_response and expected_facts exclude each other: give one"

each_whole_judge = each_case("judge", OF_WHOLE_TRACES.values(), ids=OF_WHOLE_TRACES)


def changed(**fields: object) -> Trace:
    return msgspec.convert({**msgspec.to_builtins(SHORT), **fields}, Trace)


def judged(judge: Judge, trace: Trace, *answers: str, **settings: int) -> tuple[Assessment, int]:
    """Return the verdict of a model with these answers, and the number of its requests."""
    model = ScriptedModel(answers, ModelSettings(provider="scripted", **settings))
    return asyncio.run(evaluate(judge, trace, model)), len(model.requests)


class TestHeuristic:
    @each_whole_judge
    def test_gives_the_expected_result_and_says_what_it_compared(self, judge: Judge) -> None:
        for fields, result, reason in TABLES[judge.name]["guesses"]:
            trace = changed(**fields)
            (prompt,) = judge.prompts(trace)
            expected = {"rationale": f"Let's think step by step. {reason}", "result": result}
            assert judge.heuristic(trace, prompt) == expected, fields

    def test_knows_the_shape_of_a_text(self) -> None:
        cases = {**TABLES["shapes"], "[" * 100_000: "plain text"}
        assert {text: shape(text) for text in cases} == cases


class TestMaterial:
    @each_whole_judge
    def test_that_is_needed_is_named_where_it_is_missing(self, judge: Judge) -> None:
        for fields, note in TABLES[judge.name]["missing"]:
            assert judge.missing(changed(**fields)) == note, fields


class TestReference:
    """Correctness and context sufficiency compare with an expected answer, or with a list of facts."""

    def test_both_references_exclude_each_other(self) -> None:
        both = changed(expected_facts=["It is two years."])
        expected = Assessment("unscored", "missing_input", note=BOTH)
        assert judged(correctness.JUDGE, both, yes_no_text("yes")) == (expected, 0)
        assert correctness.JUDGE.prompts(changed(expected_facts=["", " "])) == correctness.JUDGE.prompts(SHORT)

    def test_a_reference_answer_is_shown_as_it_stands_and_facts_one_a_line_without_blank_ones(self) -> None:
        (prompt,) = correctness.JUDGE.prompts(changed(expected_response=" - Two\n\n years.\n"))
        assert parse(render(prompt)[1].content)[-1] == Block("claim", " - Two\n\n years.\n")
        facts = ["It is two\n- years ", "", " \n", "for  all devices"]
        (prompt,) = correctness.JUDGE.prompts(changed(expected_response=None, expected_facts=facts))
        assert prompt.blocks[-1] == Block("claim", "- It is two - years\n- for all devices")
        (prompt,) = context_sufficiency.JUDGE.prompts(LONG)
        assert prompt.blocks[2].value == "- Doubled braces stand for one brace\n- The f-string fills in `answer`"

    def test_only_the_facts_ask_for_a_sentence_on_the_response_and_the_result_decides(self) -> None:
        phrases = ("The response is correct", "The response is not correct")
        by_response, by_facts = correctness.JUDGE.fixed_parts
        assert [phrase in by_facts for phrase in phrases] == [True, True]
        assert [phrase in by_response for phrase in phrases] == [False, False]
        for rationale in (*phrases, "Neither."):
            for result in ("yes", "no"):
                assessment, _ = judged(correctness.JUDGE, LONG, yes_no_text(result, rationale))
                labels = [score.label for score in assessment.scores]
                assert (labels, assessment.rationale) == ([result], rationale)

    def test_the_context_is_judged_whole_and_without_the_answer(self) -> None:
        judge = context_sufficiency.JUDGE
        for trace in (SHORT, LONG):
            assert judge.prompts(msgspec.structs.replace(trace, output="Something else.")) == judge.prompts(trace)
        assert len(set(judge.fixed_parts) - set(correctness.JUDGE.fixed_parts)) == 2
        long = changed(context=["Two years.", "Devices come with paper. " * 1000])
        expected = Assessment("unscored", "input_too_long", note="the trace is longer than the model takes")
        assert judged(judge, long, yes_no_text("no"), max_input_tokens=2000) == (expected, 0)


class TestParts:
    """Safety, of other parts of a trace than the output."""

    def test_are_judged_together_and_absent_ones_left_out(self) -> None:
        judge = safety.JUDGE.configured({"parts": ["context", "input", "output"]})
        (prompt,) = judge.prompts(LONG)
        assert [block.name for block in prompt.blocks][:2] == ["input", "output"]
        assert {block.name.partition(" ")[0] for block in prompt.blocks[2:]} == {"document"}
        assert "yes means that every text is safe" in judge.fixed_parts[0]
        same = safety.JUDGE.configured({"parts": ["input", "output", "context"]})
        assert judge.version == same.version != safety.JUDGE.version
        asked = safety.JUDGE.configured({"parts": ["input"]})
        bare = changed(output="Decent.", input="You idiot.", context=None)
        assert [block.name for block in judge.prompts(bare)[0].blocks] == ["input", "output"]
        for each, result in ((judge, "no"), (asked, "no"), (safety.JUDGE, "yes")):
            answer = each.heuristic(bare, each.prompts(bare)[0])
            assert isinstance(answer, dict)
            assert answer["result"] == result
        assert asked.missing(msgspec.structs.replace(bare, input=None)) == "the trace has no input"

    def test_by_default_are_the_output_and_others_are_refused(self) -> None:
        assert safety.JUDGE.configured({"parts": ["output"]}).version == safety.JUDGE.version
        for values in ({"parts": []}, {"parts": ["outputs"]}):
            with pytest.raises(msgspec.ValidationError):
                safety.JUDGE.configured(values)
