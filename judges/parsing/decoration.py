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
_LIST_SIGN: Final = re.compile(r"[-+\u2022]\s+(?=[^\W\d])")  # Before a number it may be a sign of that number.
_BOXED: Final = re.compile(r"\\boxed\{\s*(?:\\text(?:bf)?\{([^{}]*)\}|([^{}]*))\s*\}")
_FINAL_SIGNS: Final = ".!,;:\u3002\u0964"  # Any of these may follow a value; a question mark is a doubt.
_MAX_CHARS: Final = 1000  # Longer texts are no single value.
# Between letters and digits only: a sign in front belongs to a number.
_GAPS: Final = re.compile(r"(?<=[^\W_])[\s_\u2010-\u2013-]+(?=[^\W_])")
_WORDS: Final[Mapping[str, int]] = {
    word: number
    for number, word in enumerate(("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"), 1)
}
_AMOUNT: Final = rf"[+-]?[0-9]{{1,300}}(?:\.[0-9]{{1,300}})?|{'|'.join(_WORDS)}"
_RATED: Final = re.compile(
    # A remark with a digit may be another number: `4 (not 5)`.
    rf"({_AMOUNT})(?:\s*/\s*({_AMOUNT})|\s+out\s+of\s+({_AMOUNT}))?(?:\s*\([^()\d]*\))?",
    re.IGNORECASE,
)


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
    """Read a number: its digits or an English word up to ten, also `4 (Good)`, and `4/5` where 5 is the highest.

    Returns None for anything else, such as a share of another number.
    """
    rated = _RATED.fullmatch(bare(text))
    if rated is None:
        return None
    top = rated[2] or rated[3]
    if top is not None and _amount(top) != highest:
        return None
    return _amount(rated[1])


def _amount(text: str) -> float:
    return float(_WORDS.get(text.casefold(), text))
