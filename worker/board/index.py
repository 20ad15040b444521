"""An index of the outbox in memory, so that pages can filter 200,000 verdicts at once.

SQLite holds names, outcomes and figures, and no text of a trace: texts are read from Redis when a page shows them, so
what is erased there is gone from the pages too.
"""

import sqlite3
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import structlog

from judges.core.prompt import neutralise
from judges.core.verdict import Verdict
from worker.lookup import VerdictOutcome, outcome_of
from worker.monitor.series import VERSION_DIGITS
from worker.queue.ledger import OutboxEntry, read_outbox_entry
from worker.selection.sampling import position
from worker.storage.client import Entry, Store, StoreError, scan_stream
from worker.telemetry.service import ServiceThread

log = structlog.get_logger("tracejudge.board")
_READ_COUNT: Final = 500
_BLOCK_MS: Final = 500
_COLUMNS: Final = (
    *("entry", "at_ms", "evaluation_id", "trace_id", "span_id", "service", "judge", "version", "model", "origin"),
    *("outcome", "reason", "metric", "value", "passed", "probability", "sampled", "cost", "attempts", "place", "rated"),
    "shard",
)
_SCHEMA: Final = f"""
CREATE TABLE verdicts ({", ".join(_COLUMNS)});
CREATE UNIQUE INDEX by_entry ON verdicts (entry);
CREATE INDEX by_time ON verdicts (at_ms);
CREATE INDEX by_name ON verdicts (service, judge);
CREATE INDEX by_outcome ON verdicts (outcome);
CREATE INDEX by_rating ON verdicts (rated, service, judge);
CREATE INDEX by_evaluation ON verdicts (evaluation_id);
CREATE INDEX by_place ON verdicts (rated, place);
CREATE INDEX by_trace ON verdicts (trace_id, judge, metric, passed);
"""
# Another one than that of sampling: a place must not depend on whether the trace was sampled.
_PLACE_KEY: Final = "labels"
_INSERT: Final = f"INSERT OR IGNORE INTO verdicts VALUES ({', '.join('?' * len(_COLUMNS))})"  # noqa: S608 - no input
# Repeats and the canary measure the judge against itself, and have no labels.
_RATED: Final = {"live": 2, "repeat": 0, "canary": 0}
_MAX_NAMES: Final = 500
# Not in the order in which they were read: several outboxes are read one after the other.
_NEWEST_FIRST: Final = "at_ms DESC, rowid DESC"


class IndexedVerdict(NamedTuple):
    """One row of the index; figures are of the first metric with a pass rule, else of the first."""

    entry: str
    at_ms: int
    evaluation_id: str
    trace_id: str
    span_id: str
    service: str
    judge: str
    version: str
    model: str
    origin: str
    outcome: VerdictOutcome
    reason: str
    metric: str
    value: float | None
    passed: int | None
    probability: float | None
    sampled: float
    cost: float | None
    attempts: int
    place: float
    """From 0 to 1 by the hash of the evaluation: labels are drawn below a rate."""
    rated: int
    """2 for a live verdict that a label can be compared with, 1 for one of another origin, else 0."""
    shard: int = 0

    @property
    def entry_id(self) -> str:
        """The id of its entry in the outbox of its shard."""
        return self.entry.rpartition("@")[2]

    @classmethod
    def of(cls, entry: OutboxEntry, shard: int = 0) -> "IndexedVerdict":
        """Make the row of an entry; two shards may have entries of one id."""
        verdict: Verdict = entry.verdict
        rated = (score for score in verdict.scores if score.passed is not None)
        score = next(rated, verdict.scores[0] if verdict.scores else None)
        return cls(
            f"{shard}@{entry.entry_id}" if shard else entry.entry_id,
            int(entry.entry_id.partition("-")[0]),
            verdict.evaluation_id,
            verdict.trace_id,
            verdict.span_id or "",
            verdict.service,
            verdict.judge,
            verdict.judge_version[:VERSION_DIGITS],
            verdict.judge_model,
            verdict.origin,
            outcome_of(entry),
            verdict.reason or "",
            score.metric if score is not None else verdict.metrics[0] if verdict.metrics else verdict.judge,
            None if score is None else score.value,
            None if score is None or score.passed is None else int(score.passed),
            None if score is None else score.probability,
            verdict.probability,
            verdict.cost_usd,
            verdict.attempts,
            position(verdict.evaluation_id, _PLACE_KEY),
            0 if score is None or score.passed is None else _RATED.get(verdict.origin, 1),
            shard,
        )


class Selection(NamedTuple):
    """Which verdicts a page wants; an empty field accepts all. Service and judge may hold `*` and `?`."""

    service: str = ""
    judge: str = ""
    outcome: str = ""
    origin: str = ""
    trace_id: str = ""
    since_ms: int = 0

    def where(self) -> tuple[str, list[object]]:
        """Return the condition in SQL, and its values."""
        parts, values = ["1"], list[object]()
        for column, pattern in (("service", self.service), ("judge", self.judge)):
            if pattern:
                is_pattern = "*" in pattern or "?" in pattern
                parts.append(f"{column} {'GLOB' if is_pattern else '='} ?")
                values.append(pattern)
        if self.outcome == "not passed":
            parts.append("outcome IN ('failed', 'abstained', 'unscored', 'dead')")
        elif self.outcome:
            parts.append("outcome = ?")
            values.append(self.outcome)
        if self.origin:
            parts.append("origin = ?")
            values.append(self.origin)
        if self.trace_id:
            # A range of the index: LIKE with a parameter would read every row.
            parts.append("trace_id >= ? AND trace_id < ?")
            values += [self.trace_id, f"{self.trace_id}\U0010ffff"]
        if self.since_ms:
            parts.append("at_ms >= ?")
            values.append(self.since_ms)
        return " AND ".join(parts), values


