"""The yes/no form: fixed part, parser, scoring and heuristic of its judges."""

import asyncio
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge_traces import HOSTILE, LONG, SHORT, filled, served, yes_no_text
from support.cases import each_case

from judges.calling.evaluation import evaluate
from judges.catalog import (
    context_sufficiency,
    correctness,
    equivalence,
    groundedness,
    relevance_to_query,
    retrieval_relevance,
    safety,
)
from judges.core.judge import AnsweredPrompt, Judge, Metric, Reading
from judges.core.prompt import MATERIAL_RULES, OBJECT_RULES, Prompt, render
from judges.core.verdict import Score
from judges.forms import yes_no
from judges.models.lexical import LexicalModel
from judges.models.scripted import ScriptedModel
from judges.parsing.answer import AnswerError, InvalidAnswerError, OffMenuError

WHOLE = (context_sufficiency, correctness, equivalence, groundedness, relevance_to_query, safety)
JUDGES = {module.JUDGE.name: module.JUDGE for module in (*WHOLE, retrieval_relevance)}
OF_WHOLE_TRACES = {module.JUDGE.name: module.JUDGE for module in WHOLE}

every_judge = pytest.mark.parametrize("judge", JUDGES.values(), ids=JUDGES)
whole_trace_judge = pytest.mark.parametrize("judge", OF_WHOLE_TRACES.values(), ids=OF_WHOLE_TRACES)


def read(text: str) -> object:
    return yes_no.read(text)


class TestFixedPart:
    @every_judge
    def test_says_what_to_decide_and_how_to_weigh_before_material_and_form(self, judge: Judge) -> None:
        for fixed in judge.fixed_parts:
            role, decide, rest = fixed.split("\n\n", 2)
            assert role.startswith("You ")
            assert decide.startswith("What to decide\n")
            assert rest.startswith("How to weigh\n- ")
            assert rest.endswith(f"\n\n{MATERIAL_RULES}\n\n{yes_no.FORM}")

    @every_judge
    def test_is_one_of_the_declared_ones_and_the_same_for_every_trace(self, judge: Judge) -> None:
        traces = [SHORT, LONG, *(trace for text in HOSTILE.values() for trace in filled(text))]
        prompts = [prompt for trace in traces for prompt in judge.prompts(judge.prepare(served(judge, trace)))]
        assert {render(prompt)[0].content for prompt in prompts} == set(judge.fixed_parts)

    def test_the_form_asks_for_the_reasons_first_and_offers_yes_and_no(self) -> None:
        assert (
            f"""\
How to answer
{OBJECT_RULES} The object has these two keys, in this order:
{{
  "rationale": "<text>",   // your reasons; their first words are `Let's think step by step`, and the weighing follows
  "result": "yes|no"       // follows from the reasons; write yes or no, nothing else
}}"""
            == yes_no.FORM
        )

    @every_judge
    def test_the_schema_is_strict_and_has_the_reasons_first(self, judge: Judge) -> None:
        assert json.dumps(judge.schema) == json.dumps(
            {
                "type": "object",
                "properties": {"rationale": {"type": "string"}, "result": {"type": "string", "enum": ["yes", "no"]}},
                "required": ["rationale", "result"],
                "additionalProperties": False,
            }
        )


