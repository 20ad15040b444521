"""What the tests of leases share: batches as ingest leaves them, and eyes on who has them."""

from support.stage_parts import Keyspace
from worker.core.queue.batch import batch_header, fresh_id, made_at_ms
from worker.core.queue.leases import LEASE_MS, READY_MS, LeasedPayload

LEASE_S, READY_S = LEASE_MS / 1000, READY_MS / 1000
TTL_S = 7200
MODEL, OTHER = "lexical", "other"
BEGIN_S = 1_700_000_000.0


def add(keyspace: Keyspace, model: str = MODEL, *, made_at_s: float = BEGIN_S) -> str:
    """Leave a batch as ingest does."""
    batch_id = fresh_id(model, made_at_s)
    payload = batch_header(batch_id, "default", model, made_at_s) + "]}"
    keyspace.client.set(keyspace.keys.batch(batch_id), payload)
    keyspace.client.hincrby(keyspace.keys.waiting, model, len(payload))
    keyspace.client.zadd(keyspace.keys.ready(model), {batch_id: made_at_ms(batch_id)})
    keyspace.client.zadd(keyspace.keys.leases, {batch_id: 0})
    keyspace.make_due(batch_id, in_s=READY_S)
    return batch_id


def ids(taken: list[LeasedPayload]) -> list[str]:
    return [lease.lease.batch_id for lease in taken]


def ready(keyspace: Keyspace, model: str = MODEL) -> list[str]:
    """List the batches that anybody may take, the oldest first."""
    return [batch_id.decode() for batch_id in keyspace.client.zrange(keyspace.keys.ready(model), 0, -1)]


def holder_of(keyspace: Keyspace, batch_id: str) -> str | None:
    holder = keyspace.client.hget(keyspace.keys.holders, batch_id)
    return None if holder is None else holder.decode()


def due_in(keyspace: Keyspace, batch_id: str) -> float:
    return keyspace.leases()[batch_id]


def assert_gone(keyspace: Keyspace, batch_id: str) -> None:
    assert batch_id not in str(keyspace.everything())
