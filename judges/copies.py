"""Find a text in what was shown of a trace, where it may stand as JSON in a string of JSON, and in two places."""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from judges.answer import encodable
from judges.prompt import INVISIBLE

__all__ = ["joined_pages", "stands_in"]

_NUMBERED: Final = re.compile(r"\\+u([0-9a-fA-F]{4})")
_ESCAPES: Final = re.compile(r"\\+[nrt]?")
_SIGN: Final = re.compile(r"\[U\+[0-9A-F]{4,6}\]")
"""What stands for a character that cannot be seen."""
_WORD: Final = re.compile(r"\w{5,}")


class _Page(Struct):
    """A piece of the content of a span, as the tools give it."""

    span_id: str
    content: str


def stands_in(text: str, shown: Iterable[str]) -> bool:
    """Tell whether a text stands in those shown, however often it was written into JSON, whole or as two pieces.

    White space and what cannot be seen play no part.

    Args:
        text: What may be a copy.
        shown: Texts as they were shown, with signs such as ``[U+200B]`` for what cannot be seen.
    """
    shown = tuple(shown)
    return _may_hold(text, shown) and _covered(_bare(text), [_bare(each) for each in shown])


def joined_pages(results: Sequence[str]) -> list[str]:
    """Put the contents of each span together of which several pieces were read, in the order of reading."""
    pages = dict[str, list[str]]()
    for result in results:
        try:
            page = msgspec.json.decode(result, type=_Page)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            continue
        pages.setdefault(page.span_id, []).append(page.content)
    return ["".join(pieces) for pieces in pages.values() if len(pieces) > 1]


def _covered(text: str, shown: Sequence[str]) -> bool:
    half = len(text) // 2
    if not half or not any(text[:half] in each or text[half:] in each for each in shown):
        return False
    from_start = _longest(text, shown, lambda length: text[:length])
    from_end = _longest(text, shown, lambda length: text[len(text) - length :])
    return from_start + from_end >= len(text)


def _longest(text: str, shown: Sequence[str], piece: Callable[[int], str]) -> int:
    """Say how long the longest piece is that stands in any text shown."""
    stands_nowhere = lambda length: not any(piece(length) in each for each in shown)  # noqa: E731 - a name for one expression
    return bisect_left(range(1, len(text) + 1), True, key=stands_nowhere)  # noqa: FBT003 - the value bisect looks for


def _may_hold(text: str, shown: Sequence[str]) -> bool:
    """Look for the words, of which the two pieces of a copy split one at most: far faster than all that follows."""
    for each in shown:
        # One character is found faster than two.
        if ("\\" in each and "\\u" in each) or ("[" in each and "[U+" in each):
            return True
    has_missed = False
    for word in _WORD.finditer(text):
        for each in shown:
            if word[0] in each:
                break
        else:
            if has_missed:
                return False
            has_missed = True
    return True


def _bare(text: str) -> str:
    """Leave out white space, what stands for it and what cannot be seen; read the other escapes at whatever depth."""
    if "\\u" in text:
        text = encodable(_NUMBERED.sub(lambda match: chr(int(match[1], 16)), text))
    if "[U+" in text:
        text = _SIGN.sub("", text)
    if not text.isascii():
        text = INVISIBLE.sub("", text)
    if "\\" in text:
        text = _ESCAPES.sub("", text)
    return "".join(text.split())
