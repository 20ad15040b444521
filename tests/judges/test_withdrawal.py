"""A text behind an answer that takes it back, in several languages."""

import time

from tables import table

from judges.parsing.decoration import loose
from judges.parsing.withdrawal import is_withdrawn, stated

TABLES = table("withdrawal")
OFFERED = ("yes", "no", "not applicable", *map(str, range(1, 6)))


def test_an_answer_is_withdrawn_or_kept() -> None:
    assert [text for text in TABLES["withdrawn"] if not is_withdrawn(text)] == []
    assert [text for text in TABLES["kept"] if is_withdrawn(text)] == []
    # Reasons may speak of what an answer should be.
    assert not is_withdrawn("The unit should be metres, and it is.", is_reason=True)
    assert not is_withdrawn("The answer says 6. Actually, the document says 5.", is_reason=True)
    assert is_withdrawn("Both are fine.\n\nWait, the unit differs.", is_reason=True)


def test_sentences_that_state_a_verdict_are_found() -> None:
    def read(text: str) -> object | None:
        return value if (value := loose(text)) in OFFERED else None

    for place, texts in TABLES["stated"].items():
        assert [text for text in texts if not list(stated(text, read, place=place))] == [], place
    for place, texts in TABLES["not_stated"].items():
        assert [text for text in texts if list(stated(text, read, place=place))] == [], place


def test_long_texts_take_less_than_half_a_second() -> None:
    for text in ("\n" * 400_000, "take it " * 50_000, "sollte " * 60_000, ". " * 200_000, ".*_>" * 100_000):
        began = time.thread_time()
        is_withdrawn(text)
        list(stated(text, lambda _: None, place="behind"))
        assert time.thread_time() - began < 0.5, text[:10]