class VerdictIndex(ServiceThread):
    """Follows the outbox; any thread may query."""

    role = "board"

    def __init__(self, store: Store) -> None:
        super().__init__("board-index")
        self._store = store
        self._database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._database.executescript(_SCHEMA)
        self._lock = threading.Lock()
        self._positions: dict[int, str] = {}
        self._names: dict[str, set[str]] = {"services": set(), "judges": set()}
        self.is_complete = False

    def run_once(self) -> None:
        """Read the outboxes as they are, then what is new; remove what was trimmed."""
        for one in self._store.shards:
            try:
                self.follow(one)
            except StoreError as error:
                if one is self._store:
                    raise
                # Its verdicts stay in the index; their texts cannot be shown.
                log.debug("shard not followed", shard=one.shard, error=str(error))
            if self.stopping.is_set():
                return
        self.is_complete = True

    def follow(self, store: Store) -> None:
        """Read one outbox."""
        key, shard = store.keys.verdicts, store.shard
        if shard not in self._positions:
            for entries in scan_stream(store, key):
                self._add(entries, shard)
                if self.stopping.is_set():
                    return
            self._positions.setdefault(shard, "0")
        position = self._positions[shard]
        block_ms = _BLOCK_MS // len(store.shards) if self.is_complete else 1
        streams: dict[Any, Any] = {key: position}
        reply: Any = store.call(lambda client: client.xread(streams, count=_READ_COUNT, block=block_ms))
        for _, arrived in reply or []:
            self._add(arrived, shard)
        first = store.call(lambda client: client.xrange(key, count=1))
        oldest_ms = _ms(first[0][0]) if first else 1 << 62
        with self._lock:
            self._database.execute("DELETE FROM verdicts WHERE at_ms < ? AND shard = ?", (oldest_ms, shard))
        newest = store.call(lambda client: client.xrevrange(key, count=1))
        if newest and _ms(newest[0][0]) < _ms(self._positions[shard].encode()):
            # Redis came back without its last data: its new entries have ids that were read before.
            with self._lock:
                self._database.execute("DELETE FROM verdicts WHERE shard = ?", (shard,))
            del self._positions[shard]

    def rows(
        self, wanted: Selection, *, limit: int, before: str = "", order: str = _NEWEST_FIRST, extra: str = "1"
    ) -> list[IndexedVerdict]:
        """Return verdicts, the newest first.

        Args:
            wanted: The selection.
            limit: How many.
            before: Only those before this entry.
            order: The order in SQL; a constant of the caller.
            extra: A further condition in SQL; a constant of the caller.
        """
        where, values = wanted.where()
        if before:
            where += " AND (at_ms, rowid) < (SELECT at_ms, rowid FROM verdicts WHERE entry = ?)"
            values.append(before)
        text = f"SELECT * FROM verdicts WHERE {where} AND {extra} ORDER BY {order} LIMIT ?"  # noqa: S608 - constants
        return [IndexedVerdict(*row) for row in self.query(text, (*values, limit))]

    def find(self, evaluation_id: str) -> IndexedVerdict | None:
        """Return the newest verdict of an evaluation."""
        text = f"SELECT * FROM verdicts WHERE evaluation_id = ? ORDER BY {_NEWEST_FIRST} LIMIT 1"  # noqa: S608 - a constant
        found = self.query(text, (evaluation_id,))
        return IndexedVerdict(*found[0]) if found else None

    def query(self, text: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run a query of constants with values."""
        with self._lock:
            return self._database.execute(text, tuple(values)).fetchall()

    def names(self) -> Mapping[str, list[str]]:
        """List services and judges, for the choices of forms; without names that hold signs nobody sees."""
        return {kind: sorted(names)[:_MAX_NAMES] for kind, names in self._names.items()}

    def entries(self, rows: Iterable[IndexedVerdict]) -> dict[str, OutboxEntry]:
        """Read the entries of rows from Redis; those that were erased there leave the index."""
        by_shard: dict[int, list[IndexedVerdict]] = {}
        for row in rows:
            by_shard.setdefault(row.shard, []).append(row)
        key, read = self._store.keys.verdicts, dict[str, OutboxEntry | None]()
        gone: list[tuple[str]] = []
        for shard, some in by_shard.items():
            names = [row.entry_id for row in some]
            try:
                found = self._store.shards[shard].pipeline(lambda pipe: [pipe.xrange(key, one, one) for one in names])  # noqa: B023
            except StoreError:
                if shard == self._store.shard:
                    raise
                continue
            read |= {row.entry: read_outbox_entry(one[0]) for row, one in zip(some, found, strict=True) if one}
            gone += [(row.entry,) for row in some if row.entry not in read]
        if gone:
            with self._lock:
                self._database.executemany("DELETE FROM verdicts WHERE entry = ?", gone)
        return {name: entry for name, entry in read.items() if entry is not None}

    def _add(self, entries: Sequence[Entry], shard: int) -> None:
        rows = [IndexedVerdict.of(entry, shard) for entry in map(read_outbox_entry, entries) if entry is not None]
        with self._lock:
            self._database.execute("BEGIN")
            self._database.executemany(_INSERT, rows)
            self._database.execute("COMMIT")
        for kind, names in (("services", {row.service for row in rows}), ("judges", {row.judge for row in rows})):
            if len(self._names[kind]) < _MAX_NAMES:
                # Another set, since pages may be reading this one.
                self._names[kind] = self._names[kind] | {name for name in names if neutralise(name) == name}
        self._positions[shard] = entries[-1][0].decode()
        self.record_progress()


def _ms(entry_id: bytes) -> int:
    return int(entry_id.partition(b"-")[0])
