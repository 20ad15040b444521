"""The way of entries from the calling threads to Redis, and the thread that carries them."""

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from tracejudge.backoff import Backoff
from tracejudge.buffer import Buffer
from tracejudge.complaints import Complaints, logger
from tracejudge.ending import at_end_of_child
from tracejudge.entries import Entry, Item, Kind
from tracejudge.flushes import Flushes
from tracejudge.forking import renewed_in_children, unforked_import
from tracejudge.gathering import Gathering
from tracejudge.ids import fresh_id, reseed
from tracejudge.native import NativeThread, original, reentrant_lock
from tracejudge.reports import Reporter
from tracejudge.sender import Sender, Stream
from tracejudge.settings import Settings
from tracejudge.swallowing import swallow
from tracejudge.tally import Reason, Totals
from tracejudge.wakeup import Wakeup

if TYPE_CHECKING:
    from tracejudge.encoding import Encoding

_DELIVERY_SHARE = 0.8  # of the time of `shutdown`; the rest is for the last report


class Delivery:
    """One producer: its id, buffer, books and thread. The thread starts with the first entry.

    A forked child has a delivery of its own: what waited at the fork is its parent's, and is sent by it.
    """

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        # Only so that it is loaded: redis needs it, and it refuses to load once the interpreter has begun to end,
        # which is when the thread of a script of one publication comes to importing redis.
        import concurrent.futures.thread  # noqa: F401, PLC0415 - 5 ms, which `import tracejudge` need not take

        self._settings = settings
        self._clock = clock
        self._begin()
        renewed_in_children(self)

    def _begin(self) -> None:
        settings, clock = self._settings, self._clock
        self._pid = os.getpid()
        self.producer = fresh_id()
        self._flushes = Flushes()
        self._reporter = Reporter(producer=self.producer, service=settings.service, now_s=clock())
        self._wakeup = Wakeup()
        self._misuse = Complaints(clock)
        self._thread: NativeThread | None = None
        self._encoding: Encoding | None = None
        self._starting = reentrant_lock()
        self._over = False
        self.buffer = Buffer(
            max_items=settings.max_items, max_bytes=settings.max_bytes, wake=self._rouse, drop=settings.drop
        )
        self._sender = Sender(
            buffer=self.buffer,
            flushes=self._flushes,
            reporter=self._reporter,
            gathering=Gathering(buffer=self.buffer, encode=self._encode, sleep=original("time", "sleep")),
            open_stream=self._open_stream,
            address=str(settings.redis_url),
            clock=clock,
            wakeup=self._wakeup,
            backoff=Backoff(),
        )

    def renew(self) -> None:
        """Begin anew in a forked child, with nothing of the parent's: it has the same items, locks and number."""
        reseed()
        closed = self.buffer.closed
        self._begin()
        if closed:
            self.buffer.close()

    def totals(self, kind: Kind = Kind.TRACE) -> Totals:
        """Copy the books of a kind."""
        return self.buffer.totals(kind)

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything accepted so far is confirmed and the totals are reported.

        Returns:
            Whether Redis confirmed the entries. Those that turned out invalid or too large, or had to make room,
            are counted drops and not waited for.
        """
        self._ensure_own()
        target = self.buffer.accepted
        if not self._over and self._has_work():
            ticket = self._flushes.ask(target)
            self._rouse()
            self._flushes.wait(ticket, timeout_s)
        return self.buffer.settled >= target

    def shutdown(self, timeout_s: float) -> None:
        """Stop in order, within about the timeout in seconds; a second call does nothing."""
        self._ensure_own()
        deadline_s = self._clock() + timeout_s
        # 1. Take nothing more, so that there is an end to what has to be delivered.
        if not self.buffer.close():
            return
        # 2. Deliver; what cannot be in time is given up while there is time to report that.
        if not self.flush(timeout_s * _DELIVERY_SHARE):
            self.buffer.abandon_queued()
            self.flush(deadline_s - self._clock())
        self._over = True
        # 3. End the thread, which may hang in a socket and is then left to the socket's timeout.
        self._sender.end()
        thread = self._thread
        if thread is not None:
            thread.join(max(deadline_s - self._clock(), 0.0))
        # 4. Close the books last: what the thread confirmed up to here counts.
        abandoned = self.buffer.abandon_all()
        if abandoned:
            logger.warning("%d entries for Redis at %s abandoned", abandoned, self._settings.redis_url)

    def _ensure_own(self) -> None:
        """Begin anew where a fork in C went past the hook. Not at every `publish`: asking costs a tenth of it."""
        if self._pid != os.getpid():
            self.renew()

    def _has_work(self) -> bool:
        unsettled = self.buffer.settled < self.buffer.accepted
        return unsettled or self._reporter.changed(self.buffer.totals())

    def _rouse(self) -> None:
        """Wake the thread; start it when there is none."""
        self._ensure_own()
        if self._thread is None:
            self._start()
        self._wakeup.open()

    def _start(self) -> None:
        with self._starting:
            if self._thread is not None:
                return
            thread = NativeThread(self._sender.run, name="tracejudge")
            self._thread = thread  # before the start: a signal handler that publishes must not start a second
            try:
                thread.start()
            except Exception as error:  # noqa: BLE001 - `publish` is above
                # No thread to be had, now or (from Python 3.12 on) while the interpreter ends. The next entry
                # tries again.
                self._thread = None
                self.buffer.ask_again()
                swallow(error)
                return
            try:
                at_end_of_child(self._end)
            except Exception as error:  # noqa: BLE001 - the thread runs: a second one would send what it sends
                swallow(error)

    def _end(self) -> None:
        self.shutdown(self._settings.exit_timeout_s)

    def _encode(self, item: Item) -> Entry | Reason:
        # Here and in the thread, because the patterns of the redaction take 10 ms to compile.
        if self._encoding is None:
            with unforked_import():
                from tracejudge.encoding import Encoding  # noqa: PLC0415

                self._encoding = Encoding(self._settings)
        outcome = self._encoding.encode(item)
        if isinstance(outcome, Reason):
            what = "A trace" if item.kind is Kind.TRACE else "Feedback"
            self._misuse.warn("%s is dropped: %s (%s)", what, outcome.value, self._encoding.cause)
        return outcome

    def _open_stream(self) -> Stream:
        # Here and in the thread, because redis takes over 100 ms to import, a part of it when it is first used.
        with unforked_import():
            from tracejudge.redis_stream import RedisStream  # noqa: PLC0415

            return RedisStream(self._settings, self.producer)
