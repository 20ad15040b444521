"""Read one entry of the stream: a trace, a producer's report, late feedback, or nothing we can use."""

import hashlib
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from tracejudge import LateFeedback, ProducerReport, Trace
from worker.store import Entry

__all__ = [
    "FeedbackEntry",
    "GoneEntry",
    "InvalidEntry",
    "InvalidReason",
    "Read",
    "ReportEntry",
    "TraceEntry",
    "read_entry",
    "unknown_fields",
]

_T = TypeVar("_T")
InvalidReason = Literal["no_payload", "not_json", "wrong_type", "unknown_version", "too_large"]

WIRE_VERSION: Final = b"1"
_MAX_TRACE_ID_CHARS: Final = 128
_MAX_PRODUCER_ID_BYTES: Final = 64
_MAX_SERVICE_CHARS: Final = 200
_SPAN_ID: Final = re.compile(r"[0-9a-f]{16}")
_MAX_DROP_REASONS: Final = 20
_DROP_REASON: Final = re.compile(r"[a-z_]{1,32}")
_MAX_TOTAL: Final = 10**12
"""Far above what a producer publishes, and far below what the books, Lua and msgpack can hold."""
_SPARE_LEVELS: Final = 100
"""How much deeper than a trace is nested all who read it later may nest it: batches, dead letters, their callers."""


class TraceEntry(Struct, frozen=True):
    """A trace, and the producer that numbered it, if any did."""

    entry_id: str
    producer: str | None
    trace: Trace
    payload: bytes

    @property
    def publication_id(self) -> str:
        """What tells this publication from others of the same call."""
        return self.trace.id or hashlib.blake2b(self.payload, digest_size=8).hexdigest()


class ReportEntry(NamedTuple):
    """A producer's totals since its start."""

    entry_id: str
    report: ProducerReport


class FeedbackEntry(NamedTuple):
    """What an end user said later."""

    entry_id: str
    feedback: LateFeedback


class InvalidEntry(NamedTuple):
    """An entry that is no trace; its text is kept nowhere."""

    entry_id: str
    producer: str | None
    reason: InvalidReason


class GoneEntry(NamedTuple):
    """An entry that the caps removed after a reader took it and before it was dealt with."""

    entry_id: str


Read = TraceEntry | ReportEntry | FeedbackEntry | InvalidEntry | GoneEntry


class _InvalidError(Exception):
    def __init__(self, reason: InvalidReason) -> None:
        super().__init__(reason)
        self.reason = reason


class _Nothing(msgspec.Struct):
    """Takes no field and passes over all."""


_trace_decoder = msgspec.json.Decoder(Trace)
_report_decoder = msgspec.json.Decoder(ProducerReport)
_feedback_decoder = msgspec.json.Decoder(LateFeedback)
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_nesting_decoder = msgspec.json.Decoder(_Nothing)


def read_entry(entry: Entry, max_trace_bytes: int) -> Read:
    """Read an entry; whatever it holds, one of five things comes back and nothing is raised."""
    raw_id, fields = entry
    entry_id = raw_id.decode()
    if fields is None:
        return GoneEntry(entry_id)
    producer = _producer(fields)
    try:
        return _read(entry_id, producer, fields, max_trace_bytes)
    except _InvalidError as error:
        # Of a producer's entries only traces are in its count of what it sent; the others arrive as if without one.
        return InvalidEntry(entry_id, producer if b"t" in fields else None, error.reason)


def unknown_fields(entry: TraceEntry) -> list[str]:
    """List the fields of a trace that the wire format does not know."""
    return [name for name in _fields_decoder.decode(entry.payload) if name not in Trace.__struct_fields__]


def _read(entry_id: str, producer: str | None, fields: Mapping[bytes, bytes], max_bytes: int) -> Read:
    payload = fields.get(b"t")
    if payload is None:
        return _read_other(entry_id, fields, max_bytes)
    trace = _decode(_trace_decoder, _known(fields, payload, max_bytes))
    if not 0 < len(trace.trace_id) <= _MAX_TRACE_ID_CHARS or not 0 < len(trace.service) <= _MAX_SERVICE_CHARS:
        raise _InvalidError("wrong_type")
    if trace.span_id and _SPAN_ID.fullmatch(trace.span_id) is None:
        # Not what the field is for, and it would go into logs and onto spans as it stands.
        trace = msgspec.structs.replace(trace, span_id=None)
    _check_nesting(payload)
    return TraceEntry(entry_id, producer, trace, payload)


def _read_other(entry_id: str, fields: Mapping[bytes, bytes], max_bytes: int) -> Read:
    if b"r" in fields:
        payload = _known(fields, fields[b"r"], max_bytes)
        return ReportEntry(entry_id, _checked(_decode(_report_decoder, payload)))
    if b"f" not in fields:
        raise _InvalidError("no_payload")
    feedback = _decode(_feedback_decoder, _known(fields, fields[b"f"], max_bytes))
    if not 0 < len(feedback.trace_id) <= _MAX_TRACE_ID_CHARS:
        raise _InvalidError("wrong_type")
    return FeedbackEntry(entry_id, feedback)


def _known(fields: Mapping[bytes, bytes], payload: bytes, max_bytes: int) -> bytes:
    if fields.get(b"v") != WIRE_VERSION:
        raise _InvalidError("unknown_version")
    if len(payload) > max_bytes:
        raise _InvalidError("too_large")
    return payload


def _checked(report: ProducerReport) -> ProducerReport:
    """Keep out what would grow the books without bound: anybody who can write the stream can write a report."""
    known = len(report.dropped) <= _MAX_DROP_REASONS and all(map(_DROP_REASON.fullmatch, report.dropped))
    totals = (report.seq, report.published, report.accepted, *report.dropped.values())
    counted = all(0 <= total <= _MAX_TOTAL for total in totals)
    if known and counted and 0 < len(report.producer) <= _MAX_PRODUCER_ID_BYTES:
        return report
    raise _InvalidError("wrong_type")


def _check_nesting(payload: bytes) -> None:
    """Refuse what only just can be read here: nested once more, in a batch, it would fail its whole batch for ever."""
    # What `replace` leaves tells how many there are: it searches, where `count` would look at each byte.
    opening = 2 * len(payload) - len(payload.replace(b"[", b"")) - len(payload.replace(b"{", b""))
    if opening > _SPARE_LEVELS:
        _decode(_nesting_decoder, b'{"":' + b"[" * _SPARE_LEVELS + payload + b"]" * _SPARE_LEVELS + b"}")


def _decode(decoder: "msgspec.json.Decoder[_T]", payload: bytes) -> _T:
    try:
        # The decoder passes over names and values of unknown fields without looking whether they are UTF-8.
        if not payload.isascii():
            payload.decode()
        return decoder.decode(payload)
    except msgspec.ValidationError as error:
        raise _InvalidError("wrong_type") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _InvalidError("not_json") from error


def _producer(fields: Mapping[bytes, bytes]) -> str | None:
    producer = fields.get(b"p", b"")
    return _producer_name(producer) if 0 < len(producer) <= _MAX_PRODUCER_ID_BYTES else None


@lru_cache(maxsize=1024)
def _producer_name(producer: bytes) -> str:
    return producer.decode("utf-8", "replace")
