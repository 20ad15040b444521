"""Published template files: what is read, and one line for everything that is not taken."""

from collections.abc import Mapping

import pytest
from support.cases import each_case
from template_parts import FACTS, yaml

from judges.custom import DefinitionError
from judges.custom.template_file import Part, TemplateFile, parse


def test_the_published_form_is_read() -> None:
    template = parse(FACTS)
    assert template.variables == ("user_request", "context_document", "response")
    assert [part.role for part in template.parts] == [None]
    assert template.parts[0].text.startswith("Your job is to see")
    assert template.parts[0].text.endswith("The answer: {{response}}")
    assert template.description == "Does each sentence of the answer stand in its source?"


def test_metadata_stays_as_it_is_written_and_nothing_of_it_is_computed() -> None:
    assert parse(FACTS).metadata == {
        "description": "Does each sentence of the answer stand in its source?",
        "evaluation_method": "sentence by sentence",
        "tags": ["grounding", "2025"],
        "version": "1.0",
        "date": "2025-03-01",
        "author": "the project",
        "source": "null",
    }


def test_a_template_may_be_a_list_of_messages() -> None:
    messages = [{"role": "system", "content": " Be strict. "}, {"role": "user", "content": "Look at {{ answer }}."}]
    assert parse(yaml(messages, ["answer"])) == TemplateFile(
        (Part("system", "Be strict."), Part("user", "Look at {{ answer }}.")), ("answer",), {}
    )


def test_a_description_is_one_line_that_any_terminal_bears() -> None:
    template = parse(yaml("{{answer}}", ["answer"], metadata={"description": "Is it\nso?\x9b2J"}))
    assert template.description == "Is it so?[U+009B]2J"


def test_halves_of_a_character_as_json_escapes_it_are_joined() -> None:
    text = yaml("Is {{answer}} \U0001f642?", ["answer"], metadata={"author": "\U0001f642"})
    assert "\\ud83d\\ude42" in text
    template = parse(text)
    assert (template.parts[0].text, template.metadata) == ("Is {{answer}} \U0001f642?", {"author": "\U0001f642"})


def test_half_a_character_is_replaced_since_it_could_not_be_shown() -> None:
    assert parse(yaml("{{answer}}", ["answer"], metadata={"author": "\ud83d!"})).metadata == {"author": "\ufffd!"}


@each_case("metadata", ["null", "~", "", None])
def test_metadata_may_say_nothing(metadata: object) -> None:
    text = yaml("{{answer}}", ["answer"])
    assert parse(text).metadata == {}
    assert (
        parse(
            f"prompt:\n  template: '{{{{answer}}}}'\n  template_variables: [answer]\n  metadata: {metadata or ''}\n"
        ).metadata
        == {}
    )


def test_a_variable_that_is_declared_and_not_used_is_kept() -> None:
    assert parse(yaml("Look at {{answer}}.", ["question", "answer"])).variables == ("question", "answer")


def test_parts_of_a_file_that_nobody_reads_may_hold_anything() -> None:
    extra = {"client_parameters": {"model": "m", "stop": ["x"]}, "custom_data": [1], "input_schema": {"a": None}}
    assert parse(yaml("{{answer}}", ["answer"], **extra)).variables == ("answer",)


def test_the_same_text_is_read_once() -> None:
    assert parse(FACTS) is parse(FACTS)


BODY = "prompt: {{template: {}, template_variables: [answer]}}"
BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "\n".join(
    f"{chr(98 + number)}: &{chr(98 + number)} [{','.join([f'*{chr(97 + number)}'] * 9)}]" for number in range(8)
)
PLAIN = "is no variable: the braces must contain a plain name, without paths, filters or calls"
NO_BLOCK = (
    "begins a block or comment of a template language, which does nothing here; take it out, and write a variable as "
    "{{ name }}"
)
YAML = "is not YAML as it is taken here"

