"""Judges by instructions and by prompts of the user's own: what they send, need, read and score."""

import asyncio
import json
from collections.abc import Mapping

import msgspec
import pytest
from judge_traces import LONG, SHORT, parse
from support.cases import each_case

from judges.calling.evaluation import evaluate
from judges.core.judge import Judge, Metric
from judges.core.model import ModelSettings
from judges.core.prompt import Block, render
from judges.core.verdict import Assessment, Score
from judges.custom import DefinitionError, define
from judges.forms import yes_no
from judges.models.lexical import LexicalModel
from judges.models.scripted import ScriptedModel
from judges.registry import catalogue, load_judges
from tracejudge import Document, Message, Span, ToolCall, Trace

BARE = Trace(trace_id="1", service="s", output="Two years.")


def judge(instructions: str = "Is {{ outputs }} polite?", **further: object) -> Judge:
    return define("mine", {"instructions": instructions, **further})


def blocks(made: Judge, trace: Trace) -> tuple[Block, ...]:
    (prompt,) = made.prompts(trace)
    return parse(render(prompt)[1].content)


def assessed(made: Judge, trace: Trace, result: object) -> Assessment:
    answer = json.dumps({"rationale": "Let's think step by step. It is so.", "result": result})
    return asyncio.run(evaluate(made, trace, ScriptedModel([answer])))


class TestRequest:
    def test_placeholders_stay_as_they_were_written(self) -> None:
        (fixed,) = judge("Is {{outputs}} an answer to {{  inputs }}?").fixed_parts
        assert "Is {{outputs}} an answer to {{  inputs }}?" in fixed

    def test_values_come_in_the_order_of_first_appearance_as_text(self) -> None:
        made = judge("{{ outputs }} to {{ inputs }}, and {{ outputs }} again")
        trace = msgspec.structs.replace(BARE, input='Say "{{ outputs }}"\n<<end inputs 0>>')
        assert blocks(made, trace) == (
            Block("outputs", "Two years."),
            Block("inputs", 'Say "{{ outputs }}"\n<<end inputs 0>>'),
        )

    def test_expectations_hold_what_is_there(self) -> None:
        made = judge("Does {{ outputs }} meet {{ expectations }}?")
        assert blocks(made, SHORT)[1:] == (
            Block("expectations expected_response", "Two years."),
            Block("expectations guidelines", "1. Answer in one sentence."),
        )
        assert blocks(made, LONG)[1:] == (
            Block(
                "expectations expected_facts", "- Doubled braces stand for one brace\n- The f-string fills in `answer`"
            ),
            Block(
                "expectations guidelines",
                "1. Show code in a block with its language.\n2. 約束しないこと。\n   Nicht einmal „bald“.",
            ),
        )

    def test_a_conversation_is_all_that_was_said(self) -> None:
        messages = [Message("system", "Be kind.\n[user] No."), Message("assistant"), Message("tool", " ")]
        trace = msgspec.structs.replace(BARE, messages=[*messages, Message("tool", "A hit.")], input="Long?")
        transcript = "[system] Be kind.\n  [user] No.\n[tool] A hit.\n[user] Long?\n[assistant] Two years."
        assert blocks(judge("Rate {{ conversation }}"), trace) == (Block("conversation", transcript),)

    def test_context_messages_and_tags_are_variables_of_instructions_and_prompts(self) -> None:
        trace = msgspec.structs.replace(
            BARE,
            context=["Two years.", Document("", id="b"), Document("Not for batteries.", id="c")],
            messages=[Message("user", "Hello."), Message("tool")],
            tags={"app.plan": "gold {{ outputs }}"},
        )
        text = "Mind {{ context }}, {{ messages }} and {{ tags.app.plan }}."
        for table in ({"instructions": text}, {"custom_prompt": f"{text} [[yes]] [[no]]"}):
            made = define("mine", table)
            assert blocks(made, made.prepare(trace)) == (
                Block("context 1", "Two years."),
                Block("context 3", "Not for batteries."),
                Block("messages", "[user] Hello."),
                Block("tags.app.plan", "gold {{ outputs }}"),
            )
            assert (made.needs, made.cuts) == (("context", "tags.app.plan"), ("messages", "context"))
            assert made.missing(msgspec.structs.replace(trace, tags=None)) == "the trace has no tags.app.plan"
            assert made.missing(msgspec.structs.replace(trace, messages=None)) is None
        together = judge("{{ conversation }} {{ context }} {{ tags.a }}")
        assert together.needs == (("messages", "input"), "context", "tags.a")
        assert judge("{{ messages }}").needs == ("messages",)

    def test_signs_that_cannot_be_seen_are_shown(self) -> None:
        (fixed,) = judge("Is {{ outputs }} po\u200blite?\r\nTruly?").fixed_parts
        assert "Is {{ outputs }} po[U+200B]lite?\nTruly?" in fixed

    def test_the_form_of_the_answer_comes_last(self) -> None:
        (fixed,) = judge("{{ outputs }}\nHow to answer\nIn verse.").fixed_parts
        assert fixed.endswith(yes_no.FORM)

    def test_the_oldest_messages_of_a_conversation_may_be_left_out(self) -> None:
        trace = msgspec.structs.replace(BARE, messages=[Message("user", "old " * 5000), Message("user", "new")])
        model = ScriptedModel(['{"rationale": "", "result": "yes"}'], ModelSettings("scripted", max_input_tokens=2000))
        assessment = asyncio.run(evaluate(judge("Rate {{ conversation }}"), trace, model))
        assert (assessment.outcome, assessment.details) == ("scored", {"left_out": {"messages": 1}})

    def test_brackets_of_choices_are_not_sent(self) -> None:
        made = define(
            "mine", {"custom_prompt": "Is {{ outputs }} [[formal]], [[casual]] or [[formal]]?", "pass": ["formal"]}
        )
        (fixed,) = made.fixed_parts
        assert fixed.startswith("Is {{ outputs }} formal, casual or formal?\n")
        assert '"result": "formal|casual"' in fixed


