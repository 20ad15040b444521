"""The way of entries from the calling threads to Redis, and the thread that carries them."""

# Only so that it is loaded: redis needs it, and it refuses to load once the interpreter has begun to end, which
# is when the thread of a script of one publication comes to importing redis.
import concurrent.futures.thread  # noqa: F401
import threading
import time
from collections.abc import Callable

from tracejudge.backoff import Backoff
from tracejudge.buffer import Buffer
from tracejudge.complaints import logger
from tracejudge.content import Content
from tracejudge.entries import Item, Kind
from tracejudge.flushes import Flushes
from tracejudge.ids import fresh_id
from tracejudge.reports import Reporter
from tracejudge.sender import Sender, Stream
from tracejudge.settings import Settings
from tracejudge.swallowing import swallow
from tracejudge.tally import Reason, Totals
from tracejudge.wakeup import Wakeup

_DELIVERY_SHARE = 0.8  # of the time of `shutdown`; the rest is for the last report


class Delivery:
    """One producer: its id, buffer, books and thread. The thread starts with the first entry."""

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.producer = fresh_id()
        self._settings = settings
        self._clock = clock
        self._buffer = Buffer(max_items=settings.max_items, max_bytes=settings.max_bytes, wake=self._rouse)
        self._flushes = Flushes()
        self._reporter = Reporter(producer=self.producer, service=settings.service, now_s=clock())
        self._wakeup = Wakeup()
        self._sender = Sender(
            buffer=self._buffer,
            flushes=self._flushes,
            reporter=self._reporter,
            content=Content(settings),
            open_stream=self._open_stream,
            address=str(settings.redis_url),
            clock=clock,
            wakeup=self._wakeup,
            backoff=Backoff(),
        )
        self._thread: threading.Thread | None = None
        self._starting = threading.RLock()
        self._over = False

    def put(self, item: Item) -> None:
        """Take an item over, or count why not. Never blocks."""
        self._buffer.put(item)

    def refuse(self, kind: Kind, reason: Reason) -> None:
        """Count a publication that cannot become an item."""
        self._buffer.refuse(kind, reason)

    def totals(self, kind: Kind = Kind.TRACE) -> Totals:
        """Copy the books of a kind."""
        return self._buffer.totals(kind)

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything accepted so far is confirmed and the totals are reported.

        Returns:
            Whether Redis confirmed the entries. Those that turned out invalid or too large, which are counted
            drops, are not waited for.
        """
        target = self._buffer.accepted
        if not self._over and self._has_work():
            ticket = self._flushes.ask(target)
            self._rouse()
            self._flushes.wait(ticket, timeout_s)
        return self._buffer.settled >= target

    def shutdown(self, timeout_s: float) -> None:
        """Stop in order, within about the timeout in seconds; a second call does nothing."""
        deadline_s = self._clock() + timeout_s
        # 1. Take nothing more, so that there is an end to what has to be delivered.
        if not self._buffer.close():
            return
        # 2. Deliver; what cannot be in time is given up while there is time to report that.
        if not self.flush(timeout_s * _DELIVERY_SHARE):
            self._buffer.abandon_queued()
            self.flush(deadline_s - self._clock())
        self._over = True
        # 3. End the thread, which may hang in a socket and is then left to the socket's timeout.
        self._sender.end()
        thread = self._thread
        if thread is not None:
            thread.join(max(deadline_s - self._clock(), 0.0))
        # 4. Close the books last: what the thread confirmed up to here counts.
        abandoned = self._buffer.abandon_all()
        if abandoned:
            logger.warning("%d entries for Redis at %s abandoned", abandoned, self._settings.redis_url)

    def _has_work(self) -> bool:
        unsettled = self._buffer.settled < self._buffer.accepted
        return unsettled or self._reporter.changed(self._buffer.totals())

    def _rouse(self) -> None:
        """Wake the thread; start it when there is none."""
        if self._thread is None:
            self._start()
        self._wakeup.open()

    def _start(self) -> None:
        with self._starting:
            if self._thread is not None:
                return
            thread = threading.Thread(target=self._sender.run, name="tracejudge", daemon=True)
            self._thread = thread  # before the start: a signal handler that publishes must not start a second
            try:
                thread.start()
            except RuntimeError as error:
                # No thread to be had, now or (from Python 3.12 on) while the interpreter ends. The next entry
                # tries again.
                self._thread = None
                self._buffer.ask_again()
                swallow(error)

    def _open_stream(self) -> Stream:
        # Here and in the thread, because redis takes over 100 ms to import.
        from tracejudge.redis_stream import RedisStream  # noqa: PLC0415

        return RedisStream(self._settings, self.producer)
