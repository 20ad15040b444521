"""Divide texts into the units that judges see, the same for prompts, keys and checks; recognise lists and JSON."""

from collections.abc import Iterator
from itertools import count, product
from string import ascii_lowercase
from typing import Final, NamedTuple

from judges.parsing import prose, structure
from judges.parsing.answer import decode_json

# Part of the version of every judge that divides texts: another release may divide them differently.
SPLITTER: Final = f"units/1, {prose.LIBRARY}"


class Unit(NamedTuple):
    """A sentence, or a row, record, line, heading, list item or block of code.

    Attributes:
        text: The unit on one line with single blanks.
        shown: What a model is shown: a row with the names of its columns, else the text.
        cells: The cells of a row.
    """

    text: str
    shown: str
    cells: tuple[str, ...] = ()


def units(text: str) -> tuple[Unit, ...]:
    """Divide a text into its units, in order.

    Header and separator rows, fences, underlines of headings, HTML tags and comments are in no unit.
    """
    try:
        return tuple(_units(text))
    except UnicodeEncodeError:
        # A lone surrogate, which JSON escapes may contain.
        return tuple(_units(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")))


def split(text: str) -> tuple[str, ...]:
    """Divide a text into the texts of its units."""
    return tuple(unit.text for unit in units(text))


def _units(text: str) -> Iterator[Unit]:
    for part in structure.parts(text):
        if part.is_prose:
            yield from (Unit(sentence, sentence) for sentence in prose.sentences(part.text))
        else:
            yield Unit(part.text, _shown(part), tuple(part.cells))


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
