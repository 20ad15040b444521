r"""Read JSON texts as a person does: with the line breaks and quotation marks that their escapes stand for.

A search for a word at the start of a line would not find it behind `\n`, of which the n is a letter.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

__all__ = ["View", "views"]

_ESCAPE: Final = re.compile(
    r'\\(?:u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|(["\\/bfnrt]))'
)
_MEANT: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_SINGLE: Final = {"\\" + sign: _MEANT.get(sign, sign) for sign in '"/bfnrt'}
_BACKSLASH: Final = "\0"
"""Stands for an escaped backslash while the others are read, where it is not in the text itself."""
_MAX_WRAPPINGS: Final = 3
"""JSON in a string of JSON in a string: results of tools come so; nobody wraps them deeper."""


class View:
    """A text without its escapes, and where each of its characters stands in the text."""

    def __init__(self, text: str, escaped: str, outer: "View | None" = None) -> None:
        self.text = text
        self._escaped = escaped
        self._outer = outer
        self._gains: tuple[list[int], list[int]] | None = None

    def place(self, position: int) -> int:
        """Say where a character of the view stands in the outermost text."""
        if self._gains is None:
            self._gains = self._found_gains()
        behind, gained = self._gains
        index = bisect_right(behind, position)
        place = position + (gained[index - 1] if index else 0)
        return place if self._outer is None else self._outer.place(place)

    def first_at(self, place: int) -> int:
        """Say which character of the view is the first that stands at a place of the outermost text, or behind it."""
        return bisect_left(range(len(self.text)), place, key=self.place)

    def _found_gains(self) -> tuple[list[int], list[int]]:
        """Find the places behind each escape, and how many more characters than there the text has up to them."""
        escapes = [match.span() for match in _ESCAPE.finditer(self._escaped)]
        gained = list(accumulate(end - start - 1 for start, end in escapes))
        return [end - gain for (_, end), gain in zip(escapes, gained, strict=True)], gained


def views(text: str) -> Iterator[View]:
    """Yield a text without its escapes, then without those that were inside of its strings, and so on."""
    view = View(_unescaped(text), text)
    yield view
    for _ in range(_MAX_WRAPPINGS - 1):
        if _ESCAPE.search(view.text) is None:
            return
        view = View(_unescaped(view.text), view.text, view)
        yield view


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    if _BACKSLASH in text:
        return _ESCAPE.sub(_meant, text)
    # A few replacements take a twentieth of the time of a call for each escape. Pairs go first: what is left is single.
    single = text.replace("\\\\", _BACKSLASH)
    if "\\u" in single:
        return _ESCAPE.sub(_meant, text)
    for escape, meant in _SINGLE.items():
        single = single.replace(escape, meant)
    return single.replace(_BACKSLASH, "\\")


def _meant(escape: re.Match[str]) -> str:
    high, low, single, sign = escape.groups()
    if sign is not None:
        return _MEANT.get(sign, sign)
    if single is not None:
        return chr(int(single, 16))
    return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00)