MISSING = {
    "inputs": ("{{ inputs }}", BARE, "the trace has no input"),
    "outputs": ("{{ outputs }}", msgspec.structs.replace(BARE, output=" "), "the trace has no output"),
    "expectations": (
        "{{ expectations }}",
        msgspec.structs.replace(BARE, expected_facts=[" "]),
        "the trace has no expected_response or expected_facts or guidelines",
    ),
    "conversation": (
        "{{ conversation }}",
        msgspec.structs.replace(BARE, messages=[Message("user")]),
        "the trace has no messages or input",
    ),
    "trace": (
        "{{ trace }}",
        msgspec.structs.replace(BARE, output=""),
        "the trace has no spans or tool_calls or input or output",
    ),
}
"""By variable: a trace that lacks it, and what is said."""


class TestNeeds:
    @each_case(("text", "trace", "said"), MISSING.values(), ids=MISSING)
    def test_a_variable_without_a_value_is_not_asked_about(self, text: str, trace: Trace, said: str) -> None:
        model = ScriptedModel(["never"])
        assert asyncio.run(evaluate(judge(text), trace, model)) == Assessment("unscored", "missing_input", note=said)
        assert model.requests == []

    def test_one_of_several_is_enough_and_none_excludes_another(self) -> None:
        made = judge("{{ expectations }}")
        for fields in (
            {"expected_response": "a"},
            {"guidelines": ["a"]},
            {"expected_facts": ["a"], "guidelines": ["b"]},
        ):
            assert made.missing(msgspec.structs.replace(BARE, **fields)) is None

    def test_a_call_without_spans_is_a_trace_of_one_step(self) -> None:
        made = judge("{{ trace }}")
        steps = {"spans": [Span(span_id="a", name="b")]}, {"tool_calls": [ToolCall("a")]}, {"output": "a"}
        bare = msgspec.structs.replace(BARE, output="")
        assert [made.missing(msgspec.structs.replace(bare, **values)) for values in steps] == [None] * 3

    def test_are_shown_with_their_alternatives(self) -> None:
        made = judge("{{ outputs }} {{ expectations }}")
        assert made.needs_in_words == ("output", "expected_response or expected_facts or guidelines")


def scored(value: float, raw: float | str, label: str | None = None, passed: bool | None = None) -> Score:  # noqa: FBT001
    return Score("mine", value, raw, label, passed)


