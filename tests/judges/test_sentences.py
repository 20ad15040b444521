"""Sentences: the same division for prompts, keys and checks, without losing text."""

from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import each_case

from judges.parsing.sentences import letters, split


@each_case(
    ("text", "parts"),
    [
        ("", []),
        (" \n\t", []),
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("Dr. Weber paid 3.50 EUR, e.g. for tea. She left.", ["Dr. Weber paid 3.50 EUR, e.g. for tea.", "She left."]),
        ("Title\n\n- one\n- two\n", ["Title", "- one", "- two"]),
        ("A sentence over\ntwo lines. Another.", ["A sentence over two lines.", "Another."]),
        ("v1.2 of a.b is out.", ["v1.2 of a.b is out."]),
        ("`queue.Abort` and README.Md. Next.", ["`queue.Abort` and README.Md.", "Next."]),
        ("So:\n\n```python\na = 1\n\nb = 2\n```\nDone.", ["So:", "```python a = 1 b = 2 ```", "Done."]),
        ("```never closed. Two.", ["```never closed. Two."]),
        ("\u306f\u3044\u3002\u3044\u3044\u3048\u3002", ["\u306f\u3044\u3002", "\u3044\u3044\u3048\u3002"]),
        ("Половина \ud800 пары. Дальше.", ["Половина \ufffd пары.", "Дальше."]),
    ],
    ids=[
        "nothing",
        "blanks",
        "ends",
        "abbreviations",
        "list",
        "line break",
        "points",
        "names",
        "code with a blank line",
        "code without an end",
        "japanese",
        "half a surrogate",
    ],
)
def test_division(text: str, parts: list[str]) -> None:
    assert split(text) == tuple(parts)


@given(st.text(st.characters(), max_size=200))
@settings(deadline=None)
def test_nothing_is_lost_and_each_sentence_stands_on_one_line(text: str) -> None:
    parts = split(text)
    whole = "".join("".join(parts).split())
    assert whole == "".join(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").split())
    assert all(part and part == " ".join(part.split()) for part in parts)


@pytest.mark.timeout(60)
@each_case("mark", [*"\u201c\u201e\u2018\xab\xbb\u2039`'\"(["])
def test_a_text_of_marks_that_open_and_never_close_takes_no_time_to_speak_of(mark: str) -> None:
    text = mark * 100_000 + " One. Two."
    assert "".join("".join(split(text)).split()) == "".join(text.split())


def test_letters_go_on_behind_z() -> None:
    named = list(islice(letters(), 26 + 26 * 26 + 1))
    assert named[:3] == ["a", "b", "c"]
    assert named[25:28] == ["z", "aa", "ab"]
    assert named[26 + 26 * 26 - 1 :] == ["zz", "aaa"]
    assert len(set(named)) == len(named)
