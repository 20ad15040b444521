"""Divide texts into the units that judges see, and into words and numbers, the same for prompts, keys and checks."""

import re
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from itertools import count, product
from string import ascii_lowercase, digits
from typing import Final, NamedTuple

from judges.parsing import prose, structure
from judges.parsing.answer import decode_json

_WORD: Final = re.compile(r"\w+(?:['\u2019]\w+)?")
_NUMBER: Final = re.compile(r"\d+(?:[.,]\d+)*")
_SUFFIXES: Final = ("ations", "ation", "ings", "ing", "ies", "ed", "es", "ly", "s")
_MIN_STEM: Final = 3
_STOPWORDS_TEXT: Final = """
a about after all also am an and any are as at be because been before being but by can could did do does doing for from
get got had has have having he her here him his how i if in into is it its just like made make may me might more most
must my no nor not now of off on once only or other our out over own please shall she should so some such than that the
their them then there these they this those through to too under until up use used using very want was we were what
when where which while who whom why will with would you your yours i'm it's you're don't can't
"""
_STOPWORDS: Final = frozenset(_STOPWORDS_TEXT.split())
# Part of the version of every judge that divides texts: another release may divide them differently.
SPLITTER: Final = f"units/2, {prose.LIBRARY}"
_STRING: Final = r'"(?:[^"\\]|\\.){0,200}+"'  # Longer members are no short statements.
_VALUE: Final = rf"(?:{_STRING}|-?\d[^\s,\]}}]*|true|false|null)"
_MEMBER: Final = re.compile(rf"{_STRING}\s*:\s*(?:{_VALUE}|\[(?P<elements>(?:\s*+{_VALUE}\s*+,?)*+)\s*\])")
_ELEMENT: Final = re.compile(_VALUE)
_CHECKBOX: Final = re.compile(r"\[[ xX]\]\s+")
_LITERAL: Final = re.compile(r'(?<!\\)"((?:[^"\\]|\\.)*+)"', re.DOTALL)
# A sign that a sentence ends within a line, or a line within a string of JSON; one set of characters is searched fast.
_INNER_END: Final = re.compile(
    r"[.!?\u2026\u3002\uff01\uff1f\uff61\u0589\u061f\u06d4\u0964\u0965\u104b\u1362\u17d4;\u037e\u0e00-\u0e7f\\]"
    r"(?:(?<=[.!?\u2026])(?:[^\w\s]{0,4}\s+\S|[A-Z])|(?<=[^\x00-\x7f\u0e00-\u0e7f\u2026])."
    r"|(?<=[\u0370-\u1fff];)\s|(?<=[\u0e00-\u0e7f]) |(?<=\\)n)"
)


class Unit(NamedTuple):
    """A sentence; or a row, record, line, heading, list item or block of code with a single sentence or none."""

    text: str  # The unit on one line with single blanks.
    shown: str  # What a model is shown: a row with the names of its columns, else the text.


def units(text: str) -> tuple[Unit, ...]:
    """Divide a text into its units, without separator rows, fences, underlines of headings, tags and comments."""
    parsed: list[Unit] = []
    for part in structure.parts(text):
        line = part.text
        if part.is_prose:
            parsed += [Unit(sentence, sentence) for sentence in prose.sentences(line)]
        # The full stop of a number such as `700.` ends no sentence.
        elif part.is_whole or not _INNER_END.search(line, len("700.") if line[0] in digits else 0):
            if not part.is_header:
                parsed.append(Unit(line, _shown(part) if part.header else line))
        elif not part.is_header:
            parsed += _divided(part)
    return tuple(parsed)


def _divided(part: structure.Part) -> Iterator[Unit]:
    """Divide an item, row, record or line where sentences end in its fields: an item without its marker, a cell."""
    text = part.text
    shown, marker = _shown(part) if part.header else text, structure.MARKER.match(text)
    is_json = text[0] in '{["' and text[-1] in '",}]'
    for field in part.cells or (_LITERAL.findall(text) if is_json else (text[marker.end() if marker else 0 :],)):
        lines = "\n".join(split(_decoded(field)) if is_json else prose.sentences(field))
        if "\n" in lines:
            # Quotation marks are doubled within the fields of a record.
            text = text.replace(field, lines, 1).replace(field.replace('"', '""'), lines, 1)
            shown = shown.replace(field, lines, 1)
    return map(Unit, text.split("\n"), (shown if shown.count("\n") == text.count("\n") else text).split("\n"))


def _decoded(literal: str) -> str:
    value = decode_json(f'"{literal}"')
    return value if isinstance(value, str) else literal


def split(text: str) -> tuple[str, ...]:
    """Divide a text into the texts of its units."""
    return tuple(unit.text for unit in units(text))


def statements(text: str) -> Iterator[Sequence[str]]:
    """Yield all statements of a text in order, with header rows and lines of code; then other forms of single ones.

    These are the text, items without markers and checkboxes, and rows without the signs between their cells.
    """
    ordered, separate = list[str](), list[str]()
    for part in structure.parts(text):
        divided = prose.sentences(part.text) if part.is_prose else [unit.text for unit in _divided(part)]
        ordered += (part.cells or (part.text,)) if part.is_whole else divided
        if marker := structure.MARKER.match(part.text):
            separate += prose.sentences(_CHECKBOX.sub("", part.text[marker.end() :], count=1))[:1]
        separate.append(" ".join(part.cells))
    yield from (ordered, *((each,) for each in separate))


def other_forms(text: str) -> Iterator[str]:
    """Yield rows of Markdown tables without signs, and a text without the escapes of JSON."""
    if "|" in text:
        yield from (" ".join(part.cells) for part in structure.parts(text) if part.cells and "|" in part.text)
    if "\\" in text:
        yield from (_decoded(literal) for literal in _LITERAL.findall(text) if "\\" in literal)
        yield text.replace("\\n", "\n")


def rows(text: str) -> Iterator[Sequence[str]]:
    """Yield the lines of code, the cells of each row, and the members of each record of JSON."""
    yield [line for line in text.splitlines() if not set("(){}=;").isdisjoint(line)]
    for part in structure.parts(text):
        yield part.cells
        if '":' in part.text:
            members = _MEMBER.finditer(part.text)
            yield [each for member in members for each in (member[0], *_ELEMENT.findall(member["elements"] or ""))]


def _shown(part: structure.Part) -> str:
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


def content_words(text: str) -> frozenset[str]:
    """Extract the words that carry meaning, in lower case and reduced to a crude stem."""
    words = {word.casefold() for word in _WORD.findall(text)}
    return frozenset(map(_stem, words - _STOPWORDS))


def numbers(text: str) -> frozenset[str]:
    """Extract the numbers, without separators of thousands."""
    return frozenset(number.replace(",", "") for number in _NUMBER.findall(text))


def coverage(part: AbstractSet[str], whole: AbstractSet[str]) -> float:
    """Return the share of ``part`` that is in ``whole``, 0..1; an empty part is covered."""
    return len(part & whole) / len(part) if part else 1.0


@lru_cache(maxsize=1 << 16)
def _stem(word: str) -> str:
    word = word.removesuffix("'s").removesuffix("\u2019s")
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= _MIN_STEM:
            return word[: -len(suffix)]
    return word
