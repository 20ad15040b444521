"""Payloads that do not fit the wire format: other names, other types, and JSON that only some parsers accept.

Any language may write the stream, so names and values are read by the SDK's converter. A field that cannot be used is
left out. A payload is no trace only without a trace id, a service, or any content.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from tracejudge import LateFeedback, Trace
from tracejudge.content.convert import Note, Notes, convert_feedback, convert_trace, in_utc
from tracejudge.content.field_names import bound_names, field_of, meaning, rank
from tracejudge.ids import MAX_ID_CHARS, trace_id_text
from tracejudge.model import TIMES

_FIELDS: Final = frozenset(Trace.__struct_fields__)
_MAX_SHOWN_NAMES: Final = 30
_MAX_INTEGER_DIGITS: Final = 300
_NAMED: Final = {"Infinity": "Infinity", "-Infinity": "-Infinity"}  # NaN is absent.
# A name or an id of another form may be a text of a user.
_SHOWN_NAME: Final = re.compile(r"[A-Za-z_$@][\w.$@-]{0,39}", re.ASCII)
_SHOWN_ID: Final = re.compile(rf"(?=\D*\d)[\w.:/-]{{1,{MAX_ID_CHARS}}}", re.ASCII)
_LOSSES: Final = frozenset({"unreadable", "no_text", "missing", "too_many"})
_KINDS: Final = {
    **dict.fromkeys(("str", '"'), "string"),
    **dict.fromkeys(("dict", "{"), "object"),
    **dict.fromkeys(("list", "["), "array"),
    "bool": "boolean",
    "NoneType": "null",
    "": "absent",
}
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class UsualTrace(Trace, frozen=True, omit_defaults=True, kw_only=True):  # noqa: PLW1641 - holds lists, has no hash
    """A trace whose id and service have a usual length, which the decoder checks at no cost."""

    trace_id: Annotated[str, Meta(min_length=1, max_length=MAX_ID_CHARS)]
    service: Annotated[str, Meta(min_length=1, max_length=200)]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trace) and msgspec.structs.astuple(self) == msgspec.structs.astuple(other)


_trace_decoder = msgspec.json.Decoder(UsualTrace)


class LeftOut(NamedTuple):
    """A field, or a part of it, that could not be used, and the JSON type of its value."""

    field: str
    kind: str


NO_OUTPUT: Final = LeftOut("output", "absent")


class ReadTrace(NamedTuple):
    """A trace, what of it could not be used, the names that mean no field, and the JSON that the trace is made of."""

    trace: Trace
    left_out: tuple[LeftOut, ...]
    unknown: tuple[str, ...]
    written: bytes


class NoTraceError(Exception):
    """A payload is no trace, and no feedback; ``detail`` quotes nothing of it."""

    def __init__(self, reason: Literal["not_json", "wrong_type"], detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


class LenientPayload:
    """The names in a payload, decoded on demand, or ``NoTraceError``; ``further`` counts unknown ones left out."""

    def __init__(self, payload: bytes) -> None:
        self.raw: Mapping[str, msgspec.Raw]
        self.raw, self.further = bound_names(decode_repaired(payload, _decode_fields))
        self.meanings = {name: meaning(name) for name in self.raw}

    @property
    def trace_id(self) -> str | None:
        """The trace id as a text of bounded length, if there is one."""
        return next((text for value in self.values("trace_id") if (text := trace_id_text(value))), None)

    def values(self, field: str) -> Iterator[Any]:
        """Yield the values of a field, the one of its own name first, without those that cannot be decoded."""
        for name in sorted((name for name, other in self.meanings.items() if other == field), key=rank):
            try:
                yield decode_repaired(self.raw[name])
            except NoTraceError:
                continue

    def decode(self, *, keeps_unknown: bool = False) -> tuple[dict[str, Any], list[LeftOut]]:
        """Return all values for the converter, and what cannot be decoded; unknown names only if they are kept."""
        values: dict[str, Any] = {}
        left_out = [LeftOut("tags", "object")] if self.further and keeps_unknown else []
        for name, raw in self.raw.items():
            if (field := self.meanings[name]) is not None or keeps_unknown:
                try:
                    values[name] = _decode_value(field, raw)
                except NoTraceError:
                    left_out.append(_make_left_out(field or name, bytes(raw)[:1].decode("ascii", "replace")))
        return values, left_out


def decode_repaired(raw: bytes | msgspec.Raw, decode: Callable[[Any], Any] = msgspec.json.decode) -> Any:
    """Decode a value, repaired if it cannot be decoded as it is; ``NoTraceError`` if no parser can read it."""
    try:
        return decode(raw)
    except _UNREADABLE as error:
        # A number without a bound, such as 1e999, is no error of the type.
        if isinstance(error, msgspec.ValidationError) and "out of range" not in str(error):
            raise NoTraceError("wrong_type", "no object") from error
    try:
        return decode(repair(bytes(raw)))
    except _UNREADABLE as error:
        raise NoTraceError("not_json") from error


def _decode_fields(payload: bytes) -> dict[str, msgspec.Raw]:
    if not payload.isascii():
        payload.decode()
    return _fields_decoder.decode(payload)


def read_trace(payload: bytes) -> ReadTrace:
    """Read a trace that the typed decoder has refused; ``NoTraceError`` without a trace id, a service, or content."""
    record = LenientPayload(payload)
    others = [name for name in record.raw if name not in _FIELDS]
    unknown = tuple([name for name in others if record.meanings[name] is None]) + ("(another)",) * record.further
    if others and len(unknown) == len(others) + record.further:
        try:
            return ReadTrace(_trace_decoder.decode(payload), (), unknown, payload)
        except _UNREADABLE:
            pass
    trace_id = record.trace_id
    if trace_id is None:
        raise NoTraceError("wrong_type", "no trace id")
    values, left_out = record.decode()
    notes = Notes()
    fields = convert_trace(values, notes)
    if not fields.get("service"):
        raise NoTraceError("wrong_type", "no service" if fields else "no content")
    left_out += losses(notes.entries)
    try:
        # The converter leaves values of the wire's form, because the decoder makes objects of them and checks all.
        written = msgspec.json.encode(Trace(**{**fields, "trace_id": trace_id}))
        trace = _trace_decoder.decode(written)
    except (msgspec.DecodeError, ValueError, TypeError, OverflowError) as error:
        raise NoTraceError("wrong_type") from error
    return ReadTrace(trace, tuple(dict.fromkeys(left_out)), unknown, written)


def losses(notes: Iterable[Note]) -> Iterator[LeftOut]:
    """Yield the fields that the converter could not use."""
    return (_make_left_out(note.field, note.kind) for note in notes if note.reason in _LOSSES)


def _decode_value(field: str | None, raw: msgspec.Raw) -> Any:
    """Decode a value of a trace, or raise NoTraceError if it cannot be used."""
    value = decode_repaired(raw)
    if field == "service":
        value = service_name(value)
    if field == "service" and isinstance(value, dict | list):
        # A service is a label of metrics and appears in logs, where the texts of an object must not be.
        raise NoTraceError("wrong_type")
    return in_utc(value) if field in TIMES else value


def service_name(value: Any) -> Any:
    """Return the name of a service that was given as an object; other values stay as they are."""
    name = value.get("name") if isinstance(value, dict) else None
    return name if isinstance(name, str) else value


def read_feedback(payload: bytes) -> LateFeedback:
    """Read late feedback that the typed decoder has refused; ``NoTraceError`` without a trace id or score."""
    record = LenientPayload(payload)
    values, _ = record.decode(keeps_unknown=True)
    trace_id = record.trace_id
    if trace_id is None:
        raise NoTraceError("wrong_type", "no trace id")
    feedback = convert_feedback({"trace_id": trace_id, "score": values}, Notes())
    if feedback is None:
        raise NoTraceError("wrong_type", "no score from -1 to 1")
    return feedback


def safe_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the first names for a log or a list, without those that could be texts."""
    listed = list(names)
    shown = [name if _SHOWN_NAME.fullmatch(name) else "(another)" for name in listed[:_MAX_SHOWN_NAMES]]
    return tuple(dict.fromkeys(shown)) + (("...",) if len(listed) > _MAX_SHOWN_NAMES else ())


