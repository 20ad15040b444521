"""Judges by instructions and by prompts of the user's own: what they send, need, read and score, and each mistake.

The files in ``golden_custom/`` are what they send to the letter; ``UPDATE_GOLDEN=1 pytest -k golden`` writes them anew.
"""

import asyncio
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from families import JUDGES, asking, yaml
from families import judge as by_template
from judge_traces import LONG, SHORT, table, told
from support.cases import each_case
from support.tables import check_golden, expand

from judges.calling.evaluation import evaluate
from judges.core.judge import Judge
from judges.core.model import ModelSettings
from judges.core.prompt import render
from judges.core.verdict import Assessment
from judges.custom import DefinitionError, define, template_file
from judges.custom.template import KNOWN
from judges.forms import yes_no
from judges.models.lexical import LexicalModel
from judges.models.scripted import ScriptedModel
from judges.registry import catalogue, load_judges
from tracejudge import Message, Span, ToolCall, Trace

TABLES = table("custom")
BARE = Trace(trace_id="1", service="s", output="Two years.")
POLITE = {"instructions": "Is {{ outputs }} polite?"}
CHOICES = {"custom_prompt": "Is {{ outputs }} [[plain]] or [[rude]]?", "pass": ["plain"]}
GOLDEN = Path(__file__).with_name("golden_custom")


def trace_of(**fields: object) -> Trace:
    return msgspec.structs.replace(BARE, **fields)


def judge(instructions: str = POLITE["instructions"], **further: object) -> Judge:
    return define("mine", {"instructions": instructions, **further})


def fixed(made: Judge) -> str:
    (text,) = made.fixed_parts
    return text


def with_fields(fields: Mapping[str, object]) -> Trace:
    return msgspec.convert({**msgspec.to_builtins(BARE), **fields}, Trace)


def assessed(made: Judge, *results: object, trace: Trace = BARE) -> Assessment:
    answers = [json.dumps({"rationale": "Let's think step by step. It is so.", "result": result}) for result in results]
    return asyncio.run(evaluate(made, trace, ScriptedModel(answers) if answers else LexicalModel()))


class TestRequest:
    def test_what_is_sent_is_the_golden_file(self) -> None:
        expected = set()
        for name in ("politeness", "tone", "certainty", "formality", "detours", "thoroughness"):
            for case, trace in (("short", SHORT), ("long", LONG)):
                made, path = JUDGES[name], GOLDEN / f"{name}.{case}.txt"
                expected.add(path)
                (prompt,) = made.prompts(made.prepare(trace))
                messages = "\n\n".join(f"=== {message.role}\n{message.content}" for message in render(prompt))
                schema = msgspec.json.format(msgspec.json.encode(made.schema), indent=2).decode()
                actual = f"{messages}\n\n=== schema\n{schema}\n"
                check_golden(path, actual)
        assert expected == set(GOLDEN.iterdir()), "delete what is left over"

    def test_definitions_are_shown_as_in_the_golden_file(self) -> None:
        """Text, variables, examples, results, needs and limits: what differs from a judge that asks for politeness."""
        usual = set(fixed(judge()).split("\n"))
        written = []
        for name, (definition, fields) in TABLES["shown"].items():
            made = define("mine", definition)
            (metric,), (prompt,) = made.metrics, made.prompts(with_fields(fields))
            text = [line for line in fixed(made).split("\n") if line not in usual or len(line) < 30]
            about = {"needs": made.needs_in_words, "cuts": made.cuts, "asks": made.asks, "metric": metric}
            facts = {**about, "schema": made.schema.get("properties", {}).get("result"), "settings": made.settings}
            lines = [f"{key} {msgspec.json.encode(value).decode()}" for key, value in facts.items()]
            blocks = [f"<<{block.name}>>\n{block.value}" for block in prompt.blocks]
            written.append("\n".join((f"## {name}", *lines, *filter(None, text), *blocks)))
        check_golden(GOLDEN.with_name("golden_definitions.txt"), "\n\n".join(written) + "\n")

    def test_the_oldest_messages_of_a_conversation_may_be_left_out(self) -> None:
        trace = trace_of(messages=[Message("user", "old " * 5000), Message("user", "new")])
        model = ScriptedModel(['{"rationale": "", "result": "yes"}'], ModelSettings("scripted", max_input_tokens=2000))
        assessment = asyncio.run(evaluate(judge("Rate {{ conversation }}"), trace, model))
        assert (assessment.outcome, assessment.details) == ("scored", {"left_out": {"messages": 1}})


