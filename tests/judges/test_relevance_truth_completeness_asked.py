"""Relevance, truth and completeness: the prompt, and the results with models in the pipeline."""

import asyncio
import json
import os
import re
from pathlib import Path

import msgspec
import pytest
from judge_traces import HOSTILE, LONG, SHORT, all_samples, filled
from support.cases import each_case
from test_golden_prompts import CASES, written

from judges.calling.evaluation import evaluate
from judges.catalog.relevance_truth_completeness import JUDGE, STEPS
from judges.core.judge import Judge
from judges.core.model import ModelSettings
from judges.core.prompt import MATERIAL_RULES, Block
from judges.core.verdict import Assessment
from judges.models.lexical import LexicalModel
from judges.models.scripted import ScriptedModel
from tracejudge import Message, Trace

LONG_FORM = JUDGE
SHORT_FORM = JUDGE.configured({"reasoning": False})
GOLDEN_SHORT = Path(__file__).with_name("golden_short")
METRICS = ("relevance", "truth", "completeness")

both_forms = pytest.mark.parametrize("judge", [LONG_FORM, SHORT_FORM], ids=["long", "short"])


class TestFixedPart:
    @pytest.mark.parametrize("case", CASES)
    def test_of_the_short_form_is_that_of_the_golden_file(self, case: str) -> None:
        path = GOLDEN_SHORT / f"{JUDGE.name}.{case}.txt"
        actual = written(SHORT_FORM, CASES[case])
        if os.environ.get("UPDATE_GOLDEN") == "1":
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(actual.encode())
        assert actual == path.read_bytes().decode()

    @both_forms
    def test_is_the_same_for_every_trace(self, judge: Judge) -> None:
        traces = [SHORT, LONG, *all_samples(), *(trace for text in HOSTILE.values() for trace in filled(text))]
        assert {prompt.fixed for trace in traces for prompt in judge.prompts(trace)} == set(judge.fixed_parts)
        assert len(judge.fixed_parts) == 1

    @both_forms
    def test_takes_the_steps_in_their_order_then_tells_of_the_material_and_the_form(self, judge: Judge) -> None:
        (fixed,) = judge.fixed_parts
        parts = [*(step.rubric for step in STEPS), MATERIAL_RULES, "How to answer"]
        assert [fixed.count(part) for part in parts] == [1] * 5
        assert sorted(parts, key=fixed.index) == parts

    @both_forms
    def test_shows_the_keys_in_the_order_of_the_schema(self, judge: Judge) -> None:
        assert re.findall(r'^  "(\w+)": ', judge.fixed_parts[0], re.MULTILINE) == judge.schema["required"]

    def test_of_the_long_form_explains_each_code_in_its_step_with_an_example(self) -> None:
        shown = re.split(r"^Step \d\. ", LONG_FORM.fixed_parts[0], flags=re.MULTILINE)[1:]
        for step, text in zip(STEPS, shown, strict=True):
            matches = re.findall(r"^- (\w+_reason_\w+): \S.+\. Example: \S.+\.$", text, re.MULTILINE)
            enum = LONG_FORM.schema["properties"][f"{step.metric}Reasons"]["items"]["enum"]  # type: ignore[index]
            assert matches == step.codes == enum

    def test_of_the_short_form_holds_no_codes(self) -> None:
        assert "_reason_" not in SHORT_FORM.fixed_parts[0]


class TestMaterial:
    def test_is_history_query_and_answer(self) -> None:
        trace = Trace(trace_id="1", service="s", input="Why?", output="So.", messages=[Message("user", "Hi.", "Ada")])
        (prompt,) = JUDGE.prompts(trace)
        assert prompt.blocks == (Block("history", "[Ada (user)] Hi."), Block("query", "Why?"), Block("answer", "So."))

    @each_case(
        "messages",
        [None, [], [Message("tool", "42"), Message("user", "\n")]],
        ids=["absent", "empty", "nothing to show"],
    )
    def test_without_history_says_so(self, messages: list[Message] | None) -> None:
        (prompt,) = JUDGE.prompts(msgspec.structs.replace(SHORT, messages=messages))
        assert prompt.blocks[0] == Block("history", "No earlier messages.")
        assert "`No earlier messages.`" in prompt.fixed

    def test_with_history_cannot_say_that_there_is_none(self) -> None:
        messages = [Message("", "No earlier messages.", name=" ")]
        (prompt,) = JUDGE.prompts(msgspec.structs.replace(SHORT, messages=messages))
        assert prompt.blocks[0] == Block("history", "[] No earlier messages.")


def run(judge: Judge, trace: Trace, model: LexicalModel | ScriptedModel) -> Assessment:
    return asyncio.run(evaluate(judge, trace, model))


