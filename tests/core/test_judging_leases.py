"""The lease decides who works, the ledger what counts."""

import threading
from typing import Any

import pytest
from support.judging_parts import JudgingWorker, Workers, assert_settled, choose, holders, ids, judged, ready
from support.processes import wait_until
from support.stage_parts import Keyspace

from worker.core.judging import consumer as consumer_module
from worker.core.queue.leases import LEASE_MS, Leases

LEASE_S = LEASE_MS / 1000


@pytest.fixture
def _quick_renewal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_module, "RENEW_S", 0.01)


@pytest.fixture
def _no_renewal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_module, "RENEW_S", 3600.0)


@pytest.mark.usefixtures("_quick_renewal")
def test_a_lease_is_renewed_while_the_work_goes_on(keyspace: Keyspace, new_worker: Workers) -> None:
    (batch_id,) = choose(keyspace, 1)
    worker = new_worker()
    worker.begin(batch_id)
    keyspace.make_due()
    wait_until(lambda: keyspace.leases()[batch_id] > 10, what="the renewal")
    worker.end()
    assert_settled(keyspace, scored=1)


@pytest.mark.usefixtures("_quick_renewal")
def test_a_worker_that_lost_its_lease_stops_and_nothing_counts_twice(keyspace: Keyspace, new_worker: Workers) -> None:
    (batch_id,) = choose(keyspace, 3)
    loser, successor = new_worker(), new_worker()
    loser.begin(batch_id)
    keyspace.client.hset(keyspace.keys.holders, batch_id, "somebody else")
    loser.settle()
    assert (loser.judged_texts, keyspace.outbox("j")) == ([], [])
    assert holders(keyspace) == {batch_id: "somebody else"}, "what is not ours we do not put back"
    keyspace.make_due()
    successor.sweep()
    assert_settled(keyspace, scored=3)


@pytest.mark.usefixtures("_quick_renewal")
def test_losing_a_lease_frees_the_capacity_of_its_batch(keyspace: Keyspace, new_worker: Workers) -> None:
    (batch_id,) = choose(keyspace, 8)
    worker = new_worker()
    worker.limits.limit = 1
    worker.begin(batch_id)
    keyspace.client.hset(keyspace.keys.holders, batch_id, "somebody else")
    worker.settle()
    worker.model.answers.set()
    keyspace.client.hdel(keyspace.keys.holders, batch_id)
    keyspace.make_due()
    worker.sweep()
    assert_settled(keyspace, scored=8)


@pytest.mark.usefixtures("_quick_renewal")
def test_a_lease_lost_while_the_end_is_being_written_leaves_nothing_behind(
    keyspace: Keyspace, new_worker: Workers
) -> None:
    (batch_id,) = choose(keyspace, 1)
    worker = new_worker()
    completion, ending, busy = worker.judging._completion, threading.Event(), threading.Event()
    finish = completion.finish_or_park

    def late(*arguments: Any, **options: Any) -> None:
        ending.set()
        busy.wait(60)
        finish(*arguments, **options)

    completion.finish_or_park = late
    worker.begin(batch_id)
    worker.model.answers.set()
    assert ending.wait(60)
    assert keyspace.outbox("j")
    renewed = worker.judging.progressed_at
    keyspace.client.hset(keyspace.keys.holders, batch_id, "somebody else")
    wait_until(lambda: worker.judging.progressed_at > renewed + 0.1, what="renewals")
    busy.set()
    worker.settle()
    assert_settled(keyspace, scored=1)


@pytest.mark.usefixtures("_no_renewal")
def test_two_workers_that_judge_the_same_batch_record_it_once(keyspace: Keyspace, new_worker: Workers) -> None:
    (batch_id,) = choose(keyspace, 3)
    slow, successor = new_worker(), new_worker()
    slow.begin(batch_id)
    keyspace.make_due()
    successor.sweep()
    slow.end()
    assert (len(slow.judged_texts), len(successor.judged_texts)) == (3, 3)
    assert judged(keyspace) == ids(0, 1, 2)
    assert_settled(keyspace, scored=3)


def test_a_worker_keeps_its_leases_after_an_outage_of_redis_longer_than_a_lease(
    keyspace: Keyspace, new_worker: Workers
) -> None:
    (batch_id,) = choose(keyspace, 3)
    worker = new_worker()
    worker.begin(batch_id)
    keyspace.make_due()
    worker.judging.held_leases._renewed_at -= 15
    worker.look()
    assert (ready(keyspace), keyspace.leases()[batch_id]) == ([], keyspace.soon(LEASE_S))
    worker.end()
    assert len(worker.model.reached) == 3, "each was asked for once"
    assert_settled(keyspace, scored=3)


@pytest.mark.usefixtures("_quick_renewal")
def test_a_worker_that_leases_its_batch_again_runs_it_once(keyspace: Keyspace, new_worker: Workers) -> None:
    (batch_id,) = choose(keyspace, 3)
    worker = new_worker()
    ended = count_ends(worker)
    worker.begin(batch_id)
    keyspace.client.hdel(keyspace.keys.holders, batch_id)
    keyspace.client.zadd(keyspace.keys.ready("scripted"), {batch_id: 1})
    worker.wake(batch_id)
    (taken,) = wait_until(lambda: [*holders(keyspace).values()], what="the batch to be leased again")
    wait_until(lambda: len(ended) == 1, what="the end of the first round")
    keyspace.make_due()
    # The worker adds a lease to those it holds after Redis has granted it; a renewal shows that it has done so.
    wait_until(lambda: keyspace.leases()[batch_id] > 10, what="a renewal")
    assert worker.judging.held == 1, "the first round left nothing behind, and the second is held once"
    assert holders(keyspace) == {batch_id: taken}
    worker.end()
    assert (len(worker.model.reached), len(worker.judged_texts)) == (6, 3)
    assert_settled(keyspace, scored=3)


def count_ends(worker: JudgingWorker) -> list[str]:
    """Receive each round of a batch that has ended."""
    ended: list[str] = []
    held = worker.judging.held_leases
    remove = held.remove

    def heard(lease: Any) -> Any:
        task = remove(lease)
        ended.append(lease.batch_id)
        return task

    held.remove = heard
    return ended


def test_a_batch_of_a_dead_worker_is_swept_and_judged_by_another(keyspace: Keyspace, new_worker: Workers) -> None:
    (batch_id,) = choose(keyspace, 3)
    Leases(keyspace.store, tries_ttl_s=60).take("scripted", "dead", 1)
    keyspace.make_due(batch_id, in_s=LEASE_S * 100)
    worker = new_worker()
    worker.run(batch_id)
    worker.sweep()
    assert worker.judged_texts == []
    keyspace.make_due()
    worker.sweep()
    assert_settled(keyspace, scored=3)


@pytest.mark.usefixtures("_quick_renewal")
def test_renewing_goes_on_after_redis_was_away(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    (batch_id,) = choose(keyspace, 1)
    worker = new_worker()
    worker.begin(batch_id)
    failed = threading.Event()

    def fail(_: object) -> set[str]:
        failed.set()
        raise ValueError("nobody foresaw this")

    with monkeypatch.context() as outage:
        outage.setattr(worker.judging.leases, "renew", fail)
        assert failed.wait(60)
    keyspace.make_due()
    wait_until(lambda: keyspace.leases()[batch_id] > 10, what="the renewal")
    worker.end()
    assert_settled(keyspace, scored=1)
