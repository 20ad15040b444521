"""The sender thread: takes items, encodes them, and sends numbered batches until each is confirmed.

A batch stays until Redis confirms it and is sent again after every error, be it of connection, memory, permission or
key type. Later items wait in the buffer, whose caps turn a lasting outage into counted drops; `shutdown` counts the
rest.
"""

import logging
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import TYPE_CHECKING, Final

from msgspec.json import encode

from tracejudge.content.field_names import closest_field
from tracejudge.delivery.buffer import Batch, Buffer, Entry, Flushes, Item, Kind, Totals
from tracejudge.delivery.fork import Wakeup
from tracejudge.dialects.documents import TEXTS
from tracejudge.ids import place_of
from tracejudge.log import DeliveryError, Once, class_name, log_guarded, report_internal_error
from tracejudge.model import ProducerReport

if TYPE_CHECKING:
    from tracejudge.content.convert import Note

MAX_WARNINGS: Final = 20
SUMMARY_INTERVAL_S: Final = 3600.0
_SITES: Final = 200
_MAX_PAIRS: Final = 1_000
_MAX_SUMMARY: Final = 50
_MAX_NAME_CHARS: Final = 64
# A name of another form may be a text, because a service may pass any dict.
_NAME: Final = re.compile(rf"argument \d+|[^\W\d][\w.$@-]{{0,{_MAX_NAME_CHARS}}}")
_PACKAGE: Final = __file__.rpartition("delivery")[0]
_FAULTS: Final = {
    "unreadable": "cannot be read from a value of type {kind} and is left out{expected}",
    "no_text": "has an item of type {kind} without a text, which is left out; a text is read from {texts}",
    "unknown_name": "is no field and is sent as a tag",
    "too_many": "has too many names; the last {times:,} are left out",
    "second_name": "is another name of {hint}, which was given too; it is sent as a tag",
    "too_long": "is too long and is cut, with a hash at its end",
    "missing": "is missing: pass the answer as output, or the failure of the call as error",
}
_TIME: Final = "a number of seconds, a datetime or a text in ISO 8601"
_EXPECTED: Final = {
    "started_at": _TIME,
    "ended_at": _TIME,
    "input_tokens": "a number, 0 or more",
    "output_tokens": "a number, 0 or more",
    "usage": "input_tokens and output_tokens, both numbers",
    "feedback": "a number from -1 to 1",
    "tool_calls": "a list of calls, each with a name",
    "tools": "a list of tools, each with a name",
    "expected_tools": "a list of calls, each with a name",
    "spans": "a list of spans, each with a name",
    "messages": "a list of messages, each with a role and a content",
    "tags": "a dict of texts",
    "trace_id": "a non-empty string",
}
"""What a field is read from, for the warning that it could not be read; of other fields a text."""
_FIXES: Final = {
    "feedback.score": "scale a rating, as (stars - 3) / 2 for 1 to 5, or pass True or False for a thumb",
    "feedback.trace_id": "pass what publish returned",
}
_OF_TEXT: Final = "a text, a dict, a list, a model, or an object with public attributes"
if TYPE_CHECKING:
    from tracejudge.delivery.encoding import ItemEncoder
    from tracejudge.delivery.transport import RedisStream

MAX_BATCH_ITEMS = 500
MAX_BATCH_BYTES = 2 * 1024 * 1024
_AHEAD_ITEMS = 100  # fewer wait until the batch before is confirmed, and others may join them
REPORT_INTERVAL_S = 10.0
HEARTBEAT_S = 3600.0  # Interval of reports without a change: workers forget a producer after two silent days.


