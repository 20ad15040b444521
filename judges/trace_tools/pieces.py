"""The contents of steps as they are searched: piece by piece, and read without escapes.

The memory of a search grows with what it searches, and so does the time between the library's looks at the clock.
Where a piece is cut within an escape, what is misread is beyond the margin, or seen again in the next piece.
"""

import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from judges.trace_tools.content import Contents, boundary
from judges.trace_tools.escapes import View, views
from judges.trace_tools.spans import Step

__all__ = ["Piece", "Pieces"]

_PIECE_BYTES: Final = 20_000
_AHEAD_BYTES: Final = 4_000
"""What a match may see, and reach, behind the piece it begins in."""
_BEHIND_BYTES: Final = 1_000
"""As much as is shown before a match."""
_CUT_ESCAPE_CHARS: Final = 64
_MAX_KEPT_BYTES: Final = 8 * 1024 * 1024


class Piece(NamedTuple):
    """A piece of a content, with what stands around it; places count its characters, offsets bytes of the content.

    Attributes:
        begin: Where the first match may begin; the last one begins before ``stop``.
        views: The text as it is read.
        starts: Where ``begin`` is in each view.
        stop_offset: Where the next piece begins.
        size: Of the whole content.
    """

    text: str
    first_offset: int
    begin: int
    stop: int
    views: Sequence[View]
    starts: Sequence[int]
    stop_offset: int
    size: int

    def offset(self, place: int) -> int:
        """Say where a character stands in the content."""
        return self.first_offset + len(self.text[:place].encode())


class Pieces:
    """Cuts contents. What it read of escapes is kept up to 8 MiB, twice the largest trace; the rest is read again."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._kept: dict[tuple[str, int], list[str]] = {}
        self._kept_bytes = 0

    def at(self, step: Step, offset: int) -> Piece:
        """Cut the piece of a step's content from an offset on; searches come to the same pieces, by their ends."""
        content = self._contents.whole(step)
        if offset == 0 and len(content) <= _PIECE_BYTES:
            return self._whole(step, content.decode(), len(content))
        return self._cut(step, content, offset)

    def _whole(self, step: Step, text: str, size: int) -> Piece:
        """Take a short content as it is: a trace may have very many of them."""
        found = self._views(text, (step.id, 0))
        return Piece(text, 0, 0, len(text), found, (0,) * len(found), size, size)

    def _cut(self, step: Step, content: bytes, offset: int) -> Piece:
        number, size = offset // _PIECE_BYTES, len(content)
        begin = boundary(content, offset)
        first = boundary(content, max(0, number * _PIECE_BYTES - _BEHIND_BYTES))
        stop = boundary(content, min(size, (number + 1) * _PIECE_BYTES))
        text = content[first : boundary(content, min(size, stop + _AHEAD_BYTES))].decode()
        before = len(content[first:begin].decode())
        found = self._views(text, (step.id, number))
        starts = list(islice(_starts(text, before), len(found)))
        return Piece(text, first, before, before + len(content[begin:stop].decode()), found, starts, stop, size)

    def _views(self, text: str, key: tuple[str, int]) -> Sequence[View]:
        if key in self._kept:
            return list(_again(text, self._kept[key]))
        found = list(views(text))
        if "\\" in text:
            self._keep(key, [view.text for view in found])
        return found

    def _keep(self, key: tuple[str, int], texts: list[str]) -> None:
        size = sum(map(sys.getsizeof, (key, key[0], texts, *texts)))
        if self._kept_bytes + size <= _MAX_KEPT_BYTES:
            self._kept[key] = texts
            self._kept_bytes += size


def _again(text: str, kept: Sequence[str]) -> Iterator[View]:
    outer: View | None = None
    for read in kept:
        outer = View(read, text if outer is None else outer.text, outer)
        yield outer


def _starts(text: str, begin: int) -> Iterator[int]:
    """Find a place in each view, as far as they are told apart by what stands before it; there it stays the same."""
    start = 0
    for view in views(text[: begin + _CUT_ESCAPE_CHARS]) if begin else ():
        start = view.first_at(begin)
        yield start
    while True:
        yield start
