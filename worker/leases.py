"""Who works on which batch: a lease in Redis, taken before the first call, renewed while the work goes on.

A batch that nobody holds waits in the ready set of its judge model, so that whoever has room for that model finds the
oldest; one that waits for a later time, or whose holder is gone, comes back there by ``sweep``. Messages only wake.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import redis

from worker.batches import made_at_ms, mark
from worker.store import Store

__all__ = ["LEASE_MS", "READY_MS", "RENEW_S", "Held", "Leases", "Taken"]

LEASE_MS: Final = 15_000
RENEW_S: Final = 5.0
READY_MS: Final = 3_600_000
"""A batch in its ready set needs no due time; it has one all the same, should the set be lost by somebody's hand."""
_SWEPT_AT_ONCE: Final = 1_000
_FOREVER: Final = "+inf"


class Held(NamedTuple):
    """A lease: the batch, the judge model it is for, and the name under which it is held."""

    batch_id: str
    judge_model: str
    holder: str


class Taken(NamedTuple):
    """A batch that is ours now, and how many calls its evaluations had before, by evaluation id."""

    held: Held
    payload: bytes
    tries: Mapping[str, int]


class Leases:
    """The leases of one process."""

    def __init__(self, store: Store, *, tries_ttl_s: int) -> None:
        """Work on the store's keys.

        Args:
            tries_ttl_s: How long it is remembered how often evaluations were tried.
        """
        self._store = store
        self._keys = store.keys
        self._tries_ttl_s = tries_ttl_s

    def take(self, judge_model: str, holder: str, count: int, *, made_before_ms: int | None = None) -> list[Taken]:
        """Take the leases of up to ``count`` ready batches of a judge model, the oldest first.

        Should the answer be lost on its way, the leases lapse, and the batches are ready again.

        Raises:
            StoreError: Redis did not answer.
        """
        keys = self._keys
        before = _FOREVER if made_before_ms is None else made_before_ms
        names = (keys.ready(judge_model), keys.leases, keys.holders)
        ids = [raw.decode() for raw in self._store.run("take", names, (count, holder, LEASE_MS, before))]
        if not ids:
            return []
        taken = []
        for batch_id, (payload, tries) in zip(ids, self._read(ids), strict=True):
            if payload is None:
                # Finished by a holder whose lease had lapsed meanwhile.
                self.finish(batch_id, judge_model)
            else:
                calls = {evaluation_id.decode(): int(made) for evaluation_id, made in tries.items()}
                taken.append(Taken(Held(batch_id, judge_model, holder), payload, calls))
        return taken

    def _read(self, ids: Sequence[str]) -> list[tuple[bytes | None, dict[bytes, bytes]]]:
        def read(client: "redis.Redis") -> list[Any]:
            pipe = client.pipeline(transaction=False)
            pipe.mget([self._keys.batch(batch_id) for batch_id in ids])
            for batch_id in ids:
                pipe.hgetall(self._keys.tries(batch_id))
            return pipe.execute()

        payloads, *tries = self._store.call(read)
        return list(zip(payloads, tries, strict=True))

    def renew(self, held: Iterable[Held]) -> set[str]:
        """Renew leases; return the ids of batches that are no longer ours.

        Raises:
            StoreError: Redis did not answer.
        """
        flat = [part for lease in held for part in (lease.batch_id, lease.holder)]
        if not flat:
            return set()
        lost = self._store.run("renew", (self._keys.leases, self._keys.holders), (LEASE_MS, *flat))
        return {batch_id.decode() for batch_id in lost}

    def put_back(self, held: Held, *, delay_s: float = 0.0, tries: Mapping[str, int] | None = None) -> None:
        """Give an unfinished batch back: ready at once, or parked for ``delay_s``, when nobody takes it earlier.

        Args:
            tries: Calls of this round by evaluation id, to be added to what is remembered.

        Raises:
            StoreError: Redis did not answer.
        """
        keys, batch_id = self._keys, held.batch_id
        names = (keys.leases, keys.holders, keys.ready(held.judge_model), keys.tries(batch_id))
        flat: list[str | int] = [part for pair in (tries or {}).items() for part in pair]
        arguments: list[str | int] = [batch_id, held.holder, made_at_ms(batch_id), int(delay_s * 1000)]
        self._store.run("put_back", names, (*arguments, READY_MS, self._tries_ttl_s, *flat))

    def finish(self, batch_id: str, judge_model: str) -> None:
        """Remove a batch of which every evaluation is in the ledger or dead.

        Raises:
            StoreError: Redis did not answer.
        """
        keys = self._keys
        of_all = (keys.leases, keys.holders, keys.waiting, keys.ready(judge_model))
        self._store.run("finish", (*of_all, keys.batch(batch_id), keys.tries(batch_id)), (batch_id, judge_model))

    def sweep(self, judge_models: Iterable[str]) -> int:
        """Make ready what is due for these judge models: its holder is gone, or its parking over. Return how many.

        Raises:
            StoreError: Redis did not answer.
        """
        names = list(judge_models)
        ready = [self._keys.ready(name) for name in names]
        arguments: list[str | int] = [_SWEPT_AT_ONCE, READY_MS, *(mark(name) for name in names)]
        return int(self._store.run("sweep", (self._keys.leases, self._keys.holders, *ready), arguments))

    def judge_models(self) -> frozenset[str]:
        """Name the judge models that unfinished batches are for.

        Raises:
            StoreError: Redis did not answer.
        """
        waiting = self._store.call(lambda client: client.hgetall(self._keys.waiting))
        return frozenset(name.decode() for name, size in waiting.items() if int(size) > 0)
