"""Writing traces and feedback into the stream, in numbered batches of one producer, as the SDK does.

One thread writes: it takes everything that waits, and sends a batch again until Redis confirms it. A batch that was
sent twice is stored once.
"""

import queue
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

from tracejudge.delivery.buffer import Batch, Entry, Item, Kind, Reason
from tracejudge.delivery.encoding import ItemEncoder
from tracejudge.delivery.transport import RedisStream
from tracejudge.ids import fresh_id
from tracejudge.log import DeliveryError
from tracejudge.settings import Settings as SdkSettings
from tracejudge.settings import load_settings
from worker.config.redaction import Redaction
from worker.config.settings import MIB, Settings
from worker.service import ServiceThread
from worker.storage.client import StoreError
from worker.telemetry.metrics import GatewayMetrics

SERVICE: Final = "tracejudge-gateway"
"""The producer's service in the accounting; each trace has its own."""
_MAX_ENTRIES: Final = 500
_MAX_BYTES: Final = 4 * MIB
_MAX_WAITING_BYTES: Final = 64 * MIB
_WAIT_S: Final = 0.5
_MAX_FIELD_BYTES: Final = 64 * 1024
_MAX_TRACE_BYTES: Final = 256 * 1024


class FullError(Exception):
    """There is no room: Redis is full, or too much waits for it."""


def sdk_settings(settings: Settings) -> SdkSettings:
    """Build the SDK's settings from the worker's, without the environment of the SDK."""
    redaction = Redaction.of(settings.redact)
    return load_settings(
        service=SERVICE,
        redis_url=settings.redis_url,
        prefix=settings.prefix,
        environ={},
        disabled=False,
        environment=None,
        release=None,
        max_items=1,
        max_bytes=1,
        max_stream=settings.max_stream,
        exit_timeout_s=0.0,
        redact=None if redaction is None else redaction.functions,
        max_field_bytes=_MAX_FIELD_BYTES,
        max_trace_bytes=min(_MAX_TRACE_BYTES, settings.max_trace_bytes),
    )


class Refused(NamedTuple):
    """Why an item cannot be published: in words without any text of it, and as the reason of the metrics."""

    words: str
    reason: str = "invalid"


class Encoder:
    """Turns fields into entries of the stream. Each thread needs its own."""

    def __init__(self, settings: SdkSettings) -> None:
        self._items = ItemEncoder(settings)

    def encode(self, kind: Kind, fields: Mapping[str, Any], now_s: float) -> Entry | Refused:
        """Encode a trace or feedback; redaction and truncation are those of the settings."""
        trace_id = str(fields.get("trace_id", ""))
        outcome = self._items.encode(Item(kind, dict(fields), 0, now_s, trace_id, None))
        if isinstance(outcome, Entry):
            return outcome
        reason = "redaction" if outcome is Reason.REDACTION else "invalid"
        causes = ", ".join(f"{note.field} {note.kind}".strip() for note in self._items.notes)
        return Refused(f"{outcome.value}: {causes}" if causes else outcome.value, reason)


class _Waiting:
    """Entries of one caller, and its future."""

    __slots__ = ("entries", "future", "size_bytes")

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = entries
        self.size_bytes = sum(len(entry.payload) for entry in entries)
        self.future: Future[None] = Future()


class Publisher(ServiceThread):
    """The thread that writes. Entries wait in memory only until their request is answered."""

    role = "publish"

    def __init__(self, settings: SdkSettings, metrics: GatewayMetrics) -> None:
        super().__init__("gateway-publisher")
        self._stream = RedisStream(settings, fresh_id())
        self._metrics = metrics
        self._queue: queue.SimpleQueue[_Waiting] = queue.SimpleQueue()
        self._next: _Waiting | None = None
        self._batch: Batch | None = None
        self._taken: list[_Waiting] = []
        self._number = 0
        self._lock = threading.Lock()
        self._waiting_bytes = 0

    def submit(self, entries: Sequence[Entry]) -> "Future[None]":
        """Queue entries; the future ends when Redis has all of them.

        Raises:
            FullError: Too much waits for Redis.
        """
        waiting = _Waiting(entries)
        if not entries:
            waiting.future.set_result(None)
            return waiting.future
        with self._lock:
            if self._waiting_bytes > _MAX_WAITING_BYTES:
                raise FullError("Redis does not keep up; send this again later")
            self._waiting_bytes += waiting.size_bytes
        self._queue.put(waiting)
        return waiting.future

    def run_once(self) -> None:
        """Write one batch."""
        if self._batch is None and not self._take():
            return
        assert self._batch is not None  # noqa: S101 - for the type checker
        try:
            self._stream.append(self._batch, meanwhile=lambda: None)
        except DeliveryError as error:
            # A script that Redis refuses for lack of memory has changed nothing, so the batch may be given up.
            if "OutOfMemory" not in str(error) and "OOM" not in str(error):
                raise StoreError(str(error)) from error
            self._end(FullError("Redis is full; send this again later"))
            raise StoreError("Redis is full: raise its maxmemory, or lower our caps") from error
        self._metrics.published.inc(len(self._batch.entries))
        self._end(None)

    def _take(self) -> bool:
        """Take what waits, up to the bounds of a batch; one caller's entries are never divided."""
        size = count = 0
        while count < _MAX_ENTRIES and size < _MAX_BYTES:
            waiting = self._next
            try:
                if waiting is None:
                    waiting = self._queue.get_nowait() if count else self._queue.get(timeout=_WAIT_S)
            except queue.Empty:
                break
            if count and count + len(waiting.entries) > _MAX_ENTRIES:
                self._next = waiting
                break
            self._next = None
            if not waiting.future.set_running_or_notify_cancel():
                # Its request was refused meanwhile, and will come again.
                self._release(waiting)
                continue
            self._taken.append(waiting)
            size, count = size + waiting.size_bytes, count + len(waiting.entries)
        if not count:
            return False
        self._number += 1
        entries = tuple(entry for waiting in self._taken for entry in waiting.entries)
        self._batch = Batch(self._number, entries, items=count, size_bytes=size, settles_through=0, flush_ticket=0)
        return True

    def _end(self, error: FullError | None) -> None:
        taken, self._taken, self._batch = self._taken, [], None
        for waiting in taken:
            self._release(waiting)
            if error is None:
                waiting.future.set_result(None)
            else:
                waiting.future.set_exception(error)

    def _release(self, waiting: _Waiting) -> None:
        with self._lock:
            self._waiting_bytes -= waiting.size_bytes
