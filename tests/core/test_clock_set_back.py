"""Redis' clock is set back: what was to happen by the old one happens in its time, and not as much later."""

from typing import Final

import pytest
from support.leases_parts import LEASE_S, MODEL, add, due_in
from support.stage_parts import Ground, settings_of

from worker.core.queue.leases import Leases
from worker.core.runtime.maintenance import Maintenance
from worker.core.storage.keys import INGEST_GROUP
from worker.core.telemetry.backlog import Backpressure
from worker.core.telemetry.health import Heartbeat, Readiness
from worker.core.telemetry.metrics import Metrics

HOUR_S: Final = 3600.0


@pytest.fixture
def maintenance(ground: Ground) -> Maintenance:
    settings = settings_of(ground)
    stage = Maintenance(
        settings,
        ground.store,
        Metrics(settings),
        groups=(),
        readiness=Readiness(),
        capacity=dict,
        backpressure=Backpressure(1, {MODEL}),
        heartbeat=Heartbeat(ground.store, dict),
    )
    stage.stopping.set()
    stage.run_once()
    return stage


def set_back(ground: Ground, by_s: float) -> None:
    """Move the last look as far ahead as if the clock had been set back since."""
    ground.client.set(ground.keys.clock, ground.store.now_ms() + int(by_s * 1000))


def test_leases_and_parkings_are_taken_along(ground: Ground, maintenance: Maintenance) -> None:
    dead, parked, living = (add(ground) for _ in range(3))
    ground.make_due(dead, in_s=HOUR_S + 10)
    ground.make_due(parked, in_s=HOUR_S + 60)
    ground.make_due(living, in_s=LEASE_S - 1)
    set_back(ground, HOUR_S)
    maintenance.run_once()
    assert [due_in(ground, batch) for batch in (dead, parked, living)] == [
        ground.soon(10),
        ground.soon(60),
        ground.soon(LEASE_S - 1),
    ]
    before = ground.client.zrange(ground.keys.leases, 0, -1, withscores=True)
    maintenance.run_once()
    assert ground.client.zrange(ground.keys.leases, 0, -1, withscores=True) == before, "once"


def test_feedback_is_not_gathered_for_longer(ground: Ground, maintenance: Maintenance) -> None:
    now_ms = int(ground.client.get(ground.keys.clock))
    ground.client.zadd(ground.keys.feedback, {"one": now_ms + (HOUR_S + 60) * 1000})
    set_back(ground, HOUR_S)
    maintenance.run_once()
    due_ms = ground.client.zscore(ground.keys.feedback, "one")
    assert (due_ms - ground.store.now_ms()) / 1000 == ground.soon(60)


def test_what_readers_have_read_stays_theirs(ground: Ground, maintenance: Maintenance) -> None:
    """That its idle time begins anew is seen by the experiments alone: Redis lets nobody read something tomorrow."""
    ids = [ground.add({"n": number}) for number in range(3)]
    for reader, count in (("a", 2), ("b", 1)):
        ground.read(count, consumer=reader)
    ground.client.xdel(ground.keys.traces, ids[0])
    set_back(ground, HOUR_S)
    maintenance.run_once()
    pending = ground.client.xpending_range(ground.keys.traces, INGEST_GROUP, min="-", max="+", count=10)
    found = [(entry["message_id"].decode(), entry["consumer"], entry["times_delivered"]) for entry in pending]
    assert found == list(zip(ids, (b"a", b"a", b"b"), (1, 1, 1), strict=True)), (
        "also what is gone: who claims it counts it"
    )


@pytest.mark.parametrize("by_s", [-HOUR_S, 0.0, 0.5], ids=["forwards", "steady", "trimmed"])
def test_a_clock_that_was_not_set_back_moves_nothing(ground: Ground, maintenance: Maintenance, by_s: float) -> None:
    leases = Leases(ground.store, tries_ttl_s=60)
    add(ground)
    (held,) = leases.take(MODEL, "a", 1)
    leases.put_back(held.lease, delay_s=60)
    set_back(ground, by_s)
    before = ground.client.zrange(ground.keys.leases, 0, -1, withscores=True)
    maintenance.run_once()
    assert ground.client.zrange(ground.keys.leases, 0, -1, withscores=True) == before


def test_a_lock_of_a_dead_worker_is_not_held_for_longer(ground: Ground, maintenance: Maintenance) -> None:
    """The TTL of a lock goes by the clock as well: nobody swept for an hour, and lost work waited."""
    locks = (ground.keys.sweeper, ground.keys.dead_auto_retry, ground.keys.feedback_pass)
    for lock in locks:
        ground.client.set(lock, "dead", ex=3600)
    maintenance.run_once()
    assert ground.client.exists(*locks) == len(locks)
    set_back(ground, HOUR_S)
    maintenance.run_once()
    assert ground.client.exists(*locks) == 0