class BatchBuilder:
    """Builds the next batch. Used by the sender thread only."""

    def __init__(
        self,
        *,
        buffer: Buffer,
        load_encoder: "Callable[[], ItemEncoder]",
        sleep: Callable[[float], None],
        clock: Callable[[], float],
    ) -> None:
        self.reports = Reports(clock)
        self._buffer = buffer
        self._load_encoder = load_encoder
        self._encoder: ItemEncoder | None = None
        self._sleep = sleep
        self._seen = 0
        self._clear()

    @property
    def entries(self) -> Sequence[Entry]:
        """The entries so far."""
        return self._entries

    @property
    def empty(self) -> bool:
        """Whether no item has been taken yet."""
        return not self._items

    def fill(self) -> None:
        """Move queued items into the batch and encode them, until it is full."""
        while self._items < MAX_BATCH_ITEMS and self._size_bytes < MAX_BATCH_BYTES:
            piece = min(16, MAX_BATCH_ITEMS - self._items)  # 16 traces of 4 kB take about 0.1 ms
            items = self._buffer.take(max_items=piece, max_bytes=MAX_BATCH_BYTES - self._size_bytes)
            for item in items:
                self._items += 1
                self._size_bytes += item.size_bytes
                self._encode(item)
            if len(items) < piece:
                return
            # Let publishing threads run, which would wait 5 ms for the interpreter. Not while the buffer is more
            # than half full: then fast delivery helps the host more.
            accepted = self._buffer.accepted
            if accepted != self._seen and self._buffer.is_half_empty:
                self._sleep(0.000_05)
            self._seen = accepted

    def fill_ahead(self) -> None:
        """Fill the next batch while Redis works on the last one, if many items are queued."""
        if self.empty and self._buffer.queued >= _AHEAD_ITEMS:
            self.fill()

    def build(self, *, number: int, report: Entry | None, flush_ticket: int) -> Batch:
        """Return the batch and start the next one."""
        if report is not None:
            self._entries.append(report)
        batch = Batch(
            number=number,
            entries=tuple(self._entries),
            items=self._items,
            size_bytes=self._size_bytes,
            settles_through=self._buffer.settles_through,
            flush_ticket=flush_ticket,
        )
        self._clear()
        return batch

    def _clear(self) -> None:
        self._entries: list[Entry] = []
        self._items = 0
        self._size_bytes = 0

    def _encode(self, item: Item) -> None:
        encoder = self._encoder
        if encoder is None:
            encoder = self._encoder = self._load_encoder()
        outcome = encoder.encode(item)
        if encoder.notes:
            self.reports.add(encoder.notes, item.trace_id, item.site)
        if isinstance(outcome, Entry):
            self._entries.append(outcome)
        else:
            self._buffer.drop(item.kind, outcome)


class Backoff:
    """Exponential backoff with full jitter, so that producers do not reconnect at the same moment."""

    def __init__(self, draw: Callable[[float, float], float] | None = None) -> None:
        self._draw = draw or Random().uniform  # noqa: S311 - spreads load, keeps no secret
        self._failures = 0

    def next_delay_s(self) -> float:
        """Draw the next delay, between 0 and a bound that doubles each time up to 5 s."""
        bound_s = min(5.0, 0.05 * 2**self._failures)
        # Enough to reach the cap; keeps the power small after a week without Redis.
        self._failures = min(self._failures + 1, 10)
        return self._draw(0.0, bound_s)

    def reset(self) -> None:
        """Start again with the first delay."""
        self._failures = 0


class Reporter:
    """Decides when the totals are reported, and numbers the reports."""

    def __init__(self, *, producer: str, service: str, now_s: float, is_cluster: bool = False) -> None:
        self._producer = producer
        self._own_place = place_of(producer, None)
        self._service = service
        self._reported = Totals(0, 0, {})
        self._reported_at_s = now_s
        self._seq = 0
        self._is_overtaken = False
        self._here: int | None = 0 if is_cluster else None

    def count_placed(self, entries: Sequence[Entry], partitions: int) -> None:
        """Count the traces of a batch that go to the partition of the reports; others account for their own."""
        if self._here is not None:
            traces = (entry for entry in entries if entry.kind is Kind.TRACE)
            self._here += sum(not (entry.place - self._own_place) % partitions for entry in traces)

    def mark_overtaken(self) -> None:
        """Record that entries follow the last report: a cap may trim it before them, unread."""
        self._is_overtaken = True

    def needs_report(self, totals: Totals) -> bool:
        """Return whether the last report is out of date, or may be lost before the entries after it."""
        return self._is_overtaken or totals != self._reported

    def next_report(self, totals: Totals, now_s: float, *, at_once: bool) -> ProducerReport | None:
        """Return the report that is due now, or None. It counts as sent: the caller repeats it until confirmed."""
        silent_s = now_s - self._reported_at_s
        due = at_once or silent_s >= REPORT_INTERVAL_S
        if silent_s < HEARTBEAT_S and not (due and self.needs_report(totals)):
            return None
        self._reported = totals
        self._is_overtaken = False
        self._reported_at_s = now_s
        self._seq += 1
        published, accepted = totals.published, totals.accepted
        if self._here is not None:
            # The partitions of those in the buffer are not known yet.
            published = self._here + sum(totals.dropped.values())
            accepted = min(accepted, published)
        return ProducerReport(
            producer=self._producer,
            seq=self._seq,
            service=self._service,
            published=published,
            accepted=accepted,
            dropped=totals.dropped,
        )