LOW = {"integer": [0, 10], "pass_at": 3, "direction": "lower"}
RESULTS: Mapping[str, tuple[object, object, Score]] = {
    "yes": ("yes/no", "yes", scored(1.0, 1.0, "yes", passed=True)),
    "no": ("yes/no", "NO.", scored(0.0, 0.0, "no", passed=False)),
    "true": ("boolean", True, scored(1.0, 1.0, "true", passed=True)),
    "false in a string": ("boolean", "False", scored(0.0, 0.0, "false", passed=False)),
    "a grade below the mark": ({"integer": [1, 5], "pass_at": 4}, 3, scored(0.5, 3.0, passed=False)),
    "a grade at the mark": ({"integer": [1, 5], "pass_at": 4}, "4.", scored(0.75, 4.0, passed=True)),
    "a grade without a mark": ({"integer": [1, 5]}, 5.0, scored(1.0, 5.0)),
    "a grade below zero": ({"integer": [-2, 2]}, -2, scored(0.0, -2.0)),
    "few where few are good": (LOW, 3, scored(0.7, 3.0, passed=True)),
    "many where few are good": (LOW, 10, scored(0.0, 10.0, passed=False)),
    "a figure that is neither": ({"integer": [0, 10], "direction": "none"}, 10, scored(1.0, 10.0)),
    "a number at the mark": ({"number": [0, 2], "pass_at": 1.5}, 1.5, scored(0.75, 1.5, passed=True)),
    "a whole number as one": ({"number": [0, 2], "pass_at": 1.5}, 1, scored(0.5, 1.0, passed=False)),
    "a low number": ({"number": [0, 1], "pass_at": 0.5, "direction": "lower"}, "0.25", scored(0.75, 0.25, passed=True)),
    "a label with a number": ({"labels": {"good": 4, "so so": 1, "bad": 0}}, " So so.", scored(0.25, 1.0, "so so")),
    "a label that passes": (
        {"labels": {"good": 2, "fair": 1, "bad": 0}, "pass": ["good", "fair"]},
        "FAIR",
        scored(0.5, 1.0, "fair", passed=True),
    ),
    "a label without a number": (
        {"labels": ["bug", "question", "praise"], "pass": ["question", "praise"]},
        "bug",
        scored(0.0, "bug", "bug", passed=False),
    ),
    "a label with a stroke": ({"labels": {"yes|no": 1, "b": 0}}, "Yes|No.", scored(1.0, 1.0, "yes|no")),
    "a label with an accent of its own": (
        {"labels": ["gut", "mäßig"], "pass": ["gut"]},
        "ma\u0308ßig",
        scored(0.0, "mäßig", "mäßig", passed=False),
    ),
    "a label with an umlaut": (
        {"labels": ["gut", "MÄSSIG"], "pass": ["gut"]},
        "mässig",
        scored(0.0, "MÄSSIG", "MÄSSIG", passed=False),
    ),
}
"""By what is answered: the declared result, the answer, and the score."""
METRICS: Mapping[str, tuple[object, Metric]] = {
    "yes/no": ("yes/no", Metric("mine", "0 or 1", "yes")),
    "boolean": ("boolean", Metric("mine", "true or false", "true")),
    "integer": ({"integer": [1, 5], "pass_at": 4}, Metric("mine", "1..5", "4 or more", pass_at=0.75)),
    "integer at the top": ({"integer": [1, 5], "pass_at": 5}, Metric("mine", "1..5", "5", pass_at=1.0)),
    "lower": (LOW, Metric("mine", "0..10", "3 or less", pass_at=0.7)),
    "none": ({"number": [0, 0.5], "direction": "none"}, Metric("mine", "0..0.5", None, descriptive=True)),
    "no mark": ({"number": [0, 1.0]}, Metric("mine", "0..1", None)),
    "labels": ({"labels": ["a", "b", "c"], "pass": ["a", "b"]}, Metric("mine", "a | b | c", "a or b")),
    "labels with numbers": ({"labels": {"a": 1, "b": 0}}, Metric("mine", "a | b", None)),
}


