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
_PIECE_CHARS: Final = 30
"""The least length of a piece where a copy is of more than two, without white space: shorter ones are phrases that an
honest answer has in common with much of what it speaks of."""
_MAX_PIECES: Final = 50


class _Page(Struct):
    """A piece of the content of a span, as the tools give it."""

    span_id: str
    content: str


def stands_in(text: str, shown: Iterable[str]) -> bool:
    """Tell whether a text stands in those shown, however often it was written into JSON, whole or in pieces.

    It may be in two pieces of any length, or in up to 50 of 30 characters each, of which the last may be shorter. White
    space and what cannot be seen play no part.

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
    return bool(text) and (_is_two_pieces(text, shown) or _is_pieces(text, shown))


def _is_two_pieces(text: str, shown: Sequence[str]) -> bool:
    half = len(text) // 2
    if not any(text[:half] in each or text[half:] in each for each in shown):
        return False
    from_end = _longest(text, shown, lambda length: text[len(text) - length :])
    return _beginning(text, shown) + from_end >= len(text)


def _is_pieces(text: str, shown: Sequence[str]) -> bool:
    """Take the longest piece each time: none that is shorter would leave fewer."""
    left = text
    for _ in range(_MAX_PIECES):
        if not any(left[:_PIECE_CHARS] in each for each in shown):
            return False
        left = left[_beginning(left, shown) :]
        if not left:
            return True
    return False


def _beginning(text: str, shown: Sequence[str]) -> int:
    return _longest(text, shown, lambda length: text[:length])


def _longest(text: str, shown: Sequence[str], piece: Callable[[int], str]) -> int:
    """Say how long the longest piece is that stands in any text shown."""
    stands_nowhere = lambda length: not any(piece(length) in each for each in shown)  # noqa: E731 - a name for one expression
    return bisect_left(range(1, len(text) + 1), True, key=stands_nowhere)  # noqa: FBT003 - the value bisect looks for


def _may_hold(text: str, shown: Sequence[str]) -> bool:
    """Look for the words, of which each end of a piece splits one at most: far faster than all that follows."""
    for each in shown:
        # One character is found faster than two.
        if ("\\" in each and "\\u" in each) or ("[" in each and "[U+" in each):
            return True
    missed_at = -_PIECE_CHARS
    for word in _WORD.finditer(text):
        for each in shown:
            if word[0] in each:
                break
        else:
            # Between the ends within two words that miss lies a whole piece.
            if word.end() - missed_at < _PIECE_CHARS:
                return False
            missed_at = word.start()
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
