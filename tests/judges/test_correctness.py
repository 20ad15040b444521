"""Correctness: the answer compared with a reference answer or a list of facts."""

import asyncio

import msgspec
from judge_traces import LONG, SHORT, parse, yes_no_text
from support.cases import each_case

from judges.calling.evaluation import evaluate
from judges.catalog.correctness import JUDGE
from judges.core.prompt import Block, render
from judges.core.verdict import Assessment
from judges.models.scripted import ScriptedModel
from tracejudge import Trace

PHRASES = ("The response is correct", "The response is not correct")

ALL_THERE = "Every statement shares most of its words and all of its numbers with the answer."


def with_response(output: str, expected: str) -> Trace:
    return Trace(trace_id="1", service="s", input="How long?", output=output, expected_response=expected)


def with_facts(output: str, *facts: str) -> Trace:
    return Trace(trace_id="1", service="s", input="How long?", output=output, expected_facts=list(facts))


def guessed(trace: Trace) -> object:
    (prompt,) = JUDGE.prompts(trace)
    return JUDGE.heuristic(trace, prompt)


class TestPrompt:
    def test_shows_a_reference_answer_as_it_stands(self) -> None:
        (prompt,) = JUDGE.prompts(msgspec.structs.replace(SHORT, expected_response=" - Two\n\n years.\n"))
        assert parse(render(prompt)[1].content) == (
            Block("question", "How long is the warranty?"),
            Block("answer", "The warranty runs for two years."),
            Block("claim", " - Two\n\n years.\n"),
        )

    def test_shows_facts_one_a_line_and_leaves_out_blank_ones(self) -> None:
        (prompt,) = JUDGE.prompts(with_facts("Two years.", "It is two\n- years ", "", " \n", "for  all devices"))
        assert prompt.blocks[-1] == Block("claim", "- It is two - years\n- for all devices")

    def test_only_the_facts_ask_for_a_sentence_on_the_response(self) -> None:
        by_response, by_facts = JUDGE.fixed_parts
        assert [phrase in by_facts for phrase in PHRASES] == [True, True]
        assert [phrase in by_response for phrase in PHRASES] == [False, False]

    def test_the_reference_chooses_the_fixed_part(self) -> None:
        assert [JUDGE.prompts(trace)[0].fixed for trace in (SHORT, LONG)] == list(JUDGE.fixed_parts)
        both_blank = msgspec.structs.replace(SHORT, expected_facts=["", " "])
        assert JUDGE.prompts(both_blank) == JUDGE.prompts(SHORT)


class TestNeeds:
    def test_both_references_exclude_each_other(self) -> None:
        model = ScriptedModel([yes_no_text("yes")])
        both = msgspec.structs.replace(SHORT, expected_facts=["It is two years."])
        note = "expected_response and expected_facts exclude each other: give one"
        assert asyncio.run(evaluate(JUDGE, both, model)) == Assessment("unscored", "missing_input", note=note)
        assert model.requests == []

    @each_case(
        ("field", "note"),
        [
            ("input", "the trace has no input"),
            ("output", "the trace has no output"),
            ("expected_response", "the trace has no expected_response or expected_facts"),
        ],
    )
    def test_each_input_is_needed(self, field: str, note: str) -> None:
        assert JUDGE.missing(msgspec.structs.replace(SHORT, **{field: " \n"})) == note


@each_case("rationale", [*PHRASES, "Neither."])
@each_case("result", ["yes", "no"])
def test_the_result_decides_and_not_the_sentence(result: str, rationale: str) -> None:
    assessment = asyncio.run(evaluate(JUDGE, LONG, ScriptedModel([yes_no_text(result, rationale)])))
    assert ([score.label for score in assessment.scores], assessment.rationale) == ([result], rationale)


class TestHeuristic:
    @each_case(
        ("trace", "result", "reason"),
        [
            (with_response("The warranty runs for 2 years.", "The warranty runs 2 years."), "yes", ALL_THERE),
            (
                with_response("The warranty runs for 3 years.", "The warranty runs 2 years."),
                "no",
                "Statement 1 contains a number that the answer does not.",
            ),
            (
                with_facts("The warranty runs for 2 years.", "The warranty runs 2 years", "Batteries are excluded"),
                "no",
                "Statement 2: 0% of its words appear in the answer. The response is not correct.",
            ),
            (
                with_facts("The warranty runs for 2 years.", "The warranty runs 2 years"),
                "yes",
                f"{ALL_THERE} The response is correct.",
            ),
        ],
        ids=["response", "another number", "one fact is absent", "facts"],
    )
    def test_compares_words_and_numbers(self, trace: Trace, result: str, reason: str) -> None:
        assert guessed(trace) == {"rationale": f"Let's think step by step. {reason}", "result": result}
