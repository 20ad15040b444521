"""Find the fields of an answer that is no JSON: labelled lines, headings, YAML, Markdown tables and XML elements."""

import html
import re
import textwrap
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple

MAX_CHARS: Final = 64_000  # A longer text is no answer in lines.
_MAX_YAML_CHARS: Final = 16_000
_MAX_DEPTH: Final = 5
_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+|[^\W_a-zA-Z0-9]+")
_TAG: Final = re.compile(r"\s*<([A-Za-z_][\w.-]{0,63})>")
_ROW: Final = re.compile(r"^[ \t]*\|([^\n]*)$", re.MULTILINE)
_CELL_END: Final = re.compile(r"(?<!\\)\|")
_RULE: Final = re.compile(r"\s*:?-+:?\s*")
_FENCE: Final = re.compile(r"\n[ \t]*```")
_INDENTED_LIST: Final = re.compile(r"(?:(?:[ \t]+\S|- )[^\n]*(?:\n|\Z))+")
_LIST: Final = re.compile(r"[ \t]*\n[ \t]*- |[ \t]*\[(?!\[)")
_BLOCK_SIGNS: Final[Mapping[str, str]] = {sign + end: sign for sign in "|>" for end in ("", "-", "+")}
_QUOTES: Final[Mapping[str, str]] = {'"': '"', "'": "'", "\u201c": "\u201d"}


class Field(NamedTuple):
    """One field of an answer: its key as it was asked for, its value, and the place of both in the text."""

    key: str
    value: object
    start: int
    end: int


