"""Parsing of answers: strict, behind thoughts, and every error is an ``AnswerError``."""

import json
import time
from collections.abc import Sequence

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from judge_traces import yes_no_text
from support.cases import each_case
from tables import misread, outcome, table

from judges.core.prompt import MATERIAL_RULES
from judges.forms.yes_no import read
from judges.parsing import object_reader
from judges.parsing.answer import (
    AnswerError,
    InvalidAnswerError,
    OffMenuError,
    answer_of,
    beside_thoughts,
    choice,
    folded,
    text_field,
)
from judges.parsing.objects import read_object
from judges.parsing.withdrawal import is_withdrawn

TABLES = table("answers")
GOOD = '{"rationale": "It is so.", "result": "yes"}'
BROKEN = '{"rationale": "a", "result": "yes",}\n'


def test_each_answer_is_read_as_meant_or_refused() -> None:
    """In groups: as it stands, labels, types and keys, around the object, repaired, lost, planted; other layouts."""
    assert misread(read, TABLES["yes_no"]) == {}
    for text in (yes_no_text("yes", "x" * 400_000), BROKEN * 200, f"{MATERIAL_RULES}\n\n{GOOD}"):
        assert isinstance(outcome(read, text), str), text[:50]


def test_labels_are_read_in_any_case_with_blanks_and_a_full_stop_and_no_others() -> None:
    for label, expected in TABLES["labels"].items():
        assert read(yes_no_text(label)) == {"rationale": "It is so.", "result": expected}, label
    for label in TABLES["off the menu"]:
        with pytest.raises(OffMenuError, match=r"^`result` is none of yes, no$"):
            read(yes_no_text(label))
    assert {outcome(read, text) for text in TABLES["another form"]} == {"InvalidAnswerError"}


def test_the_rationale_loses_the_opening_that_was_asked_for() -> None:
    found = {text: read(yes_no_text("yes", text))["rationale"] for text in TABLES["openings"]}
    assert found == TABLES["openings"]


@given(st.sampled_from(["yes", "no"]), st.text(), st.text(), st.text())
@settings(deadline=None)
def test_an_answer_is_read_between_any_prose(result: str, rationale: str, before: str, after: str) -> None:
    assume(not set("{}[]\"'") & set(before + after) and "step by step" not in rationale)
    assume(not is_withdrawn(after))
    expected = {"rationale": rationale.strip(), "result": result}
    assert read(f"{before}{yes_no_text(result, rationale)}{after}") == expected


def test_half_a_surrogate_pair_is_replaced_so_that_the_verdict_can_be_encoded() -> None:
    for end in ("}", ",}"):
        assert read(rf'{{"rationale": "a\ud83d b", "result": "yes"{end}')["rationale"] == "a\ufffd b"


def test_what_is_readable_or_would_block_the_event_loop_is_not_repaired(monkeypatch: pytest.MonkeyPatch) -> None:

    def fail(*_: object) -> None:
        raise AssertionError("repaired")

    for text in ('{"{"' * 500, "{" * 1000, '{"a": ' + "(" * 1000, "{" + "x" * 70_000):
        began = time.thread_time()
        assert outcome(read, text) == "InvalidAnswerError"
        assert time.thread_time() - began < 1, text[:20]
    monkeypatch.setattr(object_reader, "repair_json", fail)
    for text in (GOOD, f"Well: {GOOD}", f"```json\n{GOOD}\n```"):
        assert read(text) == json.loads(GOOD)


def test_a_long_answer_is_read_within_a_second() -> None:
    for text in (
        yes_no_text("no", "x" * 390_000),
        json.dumps({"rationale": "x" * 60_000, "result": "no"})[:-1] + ",}",
        "Well, " * 50_000 + yes_no_text("no"),
        "{} " * 50_000 + yes_no_text("no"),
        yes_no_text("no")[:-1] + "," + "\n" * 60_000 + "}",
    ):
        began = time.thread_time()
        assert read(text)["result"] == "no"
        assert time.thread_time() - began < 1, text[:20]


def test_errors_name_keys_and_forms_but_no_text() -> None:
    errors = {**TABLES["errors"], "SECRET" * 100_000: "the answer is longer than 400000 characters"}
    for text, error in errors.items():
        with pytest.raises(AnswerError) as caught:
            read(text)
        assert str(caught.value) == error


