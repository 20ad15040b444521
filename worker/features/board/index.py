"""An index of the outbox in memory, so that pages can filter 200,000 verdicts at once.

SQLite holds names, outcomes and figures, and no text of a trace: texts are read from Redis when a page shows them, so
what is erased there is gone from the pages too.
"""

import sqlite3
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import structlog

from judges.core.prompt import neutralise
from judges.core.verdict import Score, Verdict
from worker.base.lookup.verdict_filter import VerdictFilter, outcome_of
from worker.base.scans import scan_stream
from worker.core.queue.ledger import OutboxEntry, read_outbox_entry
from worker.core.selection.sampling import position
from worker.core.storage.client import Entry, Store, StoreError
from worker.core.storage.group_reader import entry_position
from worker.core.telemetry.service import ServiceThread

log = structlog.get_logger("tracejudge.board")
_BLOCK_MS: Final = 500
_COLUMNS: Final = (
    *("entry", "partition", "at_ms", "evaluation_id", "trace_id", "span_id", "service", "judge", "origin", "outcome"),
    # Of the score that is labelled. `place` is from 0 to 1 by the hash of the evaluation: labels are drawn below a
    # rate. `rated` is 2 for a live verdict that a label can be compared with, 1 for one of another origin, else 0.
    *("reason", "cost", "metric", "passed", "probability", "place", "rated"),
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
_MOST_OF_ANSWERS: Final = 4_000
_MANY: Final = 5_000
# Not in the order in which they were read: several outboxes are read one after the other.
NEWEST_FIRST: Final = "at_ms DESC, rowid DESC"


def leading_score(verdict: Verdict) -> tuple[str, Score | None]:
    """Return the metric that is labelled, the first with a pass rule or else the first, with its score."""
    rated = (score for score in verdict.scores if score.passed is not None)
    score = next(rated, verdict.scores[0] if verdict.scores else None)
    return score.metric if score is not None else verdict.metrics[0] if verdict.metrics else verdict.judge, score


def place_of(verdict: Verdict) -> float | None:
    """Return the place of a verdict in the random order; None if it is not in it."""
    return position(verdict.evaluation_id, _PLACE_KEY) if _rated(verdict) == _RATED["live"] else None


def _rated(verdict: Verdict) -> int:
    _, score = leading_score(verdict)
    return 0 if score is None or score.passed is None else _RATED.get(verdict.origin, 1)


def _row(entry: OutboxEntry, partition: int) -> tuple[object, ...]:
    """Make the row of an entry; two partitions may have entries of one id."""
    verdict, (metric, score) = entry.verdict, leading_score(entry.verdict)
    return (
        f"{partition}@{entry.entry_id}",
        partition,
        entry_position(entry.entry_id)[0],
        verdict.evaluation_id,
        verdict.trace_id,
        verdict.span_id or "",
        verdict.service,
        verdict.judge,
        verdict.origin,
        outcome_of(entry),
        verdict.reason or "",
        verdict.cost_usd,
        metric,
        None if score is None else score.passed,
        None if score is None else score.probability,
        position(verdict.evaluation_id, _PLACE_KEY),
        _rated(verdict),
    )


def condition(selected: VerdictFilter) -> tuple[str, list[object]]:
    """Return a filter as a condition in SQL, and its values; reasons and ids of evaluations are not compared."""
    parts, values = ["1"], list[object]()
    for column, patterns in (("service", selected.services), ("judge", selected.judges)):
        if patterns:
            # The index finds an equal name. SQLite negates by [^...].
            signs = ("GLOB" if set("*?[") & set(pattern) else "=" for pattern in patterns)
            parts.append(" OR ".join(f"{column} {sign} ?" for sign in signs))
            values += [pattern.replace("[!", "[^") for pattern in patterns]
    for column, names in (("outcome", selected.outcomes), ("origin", (selected.origin,) if selected.origin else ())):
        if names:
            parts.append(f"{column} IN ({', '.join('?' * len(names))})")
            values += names
    if selected.traces:
        # A range of the index: LIKE with a parameter would read every row.
        parts.append(" OR ".join(["trace_id >= ? AND trace_id < ?"] * len(selected.traces)))
        values += [end for begin in selected.traces for end in (begin, f"{begin}\U0010ffff")]
    if selected.trace_ids is not None:
        parts.append("trace_id IN (SELECT value FROM json_each(?))")
        values.append(msgspec.json.encode(sorted(selected.trace_ids)).decode())
    for sign, at_ms in ((">=", selected.since_ms), ("<=", selected.until_ms)):
        if at_ms is not None:
            parts.append(f"at_ms {sign} ?")
            values.append(at_ms)
    return " AND ".join(f"({part})" for part in parts), values


class IndexedVerdict(NamedTuple):
    """What the index knows of a verdict of an answer."""

    entry: str
    at_ms: int
    evaluation_id: str
    judge: str
    origin: str
    outcome: str
    is_selected: bool


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
        for partition in self._store.partitions:
            try:
                self.follow(partition)
            except StoreError as error:
                if partition is self._store:
                    raise
                # Its verdicts stay in the index; their texts cannot be shown.
                log.debug("partition not followed", partition=partition.partition, error=str(error))
            if self.stopping.is_set():
                return
        self.is_complete = True

    def follow(self, store: Store) -> None:
        """Read one outbox."""
        key, partition = store.keys.verdicts, store.partition
        if partition not in self._positions:
            for entries in scan_stream(store, key):
                self._add(entries, partition)
                if self.stopping.is_set():
                    return
            self._positions.setdefault(partition, "0")
        position = self._positions[partition]
        block_ms = _BLOCK_MS // len(store.partitions) if self.is_complete else 1
        streams: dict[Any, Any] = {key: position}
        reply: Any = store.call(lambda client: client.xread(streams, count=500, block=block_ms))
        for _, arrived in reply or []:
            self._add(arrived, partition)
        first = store.call(lambda client: client.xrange(key, count=1))
        oldest_ms = entry_position(first[0][0])[0] if first else 1 << 62
        with self._lock:
            self._database.execute("DELETE FROM verdicts WHERE at_ms < ? AND partition = ?", (oldest_ms, partition))
        newest = store.call(lambda client: client.xrevrange(key, count=1))
        if newest and entry_position(newest[0][0])[0] < entry_position(self._positions[partition])[0]:
            # Redis came back without its last data: its new entries have ids that were read before.
            with self._lock:
                self._database.execute("DELETE FROM verdicts WHERE partition = ?", (partition,))
            del self._positions[partition]

    def select_answers(self, selected: VerdictFilter, *, limit: int, before: str = "") -> list[list[IndexedVerdict]]:
        """Return all verdicts of the newest answers that have a selected one, at which they stand.

        With ``before`` only answers whose newest selected verdict is older than this entry.
        """
        where, values = condition(selected)
        # The names of columns in the condition mean the inner table.
        newer = (
            "SELECT 1 FROM verdicts AS newer INDEXED BY by_trace WHERE newer.trace_id = verdicts.trace_id "  # noqa: S608 - constants
            "AND newer.span_id = verdicts.span_id "
            f"AND (newer.at_ms, newer.rowid) > (verdicts.at_ms, verdicts.rowid) AND {where}"
        )
        # SQLite would read all verdicts of a service before it sorts them by time; of a few that is the faster way.
        few = f"SELECT count(*) FROM (SELECT 1 FROM verdicts WHERE {where} LIMIT {_MANY})"  # noqa: S608 - constants
        ((count,),) = self.query(few, values)
        walk = "INDEXED BY by_time" if count == _MANY else ""
        older = "AND (at_ms, rowid) < (SELECT at_ms, rowid FROM verdicts WHERE entry = ?) " if before else ""
        heads = self.query(
            f"SELECT trace_id, span_id FROM verdicts {walk} WHERE {where} {older}"  # noqa: S608 - constants
            f"AND NOT EXISTS ({newer}) ORDER BY {NEWEST_FIRST} LIMIT ?",
            (*values, *([before] if before else []), *values, limit),
        )
        answers: dict[tuple[str, str], list[IndexedVerdict]] = {(trace, span): [] for trace, span in heads}
        for trace, span, *columns in self.query(
            f"SELECT trace_id, span_id, entry, at_ms, evaluation_id, judge, origin, outcome, {where} "  # noqa: S608 - constants
            "FROM verdicts INDEXED BY by_trace "
            f"WHERE trace_id IN (SELECT value FROM json_each(?)) ORDER BY {NEWEST_FIRST} LIMIT {_MOST_OF_ANSWERS}",
            (*values, msgspec.json.encode([trace for trace, _ in heads]).decode()),
        ):
            if (trace, span) in answers:
                answers[trace, span].append(IndexedVerdict(*columns))
        return list(answers.values())

    def find(self, evaluation_id: str) -> OutboxEntry | None:
        """Read the newest verdict of an evaluation."""
        text = f"SELECT entry FROM verdicts WHERE evaluation_id = ? ORDER BY {NEWEST_FIRST} LIMIT 1"  # noqa: S608 - a constant
        entries = self.read([name for (name,) in self.query(text, (evaluation_id,))])
        return next(iter(entries.values()), None)

    def query(self, text: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run a query of constants with values."""
        with self._lock:
            return self._database.execute(text, tuple(values)).fetchall()

    def names(self) -> Mapping[str, list[str]]:
        """List services and judges, for the choices of forms; without names that hold signs nobody sees."""
        return {kind: sorted(names)[:_MAX_NAMES] for kind, names in self._names.items()}

    def read(self, names: Sequence[str]) -> dict[str, OutboxEntry]:
        """Read entries from Redis by their names; those that were erased there leave the index."""
        by_partition: dict[int, list[str]] = {}
        for name in names:
            by_partition.setdefault(int(name.partition("@")[0]), []).append(name)
        read = dict[str, OutboxEntry]()
        for partition, some in by_partition.items():
            store = self._store.partitions[partition]
            ids = [name.partition("@")[2] for name in some]
            try:
                replies = store.pipeline(lambda pipe: [pipe.xrange(store.keys.verdicts, id_, id_) for id_ in ids])  # noqa: B023
            except StoreError:
                if partition == self._store.partition:
                    raise
                continue
            entries = {name: read_outbox_entry(reply[0]) for name, reply in zip(some, replies, strict=True) if reply}
            read |= {name: entry for name, entry in entries.items() if entry is not None}
            with self._lock:
                gone = [(name,) for name in some if name not in entries]
                self._database.executemany("DELETE FROM verdicts WHERE entry = ?", gone)
        return {name: read[name] for name in names if name in read}

    def _add(self, entries: Sequence[Entry], partition: int) -> None:
        read = [entry for entry in map(read_outbox_entry, entries) if entry is not None]
        with self._lock:
            self._database.execute("BEGIN")
            self._database.executemany(_INSERT, (_row(entry, partition) for entry in read))
            self._database.execute("COMMIT")
        verdicts = [entry.verdict for entry in read]
        for kind, names in (
            ("services", {verdict.service for verdict in verdicts}),
            ("judges", {verdict.judge for verdict in verdicts}),
        ):
            if len(self._names[kind]) < _MAX_NAMES:
                # Another set, since pages may be reading this one.
                self._names[kind] = self._names[kind] | {name for name in names if neutralise(name) == name}
        self._positions[partition] = entries[-1][0].decode()
        self.record_progress()
