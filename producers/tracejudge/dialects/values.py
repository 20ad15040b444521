"""Attribute values as they come from anywhere: decoded where they are JSON, and made safe to travel."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Final, TypeGuard

import msgspec

from tracejudge.dialects import names
from tracejudge.model import JSONValue

_MAX_DEPTH: Final = 20
_MAX_INTEGER: Final = 2**63


def clean(text: str) -> str:
    """Give a text that UTF-8 can hold: lone surrogates become question marks."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    return str(text)  # a plain one, not an enumeration that is a string too


def text_of(value: object) -> str | None:
    """Take a text; None for anything else, for an empty one, and for one that was taken out before it came here."""
    if isinstance(value, str) and value and value != names.OI_REDACTED:
        return clean(value)
    return None


def first_text(attributes: Mapping[str, object], keys: Iterable[str]) -> str | None:
    """Take the first of these attributes that is a text."""
    return next((text for key in keys if (text := text_of(attributes.get(key))) is not None), None)


def first_count(attributes: Mapping[str, object], keys: Iterable[str]) -> int | None:
    """Take the first of these attributes that is a number of things."""
    for key in keys:
        value = attributes.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_INTEGER:
            return value
    return None


def number_of(value: object) -> float | None:
    """Take a finite number, written out or not."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def decoded(value: object) -> object:
    """Decode a JSON text; what is no text stays as it is, and what is no JSON becomes None."""
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return _decoded_leniently(value)


def structure_of(value: object) -> object:
    """Decode a JSON text that holds an object or a list; any other text stays as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in {"{", "["}:
        found = decoded(value)
        return value if found is None else found
    return value


def is_list(value: object) -> TypeGuard[Sequence[object]]:
    """Tell a list in the sense of JSON."""
    if isinstance(value, list | tuple):
        return True
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def plain(value: object, depth: int = 0) -> JSONValue:
    """Copy a value as JSON can hold it. Objects that are none of JSON's become their type's name."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return None if value == names.OI_REDACTED else clean(value)
    if isinstance(value, int):
        return int(value) if -_MAX_INTEGER <= value < _MAX_INTEGER else None
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return _plain_container(value, depth)


def mapping_of(value: object) -> Mapping[str, object] | None:
    """See a mapping, or the fields of a dataclass, as completion hooks are given; None for anything else."""
    if isinstance(value, dict):
        return value
    if value is None or isinstance(value, str | list | int | float):
        return None  # most are one of these, and what follows is slow
    if isinstance(value, Mapping):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name, None) for field in fields(value)}
    return None


def _plain_container(value: object, depth: int) -> JSONValue:
    if depth >= _MAX_DEPTH:
        return "[too deep]"
    mapping = mapping_of(value)
    if mapping is not None:
        return {clean(str(key)): plain(item, depth + 1) for key, item in mapping.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [plain(item, depth + 1) for item in value]
    return f"[{type(value).__name__}]"


def _decoded_leniently(text: str) -> object:
    # Python's own JSON writes NaN and lone surrogates, so instrumentations do.
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
