"""Copies of host values as plain JSON values, and what of a record may be sent.

Arguments and results may be of any type and may change after the call. So they are copied at once, up to a size, and
no code of theirs runs except what converts a model or an array (`model_dump`, `dict`, `tolist`), what a mapping
yields, a property with a text, and `__str__` of a class without public attributes. Any other object becomes its public
attributes. What yields nothing is left out of its container; alone it becomes a `TypeMark`.
"""

import dataclasses
import logging
import re
from collections.abc import Callable, Iterable, Mapping, MappingView, Sequence
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from types import MemberDescriptorType, ModuleType, SimpleNamespace
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec import Raw

from tracejudge.content.truncate import (
    MEDIA_FORMS,
    METADATA,
    TRACE_CHARACTERS,
    Budget,
    content_mark,
    may_hold_media,
    replace_large_structures,
    truncate_record,
    without_media,
)
from tracejudge.dialects.values import SEQUENCES, copied_collection, truncation_mark
from tracejudge.log import attributes_of, bases_of, class_name, member_of, members_of, report_or_raise
from tracejudge.model import LateFeedback, Trace
from tracejudge.settings import BUILT_IN, Settings

_MAX_DEPTH = 16
_MAX_INT_BITS = 128  # longer ones become texts, which every language can read
_MAX_INT_TEXT_BITS = 4_096
_VALUE_CHARACTERS = 16  # cost of a value besides its text, so that many tiny values are bounded too
_OTHER_SEQUENCES = (Sequence, AbstractSet, MappingView)
_BYTES = (bytes, bytearray, memoryview)
_CONVERSIONS = ("model_dump", "tolist", "item", "dict", "to_dict")
_LAZY_METHODS = frozenset({"__next__", "__anext__", "__await__"})
_STANDARD_TYPES = frozenset({datetime, date, time, Decimal, UUID})
_TEXT_PROPERTIES = ("text", "page_content", "content")
_SECRET_ATTRIBUTES: Final = re.compile(
    r"api_?key|passw|secret|credential|authorization|cookie|private_?key|^headers$|^environ$|token$", re.IGNORECASE
)
"""Attributes of objects that are never copied: clients and requests are passed as arguments."""


class TypeMark(str):
    """The name of the type of a value that has no content; it is never sent as content."""

    __slots__ = ()


_NO_CONTENT: Final = TypeMark("<values without content>")
_PAIR: Final = 2
_arguments_of: Final[Callable[[BaseException], tuple[Any, ...]]] = BaseException.__dict__["args"].__get__


def is_a(value: object, kind: type) -> bool:
    """Return whether a value of the host is of a type."""
    # Not `isinstance`, which asks the value for its __class__: a lazy object would load, or raise.
    return issubclass(type(value), kind)


def plain(value: object, budget: Budget, depth: int = 0) -> object:
    """Copy a value into plain JSON values, as far as the budget allows. Never raises."""
    if type(value) is str:
        return limit_text(value, budget)
    budget.take(_VALUE_CHARACTERS)
    if value is None or value is True or value is False:
        return value
    if type(value) is float:
        # JSON has neither: no number is absent, and one without a bound is its name.
        return value if value - value == 0 else None if value != value else f"{'-' * (value < 0)}Infinity"  # noqa: PLR0124
    try:
        return _converted(value, budget, depth)
    except BaseException as error:  # noqa: BLE001 - values of the host may fail in any way
        report_or_raise(error)
        return _type_mark(value)


def snapshot(value: Any, budget: Budget, left: list[int] | None = None, depth: int = 0) -> Any:
    """Copy the texts and built-in collections of a value, as far as the budget allows; other values stay as they are.

    No code of a value runs, as this is the caller's thread: `plain` converts the copy later. Bounded is also the number
    of values that are copied, in `left`, and their depth, to what `plain` reads; those beyond these stay as well.
    """
    if is_a(value, str):
        return _cut(value, budget)
    left = [100] if left is None else left
    left[0] -= 1
    budget.take(_VALUE_CHARACTERS)
    copy = value if left[0] < 0 or depth == _MAX_DEPTH else copied_collection(value)
    kind = type(copy)
    if depth == _MAX_DEPTH or not (kind is dict or kind is list or kind is tuple) or len(copy) > left[0]:
        return copy
    left[0] -= len(copy)
    if kind is dict:
        return {key: snapshot(item, budget, left, depth + 1) for key, item in copy.items()}
    return kind([snapshot(item, budget, left, depth + 1) for item in copy])


