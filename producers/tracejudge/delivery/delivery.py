"""One producer's delivery: builds buffer, sender and thread, and starts, flushes and stops them in order."""

import os
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tracejudge.delivery.buffer import Buffer, Flushes
from tracejudge.delivery.fork import (
    NativeThread,
    Wakeup,
    block_forks_during_import,
    reentrant_lock,
    reset_in_children,
    run_at_child_exit,
    unpatched,
)
from tracejudge.delivery.sender import Backoff, BatchBuilder, Reporter, Sender
from tracejudge.ids import fresh_id, reseed
from tracejudge.log import logger, report_internal_error
from tracejudge.settings import Settings

if TYPE_CHECKING:
    from tracejudge.delivery.encoding import ItemEncoder
    from tracejudge.delivery.transport import RedisStream

_DELIVERY_SHARE = 0.8  # of the time of `shutdown`; the rest is for the last report


class Delivery:
    """One producer: its id, buffer and thread, which starts with the first entry; a forked child gets another one."""

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        # redis needs this module, and it cannot be loaded once the interpreter has begun to end, which is when the
        # thread of a script with one publication imports redis. Not at the top: it takes `import tracejudge` 5 ms.
        import concurrent.futures.thread  # noqa: F401, PLC0415

        self._settings = settings
        self._clock = clock
        self._set_up()
        reset_in_children(self)

    def _set_up(self) -> None:
        settings, clock = self._settings, self._clock
        self._pid = os.getpid()
        self.producer = fresh_id()
        self._flushes = Flushes()
        self._reporter = Reporter(
            producer=self.producer, service=settings.service, now_s=clock(), is_cluster=settings.redis_url.is_cluster
        )
        self._wakeup = Wakeup()
        self._thread: NativeThread | None = None
        self._starting = reentrant_lock()
        self._over = False
        self.buffer = Buffer(
            max_items=settings.max_items, max_bytes=settings.max_bytes, wake=self._wake, drop=settings.drop
        )
        builder = BatchBuilder(
            buffer=self.buffer,
            load_encoder=partial(_load_encoder, settings),
            sleep=unpatched("time", "sleep"),
            clock=clock,
        )
        self._builder = builder
        self.reports = builder.reports
        self._sender = Sender(
            buffer=self.buffer,
            flushes=self._flushes,
            reporter=self._reporter,
            builder=builder,
            open_stream=partial(_open_stream, settings, self.producer),
            address=str(settings.redis_url),
            clock=clock,
            wakeup=self._wakeup,
            backoff=Backoff(),
        )

    def reset_after_fork(self) -> None:
        """Set up everything again in a forked child, which has copies of the parent's items, locks and id."""
        reseed()
        closed = self.buffer.closed
        self._set_up()
        if closed:
            self.buffer.close()

    def continue_reports(self, former: "Delivery") -> None:
        """Go on with the reports of another delivery of this process: a warning is logged once, whoever delivers."""
        self.reports = self._builder.reports = former.reports

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything accepted so far is confirmed and the totals are reported; False on timeout.

        Entries that are dropped as invalid, as too large or for newer ones are counted and not waited for.
        """
        self._check_process()
        target = self.buffer.accepted
        unsettled = self.buffer.settled < target
        if not self._over and (unsettled or self._reporter.needs_report(self.buffer.totals())):
            ticket = self._flushes.request(target)
            self._wake()
            self._flushes.wait(ticket, timeout_s)
        return self.buffer.settled >= target

    def shutdown(self, timeout_s: float) -> None:
        """Stop in order, within about the timeout in seconds; a second call does nothing."""
        deadline_s = self._clock() + timeout_s
        self._check_process()
        if not self.buffer.close():
            return
        # Deliver; entries that cannot make it are dropped while there is time to report them.
        if not self.flush(timeout_s * _DELIVERY_SHARE):
            self.buffer.abandon_queued()
            self.flush(deadline_s - self._clock())
        self._over = True
        self._sender.end()
        if self._thread is not None:
            # It may hang in a socket and is then left to the socket's timeout.
            self._thread.join(max(deadline_s - self._clock(), 0.0))
        # The counts are frozen last: confirmations of the thread count up to here.
        self.reports.summarize(at_end=True)
        abandoned = self.buffer.abandon_all()
        if abandoned:
            logger.warning("%d entries for Redis at %s abandoned", abandoned, self._settings.redis_url)

    def _check_process(self) -> None:
        # A fork in C bypasses the hook of `os.fork`. Not checked in `publish`, a tenth of whose time it would take.
        if self._pid != os.getpid():
            self.reset_after_fork()

    def _wake(self) -> None:
        self._check_process()
        if self._thread is None:
            self._start_thread()
        self._wakeup.open()

    def _start_thread(self) -> None:
        with self._starting:
            if self._thread is not None:
                return
            thread = NativeThread(self._sender.run, name="tracejudge")
            self._thread = thread  # before the start: a signal handler that publishes must not start a second one
            try:
                thread.start()
            except Exception as error:  # noqa: BLE001 - runs inside `publish`
                # The system has no more threads, or (from Python 3.12 on) the interpreter ends. The next entry tries
                # again.
                self._thread = None
                self.buffer.wake_on_next_item()
                report_internal_error(error)
                return
            try:
                run_at_child_exit(lambda: self.shutdown(self._settings.exit_timeout_s))
            except Exception as error:  # noqa: BLE001 - the thread runs: a second one would send its items again
                report_internal_error(error)


def _load_encoder(settings: Settings) -> "ItemEncoder":
    # In the sender thread, because the patterns of the redaction take 10 ms to compile.
    with block_forks_during_import():
        from tracejudge.delivery.encoding import ItemEncoder  # noqa: PLC0415

        return ItemEncoder(settings)


def _open_stream(settings: Settings, producer: str) -> "RedisStream":
    # In the sender thread, because redis takes over 100 ms to import, some of it at the first use.
    with block_forks_during_import():
        from tracejudge.delivery.transport import RedisStream  # noqa: PLC0415

        return RedisStream(settings, producer)
