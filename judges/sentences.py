"""Divide texts into sentences, and name them: the same division for prompts, keys and checks."""

import re
from collections.abc import Iterator
from importlib.metadata import version
from itertools import chain, count, product
from string import ascii_lowercase
from typing import Final

import sentencex

__all__ = ["SPLITTER", "letters", "split"]

SPLITTER: Final = f"sentencex {version('sentencex')}"
"""Part of the version of every judge whose scores depend on the division: another release may divide otherwise."""

_PRINTABLE: Final = bytes(range(0x20, 0x7F))
_CODE: Final = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_ENDS: Final = (".", "?", "!", ":")
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
        found = _whole(text)
    except UnicodeEncodeError:
        # Half a surrogate pair, as a JSON escape can bring it.
        found = _whole(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    # Where blanks stand alone and are the only white space, no sentence needs a look of its own.
    tidy = "  " not in text and text.isascii() and not text.encode().translate(None, delete=_PRINTABLE)
    return tuple(filter(None, map(str.strip if tidy else _on_one_line, found)))


def _whole(text: str) -> list[str]:
    """Give the sentences of the library, put together again where it divides a name or a code block."""
    if "```" not in text:
        return _joined(_segments(text))
    found: list[str] = []
    position = 0
    for block in _CODE.finditer(text):
        found += [*_joined(_segments(text[position : block.start()])), block[0]]
        position = block.end()
    return found + _joined(_segments(text[position:]))


def _joined(segments: list[str]) -> list[str]:
    if not any(segment.endswith(_ENDS) for segment in segments[:-1]):
        return segments
    joined = segments[:1]
    for segment in segments[1:]:
        # `os.Path` and `Example.Com` are no two sentences; in scripts without blanks the sign at the end is another.
        if joined[-1].endswith(_ENDS) and segment[:1].isascii() and segment[:1].isalnum():
            joined[-1] += segment
        else:
            joined.append(segment)
    return joined


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
