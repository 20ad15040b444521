"""Every mistake in a definition is told in one line: the key in the table, and the fix."""

import re
from collections.abc import Mapping

import pytest
from support.cases import each_case

from judges.custom import DefinitionError, define
from judges.custom.template import KNOWN as KNOWN_TO_TEMPLATES

KNOWN = "use inputs, outputs, expectations, conversation, context, messages, trace"
KEYS = (
    "unknown key; known are instructions, result, max_rounds, max_tokens, max_usd, asks, model, temperature, examples, "
    "unit, guidance, score_cut"
)
PLAIN = "the braces must contain a plain name, without paths, filters or calls"
RESULT = 'must be "yes/no", "boolean", "text", "list", "object", or a table with one of integer, number, labels, object'
LABEL = "a label may hold no bracket, no line break and no sign that cannot be seen"

INSTRUCTIONS: Mapping[str, str] = {
    "": "is empty; say what the model is to judge",
    " \u200b\n": "is empty; say what the model is to judge",
    "Is it polite?": (
        "names no variable, so that the model would see nothing; use one of {{ inputs }}, {{ outputs }}, "
        "{{ expectations }}, {{ conversation }}, {{ context }}, {{ messages }}, {{ trace }}"
    ),
    "<outputs> %(trace)s $inputs": (
        "names no variable, so that the model would see nothing; use one of {{ inputs }}, {{ outputs }}, "
        "{{ expectations }}, {{ conversation }}, {{ context }}, {{ messages }}, {{ trace }}"
    ),
    "{outputs}": "the variable {outputs} is in single braces; write it as {{ outputs }}",
    "{{ inputs }} ${outputs}": "the variable {outputs} is in single braces; write it as {{ outputs }}",
    "{{ inputs }} { trace }": "the variable {trace} is in single braces; write it as {{ trace }}",
    "{{ question }}": "the variable {{ question }} is unknown; did you mean {{ inputs }}?",
    "{{ rubric }}": f"the variable {{{{ rubric }}}} is unknown; {KNOWN}",
    "{{ foo }}": f"the variable {{{{ foo }}}} is unknown; {KNOWN}",
    "{{ outputs }} {{ output }}": "the variable {{ output }} is unknown; did you mean {{ outputs }}?",
    "{{ OUTPUTS }}": "the variable {{ OUTPUTS }} is unknown; did you mean {{ outputs }}?",
    "{{}}": f'{{{{ "" }}}} is no variable: {PLAIN}',
    "{{ out\u200bputs }}": f"{{{{ out[U+200B]puts }}}} is no variable: {PLAIN}",
    "{{ context_documents }}": "the variable {{ context_documents }} is unknown; did you mean {{ context }}?",
    "{{ tags. }}": f"{{{{ tags. }}}} is no variable: {PLAIN}",
    "{{ messages }} {{ conversation }}": (
        "{{ conversation }} holds the messages, the request and the answer; take out {{ messages }}"
    ),
    "{{ trace.spans }}": f"{{{{ trace.spans }}}} is no variable: {PLAIN}",
    "{{ outputs | upper }}": f"{{{{ outputs | upper }}}} is no variable: {PLAIN}",
    "{{ ''.__class__.__mro__ }}": f"{{{{ ''.__class__.__mro__ }}}} is no variable: {PLAIN}",
    "{{ outputs }} {{ inputs": "a {{ stands before no name that }} closes; write a variable as {{ name }}",
    "{% if outputs %}{{ outputs }}{% endif %}": (
        "{% begins a block or comment of a template language, which does nothing here; take it out, and write a "
        "variable as {{ name }}"
    ),
    "{# hidden #}{{ outputs }}": (
        "{# begins a block or comment of a template language, which does nothing here; take it out, and write a "
        "variable as {{ name }}"
    ),
    "{{ conversation }} {{ outputs }}": (
        "{{ conversation }} holds the messages, the request and the answer; take out {{ outputs }}"
    ),
    "{{ trace }} {{ conversation }}": (
        "{{ conversation }} holds the messages, the request and the answer; take out {{ trace }}"
    ),
    "{{ outputs }}" + "x" * 100_000: "must have at most 100000 characters",
}
RESULTS: Mapping[str, tuple[object, str, str]] = {
    "another word": ("prose", "result", RESULT),
    "a number": (3, "result", RESULT),
    "a list": (
        ["a", "b"],
        "result",
        'does not say which labels pass; write it as result = { labels = ["a", "b"], pass = ["a"] }',
    ),
    "an empty table": ({}, "result", RESULT),
    "a slip": ({"integr": [1, 5]}, "result.integr", "unknown key; did you mean integer?"),
    "a mark alone": (
        {"pass_at": 1},
        "result.pass_at",
        "needs a scale; write it as result = { integer = [1, 5], pass_at = 4 }",
    ),
    "a key without a name": ({"": 1}, 'result.""', "unknown key; known are integer, number, labels, object"),
    "a pass set beside a range": (
        {"integer": [1, 5], "pass": ["a"]},
        "result.pass",
        "goes with labels; with integer or number it is pass_at",
    ),
    "a mark beside labels": (
        {"labels": {"a": 1, "b": 0}, "pass_at": 1},
        "result.pass_at",
        "goes with integer or number; with labels it is pass",
    ),
    "a slip beside": ({"number": [0, 1], "pas_at": 1}, "result.pas_at", "unknown key; did you mean pass_at?"),
    "two kinds": (
        {"integer": [1, 5], "number": [0, 1]},
        "result.number",
        "cannot be combined with integer; a judge has one result, take one out",
    ),
    "a range turned round": (
        {"integer": [5, 1]},
        "result.integer",
        "the first bound must be below the second, as [1, 5]",
    ),
    "no range": ({"number": [1, 1]}, "result.number", "the first bound must be below the second, as [1, 5]"),
    "three bounds": ({"integer": [1, 3, 5]}, "result.integer", "must be a list of 2, each a whole number"),
    "a bound with a fraction": ({"integer": [0.5, 5]}, "result.integer", "must be a list of 2, each a whole number"),
    "truth values as bounds": (
        {"integer": [False, True]},
        "result.integer",
        "must be a list of 2, each a whole number",
    ),
    "texts as bounds": ({"number": ["0", "1"]}, "result.number", "must be a list of 2, each a number"),
    "a bound of hundreds of digits": (
        {"integer": [0, 10**400]},
        "result.integer",
        "a bound must be a finite number of at most fifteen digits",
    ),
    "an endless range": (
        {"number": [0, float("inf")]},
        "result.number",
        "a bound must be a finite number of at most fifteen digits",
    ),
    "no number as a bound": (
        {"number": [float("nan"), 1]},
        "result.number",
        "a bound must be a finite number of at most fifteen digits",
    ),
    "a bound that no float holds": (
        {"integer": [0, 2**60]},
        "result.integer",
        "a bound must be a finite number of at most fifteen digits",
    ),
    "a mark outside": ({"integer": [1, 5], "pass_at": 6}, "result.pass_at", "must be within the range, from 1 to 5"),
    "no number as a mark": (
        {"number": [0, 0.5], "pass_at": float("nan")},
        "result.pass_at",
        "must be within the range, from 0 to 0.5",
    ),
    "a mark that nothing fails": (
        {"integer": [1, 5], "pass_at": 1},
        "result.pass_at",
        "is the bad end of the range, so that nothing could fail; move the mark, or take it out",
    ),
    "a mark that nothing fails where low is good": (
        {"number": [0, 1], "pass_at": 1, "direction": "lower"},
        "result.pass_at",
        "is the bad end of the range, so that nothing could fail; move the mark, or take it out",
    ),
    "a mark with a fraction": ({"integer": [1, 5], "pass_at": 4.5}, "result.pass_at", "must be a whole number"),
    "a direction that is none": (
        {"integer": [1, 5], "direction": "up"},
        "result.direction",
        "must be one of higher, lower, none",
    ),
    "a mark without a side": (
        {"integer": [1, 5], "pass_at": 3, "direction": "none"},
        "result.pass_at",
        'nothing passes or fails with direction = "none"; take out one of them',
    ),
    "one label": ({"labels": ["a"], "pass": ["a"]}, "result.labels", "must be from 2 to 50 different labels"),
    "one label twice": (
        {"labels": ["a", "b", " a "], "pass": ["a"]},
        "result.labels",
        "the label a is there twice; write each once",
    ),
    "no label": ({"labels": []}, "result.labels", "must be from 2 to 50 different labels"),
    "many labels": ({"labels": list(map(str, range(51)))}, "result.labels", "must be from 2 to 50 different labels"),
    "overlapping labels": (
        {"labels": {"Good": 1, "good.": 0}},
        "result.labels",
        "the labels Good and good. overlap: an answer in another case or with a full stop fits both; rename one",
    ),
    "labels that differ in blanks": (
        {"labels": {"a": 1, " a": 0, "b": 2}},
        "result.labels",
        "two labels differ in blanks only, or look the same; rename one",
    ),
    "labels in two alphabets": (
        {"labels": ["good", "g\u043eod", "bad"], "pass": ["good"]},
        "result.labels",
        "the labels good and g\u043eod look alike; rename one",
    ),
    "labels in two widths": (
        {"labels": ["A 1", "\uff21\u3000\uff11", "b"], "pass": ["b"]},
        "result.labels",
        "the labels A 1 and \uff21 \uff11 look alike; rename one",
    ),
    "labels with two kinds of accent": (
        {"labels": {"caf\u00e9": 1, "cafe\u0301": 0, "b": 2}},
        "result.labels",
        "two labels differ in blanks only, or look the same; rename one",
    ),
    "an empty label": ({"labels": ["a", " . "]}, "result.labels", "a label is empty; give it a name or take it out"),
    "a long label": (
        {"labels": ["a", "b" * 101]},
        "result.labels",
        f"a label must have at most 100 characters: {'b' * 39}…",
    ),
    "a variable in a label": (
        {"labels": ["{{ inputs }}", "c"]},
        "result.labels",
        "a label is never filled from a trace; write it out instead of {{ inputs }}",
    ),
    "a bracket in a label": ({"labels": ["[a]", "c"]}, "result.labels", f"{LABEL}: [a]"),
    "a line break in a label": ({"labels": ["a\nb", "c"]}, "result.labels", f"{LABEL}: a b"),
    "a sign nobody sees in a label": ({"labels": ["a\u200b", "c"]}, "result.labels", f"{LABEL}: a[U+200B]"),
    "numbers as labels": (
        {"labels": [1, 2]},
        "result.labels",
        'must be a table, each value a number, or a list, as ["…"]',
    ),
    "texts as numbers": (
        {"labels": {"a": "1", "b": "0"}},
        "result.labels",
        'must be a table, each value a number, or a list, as ["…"]',
    ),
    "equal numbers": (
        {"labels": {"a": 1, "b": 1}},
        "result.labels",
        "all labels have the same number; give the better ones a higher one",
    ),
    "an endless number": ({"labels": {"a": 1, "b": float("-inf")}}, "result.labels", "a label's number must be finite"),
    "numbers too far apart": (
        {"labels": {"a": 1.7e308, "b": -1.7e308}},
        "result.labels",
        "the labels' numbers are too far apart",
    ),
    "no pass set": ({"labels": ["a", "b"]}, "result.pass", 'is missing; name the labels that pass, as ["a"]'),
    "an empty pass set": (
        {"labels": ["a", "b"], "pass": []},
        "result.pass",
        "is empty; name at least one label, or take it out where labels have numbers",
    ),
    "a pass set that is a text": ({"labels": ["a", "b"], "pass": "a"}, "result.pass", 'must be a list, as ["…"]'),
    "a pass set of all": (
        {"labels": {"a": 1, "b": 0}, "pass": ["a", "b"]},
        "result.pass",
        "names all labels, so that nothing could fail; leave one out",
    ),
    "a pass set worth less": (
        {"labels": {"good": 2, "fair": 1, "poor": 0}, "pass": ["good", "poor"]},
        "result.pass",
        "poor passes and is worth less than fair, which fails; give the better labels the higher numbers",
    ),
    "a pass set of others": (
        {"labels": ["fine", "bad"], "pass": ["fin"]},
        "result.pass",
        "there is no label fin; did you mean fine?",
    ),
}
TABLES: Mapping[str, tuple[Mapping[str, object], str, str]] = {
    "no kind": (
        {"asks": "Is it?"},
        "instructions",
        "is missing; a judge is defined by one of instructions, custom_prompt, template, code, based_on",
    ),
    "two kinds": (
        {"instructions": "{{ outputs }}", "custom_prompt": "[[a]]"},
        "custom_prompt",
        "cannot be combined with instructions; a judge is defined by one of them, take one out",
    ),
    "no text": ({"instructions": 3}, "instructions", "must be a string"),
    "an unknown key": ({"instructions": "{{ outputs }}", "reslt": 1}, "reslt", "unknown key; did you mean result?"),
    "a slip in the kind": ({"instruction": "{{ outputs }}"}, "instruction", "unknown key; did you mean instructions?"),
    "half a kind": ({"asks": "Is it?", "prompt": "[[a]]"}, "prompt", "unknown key; did you mean custom_prompt?"),
    "another's key": (
        {"model": "m"},
        "instructions",
        "is missing; a judge is defined by one of instructions, custom_prompt, template, code, based_on",
    ),
    "a key without a name": ({"instructions": "{{ outputs }}", "": 1}, '""', KEYS),
    "a key over lines": ({"instructions": "{{ outputs }}", "a\nb": 1}, "a b", KEYS),
    "a sentence over lines": (
        {"instructions": "{{ outputs }}", "asks": "a\nb"},
        "asks",
        "must be one line of at most 300 characters, none of them invisible",
    ),
    "an empty sentence": (
        {"instructions": "{{ outputs }}", "asks": " "},
        "asks",
        "must be one line of at most 300 characters, none of them invisible",
    ),
    "limits without a trace": (
        {"instructions": "{{ outputs }}", "max_rounds": 3},
        "max_rounds",
        "is for judges that read the trace by tools; name {{ trace }} in the instructions, or take it out",
    ),
    "no round": (
        {"instructions": "{{ trace }}", "max_rounds": 0},
        "max_rounds",
        "must be a whole number from 1 to 1000",
    ),
    "no token": (
        {"instructions": "{{ trace }}", "max_tokens": 0},
        "max_tokens",
        "must be a whole number from 1 to 1000000000000",
    ),
    "no money": ({"instructions": "{{ trace }}", "max_usd": 0}, "max_usd", "must be a number above 0"),
    "endless money": (
        {"instructions": "{{ trace }}", "max_usd": float("inf")},
        "max_usd",
        "must be a finite number; take it out for no limit",
    ),
    "no choice": (
        {"custom_prompt": "{{ outputs }}"},
        "custom_prompt",
        "offers no choice; write each label that may be answered as [[label]]",
    ),
    "one choice": (
        {"custom_prompt": "[[a]] [[a]] {{ outputs }}"},
        "custom_prompt",
        "offers one choice; write at least two as [[label]]",
    ),
    "an empty choice": (
        {"custom_prompt": "[[a]] [[ ]] {{ outputs }}"},
        "custom_prompt",
        "a label is empty; give it a name or take it out",
    ),
    "a variable for a choice": (
        {"custom_prompt": "[[{{ outputs }}]] [[b]]"},
        "custom_prompt",
        "a label is never filled from a trace; write it out instead of {{ outputs }}",
    ),
    "a choice left open": (
        {"custom_prompt": "[[a]] [[b] {{ outputs }}"},
        "custom_prompt",
        "the brackets of a choice do not close on one label; write it as [[label]]",
    ),
    "overlapping choices": (
        {"custom_prompt": "[[a]] [[A]] {{ outputs }}"},
        "custom_prompt",
        "the labels a and A overlap: an answer in another case or with a full stop fits both; rename one",
    ),
    "a choice without a number": (
        {"custom_prompt": "[[a]] [[b]] {{ outputs }}", "values": {"a": 1}},
        "values",
        "give numbers to all labels or to none; none has b",
    ),
    "a number without a choice": (
        {"custom_prompt": "[[a]] [[b]] {{ outputs }}", "values": {"a": 1, "b": 0, "ab": 2}},
        "values",
        "there is no label ab; did you mean b?",
    ),
    "choices without numbers": (
        {"custom_prompt": "[[a]] [[b]] {{ outputs }}"},
        "pass",
        'is missing; name the labels that pass, as ["a"]',
    ),
    "choices with the same number": (
        {"custom_prompt": "[[a]] [[b]] {{ outputs }}", "values": {"a": 1, "b": 1}},
        "values",
        "all labels have the same number; give the better ones a higher one",
    ),
    "a result beside choices": (
        {"custom_prompt": "[[a]] [[b]] {{ outputs }}", "result": "yes/no"},
        "result",
        "goes with instructions; choices are [[label]] in the prompt, their numbers values = { good = 1 }",
    ),
    "a choice alone": (
        {"custom_prompt": "[[a]] {{ outputs }}"},
        "custom_prompt",
        "offers one choice; write at least two as [[label]]",
    ),
    "a variable of a prompt in single braces": (
        {"custom_prompt": "[[a]] [[b]] {outputs}", "pass": ["a"]},
        "custom_prompt",
        "the variable {outputs} is in single braces; write it as {{ outputs }}",
    ),
    "a trace in a prompt": (
        {"custom_prompt": "[[a]] [[b]] {{ trace }}", "pass": ["a"]},
        "custom_prompt",
        "the variable {{ trace }} is unknown; use inputs, outputs, expectations, conversation, context, messages",
    ),
}
TEMPLATE = {"file": "f", "text": "prompt: {template: 'Is {{response}} so?', template_variables: [response]}"}
KINDS: Mapping[str, Mapping[str, object]] = {
    "instructions": {"instructions": "Is {{ outputs }} so?"},
    "custom_prompt": {"custom_prompt": "Is {{ outputs }} [[so]] or [[not]]?", "pass": ["so"]},
    "template": {"template": TEMPLATE},
    "code": {"code": "module:name"},
    "answer": {"template": TEMPLATE, "answer": {}},
}
MISPLACED: Mapping[tuple[str, str], str] = {
    ("instructions", "integer"): "belongs in result, as result = { integer = [1, 5] }",
    ("instructions", "number"): "belongs in result, as result = { number = [0, 1] }",
    ("instructions", "labels"): "belongs in result, as result = { labels = { good = 1, poor = 0 } }",
    ("instructions", "pass"): ('belongs in result, as result = { labels = ["good", "poor"], pass = ["good"] }'),
    ("instructions", "pass_at"): "belongs in result, as result = { integer = [1, 5], pass_at = 4 }",
    ("instructions", "direction"): 'belongs in result, as result = { integer = [1, 5], direction = "lower" }',
    ("instructions", "values"): (
        "goes with custom_prompt; numbers of labels belong in result, as result = { labels = { good = 1, poor = 0 } }"
    ),
    ("instructions", "answer"): "goes with template; take it out",
    ("instructions", "processes"): "goes with code; take it out",
    ("instructions", "combine"): "belongs in a rule or after --model, not in a judge; take it out",
    ("custom_prompt", "labels"): (
        "goes with instructions; choices are [[label]] in the prompt, their numbers values = { good = 1 }"
    ),
    ("custom_prompt", "pass_at"): 'goes with numbers; name the choices that pass, as pass = ["good"]',
    ("custom_prompt", "max_rounds"): "goes with instructions that name {{ trace }}; take it out",
    ("template", "values"): (
        "goes with custom_prompt; numbers of labels belong in result, as result = { labels = { good = 1, poor = 0 } }"
    ),
    ("template", "pass_at"): "belongs in result, as result = { integer = [1, 5], pass_at = 4 }",
    ("template", "as"): 'belongs in the answer of a template, as answer = { as = "graded", pass_at = 4 }',
    ("code", "result"): "does not go with code, which gives scores itself",
    ("code", "pass_at"): "belongs in the code, as @judge(pass_at=0.5)",
    ("code", "answer"): "goes with template; take it out",
    ("answer", "result"): "belongs next to answer, not in it; write it above [answer]",
    ("answer", "asks"): "belongs next to answer, not in it; write it above [answer]",
}
ANSWERS: Mapping[str, tuple[Mapping[str, object], str, str]] = {
    "half a form": ({"as": "facts"}, "answer.as", "there is no such form; did you mean facts_grounding?"),
    "a slip": ({"as": "yesno"}, "answer.as", "there is no such form; did you mean yes_no?"),
    "a blank key": (
        {"form": "template", "result_key": " "},
        "answer.result_key",
        "is blank; write the key that the template asks for, or take it out",
    ),
    "an empty key": (
        {"form": "template", "result_key": ""},
        "answer.result_key",
        "must be a string of 1 to 64 characters",
    ),
}
NAMING = "rename it: at most 64 small letters, digits and '_', a letter first"