def encode_report(report: ProducerReport) -> Entry:
    """Encode a report as an entry of the stream; one partition has all reports of a producer."""
    return Entry(Kind.REPORT, encode(report), place_of(report.producer, None))


class Sender:
    """Sends the items of the buffer, one batch at a time and in order. One thread runs it."""

    def __init__(
        self,
        *,
        buffer: Buffer,
        flushes: Flushes,
        reporter: Reporter,
        builder: BatchBuilder,
        open_stream: "Callable[[], RedisStream]",
        address: str,
        clock: Callable[[], float],
        wakeup: Wakeup,
        backoff: Backoff,
    ) -> None:
        self._buffer = buffer
        self._flushes = flushes
        self._reporter = reporter
        self._builder = builder
        self._open_stream = open_stream
        self._address = address
        self._clock = clock
        self._wakeup = wakeup
        self._backoff = backoff
        self._warned = Once(clock)
        self._stream: RedisStream | None = None
        self._unconfirmed: Batch | None = None
        self._number = 0
        self._failing = False
        self._ended = False

    def run(self) -> None:
        """Send until `end` is called."""
        while not self._ended:
            try:
                self.step()
            except BaseException as error:  # noqa: BLE001 - no fault, of the driver or the host, loses a batch
                report_internal_error(error)
                self._log_failure(class_name(type(error)))
                self._back_off()
        if self._stream is not None:
            self._stream.disconnect()

    def end(self) -> None:
        """Make `run` return after its current attempt; any thread may call it."""
        self._ended = True
        self._wakeup.open()

    def step(self) -> None:
        """Send one batch, an unconfirmed one first; wait if there is nothing to send."""
        try:
            if self._stream is None:
                self._stream = self._open_stream()
            batch = self._unconfirmed or self._next_batch(self._stream)
            if batch is None:
                self._wait_for_work()
                return
            self._stream.append(batch, self._builder.fill_ahead)
        except DeliveryError as error:
            self._log_failure(str(error))
            self._back_off()
            return
        self._confirm(batch)
        if not self._flushes.pending and self._builder.empty and self._buffer.wake_after(MAX_BATCH_ITEMS):
            # After a batch that was not full: entries published meanwhile join the next one without a wake-up.
            self._wakeup.wait(0.02)

    def _next_batch(self, stream: "RedisStream") -> Batch | None:
        flush = self._flushes.latest  # read before taking: its items are then queued or taken already
        self._builder.fill()
        # Decided for this flush, not for one requested since, whose items may not be here yet.
        completes = flush.ticket > self._flushes.completed and self._buffer.taken >= flush.target
        self._builder.reports.summarize()
        partitions = 1 if self._builder.empty else stream.partitions()
        self._reporter.count_placed(self._builder.entries, partitions)
        report = self._reporter.next_report(self._buffer.totals(), self._clock(), at_once=completes)
        if report is not None and report.dropped:
            counts = ", ".join(f"{reason} {count}" for reason, count in report.dropped.items())
            if self._warned.take("drops"):
                log_guarded(logging.WARNING, "Traces dropped since the start, by reason: %s", counts)
        batch = self._builder.build(
            number=self._number + 1,
            report=None if report is None else encode_report(report),
            flush_ticket=flush.ticket if completes else 0,
        )
        if not batch.entries:  # nothing to send: all its items were dropped, if it had any
            self._confirm(batch)
            return None
        self._number = batch.number
        self._unconfirmed = batch
        if report is None:
            self._reporter.mark_overtaken()
        return batch

    def _confirm(self, batch: Batch) -> None:
        self._unconfirmed = None
        self._buffer.settle(batch)
        self._flushes.complete(batch.flush_ticket)
        self._backoff.reset()
        if self._failing and batch.entries:
            self._failing = False
            log_guarded(logging.INFO, "Publishing to Redis at %s resumed", self._address)

    def _log_failure(self, cause: str) -> None:
        self._failing = True
        if self._warned.take("failure"):
            waiting = self._buffer.accepted - self._buffer.settled
            message = "Publishing to Redis at %s failed (%s); %d waiting"
            log_guarded(logging.WARNING, message, self._address, cause, waiting)

    def _wait_for_work(self) -> None:
        # Ended by the next item, a flush or the end, and when the next report is due: drops wake nobody.
        if not self._flushes.pending and self._buffer.wake_after(1):
            self._wakeup.wait(REPORT_INTERVAL_S)

    def _back_off(self) -> None:
        # A flush or the end opens the latch: they have little time, so the delays start short again.
        if self._wakeup.wait(self._backoff.next_delay_s()):
            self._backoff.reset()


