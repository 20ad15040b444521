"""Excerpts: found if they stand in the source or divide completely into pieces that do, in linear time."""

import json
import time
from collections.abc import Iterator
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cases import each_case
from tables import table

from judges.core.prompt import neutralise
from judges.parsing import evidence
from judges.parsing.evidence import Source
from judges.parsing.plain import simplify
from judges.parsing.sentences import split

TABLES = table("excerpts")
CORPORA = Path(__file__).parent / "corpora"
CORPUS: list[dict[str, Any]] = [
    json.loads(line)
    for name in ("evidence", "seams")
    for line in (CORPORA / f"{name}.jsonl").read_text("utf-8").splitlines()
]
WARRANTY = (
    "All devices come with a warranty of two years, which covers faults in material. It doesn't cover wear. "
    "Batteries are excluded. The fee is 12.5 % (see 4.2), not 125 %, and it's due at 10:30.\n"
    "See \u201cReturns\u201d: an RMA number is needed, e.g. RMA-7.[1] No refunds! Ask us."
)
NAMED = [
    *((name, text, True) for name, text in TABLES["found"].items()),
    ("all of it", WARRANTY, True),
    *((name, text, False) for name, text in TABLES["not found"].items()),
]


@pytest.mark.parametrize("searched", [None, 0], ids=["by searches", "by index"])
def test_excerpts_are_found_where_a_reader_finds_them(searched: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if searched is not None:
        monkeypatch.setattr(evidence, "_SEARCHED_CHARS", searched)  # the index takes over at once
    cases = [(name, Source([WARRANTY]), text, is_found) for name, text, is_found in NAMED]
    cases += [(excerpt, Source([text]), excerpt, is_found) for text, excerpt, is_found in TABLES["forms"]]
    for case in CORPUS:
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


def test_a_text_holds_itself_in_any_case() -> None:
    for text in (
        *("Расходы не возмещаются.", "สินค้ารับประกัน", "لا تُسترد الرسوم؟", "銭荷は「二重」です。"),
        "die Stra\u00dfe nach \u0130stanbul",
    ):
        assert Source([f"One. {text} Two."]).holds(text), text
        assert Source([f"One. {text} Two."]).holds(text.upper()), text


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


HEAVY = {
    "one character": ("a" * 100_000, "a" * 100_000),
    "one word": ("a " * 50_000, "a " * 50_000),
    "one word and another at the end": ("a " * 50_000 + "b", "a " * 49_999 + "b a"),
    "nearly periodic": ("a b c d e f g h " * 6_000, "a b c d " * 12_000 + "b a"),
    "short sentences": ("a. b. c d e f g. " * 6_000, "a b " * 25_000 + "g a g"),
    "one Chinese character": ("漢" * 100_000 + "字", "漢" * 99_999 + "字漢"),
    "punctuation": (". " * 50_000, ". " * 50_000),
    "quotation marks": ('"' * 100_000, "'" * 100_000),
    "signs": ("[U+200B]" * 12_000, "[U+200B" * 12_000),
    "brackets": ("[" * 100_000, "[...] " * 16_000),
    "links": ("[a](b " * 16_000, "[a](" * 25_000),
    "decoration": ("*" * 100_000, "_a*" * 33_000),
    "entities": ("&amp" * 25_000, "&" * 100_000),
    "tags": ("<b " * 33_000 + "</b>", "<!--" * 25_000),
    "members": ('"a": "b\\" ' * 10_000, '\\"' * 50_000 + ": 1"),
    "rows": ("|a|b|\n" * 14_000, "|a|\n" * 20_000),
    "hyphens": ("a-\n" * 25_000, "-\n" * 50_000),
    "marks": ("e\u0301" * 33_000, "\u0301" * 50_000),
}


@each_case(("text", "excerpt"), HEAVY.values(), ids=HEAVY)
def test_long_and_repetitive_texts_take_no_more_than_their_length(text: str, excerpt: str) -> None:
    start = time.thread_time()
    Source([text]).holds(excerpt)
    assert time.thread_time() - start < 4


def test_many_excerpts_take_no_more_than_their_length() -> None:
    """Searches alone would take a minute: 3000 times through 28 kB, failing late at every place."""
    source = Source(["a " * 14_000 + "b " + "c " * 100])
    start = time.thread_time()
    assert not any(source.holds("a " * 30 + "b " + "c " * 30 + "a ") for _ in range(3000))
    assert time.thread_time() - start < 15
