"""Input that could not be used: the last invalid entries, and the fields that were left out of traces.

Ingest and the gateway write them to Redis, where `tracejudge invalid list` and the doctor read them. They contain
names, types and trace ids, never a text of a trace. They are a help, not an account: what Redis does not take is
dropped, and nothing waits for it.
"""

import itertools
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from operator import methodcaller
from typing import TYPE_CHECKING, Final

import msgspec
import structlog
from msgspec import Struct

from tracejudge.log import Once
from worker.base.input.feature import InputKeys
from worker.core.features import IngestHook
from worker.core.selection.lenient import safe_id
from worker.core.selection.stream_entry import InvalidEntry, TraceEntry
from worker.core.storage.client import Store, StoreError
from worker.core.storage.group_reader import entry_position

if TYPE_CHECKING:
    import redis

    from worker.core.ingest.consumer import Answer, Plan

log = structlog.get_logger("tracejudge.ingest")

MAX_INVALID: Final = 100
NO_CONTENT: Final = "no_content"  # The gateway published the trace, without an answer.


class InvalidRecord(Struct, frozen=True):
    """An invalid entry of the stream, or items of the gateway, which have no entry id: dropped, or ``NO_CONTENT``."""

    entry_id: str
    at: float
    reason: str
    detail: str
    trace_id: str | None
    keys: tuple[str, ...]  # The names in its payload, or in the entry if no payload could be read.
    producer: str | None  # The one that numbered the entry, or the name of the gateway's token.


class LeftOutRecord(Struct, frozen=True):
    """A field that was left out of a trace, with the JSON type of its value; of all traces the last one."""

    field: str
    type: str
    service: str
    trace_id: str | None
    at: float


class UnreadRecord(Struct, frozen=True):
    """An instrumentation with attributes that no dialect reads, or that a table misses; ``at`` is of the last span."""

    instrumentation: str
    names: tuple[str, ...]
    spans: int
    table: str = ""
    at: float = 0.0


