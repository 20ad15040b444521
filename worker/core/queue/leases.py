"""Leases of batches: acquired before the first call to the judge model, renewed while work goes on.

A ready batch is in the ready set of its judge model, and the oldest is leased first. A parked batch, or one whose
holder is gone, becomes ready again by ``sweep``. Celery messages only wake workers; they carry no work. Every method
raises StoreError if Redis does not answer.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import redis
import structlog

from judges.core.model import CallTotals
from worker.core.queue.batch import judge_model_hash, made_at_ms
from worker.core.storage.client import Store

log = structlog.get_logger("tracejudge.judging")
LEASE_MS: Final = 15_000
RENEW_S: Final = 5.0
# A ready batch has a due time only so that sweep restores a ready set that somebody deleted.
READY_MS: Final = 3_600_000
# A batch with an unreadable key is parked this long, so that the key can be repaired before the next try.
SET_ASIDE_S: Final = 600.0
_MAX_SWEPT: Final = 1_000
_MAX_PROBE_CANDIDATES: Final = 1_000
Task = asyncio.Task[None]
_decode_spent = msgspec.json.Decoder(CallTotals).decode


class Lease(NamedTuple):
    """A lease of a batch, with the name of its holder."""

    batch_id: str
    judge_model: str
    holder: str


class LeasedPayload(NamedTuple):
    """A leased batch as it is stored, and calls and cost of earlier rounds by evaluation id."""

    lease: Lease
    payload: bytes
    tries: Mapping[str, CallTotals]


class Leases:
    """The leases of one process."""

    def __init__(self, store: Store, *, tries_ttl_s: int) -> None:
        """Use the store's keys; calls and cost of unfinished evaluations are kept for ``tries_ttl_s``."""
        self._store = store
        self._keys = store.keys
        self._tries_ttl_s = tries_ttl_s

    def take(
        self,
        judge_model: str,
        holder: str,
        count: int,
        *,
        made_before_ms: int | None = None,
        untried_first: bool = False,
    ) -> list[LeasedPayload]:
        """Lease up to ``count`` ready batches of a judge model, the oldest first, of those created before a time.

        If the answer is lost, the leases expire and the batches become ready again. A batch whose keys hold another
        type, or something unreadable, is parked and counted, and the others are returned. ``untried_first`` prefers
        batches for which no round has called the endpoint.
        """
        keys = self._keys
        before = "+inf" if made_before_ms is None else made_before_ms
        names = (keys.ready(judge_model), keys.leases, keys.holders, keys.all_tries)
        arguments = (count, holder, LEASE_MS, before, _MAX_PROBE_CANDIDATES if untried_first else 0)
        ids = [raw.decode() for raw in self._store.run("take", names, arguments)]
        taken = []
        for batch_id, payload, tries in self._read(ids):
            lease = Lease(batch_id, judge_model, holder)
            if isinstance(payload, Exception) or isinstance(tries, Exception):
                self._set_aside(lease, "wrong_type")
            elif payload is None:
                # Finished by a holder whose lease had expired meanwhile.
                self.finish(batch_id, judge_model)
            else:
                try:
                    spent = {evaluation_id.decode(): _decode_spent(raw) for evaluation_id, raw in tries.items()}
                except (msgspec.DecodeError, UnicodeDecodeError):
                    self._set_aside(lease, "unreadable_tries")
                else:
                    taken.append(LeasedPayload(lease, payload, spent))
        return taken

    def _read(self, ids: Sequence[str]) -> list[tuple[str, Any, Any]]:
        """Read payloads and tries of batches; an error instead of either if a key holds another type."""
        if not ids:
            return []

        def read(client: "redis.Redis") -> list[Any]:
            pipe = client.pipeline(transaction=False)
            for batch_id in ids:
                pipe.get(self._keys.batch(batch_id))
                pipe.hgetall(self._keys.tries(batch_id))
            replies = pipe.execute(raise_on_error=False)
            # Any other error concerns the connection or the user, not one batch.
            for reply in replies:
                if isinstance(reply, Exception) and not str(reply).startswith("WRONGTYPE"):
                    raise reply
            return replies

        replies = self._store.call(read)
        return list(zip(ids, replies[::2], replies[1::2], strict=True))

    def _set_aside(self, lease: Lease, reason: str) -> None:
        """Park a batch that cannot be read: leased again at once, it would block its judge model."""
        keys = self._keys
        names = (keys.leases, keys.holders, keys.account_now(), keys.account_all)
        self._store.run("set_aside", names, (lease.batch_id, lease.holder, int(SET_ASIDE_S * 1000), reason))
        log.warning("batch set aside", batch=lease.batch_id, judge_model=lease.judge_model, reason=reason)

    def renew(self, leases: Iterable[Lease]) -> set[str]:
        """Renew leases; return the ids of batches whose lease is lost."""
        flat = [part for lease in leases for part in (lease.batch_id, lease.holder)]
        if not flat:
            return set()
        lost = self._store.run("renew", (self._keys.leases, self._keys.holders), (LEASE_MS, *flat))
        return {batch_id.decode() for batch_id in lost}

    def put_back(self, lease: Lease, *, delay_s: float = 0.0, tries: Mapping[str, CallTotals] | None = None) -> None:
        """Return an unfinished batch: ready at once, or parked for ``delay_s``; tries of other evaluations stay."""
        keys, batch_id = self._keys, lease.batch_id
        names = (keys.leases, keys.holders, keys.ready(lease.judge_model), keys.tries(batch_id))
        flat = [part for name, spent in (tries or {}).items() for part in (name, msgspec.json.encode(spent))]
        arguments: list[str | int] = [batch_id, lease.holder, made_at_ms(batch_id), int(delay_s * 1000)]
        self._store.run("put_back", names, (*arguments, READY_MS, self._tries_ttl_s, *flat))

    def has_ready(self, lease: Lease) -> bool:
        """Return whether other batches of the same judge model are ready."""
        ready = self._keys.ready(lease.judge_model)
        return bool(self._store.call(lambda client: client.zcard(ready)))

    def finish(self, batch_id: str, judge_model: str) -> None:
        """Remove a batch whose evaluations are all in the ledger or dead."""
        keys = self._keys
        of_all = (keys.leases, keys.holders, keys.waiting, keys.ready(judge_model))
        names = (*of_all, keys.batch(batch_id), keys.tries(batch_id), keys.account_all)
        self._store.run("finish", names, (batch_id, judge_model))

    def sweep(self, judge_models: Iterable[str]) -> int:
        """Make due batches of these judge models ready: lease expired, or parking over. Return how many."""
        names = list(judge_models)
        ready = [self._keys.ready(name) for name in names]
        arguments: list[str | int] = [_MAX_SWEPT, READY_MS, *(judge_model_hash(name) for name in names)]
        return int(self._store.run("sweep", (self._keys.leases, self._keys.holders, *ready), arguments))

    def judge_models(self) -> frozenset[str]:
        """List the judge models of unfinished batches."""
        waiting = self._store.call(lambda client: client.hgetall(self._keys.waiting))
        return frozenset(name.decode() for name, size in waiting.items() if int(size) > 0)


