"""One entry of the stream of traces: a trace, a producer's report, late feedback, or an entry that cannot be used.

An entry that fits the wire format is decoded once. Any other is read by `lenient`, which knows other names and types.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Final, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta, Struct

from tracejudge import LateFeedback, ProducerReport, Trace
from tracejudge.content.truncate import may_hold_media, without_media
from tracejudge.delivery.buffer import Reason
from tracejudge.ids import MAX_ID_CHARS
from tracejudge.model import with_usable_times
from worker.core.selection.lenient import (
    LeftOut,
    LenientPayload,
    NoTraceError,
    UsualTrace,
    read_feedback,
    read_trace,
    safe_id,
    safe_names,
)

_T = TypeVar("_T")
InvalidReason = Literal["no_payload", "not_json", "wrong_type", "unknown_version", "too_large"]
WIRE_VERSION: Final = b"1"
_MAX_PRODUCER_ID_BYTES: Final = 64
_SPAN_ID: Final = re.compile(r"[0-9a-f]{16}")
_DROP_REASONS: Final = frozenset(reason.value for reason in Reason)
_MAX_TOTAL: Final = 10**12
"""Far above the traces of any producer, and far below the largest number that Lua and msgpack can hold."""
_SPARE_LEVELS: Final = 100  # Levels that later readers may nest a trace deeper: batches, dead letters, their callers.


class TraceEntry(Struct, frozen=True):
    """A trace with its producer, if any, and the names of fields that were ``left_out`` or are ``unknown``."""

    entry_id: str
    producer: str | None
    trace: Trace
    payload: bytes
    left_out: tuple[LeftOut, ...] = ()
    unknown: tuple[str, ...] = ()

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
    """An entry that is no trace; its texts are not kept."""

    entry_id: str
    producer: str | None
    reason: InvalidReason
    detail: str = ""  # More about the reason, without any text of the entry.
    keys: tuple[str, ...] = ()  # Names in the payload, or in the entry if there is no payload that could be read.
    trace_id: str | None = None  # The trace id, if there is one.


class GoneEntry(NamedTuple):
    """An entry that the caps removed after it was read and before it was acknowledged."""

    entry_id: str


StreamEntry = TraceEntry | ReportEntry | FeedbackEntry | InvalidEntry | GoneEntry


class _InvalidError(Exception):
    def __init__(self, reason: InvalidReason, detail: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail


class _AnyObject(msgspec.Struct):
    """Has no fields: the decoder checks the JSON and keeps nothing."""


class _KnownTrace(UsualTrace, frozen=True, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """A trace without unknown names, which the decoder finds out at no cost."""


class _Named(Struct):
    """The only field that a search for a trace decodes; it is cheap because all others are skipped."""

    trace_id: Annotated[str, Meta(min_length=1, max_length=MAX_ID_CHARS)]


_trace_decoder = msgspec.json.Decoder(_KnownTrace)
_report_decoder = msgspec.json.Decoder(ProducerReport)
_feedback_decoder = msgspec.json.Decoder(LateFeedback)
_nesting_decoder = msgspec.json.Decoder(_AnyObject)
_named_decoder = msgspec.json.Decoder(_Named)


def read_entry(entry: tuple[bytes, Mapping[bytes, bytes] | None], max_trace_bytes: int) -> StreamEntry:
    """Read an entry; never raises an error."""
    raw_id, fields = entry
    entry_id = raw_id.decode()
    if fields is None:
        return GoneEntry(entry_id)
    payload = fields.get(b"t")
    try:
        if payload is None:
            return _read_other(entry_id, fields, max_trace_bytes)
        _check(fields, payload, max_trace_bytes)
        return _read_trace(entry_id, fields, payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _invalid(entry_id, fields, _InvalidError("not_json"))
    except _InvalidError as error:
        return _invalid(entry_id, fields, error)


def trace_id_of(payload: bytes) -> str | None:
    """Return the trace id in a payload of a trace, as `read_entry` reads it; None if there is none."""
    try:
        return _named_decoder.decode(payload).trace_id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return LenientPayload(payload).trace_id
    except NoTraceError:
        return None


def _check(fields: Mapping[bytes, bytes], payload: bytes, max_bytes: int) -> None:
    if fields.get(b"v") != WIRE_VERSION:
        raise _InvalidError("unknown_version")
    if len(payload) > max_bytes:
        raise _InvalidError("too_large", f"{len(payload):,} bytes")


def _read_trace(entry_id: str, fields: Mapping[bytes, bytes], payload: bytes) -> TraceEntry:
    left_out: tuple[LeftOut, ...] = ()
    unknown: tuple[str, ...] = ()
    written = payload
    try:
        trace: Trace = _trace_decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        try:
            trace, left_out, unknown, written = read_trace(payload)
        except NoTraceError as error:
            raise _InvalidError(error.reason, error.detail) from error
    # Counting an absent byte by `replace` is many times faster than by `count`, and most traces nest little.
    opening = 2 * len(written) - len(written.replace(b"[", b"")) - len(written.replace(b"{", b""))
    if opening > _SPARE_LEVELS:
        # Decode it within spare levels, because a batch nests its traces once more and could not be read otherwise.
        _nesting_decoder.decode(b'{"":' + b"[" * _SPARE_LEVELS + written + b"]" * _SPARE_LEVELS + b"}")
    # A producer that numbers its entries marks media itself, if it encodes them.
    if b"p" not in fields and may_hold_media(payload):
        trace = _trace_decoder.decode(msgspec.json.encode(without_media(msgspec.to_builtins(trace))))
    if trace.span_id and _SPAN_ID.fullmatch(trace.span_id) is None:
        # Logs and spans would show it unchanged.
        trace = msgspec.structs.replace(trace, span_id=None)
    trace, lost = with_usable_times(trace)
    if trace.spans:
        spans = [with_usable_times(span) for span in trace.spans]
        trace = msgspec.structs.replace(trace, spans=[span for span, _ in spans])
        lost = (*lost, "spans") if any(names for _, names in spans) else lost
    if lost:
        left_out += tuple(LeftOut(name, "number") for name in lost)
    return TraceEntry(entry_id, _producer(fields), trace, payload, left_out, unknown)


def _invalid(entry_id: str, fields: Mapping[bytes, bytes], error: _InvalidError) -> InvalidEntry:
    # Producers number traces only, so other entries count as entries without a producer.
    producer = _producer(fields) if b"t" in fields else None
    payload = next((fields[kind] for kind in (b"t", b"f", b"r") if kind in fields), None)
    names = safe_names(name.decode("utf-8", "replace") for name in fields)
    trace_id: str | None = None
    if payload is not None and error.reason not in {"too_large", "not_json"}:
        try:
            record = LenientPayload(payload)
            names, trace_id = safe_names(record.raw), safe_id(record.trace_id)
        except NoTraceError:
            pass
    return InvalidEntry(entry_id, producer, error.reason, error.detail, names, trace_id)


def _read_other(entry_id: str, fields: Mapping[bytes, bytes], max_bytes: int) -> StreamEntry:
    if b"r" in fields:
        report = _decode(_report_decoder, fields, fields[b"r"], max_bytes)
        totals = (report.seq, report.published, report.accepted, *report.dropped.values(), sum(report.dropped.values()))
        # Any client that writes the stream can send a report, so it must not grow the accounting without bound.
        is_bounded = all(0 <= total <= _MAX_TOTAL for total in totals)
        if not is_bounded or not 0 < len(report.producer) <= _MAX_PRODUCER_ID_BYTES:
            raise _InvalidError("wrong_type")
        dropped: Counter[str] = Counter()
        for reason, total in report.dropped.items():
            dropped[reason if reason in _DROP_REASONS else "other"] += total
        return ReportEntry(entry_id, msgspec.structs.replace(report, dropped=dict(dropped)))
    if b"f" not in fields:
        raise _InvalidError("no_payload")
    try:
        feedback = _decode(_feedback_decoder, fields, fields[b"f"], max_bytes)
        is_usual = 0 < len(feedback.trace_id) <= MAX_ID_CHARS
    except _InvalidError as error:
        if error.reason != "wrong_type":
            raise
        is_usual = False
    if not is_usual:
        try:
            feedback = read_feedback(fields[b"f"])
        except NoTraceError as error:
            raise _InvalidError(error.reason, error.detail) from error
    return FeedbackEntry(entry_id, feedback)


def _decode(decoder: "msgspec.json.Decoder[_T]", fields: Mapping[bytes, bytes], payload: bytes, max_bytes: int) -> _T:
    _check(fields, payload, max_bytes)
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
