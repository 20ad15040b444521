"""The ingest thread: read, sample, put into batches, wake a judge; and take over what a dead reader left."""

import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
import structlog
from msgspec import Struct

from worker.ingest.draft import Plan
from worker.ingest.entries import Read, read_entry, unknown_fields
from worker.ingest.plan import Planner
from worker.keys import INGEST_GROUP
from worker.metrics import BoundedLabel, Metrics
from worker.settings import Settings
from worker.stage import Stage
from worker.store import Entry, Store, StoreError

__all__ = ["Ingest"]

log = structlog.get_logger("tracejudge.ingest")

_READ_COUNT: Final = 500
_FIRST_READ_COUNT: Final = 32
_READ_BYTES: Final = 32 * 1024 * 1024
"""About how much is read at once: entries may be megabytes each, and all of them pass through one script call."""
_BLOCK_MS: Final = 1000
_STALE_MS: Final = 10_000
"""Entries are dealt with within milliseconds; who has held one that long is dead or cut off."""
_CLAIM_EVERY_S: Final = 3.0
_PRESSURE_PAUSE_S: Final = 0.2
_MAX_DROP_REASONS: Final = 30


class _Answer(Struct):
    """What ``choose.lua`` says: one answer per tally and per trace, batches made, and what producers add."""

    tallied: tuple[int, ...] = ()
    outcomes: tuple[str, ...] = ()
    made: tuple[str, ...] = ()
    published: Mapping[str, int] = {}
    dropped: tuple[tuple[int, str, int], ...] = ()
    feedback: Mapping[str, int] = {}


class Ingest(Stage):
    """Moves entries from the stream into batches, exactly once each."""

    role = "ingest"

    def __init__(
        self,
        settings: Settings,
        store: Store,
        metrics: Metrics,
        *,
        wake: Callable[[str], None],
        waiting_bytes: Callable[[], int],
    ) -> None:
        """Prepare the thread; ``start`` begins.

        Args:
            wake: Sends the wake-up for a batch; may fail, since the sweeper sends another.
            waiting_bytes: How much chosen work is unfinished; past the setting's bound reading pauses.
        """
        super().__init__("ingest")
        self._settings = settings
        self._store = store
        self._metrics = metrics
        self._planner = Planner(settings, store.keys)
        self._wake = wake
        self._waiting_bytes = waiting_bytes
        self._consumer = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        self._read_count = _FIRST_READ_COUNT
        self._next_claim = 0.0
        self._drop_reason = BoundedLabel(_MAX_DROP_REASONS)
        self._pressed = threading.Event()
        self._rules: dict[str, list[int]] = {rule.name: [0, 0] for rule in settings.rules}

    def prepare(self) -> None:
        """Make the consumer group."""
        self._store.make_group(self._store.keys.traces, INGEST_GROUP)

    def turn(self) -> None:
        """Read once and deal with all of it."""
        if self._waiting_bytes() > self._settings.max_waiting_bytes:
            self._pressure(pressed=True)
            self.stopping.wait(_PRESSURE_PAUSE_S)
            return
        self._pressure(pressed=False)
        entries = self._stale() + self._store.read_group(
            self._store.keys.traces, INGEST_GROUP, self._consumer, count=self._read_count, block_ms=_BLOCK_MS
        )
        if entries:
            self._read_count = _next_count(self._read_count, entries)
            for part in _parts(entries):
                self.take(part)

    def take(self, entries: Sequence[Entry]) -> None:
        """Put entries into the books and batches, and wake a judge for each batch.

        Raises:
            StoreError: The stage ends before Redis answers; the entries stay pending and are claimed later.
        """
        plan = self._planner.plan(self._read(entry) for entry in entries)
        answer = self._choose(plan)
        self._count(plan, answer)
        for batch_id in answer.made:
            self._wake(batch_id)

    def _read(self, entry: Entry) -> Read:
        return read_entry(entry, self._settings.max_trace_bytes)

    def _choose(self, plan: Plan) -> _Answer:
        """Run the script until Redis answers: it may be repeated, and giving up would leave the entries hanging."""
        while True:
            try:
                return msgspec.json.decode(self._store.run("choose", plan.keys, plan.arguments), type=_Answer)
            except StoreError as error:
                if self.stopping.is_set():
                    raise
                self.stumbled(error)

    def _stale(self) -> list[Entry]:
        if time.monotonic() < self._next_claim:
            return []
        self._next_claim = time.monotonic() + _CLAIM_EVERY_S
        return self._store.claim_stale(
            self._store.keys.traces, INGEST_GROUP, self._consumer, idle_ms=_STALE_MS, count=self._read_count
        )

    def _pressure(self, *, pressed: bool) -> None:
        if pressed == self._pressed.is_set():
            return
        if pressed:
            self._pressed.set()
            log.warning("reading pauses", reason="max_waiting_bytes of chosen work are unfinished")
        else:
            self._pressed.clear()

    def _count(self, plan: Plan, answer: _Answer) -> None:
        metrics = self._metrics
        for tally, amount in zip(plan.tallies, answer.tallied, strict=True):
            self._count_traces(tally.service, tally.outcome, amount)
            if tally.producer is None:
                metrics.producer_published.labels(metrics.service(tally.service)).inc(amount)
            if tally.reason is not None and amount:
                metrics.invalid_traces.labels(tally.reason).inc(amount)
                log.warning("entries are no traces", reason=tally.reason, entries=amount, producer=tally.producer)
        for entry, outcome in zip(plan.traces, answer.outcomes, strict=True):
            if outcome:
                self._count_traces(entry.trace.service, outcome, 1)
                if entry.producer is None:
                    metrics.producer_published.labels(metrics.service(entry.trace.service)).inc()
                metrics.unknown_fields.labels(metrics.service(entry.trace.service)).inc(len(unknown_fields(entry)))
        self._count_producers(plan, answer)
        for outcome, amount in answer.feedback.items():
            metrics.late_feedback.labels(outcome).inc(amount)
        for rule, amount in plan.rules.items():
            counts = self._rules[rule.rule]
            counts[0] += amount
            counts[1] += amount if rule.chosen else 0
            metrics.sampling_ratio.labels(rule.rule).set(counts[1] / counts[0])

    def _count_traces(self, service: str, outcome: str, amount: int) -> None:
        label = self._metrics.service(service)
        self._metrics.touch_service(label)
        self._metrics.traces.labels(label, outcome).inc(amount)

    def _count_producers(self, plan: Plan, answer: _Answer) -> None:
        metrics = self._metrics
        for producer, amount in answer.published.items():
            metrics.producer_published.labels(metrics.service(plan.services[int(producer)])).inc(amount)
        for place, reason, amount in answer.dropped:
            service = metrics.service(plan.reports[place - 1].report.service)
            metrics.producer_dropped.labels(service, self._drop_reason(reason)).inc(amount)


def _next_count(count: int, entries: Sequence[Entry]) -> int:
    """Read twice as many entries next time, as long as so many of their size stay within the bytes of one read."""
    fitting = _READ_BYTES * len(entries) // max(1, sum(map(_size, entries)))
    return max(1, min(2 * count, fitting, _READ_COUNT))


def _parts(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Divide what was read into parts that one script call may hold, whatever came after the small entries."""
    part: list[Entry] = []
    size = 0
    for entry in entries:
        if part and size + _size(entry) > _READ_BYTES:
            yield part
            part, size = [], 0
        part.append(entry)
        size += _size(entry)
    if part:
        yield part


def _size(entry: Entry) -> int:
    return sum(map(len, (entry[1] or {}).values()))
