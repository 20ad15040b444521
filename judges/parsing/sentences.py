"""Divide texts into sentences and name them, in the same way for prompts, keys and checks; recognise lists and JSON."""

import re
from collections.abc import Iterator
from importlib.metadata import version
from itertools import count, product
from string import ascii_lowercase
from typing import Final

import sentencex

from judges.parsing.answer import decode_json

# Part of the version of every judge that divides texts: another release may divide them differently.
SPLITTER: Final = f"sentencex {version('sentencex')}"
_PRINTABLE: Final = bytes(range(0x20, 0x7F))
_CODE: Final = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_ENDS: Final = (".", "?", "!", ":")
_LANGUAGE: Final = "en"  # Language of the abbreviations; ends of sentences are recognised in all scripts.
_QUOTES: Final = "\u201c\u201e\u201d\u2018\u2019\xab\xbb\u2039\u203a`'"
_UNQUOTED: Final = str.maketrans(dict.fromkeys(_QUOTES, "_"))
# The library searches the rest of the text for the partner of each quotation mark: 100 kB of them took 6 s.
_MAX_QUOTES: Final = 2000


def split(text: str) -> tuple[str, ...]:
    """Divide a text into its sentences, each on one line with single blanks.

    List items, headings and blank lines end a sentence too; a code block stays one sentence.
    """
    try:
        found = _whole(text)
    except UnicodeEncodeError:
        # A lone surrogate, which JSON escapes may contain.
        found = _whole(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    # A text with single blanks as its only white space need not be normalised sentence by sentence.
    is_tidy = "  " not in text and text.isascii() and not text.encode().translate(None, delete=_PRINTABLE)
    return tuple(filter(None, (part.strip() if is_tidy else " ".join(part.split()) for part in found)))


def _whole(text: str) -> list[str]:
    """Return the library's sentences, rejoined where it divides a name or a code block."""
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
        # `os.Path` and `Example.Com` are one word; scripts without blanks end sentences with other signs.
        if joined[-1].endswith(_ENDS) and segment[:1].isascii() and segment[:1].isalnum():
            joined[-1] += segment
        else:
            joined.append(segment)
    return joined


def _segments(text: str) -> list[str]:
    if len(text) <= _MAX_QUOTES or sum(map(text.count, _QUOTES)) <= _MAX_QUOTES:
        segments: list[str] = sentencex.segment(_LANGUAGE, text)
        return segments
    # Replaced quotation marks leave the positions unchanged.
    found = sentencex.get_sentence_boundaries(_LANGUAGE, text.translate(_UNQUOTED))
    return [text[place["start_index"] : place["end_index"]] for place in found]


def letters() -> Iterator[str]:
    """Yield a, b, ..., z, aa, ab, ... without end."""
    return ("".join(name) for length in count(1) for name in product(ascii_lowercase, repeat=length))


LIST: Final = "a list"
_LIST_LINE: Final = re.compile(r"\s*(?:[-*\u2022\u2013]|[0-9]{1,3}[.)])\s")


def shape(text: str) -> str:
    """Name the shape of a text with its article; a list is a text of which most lines begin as list items."""
    value = decode_json(text)
    if isinstance(value, dict | list):
        return "a JSON object" if isinstance(value, dict) else "a JSON array"
    lines = [line for line in text.splitlines() if line.strip()]
    items = sum(_LIST_LINE.match(line) is not None for line in lines)
    return LIST if items > len(lines) / 2 else "plain text"
