"""Values of the host, written down as they are at this moment: plain JSON values, without the host's `repr`.

Arguments and results may be anything, and change after the call. So they are copied at once, up to a size, and
none of their own code runs but the `model_dump` of models in pydantic's manner. What has no plain form stands as
the name of its type.
"""

import dataclasses
from collections.abc import Iterable
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec

from tracejudge.room import Room, cut_mark
from tracejudge.swallowing import swallow

_MAX_DEPTH = 16
_MAX_INT_BITS = 128  # Python refuses to write out integers of thousands of digits
_VALUE_CHARACTERS = 16  # what a value takes besides its text, so that many tiny ones are bounded too
_SEQUENCES: tuple[Any, ...] = (list, tuple, set, frozenset)
_STANDARD_TYPES = frozenset({datetime, date, time, Decimal, UUID})


def is_a(value: object, kind: type) -> bool:
    """Say whether a value of the host is of a type.

    Not by `isinstance`, which asks the value for its __class__: a lazy object would wake up, or raise.
    """
    return issubclass(type(value), kind)


def plain(value: object, room: Room) -> object:
    """Copy a value into what JSON can hold, as much of it as there is room for. Never raises."""
    return _plain(value, room, 0)


def text_of(value: object) -> str:
    """Give a plain value as text: a string as it stands, nothing for None, else JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def as_text(value: object) -> str:
    """Give any value as text, as much of it as is kept of one value. Never raises."""
    return text_of(plain(value, Room()))


def error_text(error: BaseException) -> str:
    """Give an exception's type and text. Never raises."""
    name = type(error).__qualname__
    try:
        text = str(error)
    except Exception as another:  # noqa: BLE001 - the exception is the host's, and so is its text
        swallow(another)
        return name
    return f"{name}: {kept_text(text, Room())}" if text else name


def kept_text(text: str, room: Room) -> str:
    """Keep as much of a text as there is room for, and mark the rest; what UTF-8 cannot hold is replaced."""
    kept = room.take(len(text))
    if kept < len(text):
        text = text[:kept] + cut_mark(len(text) - kept, "characters")
    return text if text.isascii() else text.encode(errors="replace").decode()


def _plain(value: object, room: Room, depth: int) -> object:
    if type(value) is str:
        return kept_text(value, room)
    room.take(_VALUE_CHARACTERS)
    if value is None or value is True or value is False or type(value) is float:
        return value
    try:
        return _converted(value, room, depth)
    except Exception as error:  # noqa: BLE001 - values of the host may fail in any way
        swallow(error)
        return _name(value)


def _converted(value: Any, room: Room, depth: int) -> object:
    kind = type(value)
    if issubclass(kind, Enum):
        return _plain(value._value_, room, depth + 1) if depth < _MAX_DEPTH else _name(value)
    if issubclass(kind, str):
        return kept_text(str.__str__(value), room)
    if issubclass(kind, int):
        return int.__int__(value) if int.bit_length(value) <= _MAX_INT_BITS else _name(value)
    if issubclass(kind, float):
        return float.__float__(value)
    if kind in _STANDARD_TYPES:
        return msgspec.to_builtins(value)
    return _container(value, room, depth + 1) if depth < _MAX_DEPTH else _name(value)


def _container(value: Any, room: Room, depth: int) -> object:
    kind = type(value)
    if issubclass(kind, dict):
        return _mapping(dict.items(value), dict.__len__(value), room, depth)
    for base in _SEQUENCES:
        if issubclass(kind, base):
            return _sequence(base.__iter__(value), base.__len__(value), room, depth)
    fields = _fields(value, kind)
    return _name(value) if fields is None else _mapping(fields.items(), len(fields), room, depth)


def _fields(value: Any, kind: type) -> dict[str, Any] | None:
    """Take the fields of a record by name; None when it is no record."""
    if issubclass(kind, msgspec.Struct):
        return {name: getattr(value, name) for name in kind.__struct_fields__}
    if dataclasses.is_dataclass(kind):
        # What is kept out of the host's own repr is often a secret.
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(kind) if field.repr}
    if callable(getattr(kind, "model_dump", None)):
        dumped = value.model_dump()
        return dumped if type(dumped) is dict else None
    return None


def _mapping(items: Iterable[tuple[object, object]], count: int, room: Room, depth: int) -> dict[str, object]:
    written: dict[str, object] = {}
    for done, (key, value) in enumerate(items):
        if room.full:
            written["..."] = cut_mark(count - done, "values")
            break
        name = _key(key, room)
        written[name] = _plain(value, room, depth)
    return written


def _key(key: object, room: Room) -> str:
    plain_key = _plain(key, room, _MAX_DEPTH)
    return plain_key if isinstance(plain_key, str) else text_of(plain_key) or "null"


def _sequence(items: Iterable[object], count: int, room: Room, depth: int) -> list[object]:
    written: list[object] = []
    for done, value in enumerate(items):
        if room.full:
            written.append(cut_mark(count - done, "values"))
            break
        written.append(_plain(value, room, depth))
    return written


def _name(value: object) -> str:
    try:
        return f"<{type(value).__name__}>"
    except Exception as error:  # noqa: BLE001 - a metaclass may have its own idea of a name
        swallow(error)
        return "<object>"
