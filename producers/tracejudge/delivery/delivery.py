"""One producer's delivery: builds buffer, sender and thread, and starts, flushes and stops them in order.

With several shards there is a delivery for each, with its share of the bounds, so that a server that is away delays and
costs only its own traces.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from tracejudge.content.field_names import field_of
from tracejudge.delivery.buffer import Buffer, Flushes, Kind, Totals
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
from tracejudge.ids import MAX_ID_CHARS, MAX_NAME_CHARS, fresh_id, reseed, trace_id_text
from tracejudge.log import logger, report_internal_error
from tracejudge.settings import Settings
from tracejudge.sharding import shard_of

if TYPE_CHECKING:
    from tracejudge.delivery.encoding import ItemEncoder
    from tracejudge.delivery.transport import RedisStream

_DELIVERY_SHARE = 0.8  # of the time of `shutdown`; the rest is for the last report


class _FlushRequest(NamedTuple):
    """The position up to which entries are to be confirmed, and the ticket of the flush; None if none is needed."""

    target: int
    ticket: int | None


class Delivery:
    """One producer: its id, buffer and thread, which starts with the first entry.

    A forked child gets a delivery of its own. Entries held at the fork belong to the parent, which sends them.
    """

    def __init__(
        self, settings: Settings, *, shutdown_all: Callable[[float], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        # redis needs this module, and it cannot be loaded once the interpreter has begun to end, which is when the
        # thread of a script with one publication imports redis. Not at the top: it takes `import tracejudge` 5 ms.
        import concurrent.futures.thread  # noqa: F401, PLC0415

        self._settings = settings
        self._shutdown_all = shutdown_all
        self._clock = clock
        self._set_up()
        reset_in_children(self)

    def _set_up(self) -> None:
        settings, clock = self._settings, self._clock
        self._pid = os.getpid()
        self.producer = fresh_id()
        self._flushes = Flushes()
        self._reporter = Reporter(producer=self.producer, service=settings.service, now_s=clock())
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

    def request_flush(self) -> _FlushRequest:
        """Ask for everything accepted so far, and a report of the totals, to be sent now."""
        self._check_process()
        target = self.buffer.accepted
        unsettled = self.buffer.settled < target
        if self._over or not (unsettled or self._reporter.needs_report(self.buffer.totals())):
            return _FlushRequest(target, None)
        ticket = self._flushes.request(target)
        self._wake()
        return _FlushRequest(target, ticket)

    def wait_flushed(self, request: _FlushRequest, timeout_s: float) -> bool:
        """Wait for a flush; return whether Redis confirmed the entries.

        Those dropped as invalid, as too large or for newer ones are counted and not waited for.
        """
        if request.ticket is not None:
            self._flushes.wait(request.ticket, timeout_s)
        return self.buffer.settled >= request.target

    def close(self) -> bool:
        """Refuse new entries, so that the rest is finite; False if they were refused before."""
        self._check_process()
        return self.buffer.close()

    def end(self) -> None:
        """Ask the thread to end after its current attempt."""
        self._over = True
        self._sender.end()

    def join(self, deadline_s: float) -> None:
        """Wait for the end of the thread, and drop what is left."""
        thread = self._thread
        if thread is not None:
            # It may hang in a socket and is then left to the socket's timeout.
            thread.join(max(deadline_s - self._clock(), 0.0))
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
                run_at_child_exit(lambda: self._shutdown_all(self._settings.exit_timeout_s))
            except Exception as error:  # noqa: BLE001 - the thread runs: a second one would send its items again
                report_internal_error(error)


class Deliveries:
    """The deliveries of one client: one for each Redis server, ``first`` for the only one or the first shard."""

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        each = [settings]
        if settings.shards:
            # Each shard has its share of the bounds.
            shares = {
                name: max(1, getattr(settings, name) // len(settings.shards)) for name in ("max_items", "max_bytes")
            }
            each = [replace(settings, redis_url=url, **shares) for url in settings.shards]
        self._each = tuple(Delivery(settings, shutdown_all=self.shutdown, clock=clock) for settings in each)
        self.first = self._each[0]
        self.is_single = len(self._each) == 1
        for delivery in self._each[1:]:
            delivery.continue_reports(self.first)

    def of(self, trace_id: str, fields: Mapping[str, Any]) -> Delivery:
        """Return the delivery to the shard of a trace, or of feedback."""
        return self._each[shard_of(trace_id, session_of(fields), len(self._each))]

    def continue_reports(self, former: "Deliveries") -> None:
        """Go on with the reports of another client of this process."""
        for delivery in self._each:
            delivery.continue_reports(former.first)

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything accepted so far is confirmed and the totals are reported; False on timeout."""
        return all(self._flushed(self._each, timeout_s))

    def shutdown(self, timeout_s: float) -> None:
        """Stop in order, within about the timeout in seconds; a second call does nothing."""
        deadline_s = self._clock() + timeout_s
        open_now = [delivery for delivery in self._each if delivery.close()]
        # Deliver; entries that cannot make it are dropped while there is time to report them.
        flushed = self._flushed(open_now, timeout_s * _DELIVERY_SHARE)
        late = [delivery for delivery, is_flushed in zip(open_now, flushed, strict=True) if not is_flushed]
        for delivery in late:
            delivery.buffer.abandon_queued()
        self._flushed(late, deadline_s - self._clock())
        for delivery in open_now:
            delivery.end()
        for delivery in open_now:
            delivery.join(deadline_s)

    def totals(self, kind: Kind) -> Totals:
        """Return the counts of a kind of entry, for all shards together."""
        every = [delivery.buffer.totals(kind) for delivery in self._each]
        dropped: dict[str, int] = {}
        for totals in every:
            for reason, count in totals.dropped.items():
                dropped[reason] = dropped.get(reason, 0) + count
        return Totals(sum(total.published for total in every), sum(total.accepted for total in every), dropped)

    def _flushed(self, deliveries: Sequence[Delivery], timeout_s: float) -> list[bool]:
        """Flush deliveries at the same time; return for each whether it was confirmed."""
        deadline_s = self._clock() + timeout_s
        requests = [delivery.request_flush() for delivery in deliveries]
        return [
            delivery.wait_flushed(request, deadline_s - self._clock())
            for delivery, request in zip(deliveries, requests, strict=True)
        ]


def session_of(fields: Mapping[str, Any]) -> str | None:
    """Return the session id of a publication as it will be sent; None without one."""
    session_id = fields.get("session_id")
    if session_id is None:
        session_id = next(
            (fields[name] for name in fields if type(name) is str and field_of(name) == "session_id"), None
        )
    if session_id is None or (type(session_id) is str and len(session_id) <= MAX_ID_CHARS):
        return session_id
    return trace_id_text(session_id, MAX_NAME_CHARS)


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
