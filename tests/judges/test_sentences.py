"""Sentences: one division for prompts, keys and checks; excerpts, which stand in the source or divide into pieces."""

import time
from collections.abc import Iterator
from functools import cache
from itertools import accumulate, islice, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judge_traces import corpus, table
from support.cases import each_case
from support.processes import slowness

from judges.catalog.ragbench import SPECIAL_WORDS
from judges.core.prompt import neutralise
from judges.forms.keyed_sentences import Keyed, Sifted, SpelledKeys
from judges.parsing import evidence
from judges.parsing.evidence import Source
from judges.parsing.plain import simplify
from judges.parsing.sentences import letters, split, units

TABLES = table("sentences")
CORPUS = corpus("sentences")
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

    def test_texts_of_one_repeated_form_take_time_in_proportion_to_their_length(self) -> None:
        slow = {}
        for form in TABLES["repeated"][0]:
            text = form * (8_000 // len(form)) + " One. Two."
            start = time.thread_time()
            split(text)
            if (took := time.thread_time() - start) > 0.2 * slowness():
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
    def test_a_row_is_shown_with_the_names_of_its_columns_and_counts_as_it_stands(self) -> None:
        table = "| City | People |\n|---|---|\n| Lyon | 522,000 |\n| Nice |\n\nThat is all."
        keyed = Keyed.build(dict(zip("abc", units(table), strict=True)))
        assert keyed.render(".") == "a. City: Lyon | People: 522,000\nb. City | People: | Nice |\nc. That is all."
        assert keyed.sentences == {"a": "| Lyon | 522,000 |", "b": "| Nice |", "c": "That is all."}

    def test_keys_are_given_back_in_order_and_a_list_is_lost_if_it_names_something_and_nothing_exists(self) -> None:
        assert KEYED.ordered(("D1_S1", "0a")) == ["0a", "D1_S1"]
        lost = [KEYED.sift(named).is_lost for named in (["9z"], ["9z", "0a"], [], ["none"])]
        assert lost == [True, False, False, False]

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


EXCERPTS = table("excerpts")
CORPUS_OF_EXCERPTS = corpus("evidence") + corpus("seams")
WARRANTY = (
    "All devices come with a warranty of two years, which covers faults in material. It doesn't cover wear. "
    "Batteries are excluded. The fee is 12.5 % (see 4.2), not 125 %, and it's due at 10:30.\n"
    "See \u201cReturns\u201d: an RMA number is needed, e.g. RMA-7.[1] No refunds! Ask us."
)
IN_ANY_CASE = (
    *("Расходы не возмещаются.", "สินค้ารับประกัน", "لا تُسترد الرسوم؟", "銭荷は「二重」です。"),
    "die Stra\u00dfe nach \u0130stanbul",
)
NAMED = [
    *((name, text, True) for name, text in EXCERPTS["found"].items()),
    ("all of it", WARRANTY, True),
    *((name, text, False) for name, text in EXCERPTS["not found"].items()),
]


@pytest.mark.parametrize("searched", [None, 0], ids=["by searches", "by index"])
def test_excerpts_are_found_where_a_reader_finds_them(searched: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if searched is not None:
        monkeypatch.setattr(evidence, "_SEARCHED_CHARS", searched)  # the index takes over at once
    cases = [(name, Source([WARRANTY]), text, is_found) for name, text, is_found in NAMED]
    cases += [(excerpt, Source([text]), excerpt, is_found) for text, excerpt, is_found in EXCERPTS["forms"]]
    for text in IN_ANY_CASE:
        cases += [(each, Source([f"One. {text} Two."]), each, True) for each in (text, text.upper())]
    for case in CORPUS_OF_EXCERPTS:
        source = Source(case.get("documents") or [case["source"]], case.get("names", ()))
        cases.append((case["why"], source, case["excerpt"], case["found"]))
    wrong = {name: text for name, source, text, is_found in cases if source.holds(text) is not is_found}
    assert wrong == {}


def test_pieces_may_come_from_any_of_several_texts_and_do_not_run_over() -> None:
    source = Source(("The first text ends here", "and a second one begins with this.", ""))
    assert source.holds("a second one begins ... first text ends here")
    assert not source.holds("ends here and a")
    assert not source.holds("text ends here and a second one")
    for texts in ((), ("",), ("...", " ")):
        assert not Source(texts).holds("anything at all"), texts


@given(
    st.text(max_size=60)
    | st.text(st.sampled_from("<>`~|#-=:.,;!?\"'&()[]{}*_/ \t\n\r0aZ\u200b\u3002\u2026"), max_size=40)
)
def test_a_text_with_a_word_holds_itself_as_it_is_shown(text: str) -> None:
    source = Source([text])
    # A letter or digit that shows: some letters of Hangul are blank, and invisible characters do not count.
    words = simplify(text)
    assert source.holds(text) == any(map(str.isalnum, words))
    assert source.holds(neutralise(text)) == source.holds(text)


def divisible(words: tuple[str, ...], texts: list[str]) -> bool:
    """Try every division there is, by the words of the rule."""
    statements = [[tuple(part.rstrip(".").lower().split()) for part in split(text)] for text in texts]
    runs = [[word for part in parts for word in part] for parts in statements]
    # A sentence ends in each text before these numbers of words.
    ends = [set(accumulate(map(len, parts), initial=0)) for parts in statements]

    def seams(number: int, start: int, end: int) -> Iterator[tuple[bool, bool]]:
        """For each place where a piece occurs: whether a sentence begins before it, and ends after it."""
        size, run = end - start, runs[number]
        for at in range(len(run) - size + 1):
            inner = ends[number] & set(range(at + 1, at + size))
            bounds = sorted({at, at + size} | inner)
            # A full stop of the source is missing in the excerpt: four words on each side agree, or a sentence.
            is_whole = at in ends[number] and at + size in ends[number] and not inner
            is_long = all(after - before >= 4 for before, after in pairwise(bounds))
            if tuple(run[at : at + size]) == words[start:end] and (is_whole or is_long):
                yield at in ends[number], at + size in ends[number]

    @cache
    def rest(number: int, start: int) -> bool:
        return start == len(words) or any(
            (begins or start == 0) and (closes or end == len(words)) and rest(number, end)
            for end in range(start + 1, len(words) + 1)
            for begins, closes in seams(number, start, end)
        )

    return bool(words) and any(rest(number, 0) for number in range(len(texts)))


phrases = st.lists(st.sampled_from(("pip", "qoq", "ror")), max_size=14)
sentences = phrases.filter(bool).map(lambda phrase: " ".join(phrase).capitalize() + ".")
texts = st.lists(st.lists(sentences, max_size=3).map(" ".join), max_size=3)


@pytest.mark.parametrize("searched", [0, 10_000], ids=["by index", "by searches"])
@given(texts=texts, words=phrases)
def test_agrees_with_trying_every_division(searched: int, texts: list[str], words: list[str]) -> None:
    source = Source(texts)
    source._chars_left = searched  # chooses between index and searches
    assert source.holds(" ".join(words)) == divisible(tuple(words), texts)


CHARS = 12_000
HEAVY = {
    "one character": ("a" * CHARS, "a" * CHARS),
    "one word": ("a " * (CHARS // 2), "a " * (CHARS // 2)),
    "one word and another at the end": ("a " * (CHARS // 2) + "b", "a " * (CHARS // 2 - 1) + "b a"),
    "nearly periodic": ("a b c d e f g h " * (CHARS // 16), "a b c d " * (CHARS // 8) + "b a"),
    "short sentences": ("a. b. c d e f g. " * (CHARS // 17), "a b " * (CHARS // 4) + "g a g"),
    "one Chinese character": ("漢" * CHARS + "字", "漢" * (CHARS - 1) + "字漢"),
    **{
        name: (text * (CHARS // len(text)), excerpt * (CHARS // len(excerpt)))
        for name, text, excerpt in (
            ("punctuation", ". ", ". "),
            ("quotation marks", '"', "'"),
            ("signs", "[U+200B]", "[U+200B"),
            ("brackets", "[", "[...] "),
            ("links", "[a](b ", "[a]("),
            ("decoration", "*", "_a*"),
            ("entities", "&amp", "&"),
            ("tags", "<b ", "<!--"),
            ("members", '"a": "b\\" ', '\\"'),
            ("rows", "|a|b|\n", "|a|\n"),
            ("hyphens", "a-\n", "-\n"),
            ("marks", "e\u0301", "\u0301"),
        )
    },
}


@each_case(("text", "excerpt"), HEAVY.values(), ids=HEAVY)
def test_long_and_repetitive_texts_take_no_more_than_their_length(text: str, excerpt: str) -> None:
    start = time.thread_time()
    Source([text]).holds(excerpt)
    assert time.thread_time() - start < slowness()


def test_many_excerpts_take_no_more_than_their_length() -> None:
    """Searches alone would take 6 s: 300 times through 28 kB, failing late at every place."""
    source = Source(["a " * 14_000 + "b " + "c " * 100])
    start = time.thread_time()
    assert not any(source.holds("a " * 30 + "b " + "c " * 30 + "a ") for _ in range(300))
    assert time.thread_time() - start < 2
