"""From what a caller gave to the record that travels: defaults, ids, and what makes a publication invalid."""

from typing import Any

from tracejudge.entries import Item, Kind
from tracejudge.ids import fresh_id
from tracejudge.model import Feedback, LateFeedback, Trace
from tracejudge.settings import Settings

_STRING, _LIST = (str, "a string"), (list, "a list")
_KINDS: dict[str, tuple[type, str]] = {
    **dict.fromkeys(("service", "output", "environment", "release", "name", "session_id", "user_id"), _STRING),
    **dict.fromkeys(("response_id", "provider", "model", "input", "expected_response", "error"), _STRING),
    **dict.fromkeys(("messages", "context", "expected_facts", "guidelines", "tool_calls", "spans"), _LIST),
    "tags": (dict, "a dict"),
}
_SEVERAL = ("context", "expected_facts", "guidelines")
"""Of these a single text is taken for a list of one."""


class Completion:
    """Completes items under the settings of one client, in the background thread."""

    def __init__(self, settings: Settings) -> None:
        self._defaults = {
            "service": settings.service,
            "environment": settings.environment,
            "release": settings.release,
        }

    def complete(self, item: Item) -> Trace | LateFeedback:
        """Make the record of an item, whose fields it may change.

        Raises:
            TypeError: A field is unknown or missing, or an id is no string.
            ValueError: A score is out of range.
        """
        return self._trace(item) if item.kind is Kind.TRACE else _feedback(item.fields)

    def _trace(self, item: Item) -> Trace:
        fields = item.fields
        _identify(fields, item)
        for name, value in self._defaults.items():
            fields[name] = fields.get(name) or value
        if fields.get("started_at") is None and fields.get("ended_at") is None:
            fields["ended_at"] = item.published_at_s
        _check(fields)
        return Trace(**fields)


def _check(fields: dict[str, Any]) -> None:
    """Check what a service gets wrong most: the worker would refuse it, where nobody tells the service."""
    for name in _SEVERAL:
        if isinstance(fields.get(name), str):
            fields[name] = [fields[name]]
    feedback = fields.get("feedback")
    if isinstance(feedback, int | float):
        fields["feedback"] = Feedback(feedback)
    for name, (kind, words) in _KINDS.items():
        value = fields.get(name)
        if value is not None and not isinstance(value, kind):
            raise TypeError(f"{name} must be {words}, not {type(value).__name__}")


def _identify(fields: dict[str, Any], item: Item) -> None:
    """Fill in the ids that are missing."""
    trace_id = fields.get("trace_id")
    if trace_id is not None and not isinstance(trace_id, str):
        raise TypeError("trace_id must be a string")
    fields["trace_id"] = item.trace_id
    fields["span_id"] = fields.get("span_id") or item.span_id or fresh_id()
    fields["id"] = fields.get("id") or fresh_id()


def _feedback(fields: dict[str, Any]) -> LateFeedback:
    record = LateFeedback(**fields)
    if not isinstance(record.trace_id, str) or not record.trace_id:
        raise TypeError("trace_id must be a non-empty string")
    if not -1 <= record.score <= 1:
        raise ValueError("score must be between -1 and 1")
    return record
