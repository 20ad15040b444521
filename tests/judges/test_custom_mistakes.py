"""Every mistake in a definition is told in one line: the key in the table, and the fix."""

import math
import re
from collections.abc import Mapping

import pytest
from support.cases import each_case
from tables import table
from template_parts import asking, judge, yaml

from judges.custom import DefinitionError, define
from judges.custom.template import KNOWN
from judges.custom.template_file import parse

TABLES = table("mistakes")
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
BOUND = "result.{}: a bound must be a finite number of at most fifteen digits"
# What JSON cannot hold, or not in a line.
DEFINITIONS: list[tuple[Mapping[str, object], str]] = [
    ({"instructions": "{{ outputs }}" + "x" * 100_000}, "instructions: must have at most 100000 characters"),
    ({**OUTPUTS, "result": {"number": [0, math.inf]}}, BOUND.format("number")),
    ({**OUTPUTS, "result": {"number": [math.nan, 1]}}, BOUND.format("number")),
    (
        {**OUTPUTS, "result": {"number": [0, 0.5], "pass_at": math.nan}},
        "result.pass_at: must be within the range, from 0 to 0.5",
    ),
    ({**OUTPUTS, "result": {"labels": {"a": 1, "b": -math.inf}}}, "result.labels: a label's number must be finite"),
    (
        {"instructions": "{{ trace }}", "max_usd": math.inf},
        "max_usd: must be a finite number; take it out for no limit",
    ),
    *(({"instructions": text}, f"instructions: {fix}") for text, fix in TABLES["instructions"].items()),
    *(({**OUTPUTS, "result": result}, line) for result, line in TABLES["results"].values()),
    *(({**TEMPLATE, "answer": answer}, line) for answer, line in TABLES["answers"].values()),
    *(case for group in ("tables", "examples", "sessions", "guidance") for case in TABLES[group].values()),
]
for place, text in TABLES["misplaced"].items():
    kind, _, key = place.partition(".")
    DEFINITIONS.append(({**KINDS[kind], **({"answer": {key: 1}} if kind == "answer" else {key: 1})}, text))
YAML = "is not YAML as it is taken here"
FILES = [
    (
        f"%YAML 1.{'1' * 5000}\n---\na: b",
        f"the file: {YAML}: a number in an escape or a version is too large; fix it there",
    ),
    ("[" * 200_000, f"line 1: {YAML}: it is nested deeper than 20; fix it there"),
    ("{a: " * 200_000, f"line 1: {YAML}: it is nested deeper than 20; fix it there"),
    (
        yaml("{{" * 400_000, ["answer"]),
        "prompt.template: a {{ stands before no name that }} closes; write a variable as {{ name }}",
    ),
    *TABLES["files"].values(),
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

    @each_case(("variables", "rest", "line"), TABLES["templates"].values(), ids=TABLES["templates"])
    def test_templates_that_do_not_fit(self, variables: list[str], rest: dict[str, object], line: str) -> None:
        with pytest.raises(DefinitionError) as caught:
            asking(*variables, **rest)
        assert str(caught.value) == line

    @each_case(("text", "line"), FILES)
    def test_a_template_file_that_cannot_be_read_is_refused(self, text: str, line: str) -> None:
        with pytest.raises(DefinitionError) as caught:
            parse(text)
        assert str(caught.value) == line
        assert line.isprintable()

    def test_what_only_templates_and_examples_can_get_wrong(self) -> None:
        inline = {"fill": "inline", "answer": {"form": "template"}}
        system = yaml([{"role": "system", "content": "{{ answer }}"}], ["answer"])
        examples = {"template": {"file": "f", "text": ""}, "examples": []}
        for make, line in (
            (
                lambda: judge(yaml("{{answer}}" + "x" * 100_000, ["answer"])),
                "template: mine.yaml: must have at most 100000",
            ),
            (lambda: asking("answer", fill="inline"), "fill: sends the template to the letter"),
            (lambda: judge(system, inline), "fill: needs a message of the role user"),
            (lambda: asking("documents", "question", answer={"as": "ragbench"}), "answer.as: .*looks into the output"),
            (lambda: define("mine", examples), "examples: goes with instructions or custom_prompt"),
        ):
            with pytest.raises(DefinitionError, match=f"^{line}"):
                make()

    @each_case(
        "text",
        [
            'Is {{ outputs }} of the form {"outputs": "text", "inputs": {}}?',
            "Is {{ outputs }} a set as {a, b}, or {output}, or {outputs.text}, or {Outputs}?",
        ],
    )
    def test_other_things_in_braces_may_stand_there(self, text: str) -> None:
        (fixed,) = define("mine", {"instructions": text}).fixed_parts
        assert text in fixed

    @each_case("name", KNOWN)
    def test_a_variable_of_templates_is_told_ours_or_that_templates_have_it(self, name: str) -> None:
        _, fix = refused({"instructions": f"{{{{ {name} }}}}"})
        documents = "retrieved documents are in no variable of this kind; take a template"
        assert re.search(rf"did you mean {{{{ \w+ }}}}\?$|{documents}$", fix)

    def test_labels_of_one_alphabet_are_not_taken_for_each_other(self) -> None:
        labels = ["\u0434\u0430", "\u043d\u0435\u0442", "\u03bd\u03b1\u03b9", "yes", "no"]
        assert define("mine", {**OUTPUTS, "result": {"labels": labels, "pass": ["yes"]}}).schema

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
