"""Find the structure of a text: JSON, code, HTML, tables, records, headings, lists and paragraphs.

Rows, records, log lines, lines of JSON, lines of a key and a value, headings, list items and blocks of code become one
part each. What remains is prose, with the lines of a paragraph joined.
"""

import csv
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from judges.parsing.answer import decode_json
from judges.parsing.prose import PICTURE

_FENCE: Final = re.compile(r"^[ \t]*(`{3,}|~{3,})([^`\n]*)$", re.MULTILINE)
_IS_HTML: Final = re.compile(r"</[a-zA-Z]|<br|<!--|<li", re.IGNORECASE)
_TAG: Final = re.compile(
    r"`[^`\n]*`|<!--.*?(?:-->|\Z)|<(script|style)\b[^<>]*>.*?(?:</\1\s*>|\Z)"
    r"|<(/?)([a-z][a-z0-9]*)(?:\s[^<>]*)?/?>",
    re.DOTALL | re.IGNORECASE,
)
_INLINE_TEXT: Final = """
a abbr b bdi bdo big cite code del dfn em font i img input ins kbd label mark q s samp small span strike strong sub sup
time tt u var wbr
"""
_BLOCKS_TEXT: Final = """
address article aside blockquote body br button center details div dl fieldset figcaption figure footer form head header
hr html legend link main meta nav ol p section select table tbody td template tfoot th thead tr ul
"""
_WHOLE_TEXT: Final = "caption dd dt h1 h2 h3 h4 h5 h6 li option pre summary title"  # Blocks that are one part each.
_DIVIDED: Final = frozenset({"li", "dd", "caption", "option", "summary"})  # Those of them that may hold sentences.
_INLINE: Final = frozenset(_INLINE_TEXT.split())
_WHOLE: Final = frozenset(_WHOLE_TEXT.split())
_BLOCKS: Final = frozenset(_BLOCKS_TEXT.split()) | _WHOLE

