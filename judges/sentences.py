"""Divide texts into sentences, and name them: the same division for prompts, keys and checks."""

from collections.abc import Iterator
from itertools import chain, count, product
from string import ascii_lowercase
from typing import Final

import sentencex

__all__ = ["letters", "split"]

_PRINTABLE: Final = bytes(range(0x20, 0x7F))
_LANGUAGE: Final = "en"
"""Whose abbreviations count; ends of sentences are known in all scripts."""
_QUOTES: Final = "\u201c\u201e\u201d\u2018\u2019\xab\xbb\u2039\u203a`'"
_UNQUOTED: Final = str.maketrans(dict.fromkeys(_QUOTES, "_"))
_MAX_QUOTES: Final = 2000
"""The library looks for the partner of each quotation mark to the end of the text: 100 kB of them took 6 s."""


def split(text: str) -> tuple[str, ...]:
    """Divide a text into its sentences, each on one line: runs of white space become one blank.

    Lists, headings and blank lines end a sentence too; a code block stays one.
    """
    try:
        found = _segments(text)
    except UnicodeEncodeError:
        # Half a surrogate pair, as a JSON escape can bring it.
        found = _segments(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    # Where blanks stand alone and are the only white space, no sentence needs a look of its own.
    tidy = "  " not in text and text.isascii() and not text.encode().translate(None, delete=_PRINTABLE)
    return tuple(filter(None, map(str.strip if tidy else _on_one_line, found)))


def _segments(text: str) -> list[str]:
    if len(text) <= _MAX_QUOTES or sum(map(text.count, _QUOTES)) <= _MAX_QUOTES:
        segments: list[str] = sentencex.segment(_LANGUAGE, text)
        return segments
    # The same places in the text, found without its quotation marks.
    found = sentencex.get_sentence_boundaries(_LANGUAGE, text.translate(_UNQUOTED))
    return [text[place["start_index"] : place["end_index"]] for place in found]


def _on_one_line(part: str) -> str:
    return " ".join(part.split())


def letters() -> Iterator[str]:
    """Yield a, b, ..., z, aa, ab, ... without end."""
    return chain(_LETTERS, (name for length in count(3) for name in _of(length)))


def _of(length: int) -> Iterator[str]:
    return map("".join, product(ascii_lowercase, repeat=length))


_LETTERS: Final = (*_of(1), *_of(2))