class UnusableInput(IngestHook):
    """Collects what one process could not use, and writes it at most once a second."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._invalid: deque[InvalidRecord] = deque(maxlen=MAX_INVALID)
        self._left_out: dict[str, LeftOutRecord] = {}
        self._unread: dict[str, UnreadRecord] = {}
        self._hour = Once(clock, period_s=3600.0)
        self._next_write_s = clock()

    def before_read(self) -> None:
        """Write what was collected, if a second has passed since the last time."""
        self.write()

    def after_read(self, plan: "Plan", answer: "Answer") -> None:
        """Collect what could not be used and took effect now."""
        counts = zip(plan.tallies, answer.tallied, strict=True)
        counted = {(tally.reason, tally.producer) for tally, amount in counts if amount}
        traces = zip(plan.traces, answer.outcomes, strict=True)
        self.add(
            (entry for entry in plan.invalid if (entry.reason, entry.producer) in counted),
            (entry for entry, outcome in traces if outcome),
        )

    def close(self) -> None:
        """Write the rest."""
        self.write(at_end=True)

    def add(self, invalid: Iterable[InvalidEntry], traces: Iterable[TraceEntry]) -> None:
        """Collect invalid entries, and the fields left out of traces; log each field and type once an hour."""
        for entry in invalid:
            at = entry_position(entry.entry_id)[0] / 1000
            told = (entry.reason, entry.detail, entry.trace_id, entry.keys, entry.producer)
            self.add_record(InvalidRecord(entry.entry_id, at, *told))
        for item in traces:
            for field, kind in item.left_out:
                trace_id = safe_id(item.trace.trace_id)
                self.add_left_out(
                    LeftOutRecord(field, kind, item.trace.service, trace_id, entry_position(item.entry_id)[0] / 1000)
                )

    def add_left_out(self, record: LeftOutRecord) -> None:
        """Collect a field that was left out of a trace, and log it once an hour."""
        with self._lock:
            self._left_out[f"{record.field} {record.type}"] = record
        self._log(record.service, record.field, record.type, record.trace_id)

    def add_record(self, record: InvalidRecord) -> None:
        """Collect a record; any thread may call this."""
        with self._lock:
            self._invalid.append(record)

    def add_unread(self, record: UnreadRecord) -> None:
        """Collect spans of an instrumentation that no dialect reads."""
        with self._lock:
            earlier = self._unread.get(record.instrumentation)
            if earlier is not None or len(self._unread) < MAX_INVALID:
                spans = record.spans + (earlier.spans if earlier else 0)
                self._unread[record.instrumentation] = msgspec.structs.replace(record, spans=spans)

    def write(self, *, at_end: bool = False) -> None:
        """Write what was collected, if a second has passed since the last time."""
        now = self._clock()
        if not (self._invalid or self._left_out or self._unread) or (now < self._next_write_s and not at_end):
            return
        self._next_write_s = now + 1.0
        keys = InputKeys(self._store.keys.prefix)
        with self._lock:
            invalid, left_out, unread = list(self._invalid), dict(self._left_out), list(self._unread.values())
            for collected in (self._invalid, self._left_out, self._unread):
                collected.clear()

        def add(pipe: "redis.client.Pipeline") -> None:
            for record in invalid:
                pipe.xadd(
                    keys.invalid, {"v": 1, "j": msgspec.json.encode(record)}, maxlen=MAX_INVALID, approximate=False
                )
            if left_out:
                pipe.hset(
                    keys.left_out, mapping={name: msgspec.json.encode(record) for name, record in left_out.items()}
                )
            for kind in unread:
                pipe.hset(keys.unread, f"kind {kind.instrumentation}", msgspec.json.encode(kind))
                pipe.hincrby(keys.unread, f"count {kind.instrumentation}", kind.spans)
            for name in (keys.invalid, keys.left_out, keys.unread):
                pipe.expire(name, 7 * 86_400)

        try:
            self._store.pipeline(add)
        except StoreError as error:
            log.debug("unusable input not listed", error=str(error))

    def _log(self, service: str, field: str, kind: str, trace_id: str | None) -> None:
        if self._hour.take((service, field, kind)):
            log.warning("field left out of traces", service=service, field=field, type=kind, trace_id=trace_id)


def read_invalid(store: Store, limit: int = MAX_INVALID) -> list[InvalidRecord]:
    """Read the last invalid entries of all partitions, the newest first."""
    key = InputKeys(store.first.keys.prefix).invalid
    answers = (part.call(methodcaller("xrevrange", part.own_key(key), count=limit)) for part in store.reachable)
    newest = sorted(itertools.chain.from_iterable(answers), key=lambda entry: entry_position(entry[0]), reverse=True)
    return [msgspec.json.decode(fields[b"j"], type=InvalidRecord) for _, fields in newest[:limit]]


def read_left_out(store: Store) -> list[LeftOutRecord]:
    """Read the fields that were left out, the latest first."""
    key = InputKeys(store.first.keys.prefix).left_out
    hashes = [part.read_hashes([part.own_key(key)])[0] for part in store.reachable]
    rows = [raw for fields in hashes for raw in fields.values()]
    latest: dict[tuple[str, str], LeftOutRecord] = {}
    for row in sorted((msgspec.json.decode(raw, type=LeftOutRecord) for raw in rows), key=lambda row: -row.at):
        latest.setdefault((row.field, row.type), row)
    return list(latest.values())


def read_unread(store: Store) -> list[UnreadRecord]:
    """Read the instrumentations whose spans no dialect reads, the commonest first."""
    key = InputKeys(store.first.keys.prefix).unread
    kinds: dict[str, UnreadRecord] = {}
    counts: Counter[str] = Counter()
    for part in store.reachable:
        for field, value in part.read_hashes([part.own_key(key)])[0].items():
            kind, _, instrumentation = field.decode().partition(" ")
            if kind == "count":
                counts[instrumentation] += int(value)
            elif kind == "kind":
                kinds[instrumentation] = msgspec.json.decode(value, type=UnreadRecord)
    common = ((kinds[name], count) for name, count in counts.most_common(MAX_INVALID) if name in kinds)
    return [msgspec.structs.replace(record, spans=count) for record, count in common]