def refused(table: Mapping[str, object], name: str = "mine") -> tuple[str, str]:
    with pytest.raises(DefinitionError) as caught:
        define(name, table)
    error = caught.value
    assert str(error) == f"{error.key}: {error.fix}"
    assert "\n" not in str(error)
    assert len(str(error)) < 300
    return error.key, error.fix


@each_case(("text", "fix"), INSTRUCTIONS.items(), ids=[repr(text)[:40] for text in INSTRUCTIONS])
def test_instructions_that_cannot_be_filled_are_refused(text: str, fix: str) -> None:
    assert refused({"instructions": text}) == ("instructions", fix)


@each_case(("result", "key", "fix"), RESULTS.values(), ids=RESULTS)
def test_results_that_make_no_scale_are_refused(result: object, key: str, fix: str) -> None:
    assert refused({"instructions": "{{ outputs }}", "result": result}) == (key, fix)


@each_case(("table", "key", "fix"), TABLES.values(), ids=TABLES)
def test_tables_that_define_no_judge_are_refused(table: Mapping[str, object], key: str, fix: str) -> None:
    assert refused(table) == (key, fix)


@each_case(("where", "fix"), MISPLACED.items(), ids=[".".join(where) for where in MISPLACED])
def test_a_key_in_a_wrong_place_is_told_the_right_one(where: tuple[str, str], fix: str) -> None:
    kind, key = where
    table = {**KINDS[kind], **({"answer": {key: 1}} if kind == "answer" else {key: 1})}
    assert refused(table) == (f"answer.{key}" if kind == "answer" else key, fix)


