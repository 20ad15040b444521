"""Tables of users: read and checked in the form of those of this package."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any, Final

import msgspec

from tracejudge.dialects.engine import Dialects, builtin
from tracejudge.dialects.names import Role
from tracejudge.dialects.table import EVENT_WAYS, INPUT_WAYS, OUTPUT_WAYS, PARTS, Path, Table

VARIABLE: Final = "TRACEJUDGE_DIALECTS"
Source = Mapping[str, Any] | str | FilePath
_UNKNOWN_FIELD: Final = re.compile(r"Object contains unknown field `(\w+)`")
_MISSING_FIELD: Final = re.compile(r"Object missing required field `(\w+)`")
_LISTS: Final = frozenset((*PARTS, "prefixes", "content"))
_MAX_BYTES: Final = 256 * 1024


class TableError(ValueError):
    """A table cannot be used; the text says where, why and how to correct it."""


def dialects_with(sources: Iterable[Source] | Source) -> Dialects:
    """Return the dialects of further tables before this package's, or raise ``TableError``, also for equal names."""
    if isinstance(sources, Mapping | str | FilePath):
        sources = [sources]
    return with_tables([table for source in sources for table in read_source(source)])


def with_tables(tables: Sequence[Table]) -> Dialects:
    """Return the dialects of this package and, before them, those of further tables, or raise ``TableError``."""
    names = [table.name for table in (*tables, *builtin().tables)]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise TableError(f"name: there are two tables of the name {twice!r}; give yours another")
    return Dialects([*tables, *builtin().tables]) if tables else builtin()


def read_source(source: Source) -> list[Table]:
    """Read the tables of a mapping, or of a JSON file with one table or a list of them, or raise ``TableError``."""
    if isinstance(source, Mapping):
        return [table_of(source)]
    path = FilePath(source)
    try:
        text = path.read_bytes()[:_MAX_BYTES]
        content = json.loads(text)
    except OSError as error:
        raise TableError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        fix = "; `tracejudge lint FILE.toml --to FILE.json` writes it" if path.suffix == ".toml" else f": {error}"
        raise TableError(f"{path}: is no JSON{fix}") from error
    try:
        return [table_of(fields) for fields in (content if isinstance(content, list) else [content])]
    except TableError as error:
        raise TableError(f"{path}: {error}") from error


def table_of(fields: object) -> Table:
    """Check the fields of a table, or raise ``TableError``."""
    if not isinstance(fields, Mapping):
        raise TableError('a table is an object, as {"name": "acme", "prefixes": ["acme."], …}')
    try:
        # One attribute needs no list.
        lists = {part: [text] for part, text in fields.items() if part in _LISTS and isinstance(text, str)}
        table = msgspec.convert({**fields, **lists}, Table)
    except msgspec.ValidationError as error:
        raise TableError(_in_words(str(error))) from error
    for message in _mistakes(table):
        raise TableError(message)
    return table


def _in_words(message: str) -> str:
    text, _, place = message.partition(" - at `")
    key = place.rstrip("`").removeprefix("key in ").removeprefix("$").lstrip(".").replace("[...]", "")
    if (unknown := _UNKNOWN_FIELD.search(text)) is not None:
        return f"{unknown[1]}: no part of a table has this name; there are {', '.join(Table.__struct_fields__)}"
    if (missing := _MISSING_FIELD.search(text)) is not None:
        return f"{missing[1]}: is missing"
    if "enum value" in text and "tool" in place:
        return "tool: has a name, an id, arguments and a result"
    if "enum value" in text:
        known = ", ".join(role.value for role in Role)
        return f"kinds: {text.partition('value ')[2]} is no kind of span; there are {known}"
    return f"{key}: {text[:1].lower()}{text[1:]}" if key else text


def _mistakes(table: Table) -> Iterator[str]:
    for text in (*table.kinds, *table.input, *table.output, *table.searching_tools, *table.failed, *table.texts()):
        if (mistake := _path_mistake(text)) is not None:
            yield f"{text!r}: {mistake}"
    names, messages = (*table.names, *table.events), ("@messages", "@answers")
    begins = table.prefixes and min(map(len, table.prefixes)) > 2  # noqa: PLR2004 - named in the text
    has_events = table.events or not any(text.startswith(messages) for text in (*table.input, *table.output))
    checks: dict[str, object] = {
        "name: must be letters, digits and _, as acme_sdk": re.fullmatch(r"[a-z][a-z0-9_]{0,39}", table.name),
        'prefixes: name the beginnings of attributes, each of 3 characters or more, as ["acme."]': begins,
        "kinds: without kinds and calls no span is a call of a model; name their attribute": table.kinds or table.calls,
        "kinds: an attribute has no values; write those that tell a kind, or *": all(table.kinds.values()),
        "output: is missing; name the attribute that holds the answer": table.output,
        "events: is missing; describe the events that @messages and @answers stand for": has_events,
    }
    yield from (message for message, is_right in checks.items() if not is_right)
    is_companion = table.names <= frozenset[str]().union(*(other.names for other in builtin().tables))
    for prefix in table.prefixes:
        if not (is_companion or any(f"{name}.".startswith(prefix) for name in names)):
            yield f"prefixes: no attribute of the table begins with {prefix!r}; write how its attributes begin"
    ways = [("events", EVENT_WAYS, table.events)]
    ways += [("input", INPUT_WAYS, table.input), ("output", OUTPUT_WAYS, table.output)]
    for part, known, written in ways:
        for name, way in written.items():
            if way not in known:
                yield f"{part}: {name!r} is {way!r}, which is no way to write it; there are {', '.join(sorted(known))}"


def _path_mistake(text: str) -> str | None:
    try:
        path = Path(text)
    except re.error as error:
        return f"the pattern is wrong: {error}"
    if path.pattern is not None and not path.pattern.groups:
        return "the pattern has no group; write one, as in /name ~ ^call (.+)$"
    if any(key[:1] == "-" and key[1:].isdecimal() for key in path.keys):
        return "items are counted from 0, at the beginning"
    is_name = path.name or path.keys == ["name"]
    return None if is_name else "names no attribute; /name is the name of the span"


def to_toml(fields: Mapping[str, Any]) -> str:
    """Write a table as TOML."""
    lines = [f"{key} = {_toml(value)}" for key, value in fields.items() if not isinstance(value, Mapping)]
    for key, value in fields.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{key}]", *(f"{_toml(name)} = {_toml(item)}" for name, item in value.items())]
    return "\n".join([*lines, ""])


def _toml(value: object) -> str:
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_toml(name)} = {_toml(item)}' for name, item in value.items())} }}"
    # Texts and lists of texts are the same in JSON and TOML.
    return json.dumps(value, ensure_ascii=False)
