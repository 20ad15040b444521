"""Traces and feedback in plain JSON: one object, a list, or lines; and the encoding of entries for the stream.

Names and values are read by the converter that the SDK and the worker use. A field that cannot be used is left out and
counted in the reply. An object is rejected only without a service, or without any content.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from judges.requests.redaction import Redaction
from tracejudge.content.convert import CONTENT_FIELDS, Note
from tracejudge.content.encode import text_form
from tracejudge.content.field_names import closest_field, meaning, snake_case
from tracejudge.delivery.buffer import Entry, Item, Kind, Reason
from tracejudge.delivery.encoding import ItemEncoder
from tracejudge.ids import fresh_trace_id
from tracejudge.settings import Settings as SdkSettings
from worker.core.config.reading import producer_settings
from worker.core.config.settings import Settings
from worker.core.selection.lenient import (
    LeftOut,
    LenientPayload,
    NoTraceError,
    decode_repaired,
    losses,
    read_feedback,
    safe_names,
    service_name,
)
from worker.features.gateway.admission import Form, Loss, RefusedError, check_values, too_many_values

SERVICE: Final = "tracejudge-gateway"  # The producer's service in the accounting; each trace has its own.
_MAX_OBJECTS: Final = 20_000
_MAX_SHOWN: Final = 100
_ID_DIGITS: Final = 16
_DERIVED: Final = {"id": 0, "span_id": _ID_DIGITS}
_OTLP_PATHS: Final = {"resourceSpans": "/v1/traces", "resourceLogs": "/v1/logs"}
_CONTENT: Final = CONTENT_FIELDS - {"feedback", "tags"}  # Feedback may carry both beside its score.
_objects_decoder: Final = msgspec.json.Decoder(list[msgspec.Raw])


def sdk_settings(settings: Settings) -> SdkSettings:
    """Build the settings of the gateway's own producer, with the worker's redaction and bounds."""
    redaction = Redaction.from_settings(settings.redact)
    return producer_settings(
        settings,
        SERVICE,
        redact=None if redaction is None else redaction.functions,
        max_field_bytes=64 * 1024,
        max_trace_bytes=min(256 * 1024, settings.max_trace_bytes),
    )


class Refused(NamedTuple):
    """Why an item cannot be published: in words without any text of it, and as the reason of the metrics."""

    words: str
    reason: str = "invalid"


class Encoder:
    """Turns fields into entries of the stream. Each thread needs its own."""

    def __init__(self, settings: SdkSettings) -> None:
        self._items = ItemEncoder(settings)

    @property
    def notes(self) -> Sequence[Note]:
        """The parts of the last item that could not be taken unchanged."""
        return self._items.notes

    def encode(self, kind: Kind, fields: Mapping[str, Any], now_s: float) -> Entry | Refused:
        """Encode a trace or feedback; redaction and truncation are those of the settings."""
        trace_id = str(fields.get("trace_id", ""))
        outcome = self._items.encode(Item(kind, dict(fields), 0, now_s, trace_id, None))
        if isinstance(outcome, Entry):
            return outcome
        reason = "redaction" if outcome is Reason.REDACTION else "invalid"
        if any(note.reason == "empty" for note in self.notes):
            return Refused("no content: give output, input, messages or error")
        # Names that mean no field are the client's texts, and without end.
        causes = ", ".join(f"{note.field} {note.kind}".strip() for note in self.notes if note.reason == outcome.value)
        return Refused(f"{outcome.value}: {causes}" if causes else outcome.value, reason)


class Rejected(NamedTuple):
    """One object that cannot be published, by its place in the request."""

    place: int
    reason: Refused
    names: tuple[str, ...] = ()
    trace_id: str | None = None


class Intake:
    """The entries of one request, the trace id of each, what was rejected, and the fields that were left out."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.trace_ids: list[str] = []
        self.rejected: list[Rejected] = []
        self.left_out: Counter[LeftOut] = Counter()
        self.unknown: dict[str, str | None] = {}
        """The first names that mean no field, each with the field that it resembles."""

    def add_unknown(self, notes: Sequence[Note]) -> None:
        """Collect unknown names, without those that could be texts."""
        for note in notes:
            has_room = note.reason == "unknown_name" and len(self.unknown) < _MAX_SHOWN
            if has_room and safe_names([note.field]) == (note.field,):
                self.unknown[note.field] = closest_field(note.field)

    @property
    def losses(self) -> Iterator[Loss]:
        """The rejected objects: the first ones with their names, of the others how many for each reason."""
        for _, reason, names, trace_id in self.rejected[:_MAX_SHOWN]:
            yield Loss(reason.reason, 1, reason.words, names, trace_id)
        for reason, count in Counter(item.reason for item in self.rejected[_MAX_SHOWN:]).items():
            yield Loss(reason.reason, count, reason.words)

    def reply(self) -> dict[str, object]:
        """Build the content of the reply."""
        shown: dict[str, object] = {"accepted": len(self.entries), "trace_ids": self.trace_ids}
        if self.rejected:
            shown["rejected"] = len(self.rejected)
            shown["errors"] = [
                {"index": item.place, "reason": item.reason.words} for item in self.rejected[:_MAX_SHOWN]
            ]
        if self.left_out:
            ordered = sorted(self.left_out.items())
            shown["left_out"] = [{"field": field.field, "type": field.kind, "count": count} for field, count in ordered]
        if self.unknown:
            shown["unknown"] = [
                {"name": name, "did_you_mean": field} if field else {"name": name}
                for name, field in self.unknown.items()
            ]
        return shown


