"""Redis' clock is set back: what was to happen by the old one happens in its time, and not as much later."""

from typing import Final

import pytest
from support.leases_parts import LEASE_S, MODEL, add, due_in
from support.stage_parts import Keyspace, make_maintenance

from worker.core.queue.leases import Leases
from worker.core.runtime.partition import Maintenance
from worker.core.storage.keys import INGEST_GROUP
from worker.core.telemetry.backlog import Backpressure

HOUR_S: Final = 3600.0


@pytest.fixture
def maintenance(keyspace: Keyspace) -> Maintenance:
    stage = make_maintenance(keyspace, backpressure=Backpressure(1, {MODEL}))
    stage.run_once()
    return stage


def set_back(keyspace: Keyspace, by_s: float) -> None:
    """Move the last look as far ahead as if the clock had been set back since."""
    keyspace.client.set(keyspace.keys.clock, keyspace.store.now_ms() + int(by_s * 1000))


def test_leases_and_parkings_are_taken_along(keyspace: Keyspace, maintenance: Maintenance) -> None:
    dead, parked, living = (add(keyspace) for _ in range(3))
    keyspace.make_due(dead, in_s=HOUR_S + 10)
    keyspace.make_due(parked, in_s=HOUR_S + 60)
    keyspace.make_due(living, in_s=LEASE_S - 1)
    set_back(keyspace, HOUR_S)
    maintenance.run_once()
    assert [due_in(keyspace, batch) for batch in (dead, parked, living)] == [
        keyspace.soon(10),
        keyspace.soon(60),
        keyspace.soon(LEASE_S - 1),
    ]
    before = keyspace.client.zrange(keyspace.keys.leases, 0, -1, withscores=True)
    maintenance.run_once()
    assert keyspace.client.zrange(keyspace.keys.leases, 0, -1, withscores=True) == before, "once"


def test_feedback_is_not_gathered_for_longer(keyspace: Keyspace, maintenance: Maintenance) -> None:
    now_ms = int(keyspace.client.get(keyspace.keys.clock))
    keyspace.client.zadd(keyspace.keys.feedback, {"one": now_ms + (HOUR_S + 60) * 1000})
    set_back(keyspace, HOUR_S)
    maintenance.run_once()
    due_ms = keyspace.client.zscore(keyspace.keys.feedback, "one")
    assert (due_ms - keyspace.store.now_ms()) / 1000 == keyspace.soon(60)


def test_pending_entries_keep_their_consumer(keyspace: Keyspace, maintenance: Maintenance) -> None:
    """That its idle time begins anew is seen by the experiments alone: Redis lets nobody read something tomorrow."""
    ids = [keyspace.add({"n": number}) for number in range(3)]
    for reader, count in (("a", 2), ("b", 1)):
        keyspace.read(count, consumer=reader)
    keyspace.client.xdel(keyspace.keys.traces, ids[0])
    set_back(keyspace, HOUR_S)
    maintenance.run_once()
    pending = keyspace.client.xpending_range(keyspace.keys.traces, INGEST_GROUP, min="-", max="+", count=10)
    readers = [(entry["message_id"].decode(), entry["consumer"], entry["times_delivered"]) for entry in pending]
    assert readers == list(zip(ids, (b"a", b"a", b"b"), (1, 1, 1), strict=True)), (
        "also what is gone: who claims it counts it"
    )


@pytest.mark.parametrize("by_s", [-HOUR_S, 0.0, 0.5], ids=["forwards", "steady", "trimmed"])
def test_a_clock_that_was_not_set_back_moves_nothing(keyspace: Keyspace, maintenance: Maintenance, by_s: float) -> None:
    leases = Leases(keyspace.store, tries_ttl_s=60)
    add(keyspace)
    (held,) = leases.take(MODEL, "a", 1)
    leases.put_back(held.lease, delay_s=60)
    set_back(keyspace, by_s)
    before = keyspace.client.zrange(keyspace.keys.leases, 0, -1, withscores=True)
    maintenance.run_once()
    assert keyspace.client.zrange(keyspace.keys.leases, 0, -1, withscores=True) == before


def test_a_lock_of_a_dead_worker_is_not_held_for_longer(keyspace: Keyspace, maintenance: Maintenance) -> None:
    """The TTL of a lock goes by the clock as well: nobody swept for an hour, and lost work waited."""
    locks = (keyspace.keys.sweeper, keyspace.keys.dead_auto_retry, keyspace.keys.feedback_pass)
    for lock in locks:
        keyspace.client.set(lock, "dead", ex=3600)
    maintenance.run_once()
    assert keyspace.client.exists(*locks) == len(locks)
    set_back(keyspace, HOUR_S)
    maintenance.run_once()
    assert keyspace.client.exists(*locks) == 0
