"""Rows of labelled data as traces: objects without ids, CSV, and MLflow's `inputs`, `outputs` and `expectations`.

Commands that judge files take such rows. A row without `trace_id` gets a hash of its content, one without `service` the
service `offline`. A column that is no field of a trace becomes a tag, if labels are looked for.
"""

import ast
import codecs
import csv
import hashlib
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, BinaryIO, Final, NamedTuple

import msgspec

from tracejudge import Trace

SERVICE: Final = "offline"
_INPUTS: Final = ("question", "query", "input", "request", "prompt", "message", "text", "content")
_OUTPUTS: Final = ("response", "answer", "output", "completion", "content", "text", "message")
_CONTEXTS: Final = ("context", "contexts", "retrieved_context", "retrieval_context", "documents")
ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "input": ("inputs", "question", "query", "request", "prompt"),
    "output": ("outputs", "response", "answer", "completion"),
    "context": _CONTEXTS[1:],
    "expected_response": ("ground_truth", "expected_output", "reference"),
}
_STRUCTURED: Final = frozenset(
    {"inputs", "outputs", "expectations", "messages", "tool_calls", "spans", "usage", "feedback", "tags"}
    | {"expected_facts", "guidelines", *_CONTEXTS}
)
# Answers and documents of a labelled row; the library's default of 128 KiB is too small for these.
_MAX_CELL_CHARS: Final = 16 * 1024 * 1024


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
    """A row of a CSV file: its line, the fields of a trace, and why it is none."""

    number: int
    fields: dict[str, object]
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


def csv_rows(lines: Iterable[str]) -> Iterator[Row]:
    """Read the rows of a CSV file with a heading; empty cells are absent, and cells of lists and tables hold JSON.

    A heading that cannot be used is the only row, and what is no CSV the last one.
    """
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
        outputs = ("output", *ALIASES["output"])
        if repeated:
            yield Row(reader.line_num, {}, f"has the column {repeated[0]!r} more than once")
            return
        if not set(outputs) & set(names):
            columns = ", ".join(map(repr, names[:20]))  # Number of columns that an error names.
            expected = f"one of the columns must be {', '.join(outputs[:-1])} or {outputs[-1]}"
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
            cells = {name: cell(name, value) for name, value in row.items() if value and value.strip()}
            fields = as_trace(cells)
            yield Row(reader.line_num, fields, None if "output" in fields else EMPTY_OUTPUT)
    except csv.Error as error:
        yield Row(reader.line_num + 1, {}, f"is no CSV: {error}; a quotation mark may be missing")


def is_known(column: object) -> bool:
    """Return whether a column is a field of a trace or an alias of one, and is no tag."""
    aliases = {alias for names in ALIASES.values() for alias in names}
    return column == "expectations" or column in Trace.__struct_fields__ or column in aliases


def as_trace(row: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of the trace that a row describes; a row that is a trace stays as it is.

    What cannot be understood is left as it is, and refused where the trace is read.
    """
    fields = {name: value for name, value in row.items() if name in Trace.__struct_fields__ and value is not None}
    rest = {name: value for name, value in row.items() if name not in fields and value is not None}
    for name, aliases in ALIASES.items():
        column = next((alias for alias in aliases if alias in rest and name not in fields), None)
        if column is not None:
            fields |= {key: value for key, value in _values(name, rest.pop(column)).items() if key not in fields}
    if isinstance(expectations := rest.pop("expectations", None), Mapping):
        expected = {name: value for name, value in expectations.items() if name in Trace.__struct_fields__}
        fields = {**expected, **fields}
        rest = {**{name: value for name, value in expectations.items() if name not in expected}, **rest}
    fields |= {name: cell(name, text) for name, text in fields.items() if isinstance(text, str) and name in _STRUCTURED}
    for name in ("expected_facts", "guidelines"):
        if isinstance(fields.get(name), str):
            fields[name] = [fields[name]]
    if isinstance(context := fields.get("context"), list):
        fields["context"] = [_document(document) for document in context]
    elif isinstance(context, str):
        fields["context"] = [context]
    tags = fields.get("tags", {})
    columns = {name: value for name, value in rest.items() if not any(name in names for names in ALIASES.values())}
    # Scalars are the texts of tags.
    labels = {
        name.removeprefix("tags."): ("yes" if value else "no") if isinstance(value, bool) else str(value)
        for name, value in columns.items()
        if isinstance(value, str | int | float)
    }
    if labels and isinstance(tags, Mapping):
        fields["tags"] = {**labels, **tags}
    if "trace_id" not in fields:
        content = msgspec.json.encode(dict(row), order="deterministic")
        fields["trace_id"] = hashlib.blake2b(content, digest_size=16).hexdigest()
    return {"service": SERVICE, **fields}


def _values(name: str, value: object) -> dict[str, object]:
    """Return the fields for `inputs` or another alias of a field: what was asked may bring messages and documents."""
    if name == "input":
        return _asked(value)
    if name == "output":
        return {name: _text(value, _OUTPUTS)}
    return {name: value if name == "context" else _text(value, _OUTPUTS)}


def _asked(value: object) -> dict[str, object]:
    if not isinstance(value, Mapping):
        return {"input": _text(value, _INPUTS)}
    fields: dict[str, Any] = {}
    context = next((value[name] for name in _CONTEXTS if name in value), None)
    if context is not None:
        fields["context"] = context
    messages = value.get("messages")
    if isinstance(messages, list) and messages and all(isinstance(turn, Mapping) for turn in messages):
        *before, last = messages
        fields["input"] = _text(last.get("content"), _INPUTS)
        if before:
            fields["messages"] = [{"role": str(turn.get("role")), "content": turn.get("content")} for turn in before]
            for message in fields["messages"]:
                if not isinstance(message["content"], str | None):
                    message["content"] = _text(message["content"], _INPUTS)
        return fields
    rest = {name: field for name, field in value.items() if name not in _CONTEXTS}
    return {**fields, "input": _text(rest, _INPUTS)}


def _text(value: object, keys: Sequence[str]) -> str:
    """Return the text of a value: itself, that under one of the keys, the only one that there is, or JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        choices = value.get("choices")
        if isinstance(choices, list) and choices and isinstance(choices[0], Mapping):
            return _text(choices[0].get("message"), keys)
        named = [value[key] for key in keys if isinstance(value.get(key), str)]
        texts = named or ([*value.values()] if len(value) == 1 else [])
        if texts and isinstance(texts[0], str):
            return texts[0]
        if isinstance(value.get("messages"), list):
            return _text(value["messages"], keys)
    if isinstance(value, list) and value and isinstance(value[-1], Mapping) and "content" in value[-1]:
        return _text(value[-1], keys)
    return msgspec.json.encode(value).decode()


def _document(value: object) -> object:
    if not isinstance(value, Mapping) or "text" in value:
        return value
    text = next((value[name] for name in ("text", "content", "page_content") if name in value), None)
    if not isinstance(text, str):
        return value
    name: Any = value.get("id", value.get("doc_uri"))
    return {"text": text, "id": name} if isinstance(name, str) else {"text": text}


def cell(name: str, text: str) -> object:
    """Decode a cell that may hold JSON, or a list or table as Python writes them."""
    if name in _STRUCTURED and text.lstrip()[:1] in {"[", "{"}:
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            literal = text.strip() if re.search(r"['\"]\s*[,:]", text) else _NO_COMMA.sub(", ", text.strip())
        try:
            return msgspec.json.decode(msgspec.json.encode(ast.literal_eval(literal)))
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return text
    if name in {"started_at", "ended_at"}:
        try:
            return float(text)
        except ValueError:
            return text
    return text
