"""Erase everything of a trace or a person, in the order in which data flows, while workers go on.

First the stream and the gathered feedback: from then on nothing more of it is chosen. Then batches and dead letters,
over and over until a round finds nothing, for a letter may become a batch and a batch letters. Verdicts last: none is
written for what was taken out of a batch. Done again it finds nothing, or what services have published since.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from msgspec import Struct

from worker.batches import head
from worker.dead.letters import Letters, Wanted
from worker.forget.places import HeldBatch, HeldItem, Thing, batches, gathered, read_batch, stream
from worker.forget.subject import Owner, Subject
from worker.keys import INGEST_GROUP
from worker.ledger import Ledger
from worker.settings import Settings
from worker.store import Store

__all__ = ["Forgetting", "Forgotten"]

_MAX_ROUNDS: Final = 20
_MAX_REREADS: Final = 20
_AT_ONCE: Final = 500


class Forgotten(Struct):
    """What was found and erased; in a dry run only found.

    Attributes:
        traces: Entries of the stream, publications of traces.
        feedback: Late feedback, in the stream or gathered.
        evaluations: Evaluations in batches that had not ended.
        dead_letters: Evaluations given up.
        verdicts: Entries of the outbox.
        unreadable: Batches and letters of another version, which were left as they are.
        unsettled: Whether new work of theirs still appeared in the last round.
    """

    traces: int = 0
    feedback: int = 0
    evaluations: int = 0
    dead_letters: int = 0
    verdicts: int = 0
    unreadable: int = 0
    unsettled: bool = False

    @property
    def total(self) -> int:
        """How many things there were."""
        return self.traces + self.feedback + self.evaluations + self.dead_letters + self.verdicts


class Forgetting:
    """One run for one subject."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        subject: Subject,
        *,
        dry_run: bool = False,
        progress: Callable[[str, int], None] = lambda _place, _things: None,
    ) -> None:
        """Prepare.

        Args:
            progress: Told what is being looked through (`traces`, `batches`, …), and how many of it have been so far.
        """
        self.found = Forgotten()
        self._store = store
        self._keys = store.keys
        self._settings = settings
        self._ledger = Ledger(store, settings)
        self._subject = subject
        self._dry_run = dry_run
        self._progress = progress
        self._unreadable: set[str] = set()
        self._unreadable_letters = 0

    def run(self) -> Forgotten:
        """Look for the traces of a person first; then erase.

        Raises:
            StoreError: Redis did not answer; it is safe to begin again.
        """
        if self._subject.is_person:
            self._learn()
        self._erase_entries()
        self._erase_gathered()
        clean = 0
        for _ in range(_MAX_ROUNDS):
            # Of two rounds that find nothing the second has seen what became of batches during the first.
            clean = 0 if self._erase_letters() + self._erase_from_batches() else clean + 1
            if self._dry_run or clean > 1:
                break
        else:
            self.found.unsettled = True
        self._erase_verdicts()
        self.found.unreadable = len(self._unreadable) + self._unreadable_letters
        return self.found

    def _learn(self) -> None:
        """Find the person's traces: feedback, and other parts of a trace, bear no user id."""
        for batch_id in batches(self._store):
            batch = self._read_batch(batch_id)
            self._subject.learn(item.owner for item in (batch.items if batch else ()))
        self._subject.learn(owner for _, owner in self._letters())
        for name, place in ((self._keys.verdicts, "verdicts"), (self._keys.traces, "traces")):
            seen = 0
            for things in stream(self._store, name):
                self._subject.learn(thing.owner for thing in things)
                seen += len(things)
                self._progress(place, seen)

    def _erase_entries(self) -> None:
        names = (self._keys.traces, self._keys.account_now(), self._keys.books)
        seen = 0
        for things in stream(self._store, self._keys.traces):
            theirs = self._theirs(things)
            self._count("traces", [thing for thing in theirs if thing.kind == "t"])
            self._count("feedback", [thing for thing in theirs if thing.kind == "f"])
            if theirs and not self._dry_run:
                self._store.run("forget_entries", names, (INGEST_GROUP, *(thing.name for thing in theirs)))
            seen += len(things)
            self._progress("traces", seen)

    def _erase_gathered(self) -> None:
        names = (self._keys.feedback, self._keys.account_now(), self._keys.books)
        theirs = self._theirs(gathered(self._store))
        self._count("feedback", theirs)
        for first in range(0, 0 if self._dry_run else len(theirs), _AT_ONCE):
            members = [thing.name.encode("utf-8", "surrogateescape") for thing in theirs[first : first + _AT_ONCE]]
            self._store.run("forget_feedback", names, members)

    def _erase_letters(self) -> int:
        ids = [evaluation_id for evaluation_id, owner in self._letters() if self._subject.owns(owner)]
        erased = len(ids)
        if not self._dry_run:
            pieces = (ids[first : first + _AT_ONCE] for first in range(0, len(ids), _AT_ONCE))
            erased = sum(sum(self._ledger.remove(piece)) for piece in pieces)
        self.found.dead_letters += erased
        return erased

    def _letters(self) -> Iterable[tuple[str, Owner]]:
        letters = Letters(self._store)
        for seen, found in enumerate(letters.find(Wanted()), 1):
            trace = found.letter.item.trace
            yield found.letter.evaluation.id, Owner(trace.trace_id, trace.user_id)
            self._progress("dead letters", seen)
        self._unreadable_letters = letters.unreadable

    def _erase_from_batches(self) -> int:
        erased = 0
        for seen, batch_id in enumerate(batches(self._store), 1):
            erased += self._erase_from(batch_id)
            self._progress("batches", seen)
        return erased

    def _erase_from(self, batch_id: str) -> int:
        """Take theirs out of a batch; tell how many evaluations that were, ended or not."""
        for _ in range(_MAX_REREADS):
            batch = self._read_batch(batch_id)
            ids = [name for item in batch.items if self._owns(item) for name in item.evaluation_ids] if batch else []
            if batch is None or not ids:
                return 0
            open_ones, letters = self._rewrite(batch, ids)
            if open_ones >= 0:
                self.found.evaluations += open_ones - letters
                self.found.dead_letters += letters
                return len(ids)
        return 1

    def _rewrite(self, batch: HeldBatch, ids: Sequence[str]) -> tuple[int, int]:
        """Write a batch anew without theirs; tell how many had not ended, and how many of these were letters."""
        if self._dry_run:
            return len(self._still_open(ids)), 0
        keys, model = self._keys, batch.judge_model
        of_batch = (keys.leases, keys.holders, keys.waiting, keys.ready(model), keys.batch(batch.id))
        of_books = (keys.tries(batch.id), keys.account_now(), keys.books)
        of_dead = (keys.dead, keys.dead_due, keys.dead_retries)
        names = (*of_batch, *of_books, *of_dead, *map(keys.ledger, ids))
        read = hashlib.sha1(batch.payload, usedforsecurity=False).hexdigest()
        left, ttl_s = self._without_theirs(batch), self._settings.ledger_ttl_s
        arguments: tuple[bytes | str | int, ...] = (batch.id, model, read, left, ttl_s, *ids)
        open_ones, letters = self._store.run("forget_batch", names, arguments)
        return open_ones, letters

    def _without_theirs(self, batch: HeldBatch) -> bytes:
        left = [item.raw for item in batch.items if not self._owns(item)]
        if not left:
            return b""
        begin = head(batch.id, batch.model, batch.judge_model, batch.created_at, batch.v)
        return begin.encode() + b",".join(left) + b"]}"

    def _still_open(self, ids: Sequence[str]) -> list[str]:
        """Find which are neither in the ledger nor dead."""
        in_ledger = self._store.call(lambda client: client.mget([self._keys.ledger(name) for name in ids]))
        dead = self._store.call(lambda client: client.zmscore(self._keys.dead_due, list(ids)))
        found = zip(ids, in_ledger, dead, strict=True)
        return [name for name, outcome, due in found if outcome is None and due is None]

    def _erase_verdicts(self) -> None:
        names = (self._keys.verdicts, self._keys.books)
        seen = 0
        for things in stream(self._store, self._keys.verdicts):
            theirs = self._theirs(things)
            self._count("verdicts", theirs)
            if theirs and not self._dry_run:
                self._store.run("forget_verdicts", names, [thing.name for thing in theirs])
            seen += len(things)
            self._progress("verdicts", seen)

    def _theirs(self, things: Iterable[Thing]) -> list[Thing]:
        return [thing for thing in things if self._subject.owns(thing.owner)]

    def _owns(self, item: HeldItem) -> bool:
        return self._subject.owns(item.owner)

    def _read_batch(self, batch_id: str) -> HeldBatch | None:
        try:
            return read_batch(self._store, batch_id)
        except ValueError:
            # Of a newer version of the worker; whoever asked is told.
            self._unreadable.add(batch_id)
            return None

    def _count(self, place: str, things: Sequence[Thing]) -> None:
        setattr(self.found, place, getattr(self.found, place) + len(things))
