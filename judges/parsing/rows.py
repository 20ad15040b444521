"""Rows of labelled data as traces: objects without ids, and CSV, under the names of any tool that `publish` reads.

A row without `trace_id` gets a hash of its content, one without `service` the service `offline`. A column that is no
field of a trace becomes a tag.
"""

import ast
import codecs
import csv
import hashlib
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, BinaryIO, Final, NamedTuple

import msgspec

from tracejudge.content.convert import Notes, convert_trace, in_utc, is_missing
from tracejudge.content.encode import copied
from tracejudge.content.field_names import HOLDERS, field_of, rank
from tracejudge.ids import trace_id_text
from tracejudge.model import TIMES

SERVICE: Final = "offline"
# Answers and documents of a labelled row; the library's default of 128 KiB is too small for these.
_MAX_CELL_CHARS: Final = 16 * 1024 * 1024
_STRUCTURED: Final = frozenset(
    {"messages", "context", "expected_facts", "guidelines", "tool_calls", "tools", "expected_tools"}
    | {"spans", "usage", "feedback", "tags"}
)
# Between the texts of a list as numpy writes it: Python would join them.
_NO_COMMA: Final = re.compile(r"(?<=['\"])\s+(?=['\"])")
EMPTY_OUTPUT: Final = "has an empty cell for `output`"
# The sign for bytes that are not UTF-8, and the line that replaces the rest of a text in another encoding.
_BROKEN: Final = re.compile("\udcff(utf-..)|[\udc80-\udcff]")
_MARKS: Final = {
    "utf-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
    "utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
}


class Row(NamedTuple):
    """A row of a CSV file: its line, its decoded cells by column, and why it is no trace."""

    number: int
    cells: dict[str, Any]
    error: str | None = None


def is_csv(file: object) -> bool:
    """Return whether an open file is called `*.csv`."""
    return str(getattr(file, "name", "")).casefold().endswith(".csv")


def encoding_fault(text: str) -> str | None:
    """Return how to fix a line of ``text_lines`` that was not in its encoding; None if it was."""
    broken = _BROKEN.search(text)
    return broken and f"is not {'whole ' if broken[1] else ''}{(broken[1] or 'utf-8').upper()}; save the file as UTF-8"


def text_lines(source: BinaryIO, max_chars: int = -1) -> Iterator[str]:
    """Yield the lines of a text in UTF-8, or in UTF-16 or UTF-32 with its mark, with any line ends.

    A longer line than ``max_chars`` comes in parts. Other bytes become lone surrogates (``encoding_fault``).
    """
    start = getattr(source, "peek", lambda _: b"")(4)
    encoding = next((name for name, marks in _MARKS.items() if start.startswith(marks)), "utf-8-sig")
    text = io.TextIOWrapper(source, encoding, "surrogateescape", newline="")
    try:
        while line := text.readline(max_chars):
            yield line
    except UnicodeDecodeError:
        yield f"\udcff{encoding}"
    finally:
        with suppress(ValueError):  # closed already
            text.detach()


def csv_rows(lines: Iterable[str], *, needs_output: bool = True) -> Iterator[Row]:
    """Read the rows of a CSV file with a heading; empty cells are absent. What is no CSV is an error in its place."""
    csv.field_size_limit(_MAX_CELL_CHARS)
    reader = csv.DictReader(lines)
    try:
        if reader.fieldnames is None:
            return
        names = reader.fieldnames = [name.strip() for name in reader.fieldnames]
        if fault := encoding_fault("".join(names)):
            yield Row(reader.line_num, {}, fault)
            return
        repeated = [name for name, count in Counter(names).items() if name and count > 1]
        if repeated:
            yield Row(reader.line_num, {}, f"has the column {repeated[0]!r} more than once")
            return
        if needs_output and not any(name == "sample" or field_of(name) in {"output", "messages"} for name in names):
            columns = ", ".join(map(repr, names[:20]))  # Number of columns that an error names.
            expected = "one of the columns must be output, outputs, response, answer or another name of it"
            yield Row(reader.line_num, {}, f"has the columns {columns}; {expected}, and commas must separate columns")
            return
        for row in reader:
            surplus = row.pop(None, ())
            if any(each.strip() for each in surplus):
                # A comma that is not quoted would move the cells after it to other columns.
                counts = f"{len(names) + len(surplus)} cells, and the heading has {len(names)}"
                yield Row(reader.line_num, {}, f"has {counts}; quote cells that contain commas")
                continue
            if fault := encoding_fault("".join(value or "" for value in row.values())):
                yield Row(reader.line_num, {}, fault)
                continue
            cells = {name: value for name, value in row.items() if value and value.strip()}
            yield Row(reader.line_num, decode_cells(cells))
    except csv.Error as error:
        yield Row(reader.line_num + 1, {}, f"is no CSV: {error}; a quotation mark may be missing")


def decode_cells(row: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return a row of a table, whose lists and objects are texts, in JSON or as Python and numpy write them."""
    structured = {name for name in map(str, row) if name in HOLDERS or field_of(name) in _STRUCTURED}
    return {
        name: _structure(cell) if isinstance(cell, str) and str(name) in structured else cell
        for name, cell in row.items()
    }


def _structure(cell: str) -> object:
    if cell.lstrip()[:1] not in {"[", "{"}:
        return cell
    with suppress(msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return msgspec.json.decode(cell)
    literal = cell.strip() if re.search(r"['\"]\s*[,:]", cell) else _NO_COMMA.sub(", ", cell.strip())
    try:
        return msgspec.json.decode(msgspec.json.encode(ast.literal_eval(literal)))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return cell


def as_trace(row: Mapping[str, Any], notes: Notes | None = None) -> dict[str, Any]:
    """Return the fields of the trace that a row describes, as `publish` reads them, with an id and a service.

    Without an output, or without any content, `output` is absent. ``notes`` receive what could not be taken.
    """
    notes = Notes() if notes is None else notes
    values = {
        name: in_utc(value) if field_of(str(name)) in TIMES else value
        for name, value in row.items()
        if not is_missing(value)
    }
    fields = convert_trace(values, notes)
    if any(note.reason == "missing" for note in notes.entries):
        del fields["output"]
    named = sorted((name for name in row if field_of(str(name)) == "trace_id"), key=rank)
    trace_id = next((text for name in named if (text := trace_id_text(row[name])) is not None), None)
    if trace_id is None:
        content = msgspec.json.encode(copied(dict(row)), order="deterministic")
        trace_id = hashlib.blake2b(content, digest_size=16).hexdigest()
    return {"service": SERVICE, **fields, "trace_id": trace_id}


def encoded(fields: Mapping[str, Any]) -> bytes:
    """Return the fields of a trace as JSON."""
    try:
        return msgspec.json.encode(fields)
    except ValueError:  # half of a surrogate pair
        return msgspec.json.encode(copied(fields))