def without_traceback(error: BaseException) -> BaseException | str:
    """Return a copy of an exception without its frames, which must not live on; if that cannot be, its type."""
    # Its text is code of its class, and is asked for by the thread that sends.
    kind, arguments = type(error), _arguments_of(error)
    # The first class in C: others have the name of their module in their dictionary.
    base: Any = next(base for base in bases_of(kind) if "__module__" not in members_of(base))
    if member_of(kind, "__del__") is not None:  # a copy would run it once more
        return class_name(kind)
    try:
        copy: BaseException = base.__new__(kind, *arguments)
        base.__init__(copy, *arguments)
        attributes_of(copy).update(attributes_of(error))
    except (TypeError, ValueError):
        return class_name(kind)
    return copy


def copied(value: object) -> Any:
    """Copy a value into plain JSON values, as far as a trace may hold it. Never raises."""
    return plain(value, Budget(TRACE_CHARACTERS))


def copied_parts(value: object) -> Any:
    """Copy a value as `copied`, but an object as its attributes even if its class defines a text."""
    return plain(value, Budget(TRACE_CHARACTERS), 1)


def text_of(value: object) -> str:
    """Return a plain value as text: a string unchanged, None as empty, anything else as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def text_form(value: object) -> str | None:
    """Return any value as text, by running its code; None if it has none, as an object without any content."""
    # Streams and coroutines have no text yet: reading them would take from the host.
    if is_lazy(type(value)):
        return None
    written = copied(value)
    return None if type(written) is TypeMark else text_of(written)


def record_of(value: object) -> dict[str, Any] | None:
    """Return a value with named parts as a plain dict: a mapping, a model, or the attributes of an object."""
    written = copied_parts(value)
    return written if isinstance(written, dict) else None


def is_lazy(kind: type) -> bool:
    """Return whether values of a type have no content yet: streams, iterators, coroutines."""
    # By the class: asking a lazy object could load it.
    return any(not _LAZY_METHODS.isdisjoint(members_of(base)) for base in bases_of(kind))


def error_text(error: BaseException) -> str:
    """Return an exception's type and message. Never raises."""
    name = class_name(type(error))
    try:
        text = str.__str__(str(error))  # a subclass of `str` becomes a plain one
    except BaseException as another:  # noqa: BLE001 - the exception is the host's
        report_or_raise(another)
        return name
    return f"{name}: {limit_text(text, Budget())}" if text else name


def limit_text(text: str, budget: Budget) -> str:
    """Truncate a text to the budget, with a mark, and replace what UTF-8 cannot hold."""
    text = _cut(text, budget)
    return text if text.isascii() else text.encode(errors="replace").decode()


def _cut(text: str, budget: Budget) -> str:
    count = str.__len__(text)
    kept = budget.take(count)
    if kept == count:
        return text
    return str.__getitem__(text, slice(kept)) + truncation_mark(count - kept, "characters")


def _converted(value: Any, budget: Budget, depth: int) -> object:
    # Through the methods of the base types: a subclass's methods may do anything.
    kind = type(value)
    if issubclass(kind, Enum):
        return plain(value._value_, budget, depth + 1) if depth < _MAX_DEPTH else _type_mark(value)
    if issubclass(kind, int):
        bits = int.bit_length(value)
        # Python refuses to write out integers of thousands of digits.
        number = int.__int__(value) if bits <= _MAX_INT_TEXT_BITS else _type_mark(value)
        return str(number) if _MAX_INT_BITS < bits <= _MAX_INT_TEXT_BITS else number
    if issubclass(kind, str):
        return limit_text(str.__str__(value), budget)
    if issubclass(kind, float):
        return float.__float__(value)
    if kind in _STANDARD_TYPES:
        return msgspec.to_builtins(value)
    return _container(value, budget, depth + 1) if depth < _MAX_DEPTH else _too_deep(value, kind)