def fold_key(key: str) -> str:
    """Reduce a key to its letters and digits, so that snake, camel and spaced forms are equal in any case."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", key).casefold())) or key


def spelled(keys: Sequence[str]) -> str:
    """Build a pattern of all forms of some keys, the longest first; to be compiled with ``re.IGNORECASE``."""
    forms = dict.fromkeys(re.escape(key) for key in keys)
    forms |= dict.fromkeys("[ \t_-]?".join(map(re.escape, _WORDS.findall(key))) or re.escape(key) for key in keys)
    return "|".join(sorted(forms, key=len, reverse=True))


class Layout:
    """Finds the fields with some keys; the value of a ``single`` one is one word or number and ends with its line."""

    def __init__(self, keys: Sequence[str], single: Sequence[str]) -> None:
        self._single = frozenset(single)
        folded = [fold_key(key) for key in keys]
        self._by_folded = {fold_key(key): key for key in keys if folded.count(fold_key(key)) == 1}
        self.keys = frozenset(keys)
        names, flags = spelled(keys), re.IGNORECASE | re.MULTILINE
        self._line = re.compile(
            rf"^[ \t]{{0,3}}(?:(?:[-*+\u2022]|\d{{1,2}}[.)]|#{{1,6}})[ \t]+)?[*_`]{{0,3}}"
            rf"(?P<final>(?:final|overall)[ \t]+)?(?P<name>{names})[*_`]{{0,3}}[ \t]*[:=\uff1a][*_`]{{0,3}}"
            rf"|^(?P<heading>\#{{1,6}})[ \t]+[*_`]{{0,3}}(?P<title>{names})[*_`]{{0,3}}[ \t]*$",
            flags,
        )
        self._element = re.compile(rf"<({names})(?:\s[^<>]{{0,200}})?>", flags)

    def key_of(self, name: str) -> str | None:
        """Return the key that a name means."""
        return name if name in self.keys else self._by_folded.get(fold_key(name))

    def fields(self, text: str) -> list[Field]:
        """Return the fields of a text, in order."""
        if len(text) > MAX_CHARS:
            return []
        elements = list(self._elements(text)) if "</" in text else []
        rows = list(self._cells(text)) if "|" in text else []
        lines = (
            line
            for line in self._lines(text)
            if not any(element.start < line.start < element.end for element in elements)
        )
        return sorted((*elements, *rows, *lines), key=lambda field: field.start)

    def _lines(self, text: str) -> Iterator[Field]:
        marks = [
            (mark, key)
            for mark in self._line.finditer(text)
            if (key := self.key_of(mark["name"] or mark["title"])) and not (mark["final"] and key not in self._single)
        ]
        ends = [mark.start() for mark, _ in marks[1:]] + [len(text)]
        # Without marks there is one end too many.
        for (mark, key), limit in zip(marks, ends, strict=False):
            block = text[mark.end() : limit]
            if fence := _FENCE.search(block):
                block = block[: fence.start()]
            line, _, rest = block.partition("\n")
            if key not in self._single or _LIST.match(block):
                yield Field(key, _block(block), mark.start(), limit)
                continue
            end = mark.end() + len(line)
            if not line.strip() and mark["heading"]:
                line = next(filter(str.strip, rest.split("\n")), "")
                end += 1 + rest.find(line) + len(line)
            yield Field(key, _plain(line.strip()), mark.start(), end)

    def _cells(self, text: str) -> Iterator[Field]:
        """Yield the cells below a header of keys, or the second cell of each row whose first is a key."""
        header: Sequence[str | None] = ()
        last_end = -2
        for row in _ROW.finditer(text):
            cells = [cell.strip() for cell in _CELL_END.split(row[1].rstrip().removesuffix("|"))]
            named = [self.key_of(cell.strip("*_`")) for cell in cells]
            if row.start() != last_end + 1:
                header = named if self._single <= set(named) else ()
            elif header and len(cells) == len(header) and not all(map(_RULE.fullmatch, cells)):
                for key, cell in zip(header, cells, strict=True):
                    if key is not None:
                        yield Field(key, _plain(cell), row.start(), row.end())
            elif not header and len(cells) == len(("key", "value")) and named[0] is not None:
                yield Field(named[0], _plain(cells[1]), row.start(), row.end())
            last_end = row.end()

    def _elements(self, text: str) -> Iterator[Field]:
        position = 0
        while (opening := self._element.search(text, position)) is not None:
            end, position = _closing(text, opening[1], opening.end())
            key = self.key_of(opening[1])
            if end < 0 or key is None:
                # An element without an end: the answer is cut off.
                return
            yield Field(key, _element(text[opening.end() : end]), opening.start(), position)


@cache
def layout(keys: tuple[str, ...], single: tuple[str, ...]) -> Layout:
    """Return the layout for some keys, compiled once."""
    return Layout(keys, single)


def grouped(fields: Sequence[Field]) -> list[dict[str, Field]]:
    """Divide fields into answers: a repeated key begins the next one."""
    groups: list[dict[str, Field]] = []
    for field in fields:
        if not groups or field.key in groups[-1]:
            groups.append({})
        groups[-1][field.key] = field
    return groups


def _block(block: str) -> object:
    """Read a value of one or more lines: a text, or a list as YAML writes it."""
    line, _, rest = block.partition("\n")
    line = line.strip()
    if not line and (items := _INDENTED_LIST.match(rest)) and items[0].lstrip().startswith("- "):
        return _yaml(textwrap.dedent(items[0]))
    if sign := _BLOCK_SIGNS.get(line):
        text = textwrap.dedent(rest).strip()
        return text if sign == "|" else " ".join(text.split())
    text = block.strip()
    if text.startswith("[") and text.endswith("]") and not text.startswith("[["):
        return _yaml(text)
    return _plain(text)


def _plain(text: str) -> str | None:
    if text in {"null", "~"}:
        return None
    inner = text[1:-1]
    return inner if text[-1:] == _QUOTES.get(text[:1]) and len(text) > 1 and text[0] not in inner else text


def _yaml(text: str) -> object:
    """Read a list whose members are texts, lists and mappings of texts; the text itself if it is none."""
    if len(text) > _MAX_YAML_CHARS:
        return text
    import yaml  # noqa: PLC0415 - few answers hold lists that are no JSON

    try:
        value = yaml.load(text, yaml.BaseLoader)  # noqa: S506 - it makes texts, lists and mappings only
    except (yaml.YAMLError, RecursionError, ValueError):
        return text
    return value if isinstance(value, list) else text


def _closing(text: str, name: str, start: int) -> tuple[int, int]:
    """Return the place of the closing tag of an element, which may hold elements of its name; -1 without one."""
    depth = 1
    for tag in re.compile(rf"<(/?){re.escape(name)}>").finditer(text, start):
        depth += -1 if tag[1] else 1
        if not depth:
            return tag.start(), tag.end()
    return -1, len(text)


def _element(text: str, depth: int = 0) -> object:
    """Read the content of an element: a text, or its members, a list if all have one name."""
    members: list[tuple[str, object]] = []
    position = 0
    while depth < _MAX_DEPTH and (tag := _TAG.match(text, position)) is not None:
        end, position = _closing(text, tag[1], tag.end())
        if end < 0:
            break
        members.append((tag[1], _element(text[tag.end() : end], depth + 1)))
    if not members or text[position:].strip():
        return html.unescape(text).strip()
    names = {name for name, _ in members}
    return [value for _, value in members] if len(names) == 1 else dict(members)