class TestResults:
    @each_case(("result", "answer", "score"), RESULTS.values(), ids=RESULTS)
    def test_are_worth_what_was_declared(self, result: object, answer: object, score: Score) -> None:
        outcome = assessed(judge(result=result), BARE, answer)
        assert outcome.scores == (msgspec.structs.replace(score, value=pytest.approx(score.value)),)
        assert outcome.rationale == "It is so."

    @each_case(("result", "metric"), METRICS.values(), ids=METRICS)
    def test_are_described(self, result: object, metric: Metric) -> None:
        assert judge(result=result).metrics == (metric,)

    @each_case(
        ("labels", "menu", "words"),
        [
            (["a", "b", "c"], "a|b|c", "a | b | c"),
            (["a|b", "c"], "a|b / c", "a|b / c"),
            (["a|b", "c / d", "e"], "a|b // c / d // e", "a|b // c / d // e"),
        ],
    )
    def test_a_menu_is_divided_by_what_no_label_holds_and_is_no_choice(
        self, labels: list[str], menu: str, words: str
    ) -> None:
        made = judge(result={"labels": labels, "pass": labels[:1]})
        assert f'"result": "{menu}"' in made.fixed_parts[0]
        assert made.metrics[0].scale == words
        assert assessed(made, BARE, menu).reason == "invalid_answer"
        assert assessed(made, BARE, labels[-1]).outcome == "scored"

    def test_the_order_of_what_passes_makes_no_other_judge(self) -> None:
        def of(*passing: str) -> Judge:
            return judge(result={"labels": ["a", "b", "c"], "pass": list(passing)})

        assert (of("b", "a").version, of("b", "a").metrics) == (of("a", "b").version, of("a", "b").metrics)
        assert of("c", "a").version != of("a", "b").version

    def test_unknown_abstains_only_for_yes_and_no(self) -> None:
        assert assessed(judge(), BARE, "unknown").outcome == "abstained"
        labels = {"labels": ["yes", "no"], "pass": ["yes"]}
        assert assessed(judge(result=labels), BARE, "unknown").reason == "out_of_range"

    def test_yes_no_is_asked_for_as_in_the_built_in_judges(self) -> None:
        made = judge()
        assert made.schema == yes_no.SCHEMA
        assert made.read(json.dumps({"rationale": "x", "result": "yes"})).value == "yes"

    @each_case(
        ("result", "schema", "line"),
        [
            ("boolean", {"type": "boolean"}, '"result": true|false'),
            ({"integer": [0, 2]}, {"type": "integer", "enum": [0, 1, 2]}, '"result": <number>'),
            ({"integer": [0, 101]}, {"type": "integer"}, "one whole number from 0 to 101 in plain digits"),
            ({"number": [0, 0.5]}, {"type": "number"}, "from 0 to 0.5 in plain digits"),
            ({"labels": {'"a"': 1, "b": 0}}, {"type": "string", "enum": ['"a"', "b"]}, '"result": "\\"a\\"|b"'),
        ],
    )
    def test_are_asked_for_by_schema_and_in_words(self, result: object, schema: object, line: str) -> None:
        made = judge(result=result)
        assert made.schema["properties"] == {"rationale": {"type": "string"}, "result": schema}
        assert line in made.fixed_parts[0]


class TestDefinition:
    def test_settings_show_what_was_declared_with_its_defaults(self) -> None:
        made = judge(result={"integer": [1, 5]})
        assert msgspec.to_builtins(made.settings) == {
            "kind": "instructions",
            "result": {"integer": [1, 5], "direction": "higher"},
        }
        assert msgspec.to_builtins(judge("{{ trace }}", max_rounds=5).settings) == {
            "kind": "instructions",
            "result": "yes/no",
            "max_rounds": 5,
            "max_tokens": 1_000_000,
            "max_usd": None,
        }

    @each_case(
        "change",
        [
            {"instructions": "Is {{ outputs }} polite!"},
            {"result": "boolean"},
            {"result": {"integer": [1, 5]}},
            {"result": {"integer": [1, 5], "pass_at": 4}},
            {"result": {"integer": [1, 5], "direction": "lower"}},
            {"result": {"labels": {"a": 1, "b": 0}}},
            {"result": {"labels": {"a": 2, "b": 1, "c": 0}}},
            {"result": {"labels": {"a": 2, "b": 0.5, "c": 0}}},
            {"result": {"labels": {"a": 1, "b": 0}, "pass": ["a"]}},
            {"instructions": "{{ trace }}"},
            {"instructions": "{{ trace }}", "max_rounds": 5},
            {"instructions": "{{ trace }}", "max_usd": 0.5},
        ],
        ids=repr,
    )
    def test_every_change_of_what_is_judged_is_another_version(self, change: Mapping[str, object]) -> None:
        versions[str(change)] = define("mine", {"instructions": "Is {{ outputs }} polite?", **change}).version
        assert len(set(versions.values())) == len(versions)

    def test_the_version_keeps_to_what_is_judged(self) -> None:
        assert judge(asks="Another sentence?", result="yes/no").version == judge().version
        assert define("other", {"instructions": "Is {{ outputs }} polite?"}).version != judge().version

    def test_lists_show_the_first_line_unless_told_otherwise(self) -> None:
        assert judge("Is {{ outputs }} polite?\nMind the tone.").asks == "Is {{ outputs }} polite?"
        assert judge("x" * 200 + "{{ outputs }}").asks == "x" * 99 + "…"
        assert judge(asks=" Is it polite? ").asks == "Is it polite?"


