"""Sentences with keys: shown one per line, and found by the keys that models write."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cases import each_case

from judges.forms.keyed_sentences import Keyed, Sifted

KEYED = Keyed({"0a": "One.", "0b": "Two.", "D1_S1": "Three."})


def test_sentences_are_shown_one_a_line() -> None:
    assert KEYED.shown(".") == "0a. One.\n0b. Two.\nD1_S1. Three."
    assert Keyed({"D1_S1": "One."}).shown(":") == "D1_S1: One."
    assert Keyed({}).shown(".") == ""


@each_case(
    "given_key",
    [
        "0a",
        "0A",
        "0a.",
        " 0a ",
        "0a:",
        '"0a"',
        "'0a.'",
        "`0a`",
        "\u201c0a\u201d.",
        "\u00ab0a\u00bb",
        '"0a" .',
        "\t0a\n",
    ],
    ids=ascii,
)
def test_a_key_is_found_whatever_surrounds_it(given_key: str) -> None:
    assert KEYED.find(given_key) == "0a"


@each_case(
    "given_key",
    ["", ".", "a", "0", "00a", "0c", "0 a", "0-a", ".0a", "0a,", "0a. One.", "[0a]", "0a 0b", "\u0660a"],
    ids=ascii,
)
def test_what_is_no_key_is_not_guessed(given_key: str) -> None:
    assert KEYED.find(given_key) is None


@pytest.mark.parametrize("given_key", ["D1_S1", "d1_s1", "D1_s1:"])
def test_a_key_is_given_back_as_it_was_shown(given_key: str) -> None:
    assert KEYED.find(given_key) == "D1_S1"


@pytest.mark.parametrize(
    ("given_keys", "expected"),
    [
        ([], Sifted((), 0)),
        (["d1_s1", "0a", "0A."], Sifted(("D1_S1", "0a"), 0)),
        (["9z", "0b", "9Z.", "8y", ""], Sifted(("0b",), 3)),
        (["General.", "0a", "general"], Sifted(("general", "0a"), 0)),
    ],
    ids=["nothing", "each once", "unknown ones each once", "a word in place of a key"],
)
def test_existing_keys_are_kept_and_the_others_counted(given_keys: list[str], expected: Sifted) -> None:
    assert KEYED.sift(given_keys, besides={"general"}) == expected


def test_words_are_keys_only_where_they_are_allowed() -> None:
    assert KEYED.sift(["general", "0a"]) == Sifted(("0a",), 1)


def test_keys_are_put_into_the_order_of_the_sentences() -> None:
    assert KEYED.ordered(("D1_S1", "0a")) == ["0a", "D1_S1"]


@given(st.text())
def test_any_text_is_found_or_not(text: str) -> None:
    assert KEYED.find(text) in {None, *KEYED.sentences}
    assert sum(len(part) if isinstance(part, tuple) else part for part in KEYED.sift([text])) == 1
