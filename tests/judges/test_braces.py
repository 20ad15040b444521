"""Answers whose braces are doubled, as in an escaped template, also in nested objects."""

import json

import pytest

from judges.parsing.answer import InvalidAnswerError, single_braces
from judges.parsing.object_lists import read_objects
from judges.parsing.objects import read_object


def doubled(value: object, indent: int | None = None) -> str:
    """Write JSON with doubled braces; its texts must hold none."""
    return json.dumps(value, indent=indent).replace("{", "{{").replace("}", "}}")


NESTED = {"rationale": "So.", "result": {"a": [{"b": {}}, {"c": 1}]}}
LINES = [{"sentence": "A.", "label": "x"}, {"sentence": "B.", "label": "y"}]


def test_doubled_braces_are_read_at_any_depth() -> None:
    for indent in (None, 2):
        for around in ("{}", "Here it is:\n```json\n{}\n```"):
            text = around.replace("{}", doubled(NESTED, indent))
            assert read_object(text, ("rationale", "result")) == NESTED, text
            text = around.replace("{}", doubled({"sentences": LINES}, indent))
            assert list(read_objects(text, ("sentence", "label"), "sentences")) == LINES, text
    assert list(read_objects("\n".join(map(doubled, LINES)), ("sentence", "label"), "sentences")) == LINES


def test_braces_in_texts_stay() -> None:
    quoting = {"rationale": 'It says "{{ name }}" and }}.', "result": "{{"}
    assert read_object(json.dumps(quoting), ("rationale", "result")) == quoting
    escaped = '{{"rationale": "It says \\"{{ name }}\\" and }}.", "result": "{{"}}'
    assert read_object(escaped, ("rationale", "result")) == quoting


def test_only_the_outer_braces_may_be_doubled() -> None:
    text = "{" + json.dumps({"sentences": LINES}) + "}"
    assert list(read_objects(text, ("sentence", "label"), "sentences")) == LINES
    assert read_object("{" + json.dumps(NESTED) + "}", ("rationale", "result")) == NESTED


def test_an_object_whose_braces_do_not_match_stays_as_it_is() -> None:
    for text in ('{{"a": 1}', '{{"a": {"b": 1}}', '{{"a": "b', "{{ outputs }}", ""):
        assert single_braces(text) == text, text
    assert single_braces('{{"a": 1}} {') == '{"a": 1} {'
    with pytest.raises(InvalidAnswerError):
        read_object('{{"rationale": "", "result": "no', ("rationale", "result"))
