"""What the gateway refuses and drops: counted, listed for `tracejudge invalid list`, and logged once a minute.

The list and the log hold names, ids and counts, never a text of a request and never a token.
"""

import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

import msgspec
import structlog
from msgspec import Struct

from worker.gateway.admission import RefusedError
from worker.selection.lenient import shown_id, shown_names
from worker.selection.unusable import InvalidRecord, LeftOutRecord, UnusableInput
from worker.telemetry.metrics import GatewayMetrics

log = structlog.get_logger("tracejudge.gateway")
_LOG_EVERY_S: Final = 60.0
_NO_CALL: Final = "no_model_call"
EXPLAINED: Final = {
    "no_service": "the resource has no service.name",
    "no_ids": "no trace id of 16 bytes or no span id of 8 bytes",
    "trace_too_large": "the trace is over max_trace_bytes",
    "expired": "no gateway joined the trace within a day",
    "redaction": "a redaction rule failed",
    "unreadable": "not readable as OTLP",
    _NO_CALL: "no span is a call of a model",
}


class Loss(Struct, frozen=True):
    """Items that reach no published trace: why, how many, and the names and trace id of the first one."""

    reason: str
    count: int = 1
    detail: str = ""
    names: tuple[str, ...] = ()
    trace_id: str | None = None

    def with_more(self, count: int) -> "Loss":
        """Return the loss of further items for the same reason."""
        return msgspec.structs.replace(self, count=self.count + count)


class Losses:
    """Counts, lists and logs what one process refuses and drops. Safe to share between threads."""

    def __init__(
        self, unusable: UnusableInput, metrics: GatewayMetrics, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._unusable = unusable
        self._metrics = metrics
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str, str], int] = {}
        self._next_s: dict[tuple[str, str, str], float] = {}

    def refuse(self, error: RefusedError, path: str) -> None:
        """Record a request that is refused as a whole."""
        self._metrics.rejected.labels(error.reason).inc()
        self._log(("requests refused", error.reason, path), 1)

    def drop(self, losses: Iterable[Loss], client: str | None = None) -> None:
        """Record dropped items; ``client`` is the name of their token."""
        for one in losses:
            if not one.count:
                continue
            self._metrics.dropped.labels(one.reason).inc(one.count)
            is_logged = self._log(("items dropped", one.reason, ""), one.count)
            # Services send many spans that call no model: listed each time, they would displace all others.
            if one.reason != _NO_CALL or is_logged:
                detail = one.detail or EXPLAINED.get(one.reason, "")
                told = (one.reason, f"{detail} ({one.count:,} items)" if one.count > 1 else detail)
                names, trace_id = shown_names(one.names), shown_id(one.trace_id)
                self._unusable.add_record(InvalidRecord("", time.time(), *told, trace_id, names, client))

    def leave_out(self, field: str, service: str, trace_id: str) -> None:
        """Record a text that was left out of a trace."""
        self._metrics.left_out.labels(field).inc()
        self._unusable.add_left_out(LeftOutRecord(field, "string", service, shown_id(trace_id), time.time()))

    def write(self, *, at_end: bool = False) -> None:
        """Write the list, and log the counts of minutes that have ended."""
        now = self._clock()
        with self._lock:
            due = [subject for subject in self._counts if at_end or now >= self._next_s[subject]]
        for subject in due:
            self._log(subject, 0, at_end=at_end)
        self._unusable.write(at_end=at_end)

    def _log(self, subject: tuple[str, str, str], count: int, *, at_end: bool = False) -> bool:
        """Count, and log the count unless the last line about the subject is less than a minute old."""
        now = self._clock()
        with self._lock:
            total = self._counts.pop(subject, 0) + count
            if total and now < self._next_s.get(subject, now) and not at_end:
                self._counts[subject] = total
                return False
            if not total:
                return False
            self._next_s[subject] = now + _LOG_EVERY_S
        event, reason, path = subject
        write = log.info if reason == _NO_CALL else log.warning
        write(event, reason=reason, count=total, **({"path": path} if path else {}))
        return True