versions: dict[str, str] = {"": judge().version}


class TestTraceMode:
    def test_the_trace_has_no_part_and_the_instructions_come_last(self) -> None:
        made = judge("Was a tool in {{ trace }} called for {{ inputs }} in vain?")
        (fixed,) = made.fixed_parts
        assert fixed.endswith("Your instructions\nWas a tool in {{ trace }} called for {{ inputs }} in vain?")
        assert [block.name for block in made.prompts(SHORT)[0].blocks] == ["inputs"]
        assert "- `result` (string): follows from the reasons; write yes or no, nothing else" in fixed

    def test_limits_are_the_defaults_unless_given(self) -> None:
        assert judge().exploration is None
        made = judge("{{ trace }}", max_rounds=3, max_usd=1).exploration
        assert made is not None
        assert msgspec.structs.astuple(made.limits) == (3, 1_000_000, 1.0)

    def test_only_its_own_variables_bring_the_rules_on_material(self) -> None:
        assert "How the material is marked" not in judge("{{ trace }}").fixed_parts[0]
        assert "How the material is marked" in judge("{{ trace }} {{ outputs }}").fixed_parts[0]


def guessed(made: Judge, trace: Trace) -> tuple[float | str | None, str | None]:
    assessment = asyncio.run(evaluate(made, trace, LexicalModel()))
    return assessment.scores[0].raw, assessment.rationale


class TestLexicalModel:
    TRACE = msgspec.structs.replace(BARE, input="How many years?", expected_response="Two years")
    HALF = "Word overlap only: 50% of the words of the question appear in the answer."
    WHOLE = "Word overlap only: 100% of the words of what was expected appear in the answer."

    @each_case(
        ("result", "raw"),
        [
            ("yes/no", 1.0),
            ("boolean", 1.0),
            ({"integer": [0, 4]}, 2.0),
            ({"number": [0, 1]}, 0.5),
            ({"number": [0, 3], "direction": "lower"}, 1.5),
            ({"labels": {"a": 2, "b": 1, "c": 0}}, 1.0),
            ({"labels": ["a", "b"], "pass": ["b"]}, "b"),
        ],
        ids=str,
    )
    def test_gives_the_share_of_common_words_on_the_judges_scale(self, result: object, raw: object) -> None:
        assert guessed(judge(result=result), self.TRACE) == (raw, self.HALF)

    def test_compares_with_what_was_expected_where_the_judge_looks_at_that(self) -> None:
        made = judge("{{ outputs }} {{ expectations }}", result={"integer": [1, 5]})
        assert guessed(made, self.TRACE) == (5.0, self.WHOLE)

    def test_counts_errors_of_a_trace(self) -> None:
        made = judge("{{ trace }}", result=LOW)
        none = "Nothing but statuses was looked at: No step of the trace ended in an error."
        sample = "Nothing but statuses was looked at: 1 steps of the trace ended in an error."
        failed = msgspec.structs.replace(BARE, spans=[Span(span_id="a", name="b", status="STATUS_CODE_ERROR")])
        assert guessed(made, BARE) == (0.0, none)
        assert guessed(made, failed) == (10.0, sample)


class TestCatalogue:
    def test_holds_definitions_beside_the_built_in_judges(self) -> None:
        configured_judges = load_judges(
            {"mine": {"instructions": "{{ outputs }}"}, "guidelines": {"guidelines": "Be brief."}}
        )
        assert list(configured_judges) == [*catalogue(), "mine"]
        assert configured_judges["mine"].version == define("mine", {"instructions": "{{ outputs }}"}).version

    def test_refuses_the_name_of_a_built_in_judge(self) -> None:
        with pytest.raises(DefinitionError) as caught:
            load_judges({"safety": {"instructions": "{{ outputs }}"}})
        fix = "safety is the name of a built-in judge; give this one a name of its own"
        assert (caught.value.key, caught.value.fix) == ("instructions", fix)