MISTAKES: Mapping[str, tuple[str, str]] = {
    # YAML
    "no YAML": ("prompt: [", f"line 1: {YAML}: expected the node content, but found '<stream end>'; fix it there"),
    "a control character": ("a: \x07", f"the file: {YAML}: special characters are not allowed; fix it there"),
    "two documents": ("a: 1\n---\nb: 2", f"line 2: {YAML}: but found another document; fix it there"),
    "an alias": ("a: &a x\nb: *a", f"line 2: {YAML}: an alias is not allowed; fix it there"),
    "a bomb of aliases": (BOMB, f"line 2: {YAML}: an alias is not allowed; fix it there"),
    "a merge of tables": ("a: &a {x: y}\nb: {<<: *a}", f"line 2: {YAML}: an alias is not allowed; fix it there"),
    "a tag that would run something": (
        "prompt: !!python/object/apply:os.system ['false']",
        f"line 1: {YAML}: a tag is not allowed; fix it there",
    ),
    "a tag of one's own": ("prompt: !mine x", f"line 1: {YAML}: a tag is not allowed; fix it there"),
    "an escape of no character": (
        'a: "\\U00110000"',
        f"the file: {YAML}: a number in an escape or a version is too large; fix it there",
    ),
    "an escape of a number that nothing holds": (
        'a: "\\UFFFFFFFF"',
        f"the file: {YAML}: a number in an escape or a version is too large; fix it there",
    ),
    "a version of thousands of digits": (
        f"%YAML 1.{'1' * 5000}\n---\na: b",
        f"the file: {YAML}: a number in an escape or a version is too large; fix it there",
    ),
    "lists without end": ("[" * 200_000, f"line 1: {YAML}: it is nested deeper than 20; fix it there"),
    "tables without end": ("{a: " * 200_000, f"line 1: {YAML}: it is nested deeper than 20; fix it there"),
    "a key twice": (
        "prompt: {template: a, template: b}",
        f"line 1: {YAML}: a key stands twice in one table; fix it there",
    ),
    "a list for a key": ("? [a]\n: b", f"line 1: {YAML}: found unhashable key; fix it there"),
    "an unknown anchor": ("a: *b", f"line 1: {YAML}: an alias is not allowed; fix it there"),
    # shape
    "an empty file": ("", "the table: must be a table with some of prompt"),
    "no prompt": (
        "template: x",
        "prompt: is missing; it must be a table with some of template_variables, template, metadata",
    ),
    "a prompt that is a text": (
        "prompt: x",
        "prompt: must be a table with some of template_variables, template, metadata",
    ),
    "no template": (
        "prompt: {template_variables: [answer]}",
        "prompt.template: is empty; write what the judge is to do",
    ),
    "a blank template": (BODY.format('" "'), "prompt.template: is empty; write what the judge is to do"),
    "a text for a message": (
        BODY.format("[a]"),
        "prompt.template: must be a string or a list, each a table with some of role, content",
    ),
    "a message without content": (
        BODY.format("[{role: user}]"),
        "prompt.template.content: is missing; it must be a string",
    ),
    "an unknown role": (
        BODY.format("[{role: user, content: x}, {role: tool, content: y}]"),
        "prompt.template.role: must be one of assistant, developer, system, user",
    ),
    "content in parts": (
        BODY.format("[{role: user, content: [{type: text, text: x}]}]"),
        "prompt.template.content: must be a string",
    ),
    "variables that are a text": (
        "prompt: {template: x, template_variables: answer}",
        'prompt.template_variables: must be a list, as ["…"]',
    ),
    "an empty list of variables": (
        "prompt: {template: x, template_variables: []}",
        "prompt.template_variables: must list each variable of the template once, in the order they are shown",
    ),
    "a variable twice": (
        "prompt: {template: x, template_variables: [answer, answer]}",
        "prompt.template_variables: must list each variable of the template once, in the order they are shown",
    ),
    "metadata that is a list": (
        "prompt: {template: x, template_variables: [answer], metadata: [a]}",
        "prompt.metadata: must be a table, as {description: ..., version: ...}",
    ),
    # variables
    "a variable that is not declared": (
        yaml("{{answer}} {{ rubric }}", ["answer"]),
        "prompt.template: uses rubric, which is not declared; declare it in prompt.template_variables, or take it out",
    ),
    "one in a message": (
        yaml([{"role": "user", "content": "{{rubric}}"}], ["answer"]),
        "prompt.template: uses rubric, which is not declared; declare it in prompt.template_variables, or take it out",
    ),
    "a filter": (yaml("{{ answer | upper }}", ["answer"]), f"prompt.template: {{{{ answer | upper }}}} {PLAIN}"),
    "an attribute": (
        yaml("{{ answer.__class__ }}", ["answer"]),
        f"prompt.template: {{{{ answer.__class__ }}}} {PLAIN}",
    ),
    "a call": (yaml("{{ f() }}", ["answer"]), f"prompt.template: {{{{ f() }}}} {PLAIN}"),
    "nothing in braces": (yaml("{{ }}", ["answer"]), f'prompt.template: {{{{ "" }}}} {PLAIN}'),
    "over two lines": (yaml("{{ a\nb }}", ["answer"]), f"prompt.template: {{{{ a b }}}} {PLAIN}"),
    "a table in braces": (
        yaml("{{ {answer: 1} }}", ["answer"]),
        "prompt.template: a {{ stands before no name that }} closes; write a variable as {{ name }}",
    ),
    "thousands of open braces": (
        yaml("{{" * 400_000, ["answer"]),
        "prompt.template: a {{ stands before no name that }} closes; write a variable as {{ name }}",
    ),
    "a statement": (yaml("{% if answer %}x{% endif %}", ["answer"]), f"prompt.template: {{% {NO_BLOCK}"),
    "a comment": (yaml("{# x #}", ["answer"]), f"prompt.template: {{# {NO_BLOCK}"),
    "braces that stay open": (
        yaml("{{answer}} {{ x", ["answer"]),
        "prompt.template: a {{ stands before no name that }} closes; write a variable as {{ name }}",
    ),
    "single braces": (
        yaml("Look at {answer}.", ["answer"]),
        "prompt.template: writes answer in single braces; write {{ answer }}",
    ),
}


@each_case(("text", "line"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_one_line(text: str, line: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        parse(text)
    assert str(caught.value) == line
    assert line.isprintable()


def test_a_template_may_speak_of_braces_that_are_no_variables() -> None:
    text = 'Answer {"result": "yes"} about {{{answer}}}, as in {"a": {"b": 1}} or {x}.'
    assert parse(yaml(text, ["answer"])).parts[0].text == text