class TestReadObject:
    def test_keeps_values_and_further_keys_and_passes_over_objects_without_the_keys(self) -> None:
        assert read_object('{"a": [1, 2.5, null], "b": {"c": true}}', ("a",)) == {"a": [1, 2.5, None], "b": {"c": True}}
        assert read_object('{"b": 1} {"a": 2} {"c": {"b": 3}}', ("a",)) == {"a": 2}
        assert read_object('{"a": 1}', ("a", "b"), optional=("b",)) == {"a": 1}

    def test_deep_nesting_is_no_crash(self) -> None:
        with pytest.raises(InvalidAnswerError):
            read_object('{"a":' * 5_000, ("b",))

    def test_keys_of_other_forms_are_renamed_also_in_entries(self) -> None:
        text = '{"Sentence keys": [], "overallSupported": true, "ENTRIES": [{"isSupported": true}]}'
        keys = ("sentence_keys", "overall_supported", "entries")
        answer = read_object(text, keys, entry_keys=("is_supported",))
        assert answer == {"sentence_keys": [], "overall_supported": True, "entries": [{"is_supported": True}]}

    def test_lists_are_read_from_yaml_and_elements(self) -> None:
        expected = {"keys": ["0a", "0b"], "entries": [{"key": "a", "all": "true"}, {"key": "b", "all": "no"}]}
        yaml = "keys:\n  - 0a\n  - 0b\nentries:\n- key: a\n  all: true\n- key: b\n  all: no\n"
        items = (f"<item><key>{key}</key><all>{text}</all></item>" for key, text in (("a", "true"), ("b", "no")))
        xml = f"<keys><k>0a</k><k>0b</k></keys><entries>{''.join(items)}</entries>"
        for text in (yaml, xml):
            assert read_object(text, ("keys", "entries"), deciding=("keys",)) == expected


class TestFields:
    def test_a_field_that_is_no_text_is_invalid(self) -> None:
        for value in (None, True, 1, 1.0, ["a"], {"a": "b"}):
            with pytest.raises(InvalidAnswerError):
                text_field({"key": value}, "key")
            with pytest.raises(InvalidAnswerError):
                choice({"key": value}, "key", ("a",))

    def test_a_label_is_given_back_as_the_menu_writes_it(self) -> None:
        cases: list[tuple[object, Sequence[str], str]] = [
            ("\t Not Supported. ", ("supported", "not supported"), "not supported"),
            (3, ("1", "2", "3"), "3"),
            (True, ("true", "false"), "true"),
            *((f" {label.upper()}.", ("a_b", "a-b", "1", "-1"), label) for label in ("a_b", "a-b", "1", "-1")),
            ("**-1**", ("a_b", "a-b", "1", "-1"), "-1"),
            ("Cafe\u0301", (folded("Caf\u00e9"),), "caf\u00e9"),
        ]
        for value, menu, expected in cases:
            assert choice({"key": value}, "key", menu) == expected, value
        for value in (4, 3.5, True, None):
            with pytest.raises(InvalidAnswerError):
                choice({"key": value}, "key", ("1", "2", "3"))
        with pytest.raises(OffMenuError):
            choice({"key": "a b"}, "key", ("a_b", "a-b", "1", "-1"))

    def test_the_menu_is_no_choice(self) -> None:
        for menu, separator in ((("yes", "no"), "|"), (("a|b", "c"), " / ")):
            with pytest.raises(InvalidAnswerError, match="is the menu"):
                choice({"key": separator.join(menu)}, "key", menu, separator)
            assert choice({"key": menu[0]}, "key", menu, separator) == menu[0]


class TestThoughts:
    """Whatever stands before the last closing mark of a thought is no answer."""

    def test_the_answer_stands_behind_the_thoughts(self) -> None:
        assert misread(answer_of, TABLES["thoughts"]) == {}

    def test_a_server_that_moved_thoughts_leaves_parts_of_them(self) -> None:
        assert misread(beside_thoughts, TABLES["beside thoughts"]) == {}

    @each_case(
        "text",
        [
            *("<|" * 200_000, "</think>" * 50_000, " " * 390_000 + "<|x|>", '{"a": </think>' * 28_000),
            *('{"' * 190_000 + "</think>", '{"a":1}</think>' * 26_000, "<|channel|>final " * 20_000),
        ],
    )
    def test_long_texts_take_less_than_half_a_second(self, text: str) -> None:
        began = time.thread_time()
        answer_of(text)
        assert time.thread_time() - began < 0.5
