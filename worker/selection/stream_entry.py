"""One entry of the stream of traces: a trace, a producer's report, late feedback, or an entry that cannot be used."""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from tracejudge import LateFeedback, ProducerReport, Trace
from tracejudge.delivery.buffer import Reason
from tracejudge.dialects.messages import Parts
from tracejudge.model import TIMES, is_unusable_time, usable_spans
from worker.storage.client import Entry

_T = TypeVar("_T")
InvalidReason = Literal["no_payload", "not_json", "wrong_type", "unknown_version", "too_large"]
WIRE_VERSION: Final = b"1"
_MAX_TRACE_ID_CHARS: Final = 128
_MAX_PRODUCER_ID_BYTES: Final = 64
_MAX_SERVICE_CHARS: Final = 200
_SPAN_ID: Final = re.compile(r"[0-9a-f]{16}")
_DROP_REASONS: Final = frozenset(reason.value for reason in Reason)
_MAX_TOTAL: Final = 10**12
"""Far above the traces of any producer, and far below the largest number that Lua and msgpack can hold."""
_SPARE_LEVELS: Final = 100
"""Levels that later readers may nest a trace deeper: batches, dead letters, their callers."""


class TraceEntry(Struct, frozen=True):
    """A trace with the producer that numbered it, if any; ``left_out`` names fields that could not be used."""

    entry_id: str
    producer: str | None
    trace: Trace
    payload: bytes
    left_out: tuple[str, ...] = ()

    @property
    def publication_id(self) -> str:
        """The id that distinguishes this publication from others of the same call."""
        return self.trace.id or hashlib.blake2b(self.payload, digest_size=8).hexdigest()


class ReportEntry(NamedTuple):
    """A producer's totals since its start."""

    entry_id: str
    report: ProducerReport


class FeedbackEntry(NamedTuple):
    """An end user's feedback that was published after its trace."""

    entry_id: str
    feedback: LateFeedback


class InvalidEntry(NamedTuple):
    """An entry that is no trace; its text is not kept."""

    entry_id: str
    producer: str | None
    reason: InvalidReason


class GoneEntry(NamedTuple):
    """An entry that the caps removed after it was read and before it was acknowledged."""

    entry_id: str


Read = TraceEntry | ReportEntry | FeedbackEntry | InvalidEntry | GoneEntry


class _InvalidError(Exception):
    def __init__(self, reason: InvalidReason) -> None:
        super().__init__(reason)
        self.reason = reason


class _AnyObject(msgspec.Struct):
    """Has no fields: the decoder checks the JSON and keeps nothing."""


_trace_decoder = msgspec.json.Decoder(Trace)
_report_decoder = msgspec.json.Decoder(ProducerReport)
_feedback_decoder = msgspec.json.Decoder(LateFeedback)
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_nesting_decoder = msgspec.json.Decoder(_AnyObject)


def read_entry(entry: Entry, max_trace_bytes: int) -> Read:
    """Read an entry; whatever it holds, nothing is raised."""
    raw_id, fields = entry
    entry_id = raw_id.decode()
    if fields is None:
        return GoneEntry(entry_id)
    payload = fields.get(b"t")
    try:
        if payload is None:
            return _read_other(entry_id, fields, max_trace_bytes)
        trace = _decode_trace(fields, payload, max_trace_bytes)
        if not 0 < len(trace.trace_id) <= _MAX_TRACE_ID_CHARS or not 0 < len(trace.service) <= _MAX_SERVICE_CHARS:
            return InvalidEntry(entry_id, _producer(fields), "wrong_type")
        # Counting an absent byte by `replace` is many times faster than by `count`, and most traces nest little.
        opening = 2 * len(payload) - len(payload.replace(b"[", b"")) - len(payload.replace(b"{", b""))
        if opening > _SPARE_LEVELS:
            # Barely readable here, it would fail its whole batch: that nests it once more.
            _nesting_decoder.decode(b'{"":' + b"[" * _SPARE_LEVELS + payload + b"]" * _SPARE_LEVELS + b"}")
        changed: dict[str, Any] = {}
        if trace.span_id and _SPAN_ID.fullmatch(trace.span_id) is None:
            # It would go into logs and onto spans as it stands.
            trace = msgspec.structs.replace(trace, span_id=None)
        if trace.spans or trace.started_at is not None or trace.ended_at is not None:
            changed = {name: None for name in TIMES if is_unusable_time(getattr(trace, name))}
            if trace.spans and (spans := usable_spans(trace.spans)) is not None:
                changed["spans"] = spans
            trace = msgspec.structs.replace(trace, **changed) if changed else trace
        return TraceEntry(entry_id, _producer(fields), trace, payload, tuple(changed))
    except (msgspec.DecodeError, RecursionError):
        return InvalidEntry(entry_id, _producer(fields), "not_json")
    except _InvalidError as error:
        # A producer's count of what it sent holds only traces; its other entries count as if without a producer.
        return InvalidEntry(entry_id, None if payload is None else _producer(fields), error.reason)