class TestNeeds:
    def test_a_variable_without_a_value_is_not_asked_about(self) -> None:
        for variable, trace, missing in (
            ("inputs", BARE, "input"),
            ("outputs", trace_of(output=" "), "output"),
            ("expectations", trace_of(expected_facts=[" "]), "expected_response or expected_facts or guidelines"),
            ("conversation", trace_of(messages=[Message("user")]), "messages or input"),
            ("trace", trace_of(output=""), "spans or tool_calls or input or output"),
            ("messages", BARE, "messages"),
            ("tags.app.plan", trace_of(tags={"plan": "a"}), "tags.app.plan"),
        ):
            model, note = ScriptedModel(["never"]), f"the trace has no {missing}"
            assessment = asyncio.run(evaluate(judge(f"{{{{ {variable} }}}}"), trace, model))
            assert (assessment, model.requests) == (Assessment("unscored", "missing_input", note=note), []), variable

    def test_one_of_several_is_enough_and_none_excludes_another(self) -> None:
        made = judge("{{ outputs }} {{ expectations }}")
        rules = {"guidelines": ["a"]}
        for fields in ({"expected_response": "a"}, rules, {"expected_facts": ["a"], **rules}):
            assert made.missing(trace_of(**fields)) is None, fields
        for fields in ({"spans": [Span(span_id="a", name="b")]}, {"tool_calls": [ToolCall("a")]}, {"output": "a"}):
            assert judge("{{ trace }}").missing(trace_of(**{"output": "", **fields})) is None, fields


class TestResults:
    def test_answers_are_worth_what_the_golden_file_says(self) -> None:
        """Of a scripted model, or without an answer of the built-in one, which guesses by common words."""
        written = []
        for name, (definition, fields, *results) in TABLES["answers"].items():
            outcome = assessed(define("mine", definition), *results, trace=with_fields(fields))
            written.append(
                f"## {name}: {json.dumps([definition, *results], ensure_ascii=False)}\n{told([], outcome)}\n"
            )
        check_golden(GOLDEN.with_name("golden_results.txt"), "\n".join(written))

    def test_prose_around_an_answer_is_no_other_text(self) -> None:
        answer = json.dumps({"rationale": "It is so.", "result": "It is late."})
        model = ScriptedModel([f"{answer}\n\nI hope this helps."] * 2)
        assessment = asyncio.run(evaluate(judge(result="text"), BARE, model))
        assert (assessment.details, len(assessment.calls)) == ({"result": "It is late."}, 1)

    def test_other_words_for_types_work(self) -> None:
        assert judge(result="bool").version == judge(result="boolean").version
        assert judge(result="string").version == judge(result="text").version
        assert judge().schema == yes_no.SCHEMA


class TestDefinitions:
    def test_every_change_of_what_is_judged_is_another_version_and_no_other_change_is(self) -> None:
        versions = [define("mine", {**POLITE, **change}).version for change in ({}, *TABLES["changes"])]
        assert len(set(versions)) == len(versions) > 12
        assert judge(asks="Another sentence?", result="yes/no").version == judge().version
        assert define("other", POLITE).version != judge().version
        assert judge(examples=[{"outputs": "Thank you.", "result": "yes"}]).version != judge().version
        ab, ba, ca = (judge(result={"labels": ["a", "b", "c"], "pass": list(labels)}) for labels in ("ab", "ba", "ca"))
        assert (ba.version, ba.metrics) == (ab.version, ab.metrics)
        assert ca.version != ab.version

    def test_a_catalogue_holds_definitions_beside_the_built_in_judges_whose_names_it_refuses(self) -> None:
        configured = load_judges({"mine": {"instructions": "{{ outputs }}"}, "guidelines": {"guidelines": "Be brief."}})
        assert list(configured) == [*catalogue(), "mine"]
        assert configured["mine"].version == define("mine", {"instructions": "{{ outputs }}"}).version
        with pytest.raises(DefinitionError) as caught:
            load_judges({"safety": {"instructions": "{{ outputs }}"}})
        fix = "safety is the name of a built-in judge; give this one a name of its own"
        assert (caught.value.key, caught.value.fix) == ("instructions", fix)

    def test_the_temperature_is_sent_and_makes_another_version_and_the_model_does_not(self) -> None:
        for definition in (POLITE, CHOICES):
            made = define("mine", {**definition, "temperature": 0.7, "model": "large"})
            plain, named = define("mine", definition), define("mine", {**definition, "model": "large"})
            for each, temperature in ((made, 0.7), (plain, 0)):
                model = ScriptedModel([json.dumps({"rationale": "", "result": "plain"})])
                asyncio.run(evaluate(each, BARE, model))
                assert {request.temperature for request in model.requests} == {temperature}
            assert (made.model, plain.model) == ("large", None)
            assert made.version != plain.version == named.version, "the judge model is in the series itself"


