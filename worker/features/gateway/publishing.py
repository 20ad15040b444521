"""Writing traces and feedback into the stream, in numbered batches of one producer, as the SDK does.

One thread writes: it takes everything that waits, and sends a batch again until Redis confirms it. A batch that was
sent twice is stored once.
"""

import queue
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from http import HTTPStatus
from typing import Final, NamedTuple

import structlog

from tracejudge.delivery.buffer import Batch, Entry
from tracejudge.delivery.transport import RedisStream
from tracejudge.ids import fresh_id
from tracejudge.log import DeliveryError, RedisFullError
from tracejudge.settings import Settings as SdkSettings
from worker.core.config.settings import MIB, Settings
from worker.core.storage.client import Store, StoreError, StoreFullError
from worker.core.telemetry.backlog import Caps, measure
from worker.core.telemetry.service import ServiceThread
from worker.features.gateway.admission import GatewayMetrics, RefusedError, full

log = structlog.get_logger("tracejudge.gateway")

_MAX_ENTRIES: Final = 500
_MAX_BYTES: Final = 4 * MIB


class Capacity(ServiceThread):
    """Measures each second how much the streams have room for: a cap removes traces, those that nobody has read too.

    Between two measurements the process counts what it writes itself. The share of the cap that is kept free is for
    what others write meanwhile.
    """

    role = "capacity"

    def __init__(self, settings: Settings, stores: Sequence[Store]) -> None:
        super().__init__("gateway-capacity")
        self._stores = stores
        self._caps = Caps("0", settings.max_stream_bytes, settings.max_stream, 10_000, settings.max_outbox_bytes)
        # Before the first measurement the requests wait for Redis in any case.
        self._most = [settings.max_stream for _ in stores]
        self._rooms = list(self._most)  # How many entries may be written until the next measurement.

    @property
    def room(self) -> int:
        """How many entries the emptiest stream has room for."""
        return max(self._rooms)

    def run_once(self) -> None:
        """Measure, and wait."""
        failure: StoreError | None = None
        for store in self._stores:
            try:
                self._measure(store)
            except StoreError as error:
                # The other partitions have room or not.
                failure = error
        if failure is not None:
            raise failure
        self.pause(1.0)

    def take(self, entries: Sequence[Entry]) -> None:
        """Count entries that are to be written; raises ``RefusedError`` if there is no room now, or never can be."""
        counts = Counter(entry.place % len(self._rooms) for entry in entries)
        for number, count in counts.items():
            if count > self._most[number]:
                message = f"the stream of traces holds {self._most[number]:,} at most; send fewer items at once"
                raise RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large", message)
            if count > self._rooms[number]:
                raise stream_full()
        for number, count in counts.items():
            self._rooms[number] -= count

    def _measure(self, store: Store) -> None:
        # The cap that a worker has set applies to all who write.
        cap = store.call(lambda client: client.hget(store.keys.caps, "max_stream"))
        entries = int(cap) if cap and cap.isdigit() else self._caps.max_entries
        backlog = measure(store, self._caps._replace(max_entries=min(entries, self._caps.max_entries)))
        self._most[store.partition] = int(0.95 * backlog.capacity)
        room = self._most[store.partition] - backlog.traces.lag
        if room <= 0 < self._rooms[store.partition]:
            log.warning("intake paused", why="the stream is at its cap and its entries are not read")
        self._rooms[store.partition] = room


class _Waiting(NamedTuple):
    entries: Sequence[Entry]
    size_bytes: int
    future: "Future[None]"


class Publisher(ServiceThread):
    """The thread that writes. Entries wait in memory only until their request is answered."""

    role = "publish"

    def __init__(self, settings: SdkSettings, capacity: Capacity, metrics: GatewayMetrics) -> None:
        super().__init__("gateway-publisher")
        self._capacity, self._address = capacity, str(settings.redis_url)
        self._stream = RedisStream(settings, fresh_id())
        self._metrics = metrics
        self._queue: queue.SimpleQueue[_Waiting] = queue.SimpleQueue()
        self._next: _Waiting | None = None
        self._batch: Batch | None = None
        self._taken: list[_Waiting] = []
        self._number = 0
        self._lock = threading.Lock()
        self._waiting_bytes = 0

    @property
    def room(self) -> int:
        """How many entries the emptiest stream has room for."""
        return self._capacity.room

    def check(self) -> None:
        """Check that at least one stream has room now, or raise ``RefusedError``."""
        if self.room <= 0:
            raise stream_full()

    def submit(self, entries: Sequence[Entry]) -> "Future[None]":
        """Queue entries; the future ends when Redis has all of them. ``RefusedError`` if there is no room."""
        waiting = _Waiting(entries, sum(len(entry.payload) for entry in entries), Future())
        if not entries:
            waiting.future.set_result(None)
            return waiting.future
        with self._lock:
            if self._waiting_bytes > 64 * MIB:
                raise full("Redis does not keep up; send this again later")
            self._capacity.take(entries)
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
        except RedisFullError as error:
            # The script has changed nothing, so the batch may be given up.
            self._end(full("Redis is full; send this again later"))
            raise StoreFullError(self._address) from error
        except DeliveryError as error:
            kind = str(error).partition(":")[0]
            # In the words of the store, so that one outage is one line of the log.
            text = f"Redis does not answer ({kind})" if kind in {"ConnectionError", "TimeoutError"} else str(error)
            raise StoreError(text, self._address) from error
        self._metrics.published.inc(len(self._batch.entries))
        self._end(None)

    def _take(self) -> bool:
        """Move what waits into a batch, up to its bounds; one caller's entries are never divided."""
        size = count = 0
        while count < _MAX_ENTRIES and size < _MAX_BYTES:
            waiting = self._next
            try:
                if waiting is None:
                    waiting = self._queue.get_nowait() if count else self._queue.get(timeout=0.5)
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

    def _end(self, error: RefusedError | None) -> None:
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


def stream_full() -> RefusedError:
    """Return the refusal of what a stream has no room for."""
    return full("the stream of traces is full; send this again later", 5.0)