def unknown_fields(entry: TraceEntry) -> list[str]:
    """List the fields of a trace that the wire format does not know."""
    return [name for name in _fields_decoder.decode(entry.payload) if name not in Trace.__struct_fields__]


def _read_other(entry_id: str, fields: Mapping[bytes, bytes], max_bytes: int) -> Read:
    if b"r" in fields:
        report = _decode(_report_decoder, fields, fields[b"r"], max_bytes)
        totals = (report.seq, report.published, report.accepted, *report.dropped.values(), sum(report.dropped.values()))
        # Any client that writes the stream can send a report: it must not grow the accounting without bound.
        is_bounded = all(0 <= total <= _MAX_TOTAL for total in totals)
        if not is_bounded or not 0 < len(report.producer) <= _MAX_PRODUCER_ID_BYTES:
            raise _InvalidError("wrong_type")
        dropped: Counter[str] = Counter()
        for reason, total in report.dropped.items():
            dropped[reason if reason in _DROP_REASONS else "other"] += total
        return ReportEntry(entry_id, msgspec.structs.replace(report, dropped=dict(dropped)))
    if b"f" not in fields:
        raise _InvalidError("no_payload")
    feedback = _decode(_feedback_decoder, fields, fields[b"f"], max_bytes)
    if not 0 < len(feedback.trace_id) <= _MAX_TRACE_ID_CHARS:
        raise _InvalidError("wrong_type")
    return FeedbackEntry(entry_id, feedback)


def _decode_trace(fields: Mapping[bytes, bytes], payload: bytes, max_bytes: int) -> Trace:
    """Decode a trace; of messages whose content is a list of parts, only the texts are kept."""
    try:
        return _decode(_trace_decoder, fields, payload, max_bytes)
    except _InvalidError as error:
        if error.reason != "wrong_type":
            raise
        try:
            whole = msgspec.json.decode(payload)
            found = whole.get("messages") if isinstance(whole, dict) else None
            for message in found if isinstance(found, list) else ():
                if isinstance(message, dict) and isinstance(message.get("content"), list):
                    parts = Parts()
                    parts.read(message["content"])
                    message["content"] = "\n".join(parts.texts) or None
            return msgspec.convert(whole, Trace)
        except (msgspec.ValidationError, RecursionError):
            raise error from None


def _decode(decoder: "msgspec.json.Decoder[_T]", fields: Mapping[bytes, bytes], payload: bytes, max_bytes: int) -> _T:
    if fields.get(b"v") != WIRE_VERSION:
        raise _InvalidError("unknown_version")
    if len(payload) > max_bytes:
        raise _InvalidError("too_large")
    try:
        # The decoder skips names and values of unknown fields without checking that they are UTF-8.
        if not payload.isascii():
            payload.decode()
        return decoder.decode(payload)
    except msgspec.ValidationError as error:
        raise _InvalidError("wrong_type") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _InvalidError("not_json") from error


def _producer(fields: Mapping[bytes, bytes]) -> str | None:
    producer = fields.get(b"p")
    return _producer_name(producer) if producer and len(producer) <= _MAX_PRODUCER_ID_BYTES else None


@lru_cache(maxsize=1024)
def _producer_name(producer: bytes) -> str:
    return producer.decode("utf-8", "replace")