class TestReader:
    @every_judge
    def test_is_the_same_for_all(self, judge: Judge) -> None:
        assert judge.read is yes_no.read

    @each_case("result", ["yes", "no", "Yes", " NO ", "yes.", "No .", "unknown", "Unknown."])
    def test_takes_a_label_in_any_case_with_blanks_and_a_full_stop(self, result: str) -> None:
        assert read(yes_no_text(result)) == {"rationale": "It is so.", "result": result.strip(" .").lower()}

    @each_case("result", ["maybe", "yes and no", "partly", "1", "yes?", "yes \u274c", "no \u2705", "\u2705", "nope"])
    def test_a_label_off_the_menu_is_none_of_those_offered(self, result: str) -> None:
        with pytest.raises(OffMenuError, match=r"^`result` is none of yes, no$"):
            read(yes_no_text(result))

    @each_case(
        "text",
        [
            "",
            "null",
            "[]",
            '{"result": "yes"}',
            '{"rationale": "It is so."}',
            '{"rationale": ["It is so."], "result": "yes"}',
            '{"rationale": "It is so.", "result": 1}',
            '{"rationale": "It is so.", "result": null}',
            '{"rationale": "It is so.", "result": ""}',
            '{"rationale": "It is so.", "result": ["yes"]}',
        ],
    )
    def test_an_answer_of_another_form_is_invalid(self, text: str) -> None:
        with pytest.raises(InvalidAnswerError):
            read(text)

    @each_case(
        ("rationale", "stored"),
        [
            ("Let's think step by step. It is so.", "It is so."),
            ("Let\u2019s think step by step: it is so.", "it is so."),
            (" \nlet's think step by step,\n\n  it is so. ", "it is so."),
            ("LET'S THINK STEP BY STEP ... It is so.", "It is so."),
            ("Let's think step by step \u2014 it is so.", "it is so."),
            ("Let's think\nstep by step;\n- it is so.", "it is so."),
            ("Let's think step by step\uff1a\u305d\u3046\u3067\u3059\u3002", "\u305d\u3046\u3067\u3059\u3002"),
            ("Let's think step by step. Let's think step by step.", "Let's think step by step."),
            ("Let's think step by step.", ""),
            ("Let's think step by step: \u201eTwo years\u201c is there.", "\u201eTwo years\u201c is there."),
            ("Let's think step by step: -5 is there.", "-5 is there."),
            ("Let's think step by stepwise.", "Let's think step by stepwise."),
            ("It is so. Let's think step by step.", "It is so. Let's think step by step."),
            ("", ""),
            ("**Let's think step by step.** It is so.", "It is so."),
            ("Let us think step by step: it is so.", "it is so."),
        ],
        ids=[
            "full stop",
            "colon and another apostrophe",
            "blanks around",
            "upper case and dots",
            "dash",
            "line break within, list behind",
            "wide colon",
            "only once",
            "nothing else",
            "quotation stays whole",
            "minus stays",
            "longer word",
            "not at the beginning",
            "empty",
            "bold",
            "let us",
        ],
    )
    def test_the_opening_goes_with_the_punctuation_and_blanks_after_it(self, rationale: str, stored: str) -> None:
        assert read(yes_no_text("yes", rationale)) == {"rationale": stored, "result": "yes"}

    @given(st.text() | st.dictionaries(st.sampled_from(["rationale", "result"]), st.text() | st.none()).map(json.dumps))
    def test_no_text_makes_it_raise_anything_else_or_leave_the_menu(self, text: str) -> None:
        try:
            answer = yes_no.read(text)
        except AnswerError:
            return
        assert answer.keys() == {"rationale", "result"}
        assert answer["result"] in {"yes", "no", "unknown"}


class TestScoring:
    @whole_trace_judge
    def test_the_one_metric_bears_the_name_of_the_judge(self, judge: Judge) -> None:
        assert judge.metrics == (Metric(judge.name, "0 or 1", "yes"),)

    @each_case(("result", "value"), [("yes", 1.0), ("no", 0.0)])
    @whole_trace_judge
    def test_yes_is_1_and_passes_and_no_is_0(self, judge: Judge, result: str, value: float) -> None:
        answered = AnsweredPrompt(Prompt("", ()), {"rationale": "So.", "result": result})
        expected = Reading((Score(judge.name, value, value, result, passed=result == "yes"),), "So.")
        assert judge.score(SHORT, [answered]) == expected

    @whole_trace_judge
    def test_unknown_abstains(self, judge: Judge) -> None:
        answered = AnsweredPrompt(Prompt("", ()), {"rationale": "Who can say.", "result": "unknown"})
        assert judge.score(SHORT, [answered]) == Reading((), "Who can say.")


class TestHeuristic:
    @every_judge
    def test_answers_in_its_own_form_whatever_the_trace_holds(self, judge: Judge) -> None:
        traces = [SHORT, LONG, *(trace for text in (*HOSTILE.values(), "a" * 100_000) for trace in filled(text))]
        for trace in (judge.prepare(served(judge, trace)) for trace in traces):
            for prompt in judge.prompts(trace):
                answer = judge.heuristic(trace, prompt)
                assert list(answer) == ["rationale", "result"]
                assert answer["rationale"].startswith("Let's think step by step. ")
                assert judge.read(json.dumps(answer))["result"] in {"yes", "no"}

    @every_judge
    def test_takes_little_time_and_always_says_the_same(self, judge: Judge) -> None:
        text = "The warranty of device 17 runs for 2 years, and never longer. " * 64
        (trace, _) = (judge.prepare(served(judge, sample)) for sample in filled(text))
        prompt = judge.prompts(trace)[0]
        start = time.thread_time()
        answers = [judge.heuristic(trace, prompt) for _ in range(10)]
        assert time.thread_time() - start < 0.5
        assert answers == answers[:1] * 10


@every_judge
def test_runs_over_the_real_pipeline_with_the_built_in_model(judge: Judge) -> None:
    assessment = asyncio.run(evaluate(judge, SHORT, LexicalModel()))
    assert (assessment.outcome, assessment.reason) == ("scored", None)
    assert [score.metric for score in assessment.scores] == list(judge.metric_names)
    assert [call.status for call in assessment.calls] == ["ok"]


@every_judge
def test_abstains_over_the_real_pipeline_where_the_model_does_not_know(judge: Judge) -> None:
    assessment = asyncio.run(evaluate(judge, SHORT, ScriptedModel([yes_no_text("unknown")])))
    assert (assessment.outcome, assessment.reason, assessment.scores) == ("abstained", None, ())