QUOTED: Final = re.compile(r"^[ \t]*>(?:[ \t]*>)*(?:[ \t]+|$)", re.MULTILINE)
_HEADING: Final = re.compile(r"#{1,6}\s|(\*\*|__)[^*_]+\1:?\Z")
_UNDERLINE: Final = re.compile(r"=+|-{2,}")
# A line between others without letters or digits: a rule, the border of a table, brackets of JSON.
_EMPTY: Final = re.compile(r"[-=_*~+|:\[\]{}(),;\s]+")
_RECORD_END: Final = re.compile(r"\n|(?<=\}),\s*(?=\{)")  # The end of a line or of an element of an array of JSON.
_SEPARATOR: Final = re.compile(r"\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?")
MARKER: Final = re.compile(
    rf"\s*(?:[-*\u2022\u2023\u2043\u2013\u25cf\u25e6\u25aa\xb7]|(\d{{1,3}})[.)]|\(?(?:\d{{1,3}}|[a-zA-Z]|[ivx]{{1,4}})\)|{PICTURE})"
    r"\s+(?=\S)"
)
_LOG: Final = re.compile(
    r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d|\[?\d\d:\d\d:\d\d|[A-Z][a-z]{2}\s+\d{1,2}\s\d\d:\d\d:\d\d"
    r"|\d{1,3}(?:\.\d{1,3}){3}\s-\s|\[?(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)\b|[\w.]+=\S+\s+[\w.]+="
)
_PAIR: Final = re.compile(
    r"""["'*_`]*[^\W\d_](?:[^\s:=.!?,;|<>]|[ \t](?=\S)|\.(?!\s)){0,40}["'*_`]*\s*(?:[:\uff1a](?!//)|=(?!=))[\s*_]*\S"""
)
_THOUSANDS: Final = re.compile(r"(?<=\d),(?=\d{3}\b)")
_THAI_END: Final = re.compile(r"[\u0e01-\u0e5b][.\s]*\Z")
# Lines that no other pattern matches: words, of which the first is no level of a log, and signs within prose.
_PLAIN: Final = re.compile(r"(?![A-Z]{4})[^\W\d_][\w .!?']*|\d+")
_COLONS: Final = (":", "\uff1a")
_STOPS: Final = (".", "!", "?", ";", "\u3002", "\uff01", "\uff1f", *_COLONS)
_BAR: Final = re.compile(r"(?<!\\)\|")
_DIGIT: Final = re.compile(r"\d")
_MIN_RUN: Final = 2  # Fewer lines in a row of one form are prose.
_MIN_FIELDS: Final = 2
_MAX_BLANKS: Final = 3
_NEAR: Final = 12  # Number of lines within which the next number of a list is looked for.
_MAX_HARD: Final = 50  # Longer lines are taken for wrapped prose.


class Part(NamedTuple):
    """A part of a text: prose, or another such as a row, a heading or a list item."""

    text: str
    is_prose: bool = False
    cells: Sequence[str] = ()  # The cells of a row, the lines of a block of code.
    header: Sequence[str] = ()  # The cells of its header.
    is_header: bool = False
    is_whole: bool = False  # A heading, a log line or a block of code, whatever sentences it contains.


def parts(text: str) -> Iterator[Part]:
    """Yield the parts of a text in their order."""
    if text.lstrip()[:1] in {"{", "["} and isinstance(decode_json(text), dict | list):
        for record in _RECORD_END.split(text):
            if not _EMPTY.fullmatch(record):
                yield from _part(record)
        return
    if "\n" not in text and "\r" not in text and "<" not in text:
        yield from _part(text) if MARKER.match(text) else (Part(text, is_prose=True),)
        return
    position, opening = 0, None
    for fence in _FENCE.finditer(text) if "```" in text or "~~~" in text else ():
        if opening is None:
            opening = fence
        elif fence[1].startswith(opening[1]) and not fence[2].strip():
            yield from _outside(text[position : opening.start()])
            yield from _code(text[opening.end() : fence.start()])
            position, opening = fence.end(), None
    if opening is not None and text[opening.end() :].strip():
        yield from _outside(text[position : opening.start()])
        yield from _code(text[opening.end() :])
    else:
        yield from _outside(text[position:])


def _part(text: str, cells: Sequence[str] = (), header: Sequence[str] = (), **kind: bool) -> Iterator[Part]:
    if folded := " ".join(text.split()):
        yield Part(folded, cells=cells, header=header, **kind)


def _code(text: str) -> Iterator[Part]:
    return _part(text, text.splitlines(), is_whole=True)


def _outside(text: str) -> Iterator[Part]:
    if not text or text.isspace():
        return
    if "<" in text and _IS_HTML.search(text):
        yield from _Html().parts(text)
    else:
        yield from _lines(text)


def without_tags(text: str, *, is_excerpt: bool = False) -> str:
    """Remove the tags, comments, scripts and styles of HTML; an excerpt need not contain a closing tag."""

    def replaced(tag: re.Match[str]) -> str:
        name = (tag[3] or "").lower()
        if name in _INLINE:
            return ""
        return tag[0] if tag[0].startswith("`") or (name and name not in _BLOCKS) else "\n"

    return _TAG.sub(replaced, text) if is_excerpt or _IS_HTML.search(text) else text


class _Html:
    """A text with tags; other text than the content of blocks may be Markdown."""

    def __init__(self) -> None:
        self._buffer: list[str] = []
        self._whole = ""  # Name of the open block that is one part.
        self._row: list[str] | None = None  # Cells of the open row of a table.
        self._has_data = False  # Whether one of them is no header.
        self._header: Sequence[str] = ()

    def parts(self, text: str) -> Iterator[Part]:
        position = 0
        for tag in _TAG.finditer(text):
            name = (tag[3] or "").lower()
            if (name and name not in _INLINE and name not in _BLOCKS) or tag[0].startswith("`"):
                continue
            self._buffer.append(text[position : tag.start()])
            position = tag.end()
            if name in _BLOCKS:
                # A break within a row of a Markdown table does not end the row.
                is_in_row = name == "br" and text.startswith("|", text.rfind("\n", 0, tag.start()) + 1)
                yield from self._block(name, is_open=not tag[2], is_in_row=is_in_row)
        self._buffer.append(text[position:])
        yield from self._row_parts()
        yield from self._flush()

    def _block(self, name: str, *, is_open: bool, is_in_row: bool) -> Iterator[Part]:
        if name in {"td", "th"} and self._row is not None:
            self._close_cell()
            self._has_data |= name == "td"
        elif name in {"tr", "table"}:
            yield from self._row_parts()
            yield from self._flush()
            if name == "table":
                self._header = ()
            elif is_open:
                self._row, self._has_data = [], False
        elif self._row is not None:
            self._buffer.append(" ")
        elif name == "br":
            self._buffer.append(" " if is_in_row else "\n")
        else:
            # A paragraph at the beginning of a list item does not end the item.
            goes_on = name == "p" and is_open and not "".join(self._buffer).strip()
            whole = self._whole if goes_on else name if is_open and name in _WHOLE else ""
            yield from self._flush()
            self._whole = whole

    def _flush(self) -> Iterator[Part]:
        text = "".join(self._buffer)
        self._buffer.clear()
        if text and not text.isspace():
            part = _part if self._whole in _DIVIDED else _code
            yield from part(text) if self._whole else _lines(text)
        self._whole = ""

    def _close_cell(self) -> None:
        cell = " ".join("".join(self._buffer).split())
        self._buffer.clear()
        if cell and self._row is not None:
            self._row.append(cell)

    def _row_parts(self) -> Iterator[Part]:
        if self._row is None:
            return
        self._close_cell()
        row, self._row = self._row, None
        if self._has_data:
            yield from _part(" ".join(row), row, self._header)
        else:
            self._header = row
            yield from _part(" ".join(row), row, is_header=True)


def _lines(text: str) -> Iterator[Part]:
    if ">" in text:
        text = QUOTED.sub("", text)
    lines = [line.rstrip() for line in text.splitlines()]
    if len(lines) == 1:
        yield from _part(text) if MARKER.match(text) else _prose(lines, 0)
        return
    width = max((24, *map(len, lines)))  # Width below which no text is wrapped.
    paragraph: list[str] = []
    position = 0
    while position < len(lines):
        line = lines[position].strip()
        parts, after = [], position + 1
        if len(paragraph) == 1 and _UNDERLINE.fullmatch(line) and not paragraph[0].endswith(_STOPS):
            parts = [Part(" ".join(paragraph.pop().split()), is_whole=True)]
        elif line and (line[0].isalnum() or not _EMPTY.fullmatch(line)):
            if _PLAIN.fullmatch(line) is None:
                parts, after = _block(lines, position, after_text=paragraph[-1] if paragraph else "")
            if not parts:
                paragraph.append(line)
                position = after
                continue
        if paragraph:
            yield from _prose(paragraph, width)
            paragraph = []
        yield from parts
        position = after
    yield from _prose(paragraph, width)


def _block(lines: Sequence[str], position: int, *, after_text: str) -> tuple[list[Part], int]:
    """Return the parts of the lines from a position that are no prose, and the position after them."""
    line = " ".join(lines[position].split())
    if "|" in line:
        following = lines[position + 1].strip() if position + 1 < len(lines) else ""
        if "|" in following and _SEPARATOR.fullmatch(following):
            return _table(lines, position)
        if line[0] == line[-1] == "|" and len(line) > 1:
            return [Part(line, cells=_cells(line))], position + 1
    is_object = line[0] == "{" and line[-1] == "}"
    if is_object or (line[0] in "#*_" and _HEADING.match(line)):
        return [Part(line, is_whole=not is_object)], position + 1
    if line[0] not in "-*\u2022" and _LOG.match(line):
        return _with_continuation(line, lines, position, is_wrapped=False)
    marker = MARKER.match(line)
    if marker and (marker[1] is None or _is_numbered(lines, position, int(marker[1]), after_text)):
        return _with_continuation(line, lines, position, is_wrapped=True)
    records = _records(lines, position)
    return records if records[0] else _pairs(lines, position)


def _is_numbered(lines: Sequence[str], position: int, number: int, after_text: str) -> bool:
    """Return whether a line that begins with a number and a full stop is a list item, not the middle of a sentence."""
    if not after_text or after_text.endswith(_STOPS):
        return True
    markers = (MARKER.match(line) for line in lines[position + 1 : position + _NEAR])
    return any(marker is not None and marker[1] == str(number + 1) for marker in markers)


def _table(lines: Sequence[str], position: int) -> tuple[list[Part], int]:
    header, after = _cells(lines[position]), position + 2
    rows = [Part(" ".join(lines[position].split()), cells=header, is_header=True)]
    while after < len(lines) and "|" in lines[after]:
        rows.append(Part(" ".join(lines[after].split()), cells=_cells(lines[after]), header=header))
        after += 1
    return rows, after


def _cells(row: str) -> list[str]:
    row = row.strip().removeprefix("|")
    if not row.endswith("\\|"):
        row = row.removesuffix("|")
    return [" ".join(cell.split()) for cell in _BAR.split(row)]


def _with_continuation(first: str, lines: Sequence[str], position: int, *, is_wrapped: bool) -> tuple[list[Part], int]:
    """Return an item or a log line with the lines that continue it: indented ones, and the rest of a wrapped item."""
    wrapped, after = [first], position + 1
    while after < len(lines) and (line := lines[after].strip()):
        continues = lines[after][0].isspace() or (is_wrapped and line[0].islower() and not wrapped[-1].endswith(_STOPS))
        if not continues or MARKER.match(line):
            break
        wrapped.append(line)
        after += 1
    return [Part(first if len(wrapped) == 1 else " ".join(" ".join(wrapped).split()), is_whole=not is_wrapped)], after


def _records(lines: Sequence[str], position: int) -> tuple[list[Part], int]:
    """Return the records of separated values that begin at a line: two lines or more with as many fields."""
    for mark in ("\t", ";", ","):
        if mark not in lines[position]:
            continue
        rows: list[list[str]] = []
        after = position
        while after < len(lines) and mark in lines[after]:
            fields = _fields(lines[after].strip(), mark)
            if len(fields) < _MIN_FIELDS or (rows and len(fields) != len(rows[0])):
                break
            rows.append(fields)
            after += 1
        if len(rows) >= _MIN_RUN:
            has_header = not _DIGIT.search(mark.join(rows[0])) and any(
                _DIGIT.search(mark.join(row)) for row in rows[1:]
            )
            header = rows[0] if has_header else ()
            texts = [" ".join(line.split()) for line in lines[position:after]]
            parts = [Part(text, cells=row, header=header) for text, row in zip(texts, rows, strict=True)]
            if has_header:
                parts[0] = Part(texts[0], cells=header, is_header=True)
            return parts, after
    return [], position + 1


def _fields(line: str, mark: str) -> list[str]:
    """Return the fields of a record, or none if the marks belong to prose."""
    is_quoted = '"' in line
    if mark != "\t" and not is_quoted and f"{mark} " in line:
        return []
    try:
        fields = next(csv.reader([line], delimiter=mark)) if is_quoted else line.split(mark)
    except csv.Error:
        return []
    if is_quoted and mark != "\t" and any(field.startswith(" ") for field in fields):
        return []
    if len(fields) == _MIN_FIELDS and not fields[1].strip():
        return []  # A mark at the end of a line, such as a Greek question mark.
    if mark == "," and len(fields) == _MIN_FIELDS:
        is_long = not is_quoted and line.count(" ") >= _MAX_BLANKS
        is_prose = is_long and any(field.count(" ") >= _MAX_BLANKS for field in fields)
        is_number = fields[1][:1].isdigit() and "," not in _THOUSANDS.sub("", line)
        return [] if is_prose or is_number else fields
    return fields


def _pairs(lines: Sequence[str], position: int) -> tuple[list[Part], int]:
    """Return the lines of a key and a value that begin at a line, two or more."""
    pairs: list[str] = []
    after = position
    while after < len(lines) and (line := lines[after].strip()):
        pair = _PAIR.match(line) if ":" in line or "=" in line or "\uff1a" in line else None
        if pair and pair[0].count(" ") <= _MAX_BLANKS + 2:
            pairs.append(line)
        elif pairs and lines[after][0].isspace() and not _EMPTY.fullmatch(line):
            pairs[-1] += f" {line}"
        else:
            break
        after += 1
    if len(pairs) < _MIN_RUN:
        return [], position + 1
    return [Part(" ".join(line.split())) for line in pairs], after


def _prose(lines: Sequence[str], width: int) -> Iterator[Part]:
    """Yield a paragraph, divided where a line ends although the next word would have fitted."""
    if not lines:
        return
    group = [lines[0]]
    is_wrapped = any(line[0].islower() or MARKER.match(line) for line in lines[1:])
    for line, following in pairwise(lines):
        fits = len(line) <= _MAX_HARD and len(line) + 1 + len(following.split(maxsplit=1)[0]) <= width
        is_greeting = line.endswith(",") and line is lines[0] and line.count(" ") <= _MAX_BLANKS
        is_end = (is_greeting or line.endswith(_COLONS)) and not following[0].islower()
        if is_end or (fits and not is_wrapped) or (not line.isascii() and _THAI_END.search(line)):
            yield Part(" ".join(group), is_prose=True)
            group = []
        group.append(following)
    yield Part(" ".join(group), is_prose=True)
