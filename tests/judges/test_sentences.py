"""Sentences: the same division for prompts, keys and checks, and keys in the forms that models write."""

import json
import time
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import each_case
from tables import table

from judges.catalog.ragbench import SPECIAL_WORDS
from judges.forms.keyed_sentences import Keyed, Sifted, SpelledKeys
from judges.parsing.sentences import letters, split, units

TABLES = table("sentences")
CORPUS: list[dict[str, Any]] = [
    json.loads(line) for line in (Path(__file__).parent / "corpora" / "sentences.jsonl").read_text("utf-8").splitlines()
]
MARKUP = "<>`~|#-=:.,;!?\"'()[]{}*_/ \t\n\r0aZ\u3002\u0e01\u2026"


class TestDivision:
    def test_texts_divide_as_a_reader_does(self) -> None:
        cases = {text: tuple(parts) for text, parts in TABLES["divided"].items()}
        cases |= {each["text"]: tuple(" ".join(unit.split()) for unit in each["units"]) for each in CORPUS}
        wrong = {text: split(text) for text, parts in cases.items() if split(text) != parts}
        assert wrong == {}

    def test_rows_are_shown_with_their_header(self) -> None:
        """Each cell of the header stands in the shown form; other units are shown as they are."""

        def cells(header: str) -> list[str]:
            mark = next((mark for mark in ("|", "\t", ";", ",", " ") if mark in header), None)
            return [cell.strip() for cell in header.strip("| ").split(mark)] if mark else [header]

        wrong = {}
        for case in CORPUS:
            headers = case.get("header", [])
            names = [name for each in ([headers] if isinstance(headers, str) else headers) for name in cells(each)]
            shown = [unit.shown for unit in units(case["text"])]
            apart = [unit.text for unit in units(case["text"]) if unit.shown != unit.text]
            if not all(any(name in form for form in shown) for name in names) or bool(names) != bool(apart):
                wrong[case["id"]] = shown
        assert wrong == {}

    @given(st.text(st.characters(), max_size=200) | st.text(st.sampled_from(MARKUP), max_size=200))
    @settings(deadline=None)
    def test_units_hold_the_letters_of_a_text_without_markup_in_order_and_stand_on_one_line(self, text: str) -> None:
        parts = split(text)
        assert all(part and part == " ".join(part.split()) for part in parts)
        if not any(mark in text for mark in ("<", "```", "~~~", "|", "\t", ";", ",", ">")):
            readable = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            assert list(filter(str.isalnum, "".join(parts))) == list(filter(str.isalnum, readable))

    @pytest.mark.slow("a start of a worker, or seconds of CPU, for what shorter tests touch too")
    @pytest.mark.timeout(120)
    def test_texts_of_one_repeated_form_take_time_in_proportion_to_their_length(self) -> None:
        slow = {}
        for form in TABLES["repeated"][0]:
            text = form * (100_000 // len(form)) + " One. Two."
            start = time.thread_time()
            split(text)
            if (took := time.thread_time() - start) > 2:
                slow[form] = took
        assert slow == {}


def test_letters_go_on_behind_z() -> None:
    named = list(islice(letters(), 26 + 26 * 26 + 1))
    assert (named[:3], named[25:28], named[26 + 26 * 26 - 1 :]) == (["a", "b", "c"], ["z", "aa", "ab"], ["zz", "aaa"])
    assert len(set(named)) == len(named)


DOCUMENTS, SOURCES = SpelledKeys(TABLES["documents"]), SpelledKeys(TABLES["sources"])
SPELLED = {"documents": DOCUMENTS, "sources": SOURCES, "answer": SpelledKeys(dict.fromkeys("abcd", "It is so."))}


class TestSpelledKeys:
    def test_a_form_with_one_reading_is_understood(self) -> None:
        cases = [(name, *case) for name in SPELLED for case in TABLES[f"keys of {name}"].items()]
        named = {(name, text): SPELLED[name].named(text, SPECIAL_WORDS) for name, text, _ in cases}
        assert named == {(name, text): (tuple(keys), ()) for name, text, keys in cases}

    def test_a_form_without_a_reading_or_with_several_is_left_out(self) -> None:
        cases = [(name, text) for name, texts in TABLES["not understood"].items() for text in texts]
        named = {text: SPELLED[name].named(text, SPECIAL_WORDS) for name, text in cases}
        assert not {text: listed for text, listed in named.items() if listed.keys or len(listed.unknown) != 1}

    def test_of_a_list_the_known_keys_are_kept_and_a_word_for_nothing_names_nothing(self) -> None:
        assert DOCUMENTS.named("0a, 9z; 0b") == (("0a", "0b"), ("9z",))
        # The document of a key before is no part of another key: 1 and 2a are not 12a.
        assert DOCUMENTS.named("1a, 2a") == (("1a",), ("2a",))
        for text in ("", " ", "none", "None.", "N/A", "-", "[]", "null"):
            assert DOCUMENTS.named(text) == ((), ()), text

    def test_two_keys_of_one_spelling_are_told_apart_only_as_written(self) -> None:
        keys = SpelledKeys({"D1_S1": "One.", "d-1_S1": "Two."})
        assert keys.named("D1S1").keys == ()
        assert keys.named("doc1_s1").keys == ("D1_S1",)

    @given(st.text() | st.text("0ab19DS_-,. to"))
    def test_any_text_names_existing_keys_or_is_unknown(self, text: str) -> None:
        assert set(DOCUMENTS.named(text).keys) <= {"0a", "0b", "0c", "1a", "1b", "12a"}


KEYED = Keyed({"0a": "One.", "0b": "Two.", "D1_S1": "Three."})


class TestKeyed:
    def test_sentences_are_shown_one_a_line(self) -> None:
        assert KEYED.render(".") == "0a. One.\n0b. Two.\nD1_S1. Three."
        assert Keyed({"D1_S1": "One."}).render(":") == "D1_S1: One."
        assert Keyed({}).render(".") == ""

    def test_a_row_is_shown_with_the_names_of_its_columns_and_counts_as_it_stands(self) -> None:
        table = "| City | People |\n|---|---|\n| Lyon | 522,000 |\n| Nice |\n\nThat is all."
        keyed = Keyed.build(dict(zip("abc", units(table), strict=True)))
        assert keyed.render(".") == "a. City: Lyon | People: 522,000\nb. City | People: | Nice |\nc. That is all."
        assert keyed.sentences == {"a": "| Lyon | 522,000 |", "b": "| Nice |", "c": "That is all."}

    def test_a_key_is_found_between_any_characters_and_given_back_as_it_was_shown(self) -> None:
        for key in ("0a", "0A", "0a.", " 0a ", "0a:", '"0a"', "'0a.'", "`0a`", "[0a]", "sentence 0a"):
            assert KEYED.sift([key]) == Sifted(("0a",), 0), key
        assert KEYED.sift(["D1_S1", "d1_s1", "D1_s1:"]).keys == ("D1_S1",)
        assert KEYED.ordered(("D1_S1", "0a")) == ["0a", "D1_S1"]

    def test_an_unknown_key_is_not_guessed(self) -> None:
        assert [KEYED.sift([key]).keys for key in (".", "a", "0", "00a", "0c", "\u0660a")] == [()] * 6
        lost = [KEYED.sift(named).is_lost for named in (["9z"], ["9z", "0a"], [], ["none"])]
        assert lost == [True, False, False, False], "a list is lost if it names something and nothing exists"

    @each_case(
        ("keys", "besides", "expected"),
        [
            ([], {"general"}, Sifted((), 0)),
            (["d1_s1", "0a", "0A."], {"general"}, Sifted(("D1_S1", "0a"), 0)),
            (["9z", "0b", "9Z.", "8y", ""], {"general"}, Sifted(("0b",), 2)),
            (["General.", "0a", "general"], {"general"}, Sifted(("general", "0a"), 0)),
            (["general", "0a"], set(), Sifted(("0a",), 1)),
        ],
    )
    def test_existing_keys_are_kept_and_the_others_counted(
        self, keys: list[str], besides: set[str], expected: Sifted
    ) -> None:
        assert KEYED.sift(keys, besides=besides) == expected
