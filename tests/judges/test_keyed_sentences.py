"""Sentences with keys: shown one per line, and found by the keys that models write."""

from support.cases import each_case

from judges.forms.keyed_sentences import Keyed, Sifted
from judges.parsing.sentences import units

KEYED = Keyed({"0a": "One.", "0b": "Two.", "D1_S1": "Three."})


def test_sentences_are_shown_one_a_line() -> None:
    assert KEYED.render(".") == "0a. One.\n0b. Two.\nD1_S1. Three."
    assert Keyed({"D1_S1": "One."}).render(":") == "D1_S1: One."
    assert Keyed({}).render(".") == ""


def test_a_row_is_shown_with_the_names_of_its_columns_and_counts_as_it_stands() -> None:
    table = "| City | People |\n|---|---|\n| Lyon | 522,000 |\n| Nice |\n\nThat is all."
    keyed = Keyed.build(dict(zip("abc", units(table), strict=True)))
    assert keyed.render(".") == "a. City: Lyon | People: 522,000\nb. City | People: | Nice |\nc. That is all."
    assert keyed.sentences == {"a": "| Lyon | 522,000 |", "b": "| Nice |", "c": "That is all."}


@each_case("given_key", ["0a", "0A", "0a.", " 0a ", "0a:", '"0a"', "'0a.'", "`0a`", "[0a]", "sentence 0a"], ids=ascii)
def test_a_key_is_found_between_any_characters(given_key: str) -> None:
    assert KEYED.sift([given_key]) == Sifted(("0a",), 0)


@each_case("given_key", [".", "a", "0", "00a", "0c", "\u0660a"], ids=ascii)
def test_an_unknown_key_is_not_guessed(given_key: str) -> None:
    assert KEYED.sift([given_key]).keys == ()


def test_a_key_is_given_back_as_it_was_shown() -> None:
    assert KEYED.sift(["D1_S1", "d1_s1", "D1_s1:"]).keys == ("D1_S1",)


def test_a_list_is_lost_if_it_names_something_and_nothing_exists() -> None:
    assert [KEYED.sift(named).is_lost for named in (["9z"], ["9z", "0a"], [], ["none"])] == [True, False, False, False]


@each_case(
    ("given_keys", "expected"),
    [
        ([], Sifted((), 0)),
        (["d1_s1", "0a", "0A."], Sifted(("D1_S1", "0a"), 0)),
        (["9z", "0b", "9Z.", "8y", ""], Sifted(("0b",), 2)),
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