@each_case(("answer", "key", "fix"), ANSWERS.values(), ids=ANSWERS)
def test_answers_that_no_template_has_are_refused(answer: Mapping[str, object], key: str, fix: str) -> None:
    assert refused({"template": TEMPLATE, "answer": answer}) == (key, fix)


@pytest.mark.parametrize(
    "text",
    [
        'Is {{ outputs }} of the form {"outputs": "text", "inputs": {}}?',
        "Is {{ outputs }} a set as {a, b}, or {output}, or {outputs.text}, or {Outputs}?",
    ],
)
def test_other_things_in_braces_may_stand_there(text: str) -> None:
    (fixed,) = define("mine", {"instructions": text}).fixed_parts
    assert text in fixed


@each_case("name", KNOWN_TO_TEMPLATES)
def test_a_variable_of_templates_is_told_ours_or_that_templates_have_it(name: str) -> None:
    _, fix = refused({"instructions": f"{{{{ {name} }}}}"})
    documents = "retrieved documents are in no variable of this kind; take a template"
    assert re.search(rf"did you mean {{{{ \w+ }}}}\?$|{documents}$", fix)


def test_labels_of_one_alphabet_are_not_taken_for_each_other() -> None:
    labels = ["\u0434\u0430", "\u043d\u0435\u0442", "\u03bd\u03b1\u03b9", "yes", "no"]
    assert define("mine", {"instructions": "{{ outputs }}", "result": {"labels": labels, "pass": ["yes"]}}).schema


@each_case("name", ["", "Mine", "1st", "my-judge", "a b", "a" * 65, "größe", "a\nb"])
def test_names_that_make_no_metric_are_refused(name: str) -> None:
    key, fix = refused({"instructions": "{{ outputs }}"}, name)
    assert key == "instructions"
    assert fix.endswith(NAMING)


@each_case("name", ["a", "a" * 64, "a_1"])
def test_other_names_will_do(name: str) -> None:
    assert define(name, {"instructions": "{{ outputs }}"}).metric_names == (name,)


def test_tokens_that_hold_no_round_are_refused_with_the_least_that_do() -> None:
    def reading(max_tokens: int, text: str = "Is {{ trace }} so?") -> Mapping[str, object]:
        return {"instructions": text, "max_tokens": max_tokens}

    key, fix = refused(reading(3_000))
    match = re.fullmatch(r"does not hold the first round, whatever the trace; at least (\d+) do, and a few .*", fix)
    assert key == "max_tokens"
    assert match is not None
    least = int(match[1])
    assert define("mine", reading(least)).exploration is not None
    assert refused(reading(least - 1000)) == (key, fix)
    assert refused(reading(least, "Is {{ trace }} so? " * 1000))[0] == key
