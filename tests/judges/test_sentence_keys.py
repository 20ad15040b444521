"""Keys of sentences in the forms that models write, for the three kinds of keys."""

from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from judges.catalog.ragbench import SPECIAL_WORDS
from judges.forms.keyed_sentences import SpelledKeys

DOCUMENTS = SpelledKeys(
    {
        "0a": "Apples are red.",
        "0b": "Pears are green.",
        "0c": "Plums are blue, and small.",
        "1a": "One is here.",
        "1b": "Two.",
        "12a": "Last.",
    }
)
SOURCES = SpelledKeys(
    {
        "D1_S1": "Apples are red.",
        "D1_S2": "It opens at ten.",
        "D1_S3": "It closes.",
        "D2_S1": "One.",
        "D11_S1": "Two.",
        "manual-7_S1": "Three.",
        "manual-7_S2": "Four.",
    }
)
ANSWER = SpelledKeys(dict.fromkeys("abcd", "It is so."))

UNDERSTOOD: Mapping[SpelledKeys, Mapping[str, str]] = {
    DOCUMENTS: {
        "0a": "0a",
        " 0A. ": "0a",
        "'0a.'": "0a",
        "[0a]": "0a",
        "(0a)": "0a",
        "**0a**": "0a",
        ".0a": "0a",
        "0a,": "0a",
        "0 a": "0a",
        "0_a": "0a",
        "0-a": "0a",
        "\uff10a": "0a",
        "sentence 0a": "0a",
        "Sentence 0a.": "0a",
        "key 0a": "0a",
        "document 0 sentence a": "0a",
        "Doc 0, sentence b": "0b",
        "0a-0c": "0a 0b 0c",
        "0a\u20130c": "0a 0b 0c",
        "0a-c": "0a 0b 0c",
        "0a to 0c": "0a 0b 0c",
        "sentences 0a to 0c": "0a 0b 0c",
        "[0a]-[0c]": "0a 0b 0c",
        "0a..0b": "0a 0b",
        "0a, 0b": "0a 0b",
        "0a; 1a-1b": "0a 1a 1b",
        "0a and 0b": "0a 0b",
        "0a/0b": "0a 0b",
        "0a 0b": "0a 0b",
        "['0a', '0b']": "0a 0b",
        "[0a][0b]": "0a 0b",
        "0a. Apples are red.": "0a",
        "0a Apples are red": "0a",
        "0a (apples)": "0a",
        "0a: what colour apples have": "0a",
        "0c. Plums are blue, and small.": "0c",
        "general": "general",
        "Well known fact": "well_known_fact",
        "Numerical-Reasoning": "numerical_reasoning",
        "0a, supported without sentence": "0a supported_without_sentence",
        "0a,b": "0a 0b",
        "0a, b-c; 1a, b": "0a 0b 0c 1a 1b",
        "between 0a and 0c": "0a 0b 0c",
        "1a, between 0a and 0b": "1a 0a 0b",
        "No. 0a": "0a",
    },
    SOURCES: {
        "d1_s1:": "D1_S1",
        "D1S1": "D1_S1",
        "D1 S1": "D1_S1",
        "D1.S1": "D1_S1",
        "doc1_s1": "D1_S1",
        "doc_1_s_1": "D1_S1",
        "document 1 sentence 2": "D1_S2",
        "Document 1, Sentence 2": "D1_S2",
        "[D1_S1]": "D1_S1",
        "D1_S2: It opens at ten.": "D1_S2",
        "D1_S1-D1_S3": "D1_S1 D1_S2 D1_S3",
        "D1_S1-S3": "D1_S1 D1_S2 D1_S3",
        "D1_S1-3": "D1_S1 D1_S2 D1_S3",
        "(D1_S1, D2_S1)": "D1_S1 D2_S1",
        "D1_S1, S2": "D1_S1 D1_S2",
        "D1: S1, S2": "D1_S1 D1_S2",
        "D1_S1/S2": "D1_S1 D1_S2",
        "D1_S1 and S2-S3": "D1_S1 D1_S2 D1_S3",
        "D11S1": "D11_S1",
        "manual 7 S2": "manual-7_S2",
        "Manual-7_S1-S2": "manual-7_S1 manual-7_S2",
        "manual-7_S1-manual-7_S2": "manual-7_S1 manual-7_S2",
    },
    ANSWER: {
        "A.": "a",
        "[a]": "a",
        "sentence a": "a",
        "response sentence b": "b",
        "a-c": "a b c",
        "a and d": "a d",
        "A. It is so.": "a",
    },
}
NOT_UNDERSTOOD: Mapping[SpelledKeys, Sequence[str]] = {
    DOCUMENTS: (
        "0", "a", "00a", "0d", "\u0660a", "document 0", "0c-0a", "0a-1b", "0a-0z", "1, 2a", "1 2a", "1-2a", "0a.0b",
        "0a: Pears are green.", "0a Oranges rot", "0a (most of it), 0b (partly)", "see a report 0a", "Apples are red.",
        "common_sense", "Manual p. 4", "0a: not relevant", "0a (not relevant)", "no 0a", "0a - this is irrelevant",
        "0a is unused", "between 0a and 1b",
    ),
    SOURCES: ("1_1", "D1", "S1", "D1_S11", "D1_S9", "D1_S1:D1_S3", "Manual p. 4", "D1_S1-D2_S1"),
    ANSWER: ("no", "an", "the answer", "e", "a-e"),
}  # fmt: skip


def test_a_form_with_one_reading_is_understood() -> None:
    wrong = {}
    for keys, cases in UNDERSTOOD.items():
        for text, expected in cases.items():
            named = keys.named(text, SPECIAL_WORDS)
            if named != (tuple(expected.split()), ()):
                wrong[text] = named
    assert not wrong


def test_a_form_without_a_reading_or_with_several_is_left_out() -> None:
    named = {text: keys.named(text, SPECIAL_WORDS) for keys, texts in NOT_UNDERSTOOD.items() for text in texts}
    assert not {text: listed for text, listed in named.items() if listed.keys or len(listed.unknown) != 1}


def test_of_a_list_the_known_keys_are_kept() -> None:
    assert DOCUMENTS.named("0a, 9z; 0b") == (("0a", "0b"), ("9z",))
    # The document of a key before is no part of another key: 1 and 2a are not 12a.
    assert DOCUMENTS.named("1a, 2a") == (("1a",), ("2a",))


def test_a_word_for_nothing_names_nothing() -> None:
    for text in ("", " ", "none", "None.", "N/A", "-", "[]", "null"):
        assert DOCUMENTS.named(text) == ((), ()), text


def test_two_keys_of_one_spelling_are_told_apart_only_as_written() -> None:
    keys = SpelledKeys({"D1_S1": "One.", "d-1_S1": "Two."})
    assert keys.named("D1S1").keys == ()
    assert keys.named("doc1_s1").keys == ("D1_S1",)


@given(st.text() | st.text("0ab19DS_-,. to"))
def test_any_text_names_existing_keys_or_is_unknown(text: str) -> None:
    named = DOCUMENTS.named(text)
    assert set(named.keys) <= {"0a", "0b", "0c", "1a", "1b", "12a"}
