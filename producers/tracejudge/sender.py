"""What the background thread does: takes items, encodes them, sends numbered batches until each is confirmed.

Whatever Redis answers but a confirmation, an error of connection, memory, permission or key type, the batch
stays and is tried again: none is ever thrown away because of an answer. Batches after it wait in the buffer,
whose caps turn a lasting trouble into counted drops; `shutdown` counts what is left.
"""

from collections.abc import Callable
from typing import Protocol

from tracejudge.backoff import Backoff
from tracejudge.buffer import Buffer
from tracejudge.complaints import Complaints, logger
from tracejudge.entries import Batch, Entry
from tracejudge.errors import DeliveryError
from tracejudge.flushes import Flushes
from tracejudge.gathering import MAX_BATCH_ITEMS, Gathering
from tracejudge.reports import REPORT_INTERVAL_S, Reporter, encode_report
from tracejudge.swallowing import swallow
from tracejudge.wakeup import Wakeup

LINGER_S = 0.02
"""Pause after a batch that was not full, and the longest a later entry waits for its own: whoever publishes
meanwhile need not wake the thread, unless the next batch is full."""


class Stream(Protocol):
    """Where batches go."""

    def append(self, batch: Batch, meanwhile: Callable[[], None]) -> None:
        """Append a batch once, or raise DeliveryError; do something else while the answer is on its way."""

    def disconnect(self) -> None:
        """Give back what the connection holds; a later append connects again."""


class Sender:
    """Sends what the buffer holds, one batch at a time and in order. One thread runs it."""

    def __init__(
        self,
        *,
        buffer: Buffer,
        flushes: Flushes,
        reporter: Reporter,
        gathering: Gathering,
        open_stream: Callable[[], Stream],
        address: str,
        clock: Callable[[], float],
        wakeup: Wakeup,
        backoff: Backoff,
    ) -> None:
        self._buffer = buffer
        self._flushes = flushes
        self._reporter = reporter
        self._next = gathering
        self._open_stream = open_stream
        self._address = address
        self._clock = clock
        self._wakeup = wakeup
        self._backoff = backoff
        self._trouble = Complaints(clock)
        self._drops = Complaints(clock)
        self._stream: Stream | None = None
        self._unconfirmed: Batch | None = None
        self._number = 0
        self._in_trouble = False
        self._ended = False

    def run(self) -> None:
        """Send until told to end."""
        while not self._ended:
            try:
                self.step()
            except BaseException as error:  # noqa: BLE001 - no fault, and no exit in the host's code, ends the delivery
                swallow(error)
                self._complain(type(error).__name__)
                self._hold_back()
        if self._stream is not None:
            self._stream.disconnect()

    def end(self) -> None:
        """Let `run` return after the attempt it is in; any thread may call it."""
        self._ended = True
        self._wakeup.open()

    def step(self) -> None:
        """Send one batch, an unconfirmed one before any other; rest when there is nothing to send."""
        batch = self._unconfirmed or self._form()
        if batch is None:
            self._rest()
        elif self._deliver(batch):
            self._confirm(batch)
            self._linger()
        else:
            self._hold_back()

    def _form(self) -> Batch | None:
        """Make the next batch of what waits, with a report if one is due; None when there is nothing."""
        flush = self._flushes.latest  # read before taking: what it asks for is then here or taken already
        self._next.fill()
        # Of this flush, not of one that was asked for since: what that one waits for may not be here yet.
        completes = flush.ticket > self._flushes.answered and self._buffer.taken >= flush.target
        report = self._report(at_once=completes)
        batch = self._next.close(number=self._number + 1, report=report, flush_ticket=flush.ticket if completes else 0)
        if not batch.entries:  # nothing to ask Redis for: settled as it is
            self._confirm(batch)
            return None
        self._number = batch.number
        self._unconfirmed = batch
        if report is None:
            self._reporter.bury()
        return batch

    def _report(self, *, at_once: bool) -> Entry | None:
        totals = self._buffer.totals()
        report = self._reporter.compose(totals, self._clock(), at_once=at_once)
        if report is None:
            return None
        if report.dropped:
            counts = ", ".join(f"{reason} {count}" for reason, count in report.dropped.items())
            self._drops.warn("Traces dropped since the start, by reason: %s", counts)
        return encode_report(report)

    def _deliver(self, batch: Batch) -> bool:
        try:
            if self._stream is None:
                self._stream = self._open_stream()
            self._stream.append(batch, self._next.fill_ahead)
        except DeliveryError as error:
            self._complain(str(error))
            return False
        except Exception as error:  # noqa: BLE001 - not even a fault of ours or of the driver's loses a batch
            swallow(error)
            self._complain(type(error).__name__)
            return False
        return True

    def _confirm(self, batch: Batch) -> None:
        self._unconfirmed = None
        self._buffer.settle(batch)
        self._flushes.answer(batch.flush_ticket)
        self._backoff.reset()
        if self._in_trouble and batch.entries:
            self._in_trouble = False
            logger.info("Redis at %s takes traces again", self._address)

    def _complain(self, trouble: str) -> None:
        self._in_trouble = True
        waiting = self._buffer.accepted - self._buffer.settled
        self._trouble.warn("Redis at %s takes no traces (%s); %d wait", self._address, trouble, waiting)

    def _linger(self) -> None:
        if not self._flushes.waiting and self._next.empty and self._buffer.wake_after(MAX_BATCH_ITEMS):
            self._wakeup.wait(LINGER_S)

    def _rest(self) -> None:
        # Woken by the next item, by a flush or the end, and by the next report, for drops wake nobody.
        if not self._flushes.waiting and self._buffer.wake_after(1):
            self._wakeup.wait(REPORT_INTERVAL_S)

    def _hold_back(self) -> None:
        # A flush or the end opens the latch: they have little time, so the delays begin short again.
        if self._wakeup.wait(self._backoff.next_delay_s()):
            self._backoff.reset()