WRONG = table("mistakes")
OUTPUTS = {"instructions": "{{ outputs }}"}
TEMPLATE = {
    "template": {"file": "f", "text": "prompt: {template: 'Is {{response}} so?', template_variables: [response]}"}
}
KINDS: Mapping[str, Mapping[str, object]] = {
    "instructions": {"instructions": "Is {{ outputs }} so?"},
    "custom_prompt": {"custom_prompt": "Is {{ outputs }} [[so]] or [[not]]?", "pass": ["so"]},
    "template": TEMPLATE,
    "code": {"code": "module:name"},
    "answer": TEMPLATE,
}
DEFINITIONS: list[tuple[Mapping[str, object], str]] = [
    ({"instructions": "{{ outputs }}" + "x" * 100_000}, "instructions: must have at most 100000 characters"),
    (
        {"instructions": "{{ trace }}", "max_usd": math.inf},
        "max_usd: must be a finite number; take it out for no limit",
    ),
    *(({**OUTPUTS, "result": result}, line) for result, line in WRONG["no numbers"].values()),
    *(({"instructions": text}, f"instructions: {fix}") for text, fix in WRONG["instructions"].items()),
    *(({**OUTPUTS, "result": result}, line) for result, line in WRONG["results"].values()),
    *(({**TEMPLATE, "answer": answer}, line) for answer, line in WRONG["answers"].values()),
    *(case for group in ("tables", "examples", "sessions", "guidance") for case in WRONG[group].values()),
]
for place, text in WRONG["misplaced"].items():
    kind, _, key = place.partition(".")
    DEFINITIONS.append(({**KINDS[kind], **({"answer": {key: 1}} if kind == "answer" else {key: 1})}, text))
FILES = [
    (
        yaml("{{" * 400_000, ["answer"]),
        "prompt.template: a {{ stands before no name that }} closes; write a variable as {{ name }}",
    ),
    *((expand(text), line) for text, line in WRONG["files"].values()),
]


def refused(definition: Mapping[str, object], name: str = "mine") -> tuple[str, str]:
    with pytest.raises(DefinitionError) as caught:
        define(name, definition)
    error = caught.value
    assert str(error) == f"{error.key}: {error.fix}"
    assert str(error).isprintable()
    assert len(str(error)) < 300
    return error.key, error.fix


class TestMistakes:
    @each_case(("definition", "line"), DEFINITIONS)
    def test_a_table_that_defines_no_judge(self, definition: Mapping[str, object], line: str) -> None:
        assert ": ".join(refused(definition)) == line

    @each_case(("variables", "rest", "line"), WRONG["templates"].values(), ids=WRONG["templates"])
    def test_templates_that_do_not_fit(self, variables: list[str], rest: dict[str, object], line: str) -> None:
        with pytest.raises(DefinitionError) as caught:
            asking(*variables, **rest)
        assert str(caught.value) == line

    @each_case(("text", "line"), FILES)
    def test_a_template_file_that_cannot_be_read_is_refused(self, text: str, line: str) -> None:
        with pytest.raises(DefinitionError) as caught:
            template_file.parse(text)
        assert str(caught.value) == line
        assert line.isprintable()

    def test_what_only_templates_and_examples_can_get_wrong(self) -> None:
        inline = {"fill": "inline", "answer": {"form": "template"}}
        system = yaml([{"role": "system", "content": "{{ answer }}"}], ["answer"])
        examples = {"template": {"file": "f", "text": ""}, "examples": []}
        for make, line in (
            (
                lambda: by_template(yaml("{{answer}}" + "x" * 100_000, ["answer"])),
                "template: mine.yaml: must have at most 100000",
            ),
            (lambda: asking("answer", fill="inline"), "fill: sends the template to the letter"),
            (lambda: by_template(system, inline), "fill: needs a message of the role user"),
            (lambda: asking("documents", "question", answer={"as": "ragbench"}), "answer.as: .*looks into the output"),
            (lambda: define("mine", examples), "examples: goes with instructions or custom_prompt"),
        ):
            with pytest.raises(DefinitionError, match=f"^{line}"):
                make()

    @each_case("name", KNOWN)
    def test_a_variable_of_templates_is_told_ours_or_that_templates_have_it(self, name: str) -> None:
        _, fix = refused({"instructions": f"{{{{ {name} }}}}"})
        documents = "retrieved documents are in no variable of this kind; take a template"
        assert re.search(rf"did you mean {{{{ \w+ }}}}\?$|{documents}$", fix)

    def test_only_names_that_make_a_metric_are_taken(self) -> None:
        for name in ("", "Mine", "1st", "my-judge", "a b", "a" * 65, "größe", "a\nb"):
            key, fix = refused(OUTPUTS, name)
            assert key == "instructions", name
            assert fix.endswith("rename it: at most 64 small letters, digits and '_', a letter first"), name
        for name in ("a", "a" * 64, "a_1"):
            assert define(name, OUTPUTS).metric_names == (name,)

    def test_tokens_that_hold_no_round_are_refused_with_the_least_that_do(self) -> None:
        def reading(max_tokens: int, text: str = "Is {{ trace }} so?") -> Mapping[str, object]:
            return {"instructions": text, "max_tokens": max_tokens}

        key, fix = refused(reading(3_000))
        match = re.fullmatch(r"does not hold the first round, whatever the trace; at least (\d+) do, and a few .*", fix)
        assert (key, match is not None) == ("max_tokens", True)
        least = int(match[1])
        assert define("mine", reading(least)).exploration is not None
        assert refused(reading(least - 1000)) == (key, fix)
        assert refused(reading(least, "Is {{ trace }} so? " * 1000))[0] == key
