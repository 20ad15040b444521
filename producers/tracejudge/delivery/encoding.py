"""Encoding of items: conversion, defaults and ids, then redaction and truncation, then JSON."""

from collections.abc import Sequence
from typing import Any

from msgspec.json import Encoder
from msgspec.structs import asdict

from tracejudge.content.convert import Note, Notes, UnreadableError, convert_feedback, convert_trace
from tracejudge.content.encode import ContentPolicy, copied
from tracejudge.content.tool_context import tool_context
from tracejudge.delivery.buffer import Entry, Item, Kind, Reason
from tracejudge.ids import MAX_ID_CHARS, fresh_id, trace_id_text
from tracejudge.log import RedactionError, report_internal_error, type_name
from tracejudge.model import LateFeedback, Trace
from tracejudge.settings import Settings

MAX_ENTRY_BYTES = 4 * 1024 * 1024
"""The contract's `max_trace_bytes`: the worker accepts nothing larger."""

_encoder = Encoder()


class ItemEncoder:
    """Completes, redacts, truncates and encodes items under the settings of one client, in the sender thread."""

    def __init__(self, settings: Settings) -> None:
        self._content = ContentPolicy(settings)
        self._sends_content = settings.content
        self._context_tools = settings.context_tools
        self._defaults = {
            "service": settings.service,
            "environment": settings.environment,
            "release": settings.release,
        }
        self.notes: Sequence[Note] = ()
        """What of the last item could not be taken as it was given; without any text of it."""

    def encode(self, item: Item) -> Entry | Reason:
        """Encode an item as JSON, or return the reason for its drop. Never raises."""
        notes = Notes()
        outcome = self._encode(item, notes)
        self.notes = notes.found
        return outcome

    def _encode(self, item: Item, notes: Notes) -> Entry | Reason:
        subject = "trace" if item.kind is Kind.TRACE else "feedback"
        try:
            record = self._trace(item, notes) if item.kind is Kind.TRACE else convert_feedback(item.fields, notes)
            if record is None:
                report_internal_error(UnreadableError(notes.found[-1].reason))
                return Reason.INVALID
            payload = _encoder.encode(self._prepared(record))
        except RedactionError as error:
            report_internal_error(error)
            notes.add_cause("redaction", subject, f"{type_name(error.__cause__ or error)} in redact")
            return Reason.REDACTION
        except BaseException as error:  # noqa: BLE001 - values of the host may fail in any way
            report_internal_error(error)
            notes.add_cause("invalid", subject, type_name(error))
            return Reason.INVALID
        if len(payload) > MAX_ENTRY_BYTES:
            notes.add_cause("too_large", subject, f"{len(payload):,} bytes")
            return Reason.TOO_LARGE
        return Entry(item.kind, payload)

    def _prepared(self, record: Trace | LateFeedback) -> Any:
        try:
            return self._content.prepare(record)
        except (TypeError, ValueError) as error:
            # Frequent shapes are not searched for what JSON cannot hold, such as half of a surrogate pair.
            report_internal_error(error)
            return self._content.prepare(type(record)(**copied(asdict(record))))

    def _trace(self, item: Item, notes: Notes) -> Trace | None:
        given = item.fields.get("trace_id")
        if given is not None and given != "":
            if trace_id_text(given) is None:
                notes.add("unreadable", "trace_id", type(given))
            elif issubclass(type(given), str) and len(given) > MAX_ID_CHARS:
                notes.add("too_long", "trace_id", type(given))
        fields = convert_trace(item.fields, notes, sends_content=self._sends_content)
        if not fields:
            return None
        fields["trace_id"] = item.trace_id
        fields["span_id"] = fields.get("span_id") or item.span_id or fresh_id()
        fields["id"] = fields.get("id") or fresh_id()
        for name, value in self._defaults.items():
            fields[name] = fields.get(name) or value
        if fields.get("started_at") is None and fields.get("ended_at") is None:
            fields["ended_at"] = item.published_at_s or None
        if self._context_tools and not fields.get("context"):
            fields["context"] = tool_context(fields, self._context_tools) or None
        return Trace(**fields)
