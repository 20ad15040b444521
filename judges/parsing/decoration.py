"""Normalise one value of an answer: decoration around it is removed, and each accepted form has one reading."""

import re
import unicodedata
from collections.abc import Mapping
from typing import Final

from judges.core.prompt import INVISIBLE

_MARKS: Final = " \t\r\n\"'`*_$~\u2018\u2019\u201c\u201d\u201e\u00ab\u00bb\u2039\u203a"
_BRACKETS: Final[Mapping[str, str]] = {
    "[": "]", "(": ")", "<": ">", "\u300c": "\u300d", "\u300e": "\u300f", "\u3010": "\u3011", "\u3008": "\u3009",
    "\u300a": "\u300b",
}  # fmt: skip
_LIST_SIGN: Final = re.compile(r"\A[-+\u2022]\s+(?=[^\W\d])")  # Before a number it may be a sign of that number.
_BOXED: Final = re.compile(r"\\boxed\{\s*(?:\\text(?:bf)?\{([^{}]*)\}|([^{}]*))\s*\}")
_FINAL_SIGNS: Final = ".!,;:\u3002\u0964"  # Any of these may follow a value; a question mark is a doubt.
_MAX_CHARS: Final = 1000  # Longer texts are no single value.
# Between letters and digits only: a sign in front belongs to a number.
_GAPS: Final = re.compile(r"(?<=[^\W_])[\s_\u2010-\u2013-]+(?=[^\W_])")
_WORDS: Final[Mapping[str, int]] = {
    word: number
    for number, word in enumerate(("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"), 1)
}
_AMOUNT: Final = rf"[+-]?(?:[0-9]{{1,300}})?(?:\.[0-9]{{1,300}})?(?<=\d)|{'|'.join(_WORDS)}"
# A remark with a number may name another one, as `4 (not 5)` does, and one with these words may take the first back.
_DOUBTS: Final = rf"{'|'.join(_WORDS)}|or|to|not?|but|actually|maybe|perhaps|half|percent|lower|higher|minus|plus"
_REMARK: Final = rf"\s*\([^()\d]*\)|\s*[:,\u2013\u2014-](?:\s+(?!(?:{_DOUBTS})\b)[^\W\d_]+){{1,4}}"
_RATED: Final = re.compile(
    rf"({_AMOUNT})(?:\s*/\s*({_AMOUNT})|\s+out\s+of\s+({_AMOUNT}))?(?:{_REMARK})?(?:\s*[\u2605\u2b50\u2705\ufe0f]+)?",
    re.IGNORECASE,
)
_TRUTHS: Final[Mapping[str, bool]] = {"true": True, "yes": True, "y": True, "false": False, "no": False, "n": False}
# Signs that say the same beside the word, and what may follow a sign.
_YES_SIGNS: Final = "\u2705\u2714\u2713\u2611\U0001f44d\U0001f7e2"
_NO_SIGNS: Final = "\u274c\u2716\u2717\u2718\U0001f44e\U0001f534\u26d4\U0001f6ab"
_AFTER_SIGNS: Final = "\ufe0f\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff"


def bare(text: str) -> str:
    """Remove what decorates a value: full-width letters, quotation marks, Markdown, brackets, list and final signs."""
    if len(text) > _MAX_CHARS or (text.isascii() and text.isalnum()):
        return text
    text = INVISIBLE.sub("", unicodedata.normalize("NFKC", text)).strip(_MARKS)
    text = _LIST_SIGN.sub("", text.rstrip(_FINAL_SIGNS + _MARKS), count=1).strip(_MARKS)
    # Each round removes one layer, as in `[[no]]`.
    for _ in range(3):
        if boxed := _BOXED.fullmatch(text):
            text = (boxed[1] or boxed[2] or "").strip(_MARKS)
        elif text and _BRACKETS.get(text[0]) == text[-1]:
            text = text[1:-1].strip(_MARKS)
    return text


def loose(text: str) -> str:
    """Normalise a label so that decoration, case, and `_` or `-` for blanks do not count."""
    return _GAPS.sub(" ", bare(text)).strip().casefold()


def number_of(text: str, highest: float) -> float | None:
    """Read a number: digits, a word up to ten, `4 (Good)`, or `4/5` if 5 is the highest; None for anything else."""
    rated = _RATED.fullmatch(bare(text))
    if rated is None:
        return None
    top = rated[2] or rated[3]
    if top is not None and _amount(top) != highest:
        return None
    return _amount(rated[1])


def truth_of(text: str) -> bool | None:
    """Read yes, no, true, false, y or n, also beside a sign that says the same; None for anything else."""
    truth = _TRUTHS.get(loose(text.strip(f"{_MARKS}{_YES_SIGNS}{_NO_SIGNS}{_AFTER_SIGNS}")))
    return None if any(sign in text for sign in (_NO_SIGNS if truth else _YES_SIGNS)) else truth


def _amount(text: str) -> float:
    return float(_WORDS.get(text.casefold(), text))
