"""Who works on which batch: a lease in Redis, taken before the first call, renewed while the work goes on.

The Celery message is only a wake-up. A batch that nobody holds when its time has come is found by ``due`` and
woken again, whatever became of its message or of its last holder.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from worker.store import Store

__all__ = ["FIRST_WAIT_MS", "LEASE_MS", "RENEW_S", "Held", "Leases"]

LEASE_MS: Final = 15_000
RENEW_S: Final = 5.0
FIRST_WAIT_MS: Final = 15_000
"""How long a wake-up may take before the sweeper sends another."""


class Held(NamedTuple):
    """A lease: the batch, and the name under which it is held."""

    batch_id: str
    holder: str


class Leases:
    """The leases of one process."""

    def __init__(self, store: Store) -> None:
        """Work on the store's keys."""
        self._store = store
        self._keys = store.keys

    def take(self, held: Held) -> bytes | None:
        """Take a lease and return the batch; None when it is finished, parked, or held by another.

        Raises:
            StoreError: Redis did not answer.
        """
        keys = (self._keys.leases, self._keys.holders, self._keys.batch(held.batch_id))
        status, *payload = self._store.run("take", keys, (*held, LEASE_MS))
        return payload[0] if status == b"taken" else None

    def renew(self, held: Iterable[Held]) -> set[str]:
        """Renew leases; return the ids of batches that are no longer ours.

        Raises:
            StoreError: Redis did not answer.
        """
        flat = [part for lease in held for part in lease]
        if not flat:
            return set()
        lost = self._store.run("renew", (self._keys.leases, self._keys.holders), (LEASE_MS, *flat))
        return {batch_id.decode() for batch_id in lost}

    def put_back(self, held: Held, *, delay_s: float, park: bool) -> None:
        """Give an unfinished batch back, due again after ``delay_s``; a parked one is not taken earlier.

        Raises:
            StoreError: Redis did not answer.
        """
        arguments = (*held, int(delay_s * 1000), int(park))
        self._store.run("put_back", (self._keys.leases, self._keys.holders), arguments)

    def finish(self, batch_id: str, judge_model: str) -> None:
        """Remove a batch of which every evaluation is in the ledger or dead.

        Raises:
            StoreError: Redis did not answer.
        """
        keys = (self._keys.leases, self._keys.holders, self._keys.waiting, self._keys.batch(batch_id))
        self._store.run("finish", keys, (batch_id, judge_model))

    def due(self, limit: int) -> list[str]:
        """Find up to ``limit`` batches whose time has come and that nobody works on.

        Raises:
            StoreError: Redis did not answer.
        """
        found = self._store.run("sweep", (self._keys.leases, self._keys.holders), (limit, FIRST_WAIT_MS))
        return [batch_id.decode() for batch_id in found]
