"""Every mistake in a definition is told in one line: the key in the table, and the mend."""

from collections.abc import Mapping

import pytest

from judges.defined import DefinitionError, define

KNOWN = "use inputs, outputs, expectations, conversation, trace"
PLAIN = "only a plain name may stand in the braces, without paths, filters or calls"
RESULT = 'must be "yes/no", "boolean", or a table with one of integer, number, labels'
LABEL = "a label may hold no bracket, no |, no line break and no sign that cannot be seen"

INSTRUCTIONS: Mapping[str, str] = {
    "": "is empty; say what the model is to judge",
    " \u200b\n": "is empty; say what the model is to judge",
    "Is it polite?": (
        "names no variable, so that the model would see nothing; use one of {{ inputs }}, {{ outputs }}, "
        "{{ expectations }}, {{ conversation }}, {{ trace }}"
    ),
    "{outputs} ${inputs} %(trace)s": (
        "names no variable, so that the model would see nothing; use one of {{ inputs }}, {{ outputs }}, "
        "{{ expectations }}, {{ conversation }}, {{ trace }}"
    ),
    "{{ foo }}": f"the variable {{{{ foo }}}} is unknown; {KNOWN}",
    "{{ outputs }} {{ output }}": f"the variable {{{{ output }}}} is unknown; {KNOWN}",
    "{{ OUTPUTS }}": f"the variable {{{{ OUTPUTS }}}} is unknown; {KNOWN}",
    "{{}}": f"the variable {{{{ }}}} is unknown; {KNOWN}",
    "{{ out\u200bputs }}": f"{{{{ out[U+200B]puts }}}} is no variable: {PLAIN}",
    "{{ trace.spans }}": f"{{{{ trace.spans }}}} is no variable: {PLAIN}",
    "{{ outputs | upper }}": f"{{{{ outputs | upper }}}} is no variable: {PLAIN}",
    "{{ ''.__class__.__mro__ }}": f"{{{{ ''.__class__.__mro__ }}}} is no variable: {PLAIN}",
    "{{ outputs }} {{ inputs": "a {{ is not closed on its line; write a variable as {{ outputs }}",
    "{{ outputs\n}}": "a {{ is not closed on its line; write a variable as {{ outputs }}",
    "{% if outputs %}{{ outputs }}{% endif %}": (
        "blocks and comments of a template language, as {% if %}, do nothing here; take them out, and name variables "
        "as {{ outputs }}"
    ),
    "{# hidden #}{{ outputs }}": (
        "blocks and comments of a template language, as {% if %}, do nothing here; take them out, and name variables "
        "as {{ outputs }}"
    ),
    "{{ conversation }} {{ outputs }}": (
        "{{ conversation }} may stand alone or with {{ expectations }} only; take out {{ outputs }}"
    ),
    "{{ trace }} {{ conversation }}": (
        "{{ conversation }} may stand alone or with {{ expectations }} only; take out {{ trace }}"
    ),
    "{{ outputs }}" + "x" * 100_000: "must have at most 100000 signs",
}
RESULTS: Mapping[str, tuple[object, str, str]] = {
    "another word": ("text", "result", RESULT),
    "a number": (3, "result", RESULT),
    "a list": (["a", "b"], "result", RESULT),
    "an empty table": ({}, "result", RESULT),
    "a slip": ({"integr": [1, 5]}, "result.integr", "unknown key; did you mean integer?"),
    "a mark alone": ({"pass_at": 1}, "result.pass_at", "unknown key; known are integer, number, labels"),
    "a slip beside": ({"number": [0, 1], "pas_at": 1}, "result.pas_at", "unknown key; did you mean pass_at?"),
    "two kinds": (
        {"integer": [1, 5], "number": [0, 1]},
        "result.number",
        "stands beside integer; a judge has one result, take one out",
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
        {"labels": ["a", " a "], "pass": ["a"]},
        "result.labels",
        "must be from 2 to 50 different labels",
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
        "two labels differ in blanks only; rename one",
    ),
    "an empty label": ({"labels": ["a", " . "]}, "result.labels", "a label is empty; give it a name or take it out"),
    "a long label": (
        {"labels": ["a", "b" * 101]},
        "result.labels",
        f"a label must have at most 100 signs: {'b' * 39}…",
    ),
    "a menu as a label": ({"labels": ["a|b", "c"]}, "result.labels", f"{LABEL}: a|b"),
    "a bracket in a label": ({"labels": ["[a]", "c"]}, "result.labels", f"{LABEL}: [a]"),
    "a line break in a label": ({"labels": ["a\nb", "c"]}, "result.labels", f"{LABEL}: a b"),
    "a sign nobody sees in a label": ({"labels": ["a\u200b", "c"]}, "result.labels", f"{LABEL}: a[U+200B]"),
    "numbers as labels": (
        {"labels": [1, 2]},
        "result.labels",
        "must be a table, each value a number or a list, each a string",
    ),
    "texts as numbers": (
        {"labels": {"a": "1", "b": "0"}},
        "result.labels",
        "must be a table, each value a number or a list, each a string",
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
    "a pass set that is a text": ({"labels": ["a", "b"], "pass": "a"}, "result.pass", "must be a list, each a string"),
    "a pass set of all": (
        {"labels": {"a": 1, "b": 0}, "pass": ["a", "b"]},
        "result.pass",
        "names all labels, so that nothing could fail; leave one out",
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
        "is missing; a judge is defined by one of instructions, custom_prompt, template, code",
    ),
    "two kinds": (
        {"instructions": "{{ outputs }}", "custom_prompt": "[[a]]"},
        "custom_prompt",
        "stands beside instructions; a judge is defined by one of them, take one out",
    ),
    "no text": ({"instructions": 3}, "instructions", "must be a string"),
    "an unknown key": ({"instructions": "{{ outputs }}", "reslt": 1}, "reslt", "unknown key; did you mean result?"),
    "a key over lines": (
        {"instructions": "{{ outputs }}", "a\nb": 1},
        "a b",
        "unknown key; known are instructions, asks, result, max_rounds, max_tokens, max_usd",
    ),
    "a sentence over lines": (
        {"instructions": "{{ outputs }}", "asks": "a\nb"},
        "asks",
        "must be one line of at most 300 signs, none of them invisible",
    ),
    "an empty sentence": (
        {"instructions": "{{ outputs }}", "asks": " "},
        "asks",
        "must be one line of at most 300 signs, none of them invisible",
    ),
    "limits without a trace": (
        {"instructions": "{{ outputs }}", "max_rounds": 3},
        "max_rounds",
        "is for judges that read the trace by tools; name {{ trace }} in the instructions, or take it out",
    ),
    "no round": (
        {"instructions": "{{ trace }}", "max_rounds": 0},
        "max_rounds",
        "must be a whole number of at least 1 and of at most 1000",
    ),
    "no token": (
        {"instructions": "{{ trace }}", "max_tokens": 0},
        "max_tokens",
        "must be a whole number of at least 1",
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
        "must be from 2 to 50 different labels",
    ),
    "an empty choice": (
        {"custom_prompt": "[[a]] [[ ]] {{ outputs }}"},
        "custom_prompt",
        "a label is empty; give it a name or take it out",
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
    "a choice that is a menu": ({"custom_prompt": "[[a|b]] [[c]] {{ outputs }}"}, "custom_prompt", f"{LABEL}: a|b"),
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
        "unknown key; known are custom_prompt, asks, values, pass",
    ),
    "a trace in a prompt": (
        {"custom_prompt": "[[a]] [[b]] {{ trace }}", "pass": ["a"]},
        "custom_prompt",
        "the variable {{ trace }} is unknown; use inputs, outputs, expectations, conversation",
    ),
}
NAMING = "rename it: small letters, digits and _, a letter first, at most 64 signs"


def refused(table: Mapping[str, object], name: str = "mine") -> tuple[str, str]:
    with pytest.raises(DefinitionError) as caught:
        define(name, table)
    error = caught.value
    assert str(error) == f"{error.key}: {error.mend}"
    assert "\n" not in str(error)
    assert len(str(error)) < 300
    return error.key, error.mend


@pytest.mark.parametrize(("text", "mend"), INSTRUCTIONS.items(), ids=[repr(text)[:40] for text in INSTRUCTIONS])
def test_instructions_that_cannot_be_filled_are_refused(text: str, mend: str) -> None:
    assert refused({"instructions": text}) == ("instructions", mend)


@pytest.mark.parametrize(("result", "key", "mend"), RESULTS.values(), ids=RESULTS)
def test_results_that_make_no_scale_are_refused(result: object, key: str, mend: str) -> None:
    assert refused({"instructions": "{{ outputs }}", "result": result}) == (key, mend)


@pytest.mark.parametrize(("table", "key", "mend"), TABLES.values(), ids=TABLES)
def test_tables_that_define_no_judge_are_refused(table: Mapping[str, object], key: str, mend: str) -> None:
    assert refused(table) == (key, mend)


@pytest.mark.parametrize("name", ["", "Mine", "1st", "my-judge", "a b", "a" * 65, "größe", "a\nb"])
def test_names_that_make_no_metric_are_refused(name: str) -> None:
    key, mend = refused({"instructions": "{{ outputs }}"}, name)
    assert key == "instructions"
    assert mend.endswith(NAMING)


@pytest.mark.parametrize("name", ["a", "a" * 64, "a_1"])
def test_other_names_will_do(name: str) -> None:
    assert define(name, {"instructions": "{{ outputs }}"}).metric_names == (name,)
