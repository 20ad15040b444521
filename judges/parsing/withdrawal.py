"""Tell whether the text behind an answer withdraws it, in the languages that judge models write most."""

import re
from typing import Final

_MAX_CHARS: Final = 20_000
# Each begins a sentence that takes back what stands before it.
_WORDS: Final = (
    r"wait(?=\W*$|\s*[^\w\s])", "actually", "correction", r"corrected \w+", "scratch that", "my mistake", "hold on",
    "hmm+", "oops",
    "on (?:second thoughts?|(?:closer )?(?:reflection|inspection))", "i was (?:wrong|mistaken)", "i made a mistake",
    "i (?:must|have to|need to|should) correct", "i (?:changed?|withdraw|revise|retract)",
    "let me (?:correct|revise|reconsider)", "(?:please )?(?:disregard|ignore)",
    r"moment(?=\s*[^\w\s])", "korrektur", "doch nicht", "ich (?:korrigiere|muss mich korrigieren|ziehe)", "je retire",
    "attendez", "en fait", "je (?:me )?corrige", "esper[ea]", "en realidad", "correcci\u00f3n", "me corrijo",
    "na verdade", "corre\u00e7\u00e3o", "подождите", "на самом деле", "исправление", "поправка",
    "انتظر", "تصحيح", "रुकिए", "सुधार",
)  # fmt: skip
# In scripts where no blank ends a word.
_UNDIVIDED: Final = ("等等", "等一下", "更正", "不对", "修正", "訂正", "待って", "いや", "間違")
_START: Final = r"""(?:\A|[.!?:\n\u3002\uff01\uff1f])[\s*_>"'-]{0,8}(?:(?:but|no|oh|so|however|hm+),? )?"""
_WITHDRAWS: Final = re.compile(rf"{_START}(?:(?:{'|'.join(_WORDS)})(?!\w)|{'|'.join(_UNDIVIDED)})", re.IGNORECASE)
# In any place, unless the text is itself the reasons, which may speak of what an answer should be.
_PHRASES: Final = re.compile(
    r"should (?:rather )?(?:be|have been|read)\b|do(?:es)? ?n[o']t stand\b|take \S{1,10}(?: \S{1,20}){0,2} back\b"
    r"|(?:disregard|ignore) (?:the|my|what|that)\b|changed my mind\b|i was wrong\b"
    r"|sollte .{1,40}(?:sein|lauten)\b|devrait \u00eatre\b|deber\u00eda ser\b|deveria ser\b"
    "|应该是|应为|应改为|должно быть",
    re.IGNORECASE,
)


def is_withdrawn(text: str, *, is_reason: bool = False) -> bool:
    """Return whether a text behind an answer takes it back; ``is_reason`` if it holds the reasons for the answer."""
    text = text[:_MAX_CHARS].replace("\u2019", "'")
    return _WITHDRAWS.search(text) is not None or (not is_reason and _PHRASES.search(text) is not None)
