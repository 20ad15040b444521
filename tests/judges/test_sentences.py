"""Sentences: the same division for prompts, keys and checks, without losing text."""

import time
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
        ("So:\n\n```python\na = 1\n\nb = 2\n```\nDone.", ["So:", "a = 1 b = 2", "Done."]),
        ("```\nnever closed. Two.", ["never closed. Two."]),
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


FOUND = {
    "He likes C. It is fast.": ["He likes C.", "It is fast."],
    "J. V. Smith met Robert X. Li.": ["J. V. Smith met Robert X. Li."],
    "i came. i saw.": ["i came.", "i saw."],
    "Old hashes stay.  `run` makes new ones.": ["Old hashes stay.", "`run` makes new ones."],
    "It holds.[3] (It does not move.) Nobody knows.": ["It holds.[3]", "(It does not move.)", "Nobody knows."],
    f'He wrote: "{"This is a long sentence of his. " * 12}It ends." Then he left.': [
        'He wrote: "This is a long sentence of his.',
        *["This is a long sentence of his."] * 11,
        *('It ends."', "Then he left."),
    ],
    "Dear John,\nThanks for it. We will\nanswer.\n\nBest,\nAnn": [
        *("Dear John,", "Thanks for it.", "We will answer.", "Best,", "Ann")
    ],
    "> A quoted line\n> goes on.\n\nMy reply.": ["A quoted line goes on.", "My reply."],
    "Check `<p>` and List<String>. Then <p> it.": ["Check `<p>` and List<String>.", "Then <p> it."],
    "| a<br>b | c |\n| d | e |": ["| a b | c |", "| d | e |"],
    "Eggs\n1. two\n2. three\n\nIt is the\n3. of May.": ["Eggs", "1. two", "2. three", "It is the 3. of May."],
    "1,000 people came to the fair and\n2,500 people left it on the day.": [
        "1,000 people came to the fair and 2,500 people left it on the day."
    ],
    "<ul><li><p>One. Two.</p></li></ul><p>Three. Four.</p>": ["One.", "Two.", "Three.", "Four."],
    '{"a": 1, "b": "One. Two."}\n{"a": 2, "b": "Three."}': ['{"a": 1, "b": "One.', 'Two."}', '{"a": 2, "b": "Three."}'],
    "#  A  heading\nMar  4 06:25:01 done\n| a  | b |": ["# A heading", "Mar 4 06:25:01 done", "| a | b |"],
    "<table><tr><td>A<td>B</table>Text. <ul><li>One. Two.<li>Three</ul>": ["A B", "Text.", "One.", "Two.", "Three"],
}


def test_texts_of_many_forms_divide_as_a_reader_does() -> None:
    wrong = {text: split(text) for text, parts in FOUND.items() if split(text) != tuple(parts)}
    assert not wrong


MARKUP = "<>`~|#-=:.,;!?\"'()[]{}*_/ \t\n\r0aZ\u3002\u0e01\u2026"


@given(st.text(st.characters(), max_size=200) | st.text(st.sampled_from(MARKUP), max_size=200))
@settings(deadline=None)
def test_units_hold_the_letters_of_a_text_without_markup_in_order_and_stand_on_one_line(text: str) -> None:
    parts = split(text)
    assert all(part and part == " ".join(part.split()) for part in parts)
    if not any(mark in text for mark in ("<", "```", "~~~", "|", "\t", ";", ",", ">")):
        readable = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        assert list(filter(str.isalnum, "".join(parts))) == list(filter(str.isalnum, readable))


FORMS = [
    *"\u201c\u201e\u2018\xab\xbb\u2039`'\"([<|\t#>-*_=~:;,.\u2026\u3002\u201d\uff08",
    *(
        "a. ",
        "A. ",
        "1. ",
        "\u0430. ",
        "`a. ",
        "<b ",
        "<p>",
        "<tr>",
        "<td>",
        "<br>",
        "<!--",
        "<script ",
        "</",
        "x=1 y=2 ",
    ),
    *(
        "- a\n",
        "1. a\n",
        "a: b\n",
        "a,b\n",
        "a\tb\n",
        "|a|\n",
        "|a|\n|-|\n",
        "```\n",
        "```\n~~~\n",
        "a\n",
        "A\n",
        "12:00:00\n",
        "- a. B. ",
        "A: b. C.\n",
        "$a. ",
        "<li>a. B.",
        '"a\\nb. C": "d. E.",\n',
    ),
    *("\u201ca\u3002", "\u3002\u201d", "\u5b57", "a\u3002", "\U0001f600 ", "\U0001f600\n", ". [1]", ".) A "),
]


@pytest.mark.slow("a start of a worker, or seconds of CPU, for what shorter tests touch too")
@pytest.mark.timeout(120)
def test_texts_of_one_repeated_form_take_time_in_proportion_to_their_length() -> None:
    slow = {}
    for form in FORMS:
        text = form * (100_000 // len(form)) + " One. Two."
        start = time.thread_time()
        split(text)
        took = time.thread_time() - start
        if took > 2:
            slow[form] = took
    assert not slow


def test_letters_go_on_behind_z() -> None:
    named = list(islice(letters(), 26 + 26 * 26 + 1))
    assert named[:3] == ["a", "b", "c"]
    assert named[25:28] == ["z", "aa", "ab"]
    assert named[26 + 26 * 26 - 1 :] == ["zz", "aaa"]
    assert len(set(named)) == len(named)
