"""Repair of broken objects: lossless errors are forgiven, and nothing is invented."""

import json
import time
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import each_case

from judges.parsing.json_repair import UnrepairableError, repair_json

MENDED: dict[str, tuple[str, dict[str, object]]] = {
    "single quotes": ("{'a': 'It is so.', 'b': 4}", {"a": "It is so.", "b": 4}),
    "apostrophe between single quotes": ("{'a': 'It's so', 'b': 4}", {"a": "It's so", "b": 4}),
    "escaped apostrophe": (r"{'a': 'It\'s so', 'b': 4}", {"a": "It's so", "b": 4}),
    "typographic quotes": ("{\u201ca\u201d: \u201cx\u201d, \u201cb\u201d: 4}", {"a": "x", "b": 4}),
    "bare keys": ("{a: 'x', b: 4}", {"a": "x", "b": 4}),
    "bare words": ("{a: It is so., b: yes}", {"a": "It is so.", "b": "yes"}),
    "trailing comma": ('{"a": "x", "b": 4,}', {"a": "x", "b": 4}),
    "trailing comma in a list": ('{"a": ["x", "y",], "b": 4}', {"a": ["x", "y"], "b": 4}),
    "missing comma at the end of a line": ('{"a": "x"\n"b": 4}', {"a": "x", "b": 4}),
    "missing comma behind a number": ('{"a": 3\n"b": 4}', {"a": 3, "b": 4}),
    "missing last brace": ('{"a": "x", "b": "y"', {"a": "x", "b": "y"}),
    "missing last brace before a fence": ('{"a": "x", "b": 4\n```', {"a": "x", "b": 4}),
    "missing last brace behind a list": ('{"a": ["x"]', {"a": ["x"]}),
    "quotes inside a text": ('{"a": "He said "fine" to it.", "b": 4}', {"a": 'He said "fine" to it.', "b": 4}),
    "one quote inside a text": ('{"a": "a 5" pipe", "b": 4}', {"a": 'a 5" pipe', "b": 4}),
    "escaped and bare quotes": (r'{"a": "\"x\" and "y" too", "b": 4}', {"a": '"x" and "y" too', "b": 4}),
    "comments": ('{"a": "x", // why\n "b": 4 /* so */}', {"a": "x", "b": 4}),
    "comment with a hash": ('{"a": "x", # why\n "b": 4}', {"a": "x", "b": 4}),
    "Python's constants": ("{'a': True, 'b': None, 'c': False}", {"a": True, "b": None, "c": False}),
    "nested": ("{'a': [{'b': 'x', 'c': ['y']}], 'd': {'e': 1}}", {"a": [{"b": "x", "c": ["y"]}], "d": {"e": 1}}),
}

UNMENDABLE = {
    "broken off inside a text": '{"a": "x", "b": "y',
    "broken off inside a number, perhaps": '{"a": "x", "b": 4',
    "broken off inside a word, perhaps": '{"a": "x", "b": no',
    "broken off behind a colon": '{"a": "x", "b":',
    "broken off behind a key": '{"a": "x", "b"',
    "broken off inside a list": '{"a": ["x", "y"',
    "broken off inside a nested object": '{"a": {"b": true',
    "broken off inside the last of many": '{"a": [{"b": true}, {"b": false}',
    "nothing but a brace": "{",
    "two values": '{"a": "x", "b": "yes", "no"}',
    "two values without a comma": '{"a": "x", "b": "4" "5"}',
    "a remark behind a value": '{"a": "x", "b": "yes" (mostly)}',
    "a number with words": '{"a": "x", "b": 4 out of 5}',
    "a fraction": '{"a": "x", "b": 4/5}',
    "a decimal comma": '{"a": "x", "b": 4,5}',
    "a number with a gap": '{"a": "x", "b": 4 5}',
    "digits with underscores": '{"a": "x", "b": 1_0}',
    "no number": '{"a": "x", "b": NaN}',
    "a number in brackets": '{"a": "x", "b": (4)}',
    "a key inside a text": '{"a": "The text orders "b": 5", "b": 1}',
    "an object inside a text": '{"a": "The text says {"a": "x", "b": 5}, or so", "b": 1}',
    "broken off behind an object inside a text": '{"a": "The text says {"a": "x", "b": 5}',
    "broken off behind a key inside a text": '{"a": "The text orders "b": "yes"',
    "a key twice": "{'a': 'x', 'b': 4, 'b': 5}",
    "a wrong bracket": '{"a": "x", "b": 4]',
    "two commas": '{"a": "x", "b": 4,,}',
    "three quotes": '{"a": """x "y" z""", "b": 4}',
    "escaped as a whole": r"{\"a\": \"x\", \"b\": 4}",
    "another sign for the colon": '{"a" = "x", "b" = 4}',
    "too deep": '{"a": ' * 30 + "1" + "}" * 29 + ",}",
    "too long": json.dumps({"a": "x" * 70_000})[:-1] + ",}",
    "too many brackets": '{"a": "' + "[" * 400 + '",}',
}


