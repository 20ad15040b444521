"""What one `init` sets up: publications are taken here, in the calling thread, and handed over."""

import sys
from threading import TIMEOUT_MAX
from time import time as now_s
from typing import Any

from msgspec.structs import asdict

from tracejudge.delivery import Delivery
from tracejudge.entries import Item, Kind
from tracejudge.ids import OPENTELEMETRY, current_span, draw, fresh_trace_id
from tracejudge.model import Trace
from tracejudge.settings import Settings
from tracejudge.swallowing import swallow
from tracejudge.tally import Reason, Totals
from tracejudge.weight import take_over

_TRACE, _FEEDBACK = Kind.TRACE, Kind.FEEDBACK  # constants: looking a member up costs a publication 50 ns
_modules = sys.modules


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
        """Publish a trace, or the fields of one, which are the client's from here on. Returns the trace id.

        Written for speed: the rest of the work, from defaults to the check of the fields, is the sender's.
        """
        try:
            if trace is not None:
                fields = _fields_of(trace, fields)
            trace_id, span_id = fields.get("trace_id"), None
            if OPENTELEMETRY in _modules:
                trace_id, span_id = _in_current_span(trace_id)
            if not trace_id or not isinstance(trace_id, str):
                trace_id = draw(128).to_bytes(16, "big").hex()
            item = Item(_TRACE, fields, take_over(fields), now_s(), trace_id, span_id)
        except Exception as error:  # noqa: BLE001 - fire and forget: the host's call must go on
            swallow(error)
            return self._refuse(fields)
        self._delivery.buffer.put(item)
        return trace_id

    def feedback(self, trace_id: str, score: float, comment: str | None) -> None:
        """Publish feedback for a trace that was published before."""
        fields: dict[str, Any] = {"trace_id": trace_id, "score": score, "comment": comment}
        try:
            item = Item(_FEEDBACK, fields, take_over(fields))
        except Exception as error:  # noqa: BLE001 - as with `publish`
            swallow(error)
            self._delivery.buffer.refuse(_FEEDBACK, Reason.INVALID)
            return
        self._delivery.buffer.put_feedback(item)

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

    def _refuse(self, fields: dict[str, Any]) -> str:
        self._delivery.buffer.refuse(_TRACE, Reason.INVALID)
        return given_trace_id(fields) or fresh_trace_id()


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


def _in_current_span(trace_id: Any) -> tuple[Any, str | None]:
    """Give the ids of the current span, unless the caller named another trace."""
    span = current_span()
    if span is None or (trace_id and trace_id != span.trace_id):
        return trace_id, None
    return span
