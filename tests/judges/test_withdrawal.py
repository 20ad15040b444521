"""A text behind an answer that takes it back, in several languages."""

import time

from support.cases import each_case

from judges.parsing.decoration import loose
from judges.parsing.withdrawal import Place, is_withdrawn, stated

WITHDRAWN = (
    "Wait, I overlooked the second document. The result should be no.",
    "wait \u2013 that is wrong",
    "Actually, 1,000 g and 1 kg are the same.",
    "Hmm, on reflection that isn't right.",
    "Correction: the figure does not occur there.",
    "On second thought, the phrase is an insult.",
    "I made a mistake with the unit.",
    "Let me reconsider.",
    "**Corrected result:** yes",
    "The answer above does not stand.",
    "Please disregard the score above.",
    "That is why I take the 8 back.",
    "So overall_supported should have been false.",
    "Je me suis tromp\u00e9 : non.",
    "Moment, das stimmt nicht.",
    "Das Ergebnis sollte also nein lauten.",
    "Attendez, la date est fausse.",
    "Espera, la fecha no coincide.",
    "Na verdade, a data est\u00e1 errada.",
    "Подождите, дата неверна.",
    "等等\uff0c结果应该是 no。",
    "不对\uff0c单位不同。",
    "訂正\uff1a結果は no です。",
    "\u0627\u0646\u062a\u0638\u0631\u060c \u0627\u0644\u062a\u0627\u0631\u064a\u062e \u062e\u0637\u0623.",
)
KEPT = (
    "",
    "I hope this helps!",
    "Note: I treated the difference between staff and employees as wording only.",
    "If you would like, I can list the sentence behind each claim.",
    "The answer shares the country with the question but none of its substance.",
    "In short, the two objects are equivalent.",
    "总结\uff1a绝大多数说法都能从上下文中推出\uff0c因此评分为 4 分。",
    "Both actually name the same year.",
    "Wait times are given.",
    "Please ignore the formatting.",
    "Actually supported: 2 of 2 statements.",
)


@each_case("text", WITHDRAWN)
def test_is_withdrawn(text: str) -> None:
    assert is_withdrawn(text)


@each_case("text", KEPT)
def test_is_kept(text: str) -> None:
    assert not is_withdrawn(text)


def test_reasons_may_speak_of_what_an_answer_should_be() -> None:
    assert not is_withdrawn("The unit should be metres, and it is.", is_reason=True)
    assert not is_withdrawn("The answer says 6. Actually, the document says 5.", is_reason=True)
    assert is_withdrawn("Both are fine.\n\nWait, the unit differs.", is_reason=True)


OFFERED = ("yes", "no", "not applicable", *map(str, range(1, 6)))
STATED: dict[Place, tuple[str, ...]] = {
    "behind": (
        *(
            "Final answer: no",
            "Verdict: **no**",
            "Edit: 3",
            "Rating: 3",
            "Corrected: 3",
            "Revised result: no",
            "So no.",
        ),
        *("Sorry, I meant no.", "However, the correct verdict is no.", "It should be no.", "Make that a 3.", "no"),
        *(
            "Final answer: no, because the date is missing.",
            "Supported: no",
            "The tone is not applicable.",
            "Answer: no",
        ),
        *("Ergebnis: no", "Le r\u00e9sultat est no.", "Результат: no", "\u6700\u7ec8\u7b54\u6848\uff1ano"),
        *("\u7ed3\u679c\u662f no", "Actually, no.", "The document is clear. So the verdict is no.", "Score \u2013 3"),
    ),
    "before": ("no", "Verdict: no", "**Final answer: no**", "The verdict is no.", "So no."),
    "reasons": ("It is there. So the verdict is yes.", "Final verdict: yes"),
}
NOT_STATED: dict[Place, tuple[str, ...]] = {
    "behind": (
        *("The document says no.", "If the date were wrong, the result would be no.", 'It says "Verdict: no".'),
        *(
            "The verdict is not no.",
            "Statement 2: no",
            "There is no doubt.",
            "The result is no surprise.",
            "> Result: no",
        ),
        *("Number of claims: 3", "It lists 3 of 4.", "A score of 3 would be too low.", "The answer names page 3."),
    ),
    "before": ("Is it in the documents? No.", "Date: yes\nPlace: no", "The answer says no.", "3 of 4 say no."),
    "reasons": ("The claim is no. The answer is yes.", "It says 6. Actually, the document says 5.", "Result: 5"),
}


def test_sentences_that_state_a_verdict_are_found() -> None:
    def read(text: str) -> object | None:
        return value if (value := loose(text)) in OFFERED else None

    for place, texts in STATED.items():
        assert [text for text in texts if not list(stated(text, read, place=place))] == [], place
    for place, texts in NOT_STATED.items():
        assert [text for text in texts if list(stated(text, read, place=place))] == [], place


def test_long_texts_take_less_than_half_a_second() -> None:
    for text in ("\n" * 400_000, "take it " * 50_000, "sollte " * 60_000, ". " * 200_000, ".*_>" * 100_000):
        began = time.thread_time()
        is_withdrawn(text)
        list(stated(text, lambda _: None, place="behind"))
        assert time.thread_time() - began < 0.5, text[:10]