class Reports:
    """Counts the notes by reason and field, and logs the first of each. Used by the sender thread and at the end."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.sites_left = _SITES
        """Calls of `publish` whose place is still recorded; recording it for every call would cost too much."""
        self._clock = clock
        self._counts: dict[tuple[str, str], int] = {}
        self._with_site: set[tuple[str, str]] = set()
        self._warnings = 0
        self._changed = False
        self._summary_at_s = clock() + SUMMARY_INTERVAL_S

    def add(self, notes: "Iterable[Note]", trace_id: str, site: str | None) -> None:
        """Count notes on one entry; warn of each pair once, and once more with the first known place of a call."""
        for note in notes:
            pair = (note.reason, note.field if _NAME.fullmatch(note.field) else "(another)")
            if pair not in self._counts and len(self._counts) >= _MAX_PAIRS:
                pair = (note.reason, "others")
            is_new = pair not in self._counts
            self._counts[pair] = self._counts.get(pair, 0) + note.times
            self._changed = True
            if is_new or (site is not None and pair not in self._with_site):
                self._warn(pair, note, trace_id, site)
            if site is not None:
                self._with_site.add(pair)
            elif is_new:
                self.sites_left = _SITES  # the next call with the same fault tells where it is

    def summarize(self, *, at_end: bool = False) -> None:
        """Log the totals, once an hour and at the end, if there are new ones."""
        now_s = self._clock()
        if not self._changed or not (at_end or now_s >= self._summary_at_s):
            return
        self._changed = False
        self._summary_at_s = now_s + SUMMARY_INTERVAL_S
        most = sorted(self._counts.copy().items(), key=lambda item: -item[1])
        counts = ", ".join(f"{reason} {field} {count}" for (reason, field), count in most[:_MAX_SUMMARY])
        counts += f" and {len(most) - _MAX_SUMMARY} more" if len(most) > _MAX_SUMMARY else ""
        log_guarded(logging.WARNING, "Faults of published traces since the start, by reason and field: %s", counts)

    def _warn(self, pair: tuple[str, str], note: "Note", trace_id: str, site: str | None) -> None:
        self._warnings += 1
        if self._warnings > MAX_WARNINGS:
            return
        kind = _printable(note.kind)
        if note.reason in {"empty", "invalid", "too_large", "redaction"}:
            reason = "invalid" if note.reason == "empty" else note.reason
            message = f"{note.field.partition('.')[0].capitalize()} dropped: {reason} ({kind or 'it has no content'})"
            message += f"; {_FIXES[note.field]}" if note.field in _FIXES else ""
        else:
            expected = f"; it is read from {_EXPECTED.get(note.field.rpartition('.')[2], _OF_TEXT)}"
            values = {"kind": kind, "hint": note.hint, "expected": expected, "texts": ", ".join(TEXTS)}
            message = f"Field {pair[1]} {_FAULTS[note.reason].format(**values, times=note.times)}"
            if note.reason == "unknown_name" and (close := closest_field(note.field[:_MAX_NAME_CHARS])):
                message += f"; did you mean {close}?"
        message += f"; trace id {_printable(trace_id)}" if trace_id else ""
        message += f"; published at {site}" if site else ""
        message += "; further faults are only counted" if self._warnings == MAX_WARNINGS else ""
        log_guarded(logging.WARNING, "%s", message)


def call_site() -> str | None:
    """Return file and line of the innermost caller outside of this package; None in a thread of its own."""
    frame = sys._getframe(1)  # noqa: SLF001 - the documented way without the cost of `inspect`
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        if frame.f_globals.get("__name__", "").startswith("tracejudge.otel"):
            return None
        frame = frame.f_back  # type: ignore[assignment]
    return None if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _printable(text: str) -> str:
    shown = text if len(text) <= _MAX_NAME_CHARS else f"{text[:_MAX_NAME_CHARS]}..."
    return shown if shown.isprintable() else ascii(shown)[1:-1]