def _container(value: Any, budget: Budget, depth: int) -> object:  # noqa: PLR0911 - one return a kind
    kind = type(value)
    # Of a named tuple with two parts the first may be a document and the second its score.
    if issubclass(kind, tuple) and hasattr(kind, "_fields") and tuple.__len__(value) > _PAIR:
        value = dict(zip(kind._fields, tuple.__iter__(value), strict=False))
        kind = dict
    if issubclass(kind, dict):
        return _mapping(dict.items(value), dict.__len__(value), budget, depth)
    for base in SEQUENCES:
        if issubclass(kind, base):
            return _sequence(base.__iter__(value), base.__len__(value), budget, depth)
    if issubclass(kind, _BYTES):
        head = bytes(value[:64])
        if b"\0" in head or MEDIA_FORMS.match(head):
            return content_mark(head, len(value))
        # Decoded only as far as it is kept.
        return limit_text(bytes(value[: budget.left + 1]).decode("utf-8", "replace"), budget)
    if issubclass(kind, _OTHER_SEQUENCES):
        return _sequence(value, len(value), budget, depth)
    fields = _fields_of(value, kind)
    if type(fields) is dict:
        return _mapping(fields.items(), len(fields), budget, depth)
    return _object(value, kind, budget, depth) if fields is None else plain(fields, budget, depth)


def _object(value: Any, kind: type[Any], budget: Budget, depth: int) -> object:
    """Copy an object without a JSON form: alone as the text that its class defines, as a part by its attributes."""
    own_text: object = kind.__str__
    has_text = own_text is not object.__str__ and not issubclass(kind, type) and not is_lazy(kind)
    if has_text and depth == 1:
        return limit_text(str.__str__(str(value)), budget)
    if attributes := _public_attributes(value, kind):
        # An object without a JSON form counts as four levels: its attributes may lead to a whole program.
        below = depth + 3
        written = _mapping(attributes.items(), len(attributes), budget, below)
        # A client, a logger or a session has parts without content: its names and addresses are no data of a call.
        is_cut = budget.full or below >= _MAX_DEPTH
        is_data = type(written) is dict and (is_cut or len(written) == len(attributes))
        if is_data or not attributes.keys().isdisjoint(_TEXT_PROPERTIES):
            return written
    return limit_text(str.__str__(str(value)), budget) if has_text else _type_mark(value)


def _public_attributes(value: Any, kind: type[Any]) -> dict[str, Any]:
    if issubclass(kind, type | ModuleType | logging.Filterer) or is_lazy(kind):
        return {}
    attributes = dict(attributes_of(value))
    for base in bases_of(kind):
        for name, member in members_of(base).items():
            is_text = name in _TEXT_PROPERTIES and isinstance(member, property)
            if name not in attributes and (is_text or type(member) is MemberDescriptorType):
                try:
                    attributes[name] = member.__get__(value, kind)
                except AttributeError:  # a slot without a value
                    continue
    return {
        name: item
        for name, item in attributes.items()
        if type(name) is str and not name.startswith("_") and not _SECRET_ATTRIBUTES.search(name)
    }


def _fields_of(value: Any, kind: type[Any]) -> object:
    """Return the fields of a model, the content of an array, the text of an exception; None for any other value."""
    fields: object = None
    if issubclass(kind, msgspec.Struct):
        fields = {name: getattr(value, name) for name in kind.__struct_fields__}
    elif dataclasses.is_dataclass(kind):
        # A field that the host keeps out of its own repr is often a secret.
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(kind) if field.repr}
    elif hasattr(kind, "__attrs_attrs__"):
        fields = {field.name: getattr(value, field.name) for field in kind.__attrs_attrs__ if field.repr}
    elif issubclass(kind, Mapping):
        fields = dict(value.items())
    elif kind is SimpleNamespace:
        fields = dict(vars(value))
    elif issubclass(kind, BaseException):
        fields = error_text(value)
    else:
        method = next((name for name in _CONVERSIONS if callable(getattr(kind, name, None))), None)
        # `dict` is a method of pydantic 1; arrays, series and tensors become lists, their scalars numbers.
        if method == "to_dict" and kind.__name__ == "DataFrame":
            fields = value.to_dict("records")
        elif method not in {None, "to_dict"} and (method != "dict" or hasattr(kind, "__fields__")):
            fields = getattr(value, str(method))() if getattr(value, "nbytes", 0) <= 1024 * 1024 else None
    return fields


def _mapping(items: Iterable[tuple[object, object]], count: int, budget: Budget, depth: int) -> object:
    mapping: dict[str, object] = {}
    for done, (key, value) in enumerate(items):
        if budget.full:
            mapping["..."] = truncation_mark(count - done, "values")
            break
        name = key_text(key, budget)
        if type(written := plain(value, budget, depth)) is not TypeMark:
            mapping[name] = written
    return mapping if mapping or not count else _NO_CONTENT