class HeldLeases:
    """The batches in progress. Safe to share between threads."""

    def __init__(self, leases: Leases, cancel: Callable[[Task], None]) -> None:
        """Start empty; ``cancel`` cancels a task from any thread."""
        self._leases = leases
        self._cancel = cancel
        self._lock = threading.Lock()
        self._held: dict[str, tuple[Lease, Task | None]] = {}
        self._acquiring_now = 0
        self._closed = False
        self._renewed_at = time.monotonic()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def is_busy(self) -> bool:
        """Whether a lease is held. Also True while a thread waits for the reply that may grant one."""
        with self._lock:
            return bool(self._held or self._acquiring_now)

    @contextlib.contextmanager
    def acquiring(self) -> Iterator[None]:
        """Mark that leases are being acquired, until they have been added."""
        with self._lock:
            self._acquiring_now += 1
        try:
            yield
        finally:
            with self._lock:
                self._acquiring_now -= 1

    def add(self, lease: Lease) -> None:
        """Add an acquired lease; cancels the task of an earlier lease of ours that has lapsed meanwhile."""
        with self._lock:
            _, older = self._held.get(lease.batch_id, (None, None))
            self._held[lease.batch_id] = (lease, None)
        if older is not None:
            self._cancel(older)

    def begin(self, lease: Lease, task: Task) -> bool:
        """Register the task of a lease; if the lease is lost or all work has ended, cancel it and return False."""
        with self._lock:
            current, _ = self._held.get(lease.batch_id, (None, None))
            if current == lease:
                self._held[lease.batch_id] = (lease, task)
            is_over = self._closed or current != lease
        if is_over:
            self._cancel(task)
        return not is_over

    def remove(self, lease: Lease) -> Task | None:
        """Remove a lease and return its task; a later lease of the same batch stays."""
        with self._lock:
            current, task = self._held.get(lease.batch_id, (None, None))
            if current != lease:
                return None
            del self._held[lease.batch_id]
            return task

    def abandon(self, lease: Lease) -> None:
        """Remove a lease and cancel its task: it lapses, unless it can be released."""
        task = self.remove(lease)
        if task is not None:
            self._cancel(task)

    def cancel_all(self) -> None:
        """Cancel all tasks, also the tasks of leases that are being acquired now."""
        with self._lock:
            self._closed = True
            tasks = [task for _, task in self._held.values() if task is not None]
        for task in tasks:
            self._cancel(task)

    def renew(self) -> None:
        """Renew all leases; cancel the tasks of those that were lost."""
        with self._lock:
            held = dict(self._held)
        for batch_id in self._leases.renew(lease for lease, _ in held.values()):
            _, task = held[batch_id]
            # A task that is done has just finished the batch.
            if task is not None and not task.done():
                log.warning("lease lost", batch=batch_id)
                self._cancel(task)
        self._renewed_at = time.monotonic()

    def renew_overdue(self) -> None:
        """Renew leases whose renewal is long overdue, since Redis was away or the event loop was busy."""
        if time.monotonic() - self._renewed_at > 2 * RENEW_S:
            self.renew()
