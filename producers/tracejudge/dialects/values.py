"""Attribute values of any origin: decoded if they are JSON, copied into plain values; and definitions of tools."""

import ast
import json
import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import Any, Final, TypeGuard

import msgspec

from tracejudge.dialects import names
from tracejudge.log import class_name
from tracejudge.model import JSONValue, Tool, Trace

_MAX_TOOLS: Final = 1_000
_MAX_TOOL_DEPTH: Final = 4
_SCHEMAS: Final = (
    *("parameters", "input_schema", "inputSchema", "parameters_json_schema", "parametersJsonSchema", "args"),
)
# Keys under which a definition, or a list of them, stands within another object.
_WRAPPERS: Final = ("function", "toolSpec", "tool", "json_schema", "function_declarations", "functionDeclarations")
_MAX_DEPTH: Final = 20
_MAX_INTEGER: Final = 2**63
_MAX_LITERAL: Final = 10_000
_MAX_COUNT_CHARS: Final = 24


def clean(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot hold, by question marks."""
    if type(text) is str and text.isascii():
        return text  # most values, at a tenth of the cost
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    return str(text)  # a plain string, not a member of an enumeration


def text_of(value: object) -> str | None:
    """Return a non-empty text; None for anything else and for text that the instrumentation redacted."""
    if isinstance(value, str) and value and value != names.REDACTED:
        return clean(value)
    return None


def first_text(attributes: Mapping[str, object], keys: Iterable[str]) -> str | None:
    """Return the first of these attributes that is a text."""
    # Most keys are absent, and most spans are read without any of them: no generator, no call for what is not there.
    for key in keys:
        if (value := attributes.get(key)) is not None and (text := text_of(value)) is not None:
            return text
    return None


def first_count(attributes: Mapping[str, object], keys: Iterable[str]) -> int | None:
    """Return the first of these attributes that is a count."""
    return next((count for key in keys if (count := count_of(attributes.get(key))) is not None), None)


def count_of(value: object) -> int | None:
    """Return a count, which some write as a text or as a float."""
    if isinstance(value, str | float):
        number = number_of(value) if isinstance(value, float) or len(value) <= _MAX_COUNT_CHARS else None
        value = int(number) if number is not None and number.is_integer() else None
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_INTEGER else None


def number_of(value: object) -> float | None:
    """Return a finite number, given as number of any library or as text."""
    if value is None or isinstance(value, bool) or not (isinstance(value, str) or hasattr(type(value), "__float__")):
        return None
    try:
        number = float(value)  # type: ignore[arg-type]
    except (ValueError, OverflowError, TypeError):
        return None
    return number if math.isfinite(number) else None


def decoded(value: object) -> object:
    """Decode a JSON text; other values stay as they are, a text that is no JSON becomes None."""
    if not isinstance(value, str):
        return value
    try:
        structure = msgspec.json.decode(value if type(value) is str else str.__str__(value))
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        # The standard library accepts what it writes and JSON forbids: NaN and lone surrogates.
        try:
            structure = json.loads(value)
        except (ValueError, RecursionError):
            return None
    # Some encode twice.
    return structure_of(structure) if isinstance(structure, str) else structure


def decoded_or_same(value: object) -> object:
    """Decode a JSON text; other values stay as they are, including a text that is no JSON."""
    structure = decoded(value)
    return value if structure is None else structure


def structure_of(value: object) -> object:
    """Decode a JSON text that holds an object or a list; other values stay as they are."""
    return decoded_or_same(value) if isinstance(value, str) and value.lstrip()[:1] in {"{", "["} else value


def literal_of(value: object) -> object:
    """Return the dictionary that Python wrote as text; None for anything else."""
    if not isinstance(value, str) or not value.startswith("{") or len(value) > _MAX_LITERAL:
        return None
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def is_list(value: object) -> TypeGuard[Sequence[object]]:
    """Return whether a value is a list in the sense of JSON."""
    if type(value) is list or isinstance(value, tuple):
        return True
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def plain(value: object, depth: int = 0) -> JSONValue:
    """Copy a value into plain JSON values; other objects become the name of their type."""
    if type(value) is str and value.isascii():
        return None if value == names.REDACTED else value  # most values
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return None if value == names.REDACTED else clean(value)
    if isinstance(value, int):
        return int(value) if -_MAX_INTEGER <= value < _MAX_INTEGER else None
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return _plain_container(value, depth)


def _plain_container(value: object, depth: int) -> JSONValue:
    if depth >= _MAX_DEPTH:
        return "[too deep]"
    mapping = mapping_of(value)
    if mapping is not None:
        return {clean(str(key)): plain(item, depth + 1) for key, item in mapping.items()}
    return [plain(item, depth + 1) for item in value] if is_list(value) else f"[{type(value).__name__}]"


_NO_MAPPINGS: Final = (str, list, int, float)


def mapping_of(value: object) -> Mapping[str, object] | None:
    """Return a mapping, or the fields of a dataclass, which completion hooks receive; None for anything else."""
    if isinstance(value, dict):
        return value
    if value is None or isinstance(value, _NO_MAPPINGS):
        return None  # most values are of these types, and the checks below are slow
    if isinstance(value, Mapping):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name, None) for field in fields(value)}
    return None


_MAX_DIGITS: Final = 9


class _Tree(dict[str, object]):
    """A branch of the tree; a type of its own, because an attribute value may be a mapping."""


def unflattened(attributes: Mapping[str, object], prefix: str) -> list[object] | None:
    """Build the list that is flattened under a prefix; None if there is nothing under it."""
    # Items are in the order of their numbers, without gaps. Keys that do not begin with a number are ignored, such as
    # `gen_ai.prompt.name` beside `gen_ai.prompt.0.role`.
    tree = _Tree()
    start = f"{prefix}."
    for key, value in attributes.items():
        if not key.startswith(start):
            continue
        *above, last = key[len(start) :].split(".", 12)
        branch: object = tree if _is_number((above or [last])[0]) else None
        for name in above:
            # Where one key has a value and another has branches, the first key stays.
            branch = branch.setdefault(name, _Tree()) if isinstance(branch, _Tree) else None
        if isinstance(branch, _Tree):
            branch.setdefault(last, value)
    return _items(tree) if tree else None


def _built(node: object) -> object:
    if not isinstance(node, _Tree):
        return node
    if node and all(_is_number(name) for name in node):
        return _items(node)
    return {name: _built(below) for name, below in node.items()}


def _items(tree: _Tree) -> list[object]:
    return [_built(tree[name]) for name in sorted(tree, key=int)]


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) <= _MAX_DIGITS


MAX_NAMES = 500  # Most names of one publication; a mark says how many more there were.
MAX_ITEMS = 2_000  # Most items of one list, the first and the last ones: a trace within its cap holds no more.
SCALARS = frozenset(map(id, (int, float, bool, type(None))))
"""The ids of types: to look up a type itself runs the `__hash__` of its metaclass, which may be the host's."""
_KEYS = SCALARS | {id(str)}
_VIEWS = tuple(type(getattr(dict, name)({})) for name in ("keys", "values", "items"))
SEQUENCES: tuple[Any, ...] = (list, tuple, set, frozenset, deque, *_VIEWS)


class CutMark(str):
    """The mark that counts the names that were cut: part of a value, but no tag, which could be one of the caller's."""

    __slots__ = ("names",)
    names: int


def bounded_names(fields: dict[Any, Any]) -> dict[Any, Any]:
    """Return the fields of a publication, at most `MAX_NAMES` names besides them, and a mark that counts the others."""
    if dict.__len__(fields) <= MAX_NAMES:
        return fields
    kept = dict(_entries(islice(dict.items(fields), MAX_NAMES)))
    kept |= {name: value for name in Trace.__struct_fields__ if (value := dict.get(fields, name)) is not None}
    # A record is bounded before the arguments beside it are, and its mark is one of the names that are cut then.
    later = islice(dict.values(fields), MAX_NAMES, MAX_NAMES + len(Trace.__struct_fields__) + 1)
    count = dict.__len__(fields) - len(kept) + sum(value.names - 1 for value in later if type(value) is CutMark)
    mark = CutMark(truncation_mark(count, "values"))
    mark.names = count
    return {**kept, mark if "..." in kept else "...": mark}


def _entries(items: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    # A key of another type has a hash of its own; as text it would be the name of its type as well.
    return ((key if id(type(key)) in _KEYS else f"<{class_name(type(key))}>", value) for key, value in items)


def copied_collection(value: Any) -> Any:
    """Return a copy of a built-in collection as a list, dict or bytes, as far as a trace holds it; else the value."""
    kind = type(value)
    if issubclass(kind, dict):
        if dict.__len__(value) > MAX_ITEMS:
            return bounded_names(value)
        # The copy of a subclass would ask for its keys.
        return dict.copy(value) if kind is dict else dict(_entries(dict.items(value)))
    if issubclass(kind, bytearray):
        return bytes(bytearray.__getitem__(value, slice(128 * 1024)))
    base = next((base for base in SEQUENCES if issubclass(kind, base)), None)
    if base is None or (base in {tuple, frozenset} and base.__len__(value) <= MAX_ITEMS):
        return value
    count, half = base.__len__(value), MAX_ITEMS // 2
    if count <= MAX_ITEMS:
        return value.copy() if kind is set else list(base.__iter__(value))
    last = base.__getitem__(value, slice(-half, None)) if base in {list, tuple} else ()
    return [*islice(base.__iter__(value), half), truncation_mark(count - half - len(last), "items"), *last]


ADDRESS: Final = re.compile(r"https://[^\s\[\]]{1,1992}")
IMAGE: Final = re.compile(r"\[image(?: (?:[\d,]+ kB|(https://[^\]]{1,2000})))?\]")
"""The mark of an image in a text, also where a part of its address was redacted."""


def media_mark(kind: str, size_bytes: int = 0, address: str = "") -> str:
    """Return the mark of an image, a sound or a file in a text: `[image]`, `[image 165 kB]` or `[image https://…]`.

    An image keeps an address of at most 2,000 characters.
    """
    size_kb = round(size_bytes / 1000)
    detail = address if kind == "image" and ADDRESS.fullmatch(address) else f"{size_kb:,} kB" if size_kb else ""
    return f"[{kind} {detail}]" if detail else f"[{kind}]"


def truncation_mark(count: int, what: str) -> str:
    """Return the mark that says how much was truncated."""
    return f"[... {count:,} {what} cut]"


def tool_definitions(value: object) -> list[Tool] | None:
    """Return the tools in a list of definitions, each name once; None if there is none."""
    tools: dict[str, Tool] = {}
    for tool in islice(_definitions(value, 0), _MAX_TOOLS):
        tools.setdefault(tool.name, tool)
    return [*tools.values()] or None


def _definitions(value: object, depth: int) -> Iterator[Tool]:
    value = structure_of(value)
    if depth > _MAX_TOOL_DEPTH:
        return
    if is_list(value):
        for item in islice(value, _MAX_TOOLS):
            yield from _definitions(item, depth + 1)
    elif (record := mapping_of(value)) is not None:
        nested = (structure_of(record.get(key)) for key in _WRAPPERS)
        wrapped = next((inner for inner in nested if isinstance(inner, dict | list)), None)
        name = text_of(record.get("name"))
        if wrapped is not None and name is None:
            yield from _definitions(wrapped, depth + 1)
        elif name is not None:
            schema = structure_of(next((record[key] for key in _SCHEMAS if record.get(key)), None))
            # Amazon Bedrock wraps a schema once more.
            inner = schema["json"] if isinstance(schema, dict) and schema.keys() == {"json"} else schema
            yield Tool(name, text_of(record.get("description")), plain(inner))
    elif depth and (name := text_of(value)) is not None:
        yield Tool(name)
