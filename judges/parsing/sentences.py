"""Divide texts into the units that judges see, the same for prompts, keys and checks; recognise lists and JSON."""

import re
from collections.abc import Iterator
from itertools import count, product
from string import ascii_lowercase
from typing import Final, NamedTuple

from judges.parsing import prose, structure
from judges.parsing.answer import decode_json

# Part of the version of every judge that divides texts: another release may divide them differently.
SPLITTER: Final = f"units/1, {prose.LIBRARY}"
_STRING: Final = r'"(?:[^"\\]|\\.){0,200}+"'  # Longer members are no short statements.
_VALUE: Final = rf"(?:{_STRING}|-?\d[^\s,\]}}]*|true|false|null)"
_MEMBER: Final = re.compile(rf"{_STRING}\s*:\s*(?:{_VALUE}|\[(?P<elements>(?:\s*+{_VALUE}\s*+,?)*+)\s*\])")
_ELEMENT: Final = re.compile(_VALUE)
_CHECKBOX: Final = re.compile(r"\[[ xX]\]\s+")


class Unit(NamedTuple):
    """A sentence, or a row, record, line, heading, list item or block of code.

    Attributes:
        text: The unit on one line with single blanks.
        shown: What a model is shown: a row with the names of its columns, else the text.
    """

    text: str
    shown: str


def units(text: str) -> tuple[Unit, ...]:
    """Divide a text into its units, in order.

    Header and separator rows, fences, underlines of headings, HTML tags and comments are in no unit.
    """
    found: list[Unit] = []
    for part in structure.parts(text):
        if part.is_prose:
            found += [Unit(sentence, sentence) for sentence in prose.sentences(part.text)]
        elif not part.is_header:
            found.append(Unit(part.text, _shown(part)))
    return tuple(found)


def split(text: str) -> tuple[str, ...]:
    """Divide a text into the texts of its units."""
    return tuple(unit.text for unit in units(text))


def statements(text: str) -> Iterator[str]:
    """Yield what is a whole statement, however short.

    These are units, also without list markers and checkboxes, and rows, also without the signs between their cells;
    header rows; members of JSON, and the elements of their arrays.
    """
    yield text
    for part in structure.parts(text):
        yield from prose.sentences(part.text) if part.is_prose else (part.text,)
        if part.cells:
            yield " ".join(part.cells)
        marker = structure.MARKER.match(part.text)
        if marker:
            item = part.text[marker.end() :]
            yield item
            yield _CHECKBOX.sub("", item, count=1)
    if '"' in text and ":" in text:
        for member in _MEMBER.finditer(text):
            yield member[0]
            yield from _ELEMENT.findall(member["elements"] or "")


def table_rows(text: str) -> Iterator[str]:
    """Yield the rows of Markdown tables without the signs between their cells."""
    if "|" in text:
        yield from (" ".join(part.cells) for part in structure.parts(text) if part.cells and "|" in part.text)


def cells(text: str) -> Iterator[str]:
    """Yield the cells of all tables and records."""
    return (cell for part in structure.parts(text) for cell in part.cells)


def _shown(part: structure.Part) -> str:
    if not part.header:
        return part.text
    if len(part.header) != len(part.cells):
        return " ".join(f"{' | '.join(part.header)}: {part.text}".split())
    named = (f"{name}: {cell}" if name else cell for name, cell in zip(part.header, part.cells, strict=True))
    return " ".join(" | ".join(named).split())


def letters() -> Iterator[str]:
    """Yield a, b, ..., z, aa, ab, ... without end."""
    return ("".join(name) for length in count(1) for name in product(ascii_lowercase, repeat=length))


LIST: Final = "a list"


def shape(text: str) -> str:
    """Name the shape of a text with its article; a list is a text of which most lines begin as list items."""
    value = decode_json(text)
    if isinstance(value, dict | list):
        return "a JSON object" if isinstance(value, dict) else "a JSON array"
    lines = [line for line in text.splitlines() if line.strip()]
    items = sum(structure.MARKER.match(line) is not None for line in lines)
    return LIST if items > len(lines) / 2 else "plain text"
