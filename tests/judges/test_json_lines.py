"""Answers of several objects: all forms are parsed, and no object is lost."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cases import each_case

from judges.parsing.answer import InvalidAnswerError
from judges.parsing.object_lists import read_objects

KEYS = ("sentence", "label")
A = {"sentence": 'A {brace} and a "quote".', "label": "yes", "note": None}
B = {"sentence": "B\n```\n[1]", "label": "no", "note": "x"}
LINE_A, LINE_B = json.dumps(A), json.dumps(B)
PRETTY_A, PRETTY_B = json.dumps(A, indent=2), json.dumps(B, indent=2)
SINGLE = "{'sentence': 'S', 'label': 'yes'}"
S = {"sentence": "S", "label": "yes"}

READ = {
    "lines": (f"{LINE_A}\n{LINE_B}", [A, B]),
    "one line": (LINE_A, [A]),
    "line ends of Windows": (f"{LINE_A}\r\n{LINE_B}\r\n", [A, B]),
    "blank lines between": (f"\n{LINE_A}\n\n \n{LINE_B}\n", [A, B]),
    "all on one line": (f"{LINE_A} {LINE_B}", [A, B]),
    "commas at line ends": (f"{LINE_A},\n{LINE_B},", [A, B]),
    "an array": (f"[{LINE_A}, {LINE_B}]", [A, B]),
    "an array over lines with a comma too many": (f"[\n{LINE_A},\n{LINE_B},\n]", [A, B]),
    "an array a line": (f"[{LINE_A}]\n[{LINE_B}]", [A, B]),
    "one object": (json.dumps({"sentences": [A, B]}), [A, B]),
    "one object over lines": (json.dumps({"sentences": [A, B]}, indent=2), [A, B]),
    "one object over lines with commas too many": (f'{{"sentences": [\n{PRETTY_A},\n{PRETTY_B},\n],}}', [A, B]),
    "one object in a fence": (f'```json\n{{"sentences": [{LINE_A}]}}\n```', [A]),
    "two such objects": (f'{{"sentences": [{LINE_A}]}}\n{{"sentences": [{LINE_B}]}}', [A, B]),
    "spread over lines": (f"{PRETTY_A}\n{PRETTY_B}", [A, B]),
    "spread over lines with commas between": (f"{PRETTY_A},\n{PRETTY_B}", [A, B]),
    "a fence": (f"```jsonl\n{LINE_A}\n{LINE_B}\n```", [A, B]),
    "a fence each": (f"```json\n{PRETTY_A}\n```\n\n```json\n{PRETTY_B}\n```", [A, B]),
    "prose around": (f"Here it is:\n{LINE_A}\n{LINE_B}\nI hope that helps {{or not}}.", [A, B]),
    "prose between": (f"First:\n{LINE_A}\nThen, in f(x) {{ y }}:\n{LINE_B}", [A, B]),
    "a list with dashes": (f"- {LINE_A}\n- {LINE_B}", [A, B]),
    "a numbered list": (f"1. {LINE_A}\n2. {LINE_B}", [A, B]),
    # The response tells whether a line is repeated; it may say something twice itself.
    "the whole list twice": (f"{LINE_A}\n{LINE_B}\n\n{LINE_A}\n{LINE_B}", [A, B, A, B]),
    "capital keys": ('{"Sentence": "S", "Label": "yes"}', [S]),
    "a list of another name": (f'{{"results": [{LINE_A}]}}', [A]),
    "a call of a tool": (json.dumps({"name": "f", "arguments": f"{LINE_A}\n{LINE_B}"}), [A, B]),
    "lines in a string": (json.dumps(f"{LINE_A}\n{LINE_B}"), [A, B]),
    "a summary behind the lines": (f'{LINE_A}\n{{"total": 1}}', [A]),
    "a sentence behind the lines": (f"{LINE_A}\n\nThe label is yes for all of them.", [A]),
    "labelled lines": ("sentence: S\nlabel: yes\n\nsentence: T\nlabel: no", [S, {"sentence": "T", "label": "no"}]),
    "a table": ("| sentence | label |\n|---|---|\n| S | yes |\n| T | no |", [S, {"sentence": "T", "label": "no"}]),
    "elements": ("<sentence>S</sentence><label>yes</label>", [S]),
    "single quotation marks": (f"{SINGLE}\n{LINE_B}", [S, B]),
    "a comma too many in an object": (f'{{"sentence": "S", "label": "yes",}}\n{LINE_B}', [S, B]),
    "a brace too few at the end of a line": (f'{{"sentence": "S", "label": "yes"\n{LINE_B}', [S, B]),
    "a brace too few at the very end": (f'{LINE_B}\n{{"sentence": "S", "label": "yes"', [B, S]),
    "quotation marks inside a text": (
        f'{{"sentence": "The "big" one", "label": "yes"}}\n{LINE_B}',
        [{"sentence": 'The "big" one', "label": "yes"}, B],
    ),
    "a line quoted in a text": (json.dumps({"sentence": LINE_A, "label": "no"}), [{"sentence": LINE_A, "label": "no"}]),
    "the key as a value": (
        '{"sentence": "sentence", "label": "sentence"}',
        [{"sentence": "sentence", "label": "sentence"}],
    ),
    "byte order mark": (f"\ufeff{LINE_A}\n{LINE_B}", [A, B]),
}
INVALID = {
    "nothing": "",
    "prose": "I cannot tell.",
    "a number": "4",
    "a text": '"yes"',
    "null": "null",
    "an empty array": "[]",
    "an empty list in one object": '{"sentences": []}',
    "no list in one object": '{"sentences": "none"}',
    "an object for the list": f'{{"sentences": {LINE_A}}}',
    "texts in the list": '{"sentences": ["A", "B"]}',
    "a text among the objects of an array": f'[{LINE_A}, "B"]',
    "an empty object": f"{LINE_A}\n{{}}",
    "a key missing in one line": f'{LINE_A}\n{{"sentence": "B"}}',
    "only an object of another kind": '{"overall": "yes"}',
    "an object of another kind before a line": f'{{"overall": "yes"}}\n{LINE_A}',
    "withdrawn": f"{LINE_A}\n\nWait, that should be no.",
    "cut off in a text": f'{LINE_A}\n{{"sentence": "B", "label": "n',
    "cut off behind a key": f'{LINE_A}\n{{"sentence": "B", "label":',
    "cut off in the list": f'{{"sentences": [{LINE_A}, {{"sentence": "B", "la',
    "a bad line in the middle": f'{LINE_A}\n{{"sentence": "B", "label": yes no, "}}\n{LINE_B}',
    "a line without its first brace": f'{LINE_A}\n"sentence": "B", "label": "no"}}',
    "two objects run into one": '{"sentence": "A", "label": "no", "sentence": "B", "label": "yes"}',
    "two objects run into one, in a fence": '```\n{"sentence": "A", "sentence": "B", "label": "yes"}\n```',
    "an object inside another": f'{{"sentence": "A", "label": "no", "next": {LINE_B}}}',
    "a repeated mark of the material": f"<<response 0123456789ab>>\n{LINE_A}\n<<end response 0123456789ab>>",
    "too long": LINE_A + " " * 400_000,
}


@each_case(("text", "objects"), READ.values(), ids=READ)
def test_read(text: str, objects: list[object]) -> None:
    assert list(read_objects(text, KEYS, "sentences")) == objects


@each_case("text", INVALID.values(), ids=INVALID)
def test_invalid(text: str) -> None:
    with pytest.raises(InvalidAnswerError):
        read_objects(text, KEYS, "sentences")


def test_the_error_names_the_object_and_its_key_and_no_text() -> None:
    with pytest.raises(InvalidAnswerError, match=r"^object 2 has no `label`$"):
        read_objects(f'{LINE_A}\n{{"sentence": "B"}}', KEYS, "sentences")


answers = st.lists(
    st.fixed_dictionaries({"sentence": st.text(), "label": st.text()}, optional={"note": st.none() | st.text()}),
    min_size=1,
    max_size=5,
    unique_by=lambda each: each["sentence"],
)


@given(answers, st.booleans())
def test_any_json_objects_are_read_in_every_form(objects: list[dict[str, object]], ascii_only: object) -> None:
    lines = [json.dumps(each, ensure_ascii=bool(ascii_only)) for each in objects]
    for text in (
        "\n".join(lines),
        ",\n".join(lines),
        f"```jsonl\n{chr(10).join(lines)}\n```",
        f"[{', '.join(lines)}]",
        f'{{"sentences": [{", ".join(lines)}]}}',
        "\n".join(json.dumps(each, indent=1, ensure_ascii=bool(ascii_only)) for each in objects),
    ):
        assert list(read_objects(text, KEYS, "sentences")) == objects


@given(answers.filter(lambda objects: len(objects) > 1), st.data())
def test_a_line_is_never_lost_when_a_piece_is_cut_out(objects: list[dict[str, object]], data: st.DataObject) -> None:
    """Cutting out what joins two lines must not leave fewer objects that look like a whole answer."""
    lines = [json.dumps(each) for each in objects]
    joint = data.draw(st.integers(1, len(lines) - 1))
    before, after = "\n".join(lines[:joint]), "\n".join(lines[joint:])
    cut = before[:-1] + data.draw(st.sampled_from(["", ",", "\n", ", "])) + after[data.draw(st.sampled_from([0, 1])) :]
    try:
        entries = read_objects(cut, KEYS, "sentences")
    except InvalidAnswerError:
        return
    assert [each["sentence"] for each in entries] == [each["sentence"] for each in objects]


@given(st.text(st.sampled_from("{}[]\"':,\\\n `sentncelab") | st.characters(), max_size=200))
def test_no_text_raises_anything_else(text: str) -> None:
    try:
        objects = read_objects(text, KEYS, "sentences")
    except InvalidAnswerError:
        return
    assert objects
    assert all(set(KEYS) <= each.keys() for each in objects)


HEAVY = {
    "one character": "a" * 399_000,
    "braces": "{" * 399_000,
    "braces at line starts": "{\n" * 199_000,
    "openings": '{"' * 199_000,
    "openings with blanks": "{ " * 199_000,
    "open texts": '{"sentence": "\n' * 26_000,
    "brackets": "[" * 399_000,
    "line breaks": "\n" * 399_000,
    "blanks and commas": " ,\n" * 133_000,
    "broken lines": '{"sentence": "a", "label": "b",}\n' * 12_000,
    "lines without an end": '{"sentence": "a", "label": "b"\n' * 12_000,
    "deep": '{"sentence": ' * 30_000,
    "quotation marks": '"' * 399_000,
    "good lines and a bad one": f"{LINE_A}\n" * 6_000 + "{",
}


@each_case("text", HEAVY.values(), ids=HEAVY)
def test_hostile_texts_are_refused_in_bounded_time(text: str) -> None:
    start = time.thread_time()
    with pytest.raises(InvalidAnswerError):
        read_objects(text, KEYS, "sentences")
    assert time.thread_time() - start < 4