class TestPipeline:
    @both_forms
    @pytest.mark.parametrize("missing", ["input", "output"])
    def test_asks_nothing_without_query_or_answer(self, judge: Judge, missing: str) -> None:
        model = ScriptedModel(["{}"])
        assessment = run(judge, msgspec.structs.replace(SHORT, **{missing: " \n"}), model)
        assert assessment == Assessment("unscored", "missing_input", note=f"the trace has no {missing}")
        assert model.requests == []

    def test_leaves_out_the_oldest_messages_where_all_are_too_long(self) -> None:
        messages = [Message("user", letter * 30_000) for letter in "abc"]
        settings = ModelSettings(provider="scripted", model="m", max_input_tokens=14_000)
        model = ScriptedModel(['{"relevance": 4, "truth": 4, "completeness": 4}'], settings)
        assessment = run(SHORT_FORM, msgspec.structs.replace(SHORT, messages=messages), model)
        assert assessment.details == {"left_out": {"messages": 2}}
        (request,) = model.requests
        assert f"\n[user] {'c' * 30_000}\n" in request.messages[1].content

    def test_asks_once_more_for_an_unreadable_answer_and_not_for_a_grade_off_the_scale(self) -> None:
        good = '{"relevance": 4, "truth": 3, "completeness": 2}'
        model = ScriptedModel(['{"relevance": 4, "truth": "so-so", "completeness": 2}', good])
        assessment = run(SHORT_FORM, SHORT, model)
        assert [score.raw for score in assessment.scores] == [4, 3, 2]
        assert len(model.requests) == 2
        model = ScriptedModel(['{"relevance": 4, "truth": 6, "completeness": 2}', good])
        assessment = run(SHORT_FORM, SHORT, model)
        assert (assessment.outcome, assessment.reason, assessment.scores) == ("unscored", "out_of_range", ())
        assert len(model.requests) == 1

    @both_forms
    def test_with_the_lexical_model_scores_every_sample_that_has_a_query(self, judge: Judge) -> None:
        for trace in all_samples():
            assessment = run(judge, trace, LexicalModel())
            if judge.missing(trace) is None:
                assert assessment.outcome == "scored"
                assert tuple(score.metric for score in assessment.scores) == METRICS
                assert [bool(score.rationale) for score in assessment.scores] == [judge is LONG_FORM] * 3
            else:
                assert assessment.reason == "missing_input"


def asked(query: str, answer: str, *history: str) -> Trace:
    messages = [Message("user", text) for text in history]
    return Trace(trace_id="1", service="s", input=query, output=answer, messages=messages)


def guessed(trace: Trace) -> dict[str, object]:
    return dict(LONG_FORM.heuristic(trace, LONG_FORM.prompts(trace)[0]))


GUESSES = {
    "nothing in common": (asked("How do I sort a list?", "Bananas ripen slowly."), (1, 4, 1)),
    "one sentence of four": (asked("How do I sort a list?", "Hi. Yes. Bananas. Use sort."), (3, 4, 4)),
    "two sentences of four": (asked("How do I sort a list?", "Hi. Sort it. Bananas. A list."), (4, 4, 5)),
    "all": (asked("How do I sort a list?", "Sort the list with sorted."), (5, 4, 5)),
    "words of the history": (asked("And backwards?", "Sort it reversed.", "How do I sort?"), (5, 4, 1)),
    "a strange number": (asked("How long?", "Long: 3 days."), (5, 3, 5)),
    "a number of the query": (asked("Are 3 days long?", "3 days are long."), (5, 4, 5)),
    "a number of the history": (asked("How long?", "Long: 3 days.", "In 3 days?"), (5, 4, 5)),
    "hedging": (asked("How long?", "Perhaps long, maybe."), (5, 3, 5)),
    "hedging and a strange number": (asked("How long?", "Perhaps as long as 7 days."), (5, 2, 5)),
    "words of a tool": (
        msgspec.structs.replace(asked("And backwards?", "Sort it."), messages=[Message("tool", "sort")]),
        (1, 4, 1),
    ),
    "no answer": (asked("How long?", ""), (1, 4, 1)),
    "no words to compare": (asked("What is it?", "Bananas ripen slowly."), (3, 4, 3)),
}


class TestHeuristic:
    @each_case(("trace", "expected"), GUESSES.values(), ids=GUESSES)
    def test_grades_by_common_words(self, trace: Trace, expected: tuple[int, int, int]) -> None:
        guess = guessed(trace)
        assert tuple(guess[metric] for metric in METRICS) == expected
        short = SHORT_FORM.heuristic(trace, SHORT_FORM.prompts(trace)[0])
        assert short == dict(zip(METRICS, expected, strict=True))

    def test_says_what_it_compared(self) -> None:
        assert guessed(asked("Is it a long way to Rome?", "It is 7 miles to Rome. Perhaps 8. Bye.")) == {
            "relevance": 3,
            "relevanceReasoning": "1 of 3 sentences of the answer share a word with the query or the history.",
            "relevanceReasons": ["relevance_reason_other"],
            "truth": 2,
            "truthReasoning": "A guess, since words cannot show what is true: 2 numbers of the answer stand neither in "
            "the query nor in the history, and 1 of its words sound unsure.",
            "truthReasons": ["truth_reason_other"],
            "completeness": 3,
            "completenessReasoning": "33% of the words of the query appear in the answer.",
            "completenessReasons": ["completeness_reason_other"],
        }

    def test_of_a_five_leaves_reasoning_and_codes_empty(self) -> None:
        guess = guessed(GUESSES["all"][0])
        assert (guess["relevanceReasoning"], guess["relevanceReasons"]) == ("", [])
        assert (guess["completenessReasoning"], guess["completenessReasons"]) == ("", [])

    @both_forms
    def test_answers_any_text_in_the_form_that_was_asked(self, judge: Judge) -> None:
        traces = [trace for text in (*HOSTILE.values(), "a" * 100_000, "\ud800") for trace in filled(text)]
        for trace in [SHORT, LONG, *traces]:
            answer = judge.heuristic(trace, judge.prompts(trace)[0])
            assert list(answer) == judge.schema["required"]
            assert [grade.metric for grade in judge.read(json.dumps(answer))] == list(METRICS)

    def test_is_never_sure_of_the_truth(self) -> None:
        assert {guessed(trace)["truth"] for trace in all_samples()} <= {2, 3, 4}
