"""Echo detection: whether an answer is copied from the trace, possibly escaped as JSON or in several pieces."""

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from judges.core.prompt import INVISIBLE
from judges.parsing.answer import encodable

_NUMBERED: Final = re.compile(r"\\+u([0-9a-fA-F]{4})")
_ESCAPES: Final = re.compile(r"\\+[nrt]?")
_SIGN: Final = re.compile(r"\[U\+[0-9A-F]{4,6}\]")  # The replacement of an invisible character in a prompt.
_WORD: Final = re.compile(r"\w{5,}")
# Minimum length, without white space, of a piece of a copy in more than two pieces: an honest answer shares shorter
# phrases with the trace.
_PIECE_CHARS: Final = 30
_MAX_PIECES: Final = 50


class _Page(Struct):
    """A page of a span's content, as the tools return it."""

    span_id: str
    content: str


def is_echo(text: str, shown: Iterable[str]) -> bool:
    """Return whether a text occurs in one shown to the model, whole or in pieces, at any depth of JSON escaping.

    A copy may be in two pieces of any length, or in up to 50 of 30 characters each, of which the last may be shorter.
    White space and invisible characters do not count; the texts shown have signs such as ``[U+200B]`` for the latter.
    """
    shown = tuple(shown)
    if not _may_hold(text, shown):
        return False
    text, shown = _bare(text), tuple(map(_bare, shown))
    return bool(text) and (_is_two_pieces(text, shown) or _is_pieces(text, shown))


def joined_pages(results: Sequence[str]) -> list[str]:
    """Join the contents of each span that was read in several pages, in the order of reading."""
    pages = dict[str, list[str]]()
    for result in results:
        try:
            page = msgspec.json.decode(result, type=_Page)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            continue
        pages.setdefault(page.span_id, []).append(page.content)
    return ["".join(pieces) for pieces in pages.values() if len(pieces) > 1]


def _is_two_pieces(text: str, shown: Sequence[str]) -> bool:
    half = len(text) // 2
    if not any(text[:half] in each or text[half:] in each for each in shown):
        return False
    return _longest(text, shown) + _longest(text, shown, at_end=True) >= len(text)


def _is_pieces(text: str, shown: Sequence[str]) -> bool:
    """Cut the longest piece off each time: a shorter one would leave no fewer pieces."""
    left = text
    for _ in range(_MAX_PIECES):
        if not any(left[:_PIECE_CHARS] in each for each in shown):
            return False
        left = left[_longest(left, shown) :]
        if not left:
            return True
    return False


def _longest(text: str, shown: Sequence[str], *, at_end: bool = False) -> int:
    """Return the length of the longest beginning, or end, of a text that occurs in any text shown."""

    def occurs_nowhere(length: int) -> bool:
        piece = text[len(text) - length :] if at_end else text[:length]
        return not any(piece in each for each in shown)

    return bisect_left(range(1, len(text) + 1), True, key=occurs_nowhere)  # noqa: FBT003 - the value bisect looks for


def _may_hold(text: str, shown: Sequence[str]) -> bool:
    """Look for the words of the text, which is far faster than the search for pieces.

    The two ends of a piece split one word each at most, so a piece has no two missing words.
    """
    for each in shown:
        # Escapes may hide words. The search for one character is faster than for two.
        if ("\\" in each and "\\u" in each) or ("[" in each and "[U+" in each):
            return True
    missed_at = -_PIECE_CHARS
    for word in _WORD.finditer(text):
        for each in shown:
            if word[0] in each:
                break
        else:
            # A whole piece would lie between the ends of these two missing words.
            if word.end() - missed_at < _PIECE_CHARS:
                return False
            missed_at = word.start()
    return True


def _bare(text: str) -> str:
    """Remove white space, its escapes and invisible characters; decode the other escapes at any depth."""
    if "\\u" in text:
        text = encodable(_NUMBERED.sub(lambda match: chr(int(match[1], 16)), text))
    if "[U+" in text:
        text = _SIGN.sub("", text)
    if not text.isascii():
        text = INVISIBLE.sub("", text)
    if "\\" in text:
        text = _ESCAPES.sub("", text)
    return "".join(text.split())