def key_text(key: object, budget: Budget | None = None) -> str:
    """Return the key of a dict as text, without running its code; other keys become their type."""
    name = plain(key, budget or Budget(), _MAX_DEPTH)
    return str.__str__(name) if isinstance(name, str) else text_of(name) or "null"


def _sequence(items: Iterable[object], count: int, budget: Budget, depth: int) -> object:
    sequence: list[object] = []
    for done, value in enumerate(items):
        if budget.full:
            sequence.append(truncation_mark(count - done, "values"))
            break
        if type(written := plain(value, budget, depth)) is not TypeMark:
            sequence.append(written)
    # An empty list would say that nothing was found.
    return sequence if sequence or not count else _NO_CONTENT


def _too_deep(value: object, kind: type) -> str:
    # The mark of a list or dict stands for content that was there.
    return str.__str__(_type_mark(value)) if issubclass(kind, (dict, *SEQUENCES)) else _type_mark(value)


def _type_mark(value: object) -> TypeMark:
    return TypeMark(f"<{class_name(type(value))}>")


_Redact = Callable[[dict[str, Any], Sequence[Callable[[str], str]]], None]
_encode: Final = msgspec.json.Encoder().encode
_ERROR_CLASS: Final = re.compile(r"\s*([A-Za-z_][\w.]{0,99})\s*(?:[:(]|\Z)")
_STATUS: Final = re.compile(r"[A-Za-z0-9_]{1,32}")


class ContentPolicy:
    """Removes, redacts and truncates the content of records as configured, in the sender thread."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._changes = bool(settings.redact) or not settings.content
        # An entry no longer than both caps needs no truncation, and no look into it.
        self._short_bytes = min(settings.max_field_bytes, settings.max_trace_bytes)
        self._redact: _Redact | None = None
        if settings.redact:
            # Not at the first text: forks are held off while this object is made.
            from tracejudge.content.redact import redact_record, redact_secrets  # noqa: PLC0415

            self._redact = redact_record
            self._functions = [redact_secrets if function == BUILT_IN else function for function in settings.redact]

    def prepare(self, record: Trace | LateFeedback) -> Raw:
        """Return what may be sent of a record, as JSON.

        ``RedactionError``: The record must not be sent. Any other error: JSON cannot hold a value of it.
        """
        payload = _encode(record)
        if may_hold_media(payload):
            payload = _encode(without_media(msgspec.json.decode(payload)))
        if not self._changes and len(payload) <= self._short_bytes:
            return Raw(payload)
        settings = self._settings
        fields: dict[str, Any] = msgspec.json.decode(payload)
        if not settings.content:
            remove_content(fields)
        if len(payload) > self._short_bytes:
            replace_large_structures(fields)
        if self._redact is not None:
            self._redact(fields, self._functions)
        payload = _encode(fields)
        if len(payload) > self._short_bytes:
            payload = truncate_record(
                fields, max_field_bytes=settings.max_field_bytes, max_trace_bytes=settings.max_trace_bytes
            )
        return Raw(payload)


def remove_content(record: dict[str, Any]) -> None:
    """Remove the texts of a record, in place; ids, names, times, counts and error classes stay."""
    for field in ("input", "messages", "expected_response", "expected_facts", "guidelines", "comment"):
        record.pop(field, None)
    for field, metadata in METADATA.items():
        if field in record:
            record[field] = _metadata_only(field, record[field], metadata)
    if "output" in record:
        record["output"] = ""
    if record.get("error"):
        record["error"] = _error_class(record["error"])


def _metadata_only(field: str, value: object, metadata: frozenset[str]) -> object:
    if isinstance(value, list):
        return [_metadata_only(field, item, metadata) for item in value]
    if not isinstance(value, dict):
        return ""  # a document given as a text
    kept = {key: item for key, item in value.items() if key in metadata and not isinstance(item, list | dict)}
    if field == "context":
        kept["text"] = ""
    if field == "spans" and isinstance(status := value.get("status"), str):
        kept["status"] = status if _STATUS.fullmatch(status) else "error"
    if value.get("error"):
        kept["error"] = _error_class(value["error"])
    return kept


def _error_class(error: object) -> str:
    match = _ERROR_CLASS.match(error) if isinstance(error, str) else None
    return match[1] if match else "error"
