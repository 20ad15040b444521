"""Walk the stream from a position to an end, piece by piece, and put what is wanted into batches."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from worker.ingest.choosing import Chosen
from worker.ingest.draft import ACCOUNT_TTL_S
from worker.ingest.entries import TraceEntry, read_entry
from worker.ingest.layout import Layout
from worker.keys import INGEST_GROUP
from worker.leases import READY_MS
from worker.pieces import next_count
from worker.replay.cursor import END, Cursor, State
from worker.replay.question import Chooser
from worker.replay.times import milliseconds
from worker.settings import Settings
from worker.store import Entry, Store

__all__ = ["Crowd", "Walk"]

_PIECE_COUNT: Final = 150
_FIRST_PIECE_COUNT: Final = 32
_MIN_PIECE_COUNT: Final = 2
"""One to deal with, and the one that shows where to go on."""
_PIECE_BYTES: Final = 4 * 1024 * 1024
"""About how much one script call gets: Redis serves nobody else meanwhile."""
_SHARE_OF_WAITING: Final = 0.5
"""Past the whole bound ingest would pause, or shed: the other half is left to live traces."""


class Crowd(NamedTuple):
    """A judge model that has enough to do, and how many bytes of batches wait for it."""

    judge_model: str
    waiting_bytes: int


class _Piece(NamedTuple):
    """Some entries, where the walk goes on behind them, and what was found missing before them."""

    entries: Sequence[Entry]
    next_id: str
    cut_off: int
    cut_off_ms: int


class _Wanted(NamedTuple):
    entry: TraceEntry
    evaluations: Sequence[Chosen]


class Walk:
    """One process on its way through a replay."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        chooser: Chooser,
        cursor: Cursor,
        state: State,
        *,
        wait: Callable[[Crowd], None],
    ) -> None:
        """Begin at a state.

        Args:
            wait: Called again and again while a judge model has enough to do; waits a little.
        """
        self.state = state
        self._settings = settings
        self._store = store
        self._chooser = chooser
        self._cursor = cursor
        self._wait = wait
        self._count = _FIRST_PIECE_COUNT

    def step(self) -> bool:
        """Deal with the next piece; True while there is more.

        Raises:
            ReplayError: Redis has forgotten the replay.
            StoreError: Redis did not answer; it is safe to call again.
        """
        if self.state.is_finished:
            return False
        piece = self._read()
        traces = [read for read in map(self._read_entry, piece.entries) if isinstance(read, TraceEntry)]
        every = (_Wanted(trace, self._chooser.choose(trace)) for trace in traces)
        chosen = [one for one in every if one.evaluations]
        if not self.state.question.dry_run:
            self._give_way(chosen)
        self._run(piece, len(traces), chosen)
        return not self.state.is_finished

    def _read_entry(self, entry: Entry) -> object:
        return read_entry(entry, self._settings.max_trace_bytes)

    def _read(self) -> _Piece:
        """Read from the entry that was seen to be next: if it is not the first one now, the caps were faster."""
        position, last = self.state.next_id, self.state.question.last
        found: list[Entry] = self._store.call(
            lambda client: client.xrange(self._store.keys.traces, min=position, max=last, count=self._count)
        )
        first = found[0][0].decode() if found else last
        is_whole = bool(found) and first == position
        taken, size = self._fitting(found[:-1] if len(found) == self._count else found)
        next_id = found[len(taken)][0].decode() if len(taken) < len(found) else END
        self._count = next_count(
            self._count, len(taken), size, most=_PIECE_COUNT, most_bytes=_PIECE_BYTES, least=_MIN_PIECE_COUNT
        )
        gap_ms = milliseconds(first) - milliseconds(position)
        return _Piece(taken, next_id, cut_off=int(not is_whole), cut_off_ms=gap_ms)

    @staticmethod
    def _fitting(entries: Sequence[Entry]) -> tuple[Sequence[Entry], int]:
        """Take as many as one script call may hold, at least one, and tell their size."""
        total = 0
        for number, (_, fields) in enumerate(entries):
            size = sum(map(len, (fields or {}).values()))
            if number and total + size > _PIECE_BYTES:
                return entries[:number], max(1, total)
            total += size
        return entries, max(1, total)

    def _give_way(self, chosen: Sequence[_Wanted]) -> None:
        """Wait while one of the wanted models has enough to do."""
        # A panel asks nobody: it is done when its members are.
        names = {seat.judge_model for one in chosen for seat, _ in one.evaluations if not seat.members}
        while names and (crowd := self._crowd(sorted(names))) is not None:
            self._wait(crowd)

    def _crowd(self, judge_models: Sequence[str]) -> Crowd | None:
        waiting = self._store.call(lambda client: client.hmget(self._store.keys.waiting, judge_models))
        crowds = (Crowd(name, int(size or 0)) for name, size in zip(judge_models, waiting, strict=True))
        fullest = max(crowds, key=lambda crowd: crowd.waiting_bytes)
        return fullest if fullest.waiting_bytes > self._settings.max_waiting_bytes * _SHARE_OF_WAITING else None

    def _run(self, piece: _Piece, traces: int, chosen: Sequence[_Wanted]) -> None:
        """Choose, count and go on, in one step; where another process was faster, go on behind it."""
        keys = self._store.keys
        fixed = (keys.traces, keys.leases, keys.waiting, keys.account_now(), keys.books, keys.dead, self._cursor.key)
        layout = Layout(self._settings, keys, fixed)
        plan = {
            "group": INGEST_GROUP,
            "chosen_ttl_s": self._settings.ledger_ttl_s,
            "account_ttl_s": ACCOUNT_TTL_S,
            "ready_ms": READY_MS,
            "dry_run": self.state.question.dry_run,
            "from": self.state.next_id,
            "next": piece.next_id,
            "counts": {
                "traces": traces,
                "not_matching": traces - len(chosen),
                "cut_off": piece.cut_off,
                "cut_off_ms": piece.cut_off_ms,
            },
            "traces": [self._laid_out(layout, one) for one in chosen],
            "batches": layout.batches,
        }
        flat = iter(self._store.run("replay", *layout.finish(plan)))
        self.state = self._cursor.state_of(dict(zip(flat, flat, strict=True)))

    def _laid_out(self, layout: Layout, one: _Wanted) -> dict[str, object]:
        ledger = self._store.keys.ledger
        laid_out = zip(layout.evaluations(one.evaluations, one.entry.trace), one.evaluations, strict=True)
        return {
            "id": one.entry.entry_id,
            "payload": layout.trace(one.entry.trace),
            "evaluations": [
                {**fields, "id": evaluation.id, "ledger": layout.key(ledger(evaluation.id))}
                for fields, (_, evaluation) in laid_out
            ],
        }
