"""What one `init` sets up: publications are completed here, in the calling thread, and handed over."""

from threading import TIMEOUT_MAX
from typing import Any

from msgspec.structs import asdict

from tracejudge.delivery import Delivery
from tracejudge.entries import Item, Kind
from tracejudge.ids import current_span, fresh_id, fresh_span
from tracejudge.model import LateFeedback, Trace
from tracejudge.settings import Settings
from tracejudge.swallowing import swallow
from tracejudge.tally import Reason, Totals
from tracejudge.weight import approximate_bytes


class Client:
    """Publishes for one service. Nothing here raises, whatever it is given."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._delivery = Delivery(settings)

    @property
    def producer(self) -> str:
        """The id under which Redis and the worker know this client."""
        return self._delivery.producer

    def publish(self, trace: Trace | None, fields: dict[str, Any]) -> str:
        """Publish a trace, or the fields of one, which this call may change. Returns the trace id."""
        try:
            if trace is not None:
                fields = _fields_of(trace, fields)
            item = self._complete(fields)
        except Exception as error:  # noqa: BLE001 - fire and forget: the host's call must go on
            swallow(error)
            self._delivery.refuse(Kind.TRACE, Reason.INVALID)
            return given_trace_id(fields) or fresh_span().trace_id
        self._delivery.put(item)
        return item.record.trace_id

    def feedback(self, trace_id: str, score: float, comment: str | None) -> None:
        """Publish feedback for a trace that was published before."""
        try:
            item = _feedback_item(trace_id, score, comment)
        except Exception as error:  # noqa: BLE001 - the same
            swallow(error)
            self._delivery.refuse(Kind.FEEDBACK, Reason.INVALID)
        else:
            self._delivery.put(item)

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything accepted so far is in Redis; False when the timeout comes first."""
        try:
            return self._delivery.flush(min(timeout_s, TIMEOUT_MAX))
        except Exception as error:  # noqa: BLE001 - the same
            swallow(error)
            return False

    def shutdown(self, timeout_s: float) -> None:
        """Refuse what comes, deliver what is here within the timeout, and end the thread."""
        try:
            self._delivery.shutdown(min(timeout_s, TIMEOUT_MAX))
        except Exception as error:  # noqa: BLE001 - the same
            swallow(error)

    def totals(self, kind: Kind = Kind.TRACE) -> Totals:
        """Copy the books of a kind of entry."""
        return self._delivery.totals(kind)

    def _complete(self, fields: dict[str, Any]) -> Item:
        """Make an item of fields: copies containers, adds ids and what `init` said."""
        for name, value in fields.items():
            if isinstance(value, list | dict):
                fields[name] = value.copy()
        weight_bytes = approximate_bytes(fields.values())
        _identify(fields)
        settings = self.settings
        fields["service"] = fields.get("service") or settings.service
        fields["environment"] = fields.get("environment") or settings.environment
        fields["release"] = fields.get("release") or settings.release
        return Item(Kind.TRACE, Trace(**fields), weight_bytes)


def given_trace_id(fields: dict[str, Any]) -> str | None:
    """Take the trace id a caller gave, None when it gave none that can be one."""
    trace_id = fields.get("trace_id")
    return trace_id if isinstance(trace_id, str) and trace_id else None


def _fields_of(trace: Trace, fields: dict[str, Any]) -> dict[str, Any]:
    if fields:
        raise TypeError("publish takes a Trace or fields, not both")
    if not isinstance(trace, Trace):
        raise TypeError("publish takes a Trace or fields by name")
    return asdict(trace)


def _identify(fields: dict[str, Any]) -> None:
    """Fill in the ids that are missing: of the current span, unless the caller named another trace."""
    trace_id = fields.get("trace_id")
    if trace_id is not None and not isinstance(trace_id, str):
        raise TypeError("trace_id must be a string")
    span = current_span()
    if span is None or (trace_id and trace_id != span.trace_id):
        span = fresh_span()
    fields["trace_id"] = trace_id or span.trace_id
    fields["span_id"] = fields.get("span_id") or span.span_id
    fields["id"] = fields.get("id") or fresh_id()


def _feedback_item(trace_id: str, score: float, comment: str | None) -> Item:
    if not isinstance(trace_id, str) or not trace_id:
        raise TypeError("trace_id must be a non-empty string")
    if not -1 <= score <= 1:
        raise ValueError("score must be between -1 and 1")
    record = LateFeedback(trace_id=trace_id, score=score, comment=comment)
    return Item(Kind.FEEDBACK, record, approximate_bytes((trace_id, comment)))