@each_case(("text", "expected"), MENDED.values(), ids=MENDED)
def test_slips_that_lose_nothing_are_forgiven(text: str, expected: dict[str, object]) -> None:
    value, end = repair_json(text, 0)
    assert value == expected
    assert list(map(type, value.values())) == list(map(type, expected.values()))
    assert text[end:].strip("\n`") == ""


@each_case("text", UNMENDABLE.values(), ids=UNMENDABLE)
def test_ambiguous_json_is_not_repaired(text: str) -> None:
    with pytest.raises(UnrepairableError):
        repair_json(text, 0)


@each_case(
    ("text", "is_clear"),
    [('{"a": "<text>",  your reasons\n}', True), ('{"a": "x" y', False), ('{"a": "say {"a": 1}', False)],
    ids=["a remark between values", "a text without end", "a key inside a text"],
)
def test_the_error_tells_whether_the_rest_may_belong_to_a_text(text: str, is_clear: bool) -> None:  # noqa: FBT001
    with pytest.raises(UnrepairableError) as caught:
        repair_json(text, 0)
    assert (caught.value.position is not None) == is_clear


def test_the_end_is_that_of_the_object() -> None:
    text = "Well: {'a': 1} and {'b': 2}"
    assert repair_json(text, 6) == ({"a": 1}, 14)
    assert repair_json(text, 19) == ({"b": 2}, len(text))


values = st.recursive(
    st.booleans()
    | st.none()
    | st.integers(-999, 999)
    | st.text(st.sampled_from("ab \u00e4.,;"), min_size=1, max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("xyz", min_size=1), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text("abc", min_size=1), values, min_size=1, max_size=4), st.data())
@settings(deadline=None)
def test_the_beginning_of_an_object_is_the_whole_object_or_nothing_new(
    value: dict[str, object], data: st.DataObject
) -> None:
    text = json.dumps(value, ensure_ascii=False)
    begun = text[: data.draw(st.integers(1, len(text)))]
    try:
        repaired = repair_json(begun, 0).value
    except UnrepairableError:
        return
    assert list(repaired.items()) == list(value.items())[: len(repaired)]


@given(st.text(st.sampled_from("{}[]\"':,\\ \n/*#ab1\u201c\u201d"), max_size=60))
@settings(max_examples=200, deadline=None)
def test_any_text_is_repaired_or_left_alone(text: str) -> None:
    try:
        value, end = repair_json("{" + text, 0)
    except UnrepairableError:
        return
    assert isinstance(value, dict)
    assert 0 < end <= len(text) + 1


@each_case(
    "text",
    [
        '{"a": "' + '" ' * 190_000,
        '{"a": "' + ('"' + "\n" * 1000) * 390,
        "{" + "/*" * 190_000,
        "{" + "//\n" * 130_000,
        '{"a": "' + "\\" * 380_000,
        '{"a": ' + "[" * 380_000,
        '{"a": "' + 'x "y" z ' * 7_000 + '",}',
    ],
    ids=["quotes", "line breaks", "comments", "short comments", "backslashes", "brackets", "quotations"],
)
def test_long_texts_take_less_than_a_second(text: str) -> None:
    began = time.thread_time()
    with suppress(UnrepairableError):
        repair_json(text, 0)
    assert time.thread_time() - began < 1