def read_intake(
    body: bytes, form: Form, encoder: Encoder, *, service: str | None, repeat_key: str | None, now_s: float
) -> Intake:
    """Read the objects of a body, or raise ``RefusedError``, and encode them with the encoder of the calling thread.

    Args:
        service: The service of every trace; otherwise each names its own.
        repeat_key: The client's key of this request: the same key gives the same ids, so that a repeat counts once.
        now_s: The time of a trace that has none, unless a repeat of it could be recognized.
    """
    check_values(body, 500_000)
    intake = Intake()
    for index, raw in enumerate(_objects(body, form)):
        left_out: list[LeftOut] = []
        record: LenientPayload | None = None
        try:
            record = LenientPayload(raw)
            has_content = not _CONTENT.isdisjoint(record.meanings.values())
            if not has_content and any(snake_case(name) == "score" for name in record.raw):
                feedback = read_feedback(raw)
                trace_id = feedback.trace_id
                outcome = encoder.encode(Kind.FEEDBACK, msgspec.structs.asdict(feedback), now_s)
            else:
                fields, left_out = record.decode(keeps_unknown=True)
                trace_id = _complete(fields, record, raw, service, f"{repeat_key}\0{index}" if repeat_key else None)
                # The ledger goes by the hour of a trace: a repeat in the next hour must not have another time.
                is_repeatable = record.trace_id is not None or bool(repeat_key)
                outcome = encoder.encode(Kind.TRACE, fields, 0.0 if is_repeatable else now_s)
                intake.add_unknown(encoder.notes)
                left_out += losses(encoder.notes)
                if record.trace_id is None:
                    unused = (value for value in record.values("trace_id") if value is not None and value != "")
                    left_out += losses(Note("unreadable", "trace_id", type(value).__name__) for value in unused)
        except NoTraceError as error:
            if raw is body and error.reason == "not_json" and form is Form.JSON:
                raise _malformed() from None
            words = error.detail or "not JSON"
            outcome = Refused(words, "no_service" if words == "no service" else "invalid")
        if isinstance(outcome, Entry):
            intake.entries.append(outcome)
            intake.trace_ids.append(trace_id)
            intake.left_out.update(set(left_out))
        else:
            path = next((path for name, path in _OTLP_PATHS.items() if record is not None and name in record.raw), None)
            if path is not None:
                outcome = Refused(f"OTLP: send it to {path}")
            named = ((), None) if record is None else (tuple(islice(record.raw, _MAX_SHOWN)), record.trace_id)
            intake.rejected.append(Rejected(index, outcome, *named))
    return intake


def _objects(body: bytes, form: Form) -> Iterator[bytes]:
    """Yield the text of each object; ids are derived from it."""
    if form is Form.LINES:
        if body.count(b"\n") + body.count(b"\r") > _MAX_OBJECTS:
            raise too_many_values()
        yield from (line for line in body.splitlines() if line.strip())
    elif body.lstrip()[:1] != b"[":
        yield body
    else:
        try:
            parts = decode_repaired(body, _objects_decoder.decode)
        except NoTraceError:
            raise _malformed() from None
        if len(parts) > _MAX_OBJECTS:
            raise too_many_values()
        yield from map(bytes, parts)


def _malformed() -> RefusedError:
    return RefusedError(HTTPStatus.BAD_REQUEST, "malformed", "the body is no valid JSON")


def _complete(
    fields: dict[str, Any], record: LenientPayload, raw: bytes, service: str | None, repeat_key: str | None
) -> str:
    """Complete the service and the ids; return the trace id. ``NoTraceError`` without a service.

    The ids of a trace with a trace id derive from its text, so that a repeat counts once. Without any id two equal
    answers are two traces.
    """
    named = map(service_name, record.values("service"))
    texts = (text_form(value) for value in named if not isinstance(value, dict | list | None))
    fields["service"] = service or next((text for text in texts if text), None)
    if not fields["service"]:
        raise NoTraceError("wrong_type", "no service")
    for name in [name for name in fields if name != "service" and meaning(name) == "service"]:
        del fields[name]
    trace_id = record.trace_id
    if trace_id is None and repeat_key is None:
        fields["trace_id"] = fresh_trace_id()
        return str(fields["trace_id"])
    seed = raw if repeat_key is None else repeat_key.encode()
    digest = hashlib.blake2b(seed, digest_size=32, person=b"gateway").hexdigest()
    fields["trace_id"] = trace_id = trace_id or digest[-2 * _ID_DIGITS :]
    present = {meaning(name) for name, value in fields.items() if value is not None and value != ""}
    fields |= {name: digest[start : start + _ID_DIGITS] for name, start in _DERIVED.items() if name not in present}
    return trace_id