def safe_id(trace_id: str | None) -> str | None:
    """Return a trace id for a log or a list; None if it could be a text."""
    return trace_id if trace_id is not None and _SHOWN_ID.fullmatch(trace_id) else None


def _make_left_out(field: str, kind: str) -> LeftOut:
    # They are labels of a metric, so they come from a closed set.
    first = field.partition(".")[0]
    field_name = first if first in _FIELDS else field_of(first)
    return LeftOut(field_name or "other", _KINDS.get(kind, "number"))


def repair(text: bytes) -> bytes:
    """Write JSON again as parsers read it: NaN as null, numbers without a bound as texts, and all of it as UTF-8.

    Left out are a byte order mark, halves of surrogate pairs and bytes of no UTF-8. ``NoTraceError`` if it is no JSON.
    """
    try:
        readable = text.decode("utf-8-sig", "replace")
        value = json.loads(
            readable, parse_constant=_NAMED.get, parse_float=_to_number, parse_int=_to_number, strict=False
        )
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
    except (ValueError, RecursionError) as error:
        raise NoTraceError("not_json") from error


def _to_number(digits: str) -> float | int | str:
    if digits.lstrip("-").isdigit():
        return int(digits) if len(digits) <= _MAX_INTEGER_DIGITS else digits
    number = float(digits)
    return number if math.isfinite(number) else "Infinity" if number > 0 else "-Infinity"
