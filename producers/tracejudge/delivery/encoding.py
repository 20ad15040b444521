"""Encoding of items: defaults, ids and checks, then redaction and truncation, then JSON."""

import difflib
from typing import Any

from msgspec.json import Encoder

from tracejudge.content.encode import ContentPolicy
from tracejudge.content.tool_context import tool_context
from tracejudge.delivery.buffer import Entry, Item, Kind, Reason
from tracejudge.ids import fresh_id
from tracejudge.log import RedactionError, report_internal_error, type_name
from tracejudge.model import TIMES, Feedback, LateFeedback, Trace, is_unusable_time, usable_spans
from tracejudge.settings import Settings

MAX_ENTRY_BYTES = 4 * 1024 * 1024
"""The contract's `max_trace_bytes`: the worker accepts nothing larger."""

_STRING, _LIST = (str, "a string"), (list, "a list")
_TYPES: dict[str, tuple[type, str]] = {
    **dict.fromkeys(("service", "output", "environment", "release", "name", "session_id", "user_id"), _STRING),
    **dict.fromkeys(("response_id", "provider", "model", "input", "expected_response", "error"), _STRING),
    **dict.fromkeys(("messages", "context", "expected_facts", "guidelines", "tool_calls", "spans"), _LIST),
    "tags": (dict, "a dict"),
}
_TEXT_LISTS = ("context", "expected_facts", "guidelines")  # a single text is accepted as a list of one
_MAX_CAUSE_CHARS = 200
_encoder = Encoder()


class ItemEncoder:
    """Completes, redacts, truncates and encodes items under the settings of one client, in the sender thread."""

    def __init__(self, settings: Settings) -> None:
        self._content = ContentPolicy(settings)
        self._context_tools = settings.context_tools
        self._defaults = {
            "service": settings.service,
            "environment": settings.environment,
            "release": settings.release,
        }
        self.times_left_out = 0
        """Fields with times before 2000 or after 2100 since the start; their traces are sent without them."""
        self.cause = ""
        """Why the last refused item was refused; without any text of it."""

    def encode(self, item: Item) -> Entry | Reason:
        """Encode an item as JSON, or return the reason for its drop. Never raises."""
        try:
            record = self._trace(item) if item.kind is Kind.TRACE else _feedback(item.fields)
            payload = _encoder.encode(self._content.prepare(record))
        except RedactionError as error:
            report_internal_error(error)
            self.cause = f"{type_name(error.__cause__ or error)} in redact"
            return Reason.REDACTION
        except BaseException as error:  # noqa: BLE001 - values of the host may fail in any way
            report_internal_error(error)
            # Our messages and msgspec's name fields and types; those of the host may quote anything.
            is_ours = type(error) in (TypeError, ValueError) and all(type(text) is str for text in error.args)
            self.cause = str(error)[:_MAX_CAUSE_CHARS] if is_ours else type_name(error)
            return Reason.INVALID
        if len(payload) > MAX_ENTRY_BYTES:
            self.cause = f"{len(payload):,} bytes"
            return Reason.TOO_LARGE
        return Entry(item.kind, payload)

    def _trace(self, item: Item) -> Trace:
        fields = item.fields
        trace_id = fields.get("trace_id")
        if trace_id is not None and not isinstance(trace_id, str):
            raise TypeError("trace_id must be a string")
        fields["trace_id"] = item.trace_id
        fields["span_id"] = fields.get("span_id") or item.span_id or fresh_id()
        fields["id"] = fields.get("id") or fresh_id()
        for name, value in self._defaults.items():
            fields[name] = fields.get(name) or value
        for name in TIMES:
            if is_unusable_time(fields.get(name)):
                fields[name] = None
                self.times_left_out += 1
        spans = fields.get("spans")
        if isinstance(spans, list) and (usable := usable_spans(spans)) is not None:
            fields["spans"] = usable
            self.times_left_out += 1
        if fields.get("started_at") is None and fields.get("ended_at") is None:
            fields["ended_at"] = item.published_at_s
        _check_types(fields)
        if self._context_tools and not fields.get("context"):
            fields["context"] = tool_context(fields, self._context_tools) or None
        try:
            return Trace(**fields)
        except TypeError as error:
            raise TypeError(f"{error}{_nearest_field(fields)}") from error


def _nearest_field(fields: dict[str, Any]) -> str:
    """Suggest the field that the first unknown one resembles."""
    known = Trace.__struct_fields__
    unknown = next((name for name in fields if name not in known), "")
    close = difflib.get_close_matches(unknown[:_MAX_CAUSE_CHARS], known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _check_types(fields: dict[str, Any]) -> None:
    # Frequent mistakes are found here, where the service's log names them, and not only in the worker.
    for name in _TEXT_LISTS:
        if isinstance(fields.get(name), str):
            fields[name] = [fields[name]]
    feedback = fields.get("feedback")
    if isinstance(feedback, int | float):
        fields["feedback"] = Feedback(feedback)
    for name, (kind, words) in _TYPES.items():
        value = fields.get(name)
        if value is not None and not isinstance(value, kind):
            raise TypeError(f"{name} must be {words}, not {type(value).__name__}")


def _feedback(fields: dict[str, Any]) -> LateFeedback:
    record = LateFeedback(**fields)
    if not isinstance(record.trace_id, str) or not record.trace_id:
        raise TypeError("trace_id must be a non-empty string")
    is_number = isinstance(record.score, int | float) and not isinstance(record.score, bool)
    if not is_number or not -1 <= record.score <= 1:
        raise ValueError("score must be a number from -1 to 1")
    return record
