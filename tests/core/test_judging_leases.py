"""The lease decides who works, the ledger what counts: when leases are lost, Redis is away, or a worker stops."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.fixtures import one_redis
from support.judging import (
    MODEL,
    JudgingWorker,
    Workers,
    assert_settled,
    choose,
    failing,
    holders,
    ids,
    judged,
    output,
    ready,
    refuse,
    texts,
)
from support.processes import wait_until
from support.stages import Keyspace

from judges.core.model import ModelSettings
from worker.core.judging import consumer as consumer_module
from worker.core.queue.leases import LEASE_MS
from worker.core.storage.client import StoreError

LEASE_S = LEASE_MS / 1000
any_redis_server = one_redis


@pytest.fixture
def _quick_renewal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_module, "RENEW_S", 0.01)


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is cancelled has its leases given back, also on a machine that takes its time."""
    monkeypatch.setattr(consumer_module, "_CANCEL_S", 60.0)


def lose(keyspace: Keyspace, batch_id: str) -> None:
    """Lease a batch to another worker."""
    keyspace.client.hset(keyspace.keys.holders, batch_id, "somebody else")


def release(keyspace: Keyspace, batch_id: str) -> None:
    """Remove the lease of a batch, so that it is ready."""
    keyspace.client.hdel(keyspace.keys.holders, batch_id)
    keyspace.client.zadd(keyspace.keys.ready("scripted"), {batch_id: 1})


def wait_renewed(keyspace: Keyspace, batch_id: str) -> None:
    keyspace.make_due()
    wait_until(lambda: keyspace.leases()[batch_id] > 10, what="the renewal")


@pytest.mark.usefixtures("_quick_renewal")
def test_leases_are_renewed_while_the_work_goes_on_and_after_redis_was_away(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, batch_id = new_worker.begun(1)
    wait_renewed(keyspace, batch_id)
    failed = threading.Event()

    def fail(_: object) -> set[str]:
        failed.set()
        raise ValueError("nobody foresaw this")

    with monkeypatch.context() as outage:
        outage.setattr(worker.judging.leases, "renew", fail)
        assert failed.wait(60)
    wait_renewed(keyspace, batch_id)
    worker.end(scored=1)
    keyspace.next_case("a worker that leases its batch again runs it once")
    worker, batch_id = new_worker.begun(3)
    ended: list[str] = []
    remove = worker.judging.held_leases.remove

    def heard(lease: Any) -> Any:
        task = remove(lease)
        ended.append(lease.batch_id)
        return task

    worker.judging.held_leases.remove = heard
    release(keyspace, batch_id)
    worker.wake(batch_id)
    (taken,) = wait_until(lambda: [*holders(keyspace).values()], what="the batch to be leased again")
    wait_until(lambda: len(ended) == 1, what="the end of the first round")
    # The worker adds a lease to those it holds after Redis has granted it; a renewal shows that it has done so.
    wait_renewed(keyspace, batch_id)
    assert worker.judging.held == 1, "the first round left nothing behind, and the second is held once"
    assert holders(keyspace) == {batch_id: taken}
    worker.end(scored=3)
    assert (len(worker.model.reached), len(worker.judged_texts)) == (6, 3)


@pytest.mark.usefixtures("_quick_renewal")
def test_a_worker_that_lost_its_lease_stops_and_nothing_counts_twice(keyspace: Keyspace, new_worker: Workers) -> None:
    loser, batch_id = new_worker.begun(3)
    lose(keyspace, batch_id)
    loser.settle()
    assert (loser.judged_texts, keyspace.outbox("j")) == ([], []), "its task is cancelled"
    assert holders(keyspace) == {batch_id: "somebody else"}, "what is not ours we do not put back"
    new_worker().sweep_due(scored=3)
    keyspace.next_case("a lease that is lost while the end is written leaves nothing behind")
    (batch_id,) = choose(keyspace, 1)
    worker = new_worker()
    completion, ending, busy = worker.judging._completion, threading.Event(), threading.Event()  # to hold it up
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
    lose(keyspace, batch_id)
    wait_until(lambda: worker.judging.progressed_at > renewed + 0.1, what="renewals")
    busy.set()
    worker.settle(scored=1)


def test_batches_of_slow_dead_and_cut_off_workers_are_recorded_once(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(consumer_module, "RENEW_S", 3600.0)
        slow, _ = new_worker.begun(3)
        successor = new_worker()
        successor.sweep_due()
        slow.end()
    assert (len(slow.judged_texts), len(successor.judged_texts), judged(keyspace)) == (3, 3, ids(0, 1, 2))
    assert_settled(keyspace, scored=3)
    keyspace.next_case("an outage of Redis longer than a lease")
    worker, batch_id = new_worker.begun(3)
    keyspace.make_due()
    worker.judging.held_leases._renewed_at -= 15  # as after an outage
    worker.look()
    assert (ready(keyspace), keyspace.leases()[batch_id]) == ([], keyspace.soon(LEASE_S))
    worker.end(scored=3)
    assert len(worker.model.reached) == 3, "each was asked for once"
    keyspace.next_case("a batch that is leased again before it began")
    (batch_id,) = choose(keyspace, 3)
    worker, busy = new_worker(), threading.Event()
    worker.judging.loop.call(lambda: busy.wait(60))
    worker.wake(batch_id)
    release(keyspace, batch_id)
    worker.wake(batch_id)
    worker.rest()
    busy.set()
    worker.settle(scored=3)
    assert len(worker.model.reached) == 3
    assert worker.judging.windows["scripted"].evaluations == 0, "both have released the window"


def test_when_redis_goes_away_work_is_left_to_the_sweeper_and_paid_for_once(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    for away in ("take", "already_finished", "finish"):
        keyspace.next_case(away)
        (batch_id,) = choose(keyspace, 2)
        worker = new_worker()
        with monkeypatch.context() as outage:
            outage.setattr(worker.ledger if away == "already_finished" else worker.judging.leases, away, refuse)
            worker.run(batch_id)
        assert (list(keyspace.batches()), worker.judging.held) == ([batch_id], 0)
        worker.sweep_due(scored=2)
        assert len(worker.judged_texts) == 2, "each was asked for once"
    keyspace.next_case("a failed sweep raises and the next one judges")
    choose(keyspace, 1)
    with monkeypatch.context() as outage:
        outage.setattr(worker.sweeper.leases, "sweep", refuse)
        with pytest.raises(StoreError):
            worker.look()
    worker.sweep(scored=1)
    keyspace.next_case("a verdict waits for Redis as long as it takes")
    worker = new_worker()
    worker.lose_answers(monkeypatch, 1)
    worker.run(*choose(keyspace, 3), scored=3)
    assert len(worker.judged_texts) == 3


def test_capacity_is_not_filled_over_and_over_and_released_with_the_answer(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(keyspace, 60, batch_size=1)
    worker = new_worker(batch_size=1, limit=40)
    worker.begin(ready(keyspace)[0])
    models: list[str] = []

    def away(*arguments: Any, **_: Any) -> None:
        models.append(arguments[0])
        refuse()

    with monkeypatch.context() as outage, capture_logs():
        outage.setattr(worker.judging.leases, "take", away)
        worker.end()
    assert 1 <= len(models) <= 5, "not once for each of 42 that left"
    assert len(ready(keyspace)) == 18
    worker.sweep(scored=60)
    keyspace.next_case("the answer is there though it cannot be written")
    first, second = choose(keyspace, 2, batch_size=1)
    worker = new_worker(batch_size=1, limit=1)
    worker.model.hung = texts(keyspace, second)
    with monkeypatch.context() as outage, capture_logs():
        outage.setattr(worker.ledger, "record", refuse)
        worker.wake(first)
        wait_until(lambda: holders(keyspace).keys() == {first, second}, what="the second in the capacity of the first")
        wait_until(lambda: worker.judging.windows["scripted"].capacity() == 1, what="the capacity of the first")
    worker.model.hung = set()
    worker.settle(scored=2)


def once_it_stops(worker: JudgingWorker, step: Callable[[], object]) -> None:
    """Run something in the event loop as soon as the stop has begun: it closes the limiters first."""
    worker.limits.close = step


@pytest.mark.usefixtures("_patient")
def test_what_runs_may_end_within_the_grace_and_the_rest_is_given_back(keyspace: Keyspace, new_worker: Workers) -> None:
    worker, _ = new_worker.begun(2)
    once_it_stops(worker, worker.model.answers.set)
    worker.judging.stop(60)
    assert worker.judging.held == 0
    assert_settled(keyspace, scored=2)
    keyspace.next_case("a stopped worker gives its leases back at once")
    batch_ids = choose(keyspace, 3, batch_size=1)
    worker = new_worker(failing(2))
    worker.model.hung = {output(1), output(2)}
    worker.wake(batch_ids[0])
    wait_until(lambda: worker.judging.held == len(keyspace.batches()) == 2, what="the end of one")
    worker.rest()
    worker.judging.stop(0.05)
    assert (judged(keyspace), holders(keyspace), worker.judging.held) == (ids(0), {}, 0)
    assert ready(keyspace) == [batch_id for batch_id in batch_ids if batch_id in keyspace.batches()]
    before = keyspace.everything()
    worker.wake(batch_ids[1])
    worker.look()
    assert keyspace.everything() == before, "it takes nothing any more"
    new_worker().run(batch_ids[1], scored=3)
    keyspace.next_case("a stopping worker leases no batch and begins no call")
    choose(keyspace, 4, batch_size=1)
    other = ModelSettings(provider="scripted", model="other")
    worker = new_worker(batch_size=1, models={"default": MODEL, "other": other}, limit=1)
    worker.begin(ready(keyspace)[0])
    assert (worker.judging.held, len(ready(keyspace))) == (2, 2)
    close = worker.limits.close
    once_it_stops(worker, lambda: (close(), worker.model.answers.set()))
    worker.judging.stop(60)
    assert (len(judged(keyspace)), len(ready(keyspace)), holders(keyspace)) == (2, 2, {})
    assert [limit.is_closed for limit in worker.all_limits.values()] == [True, True]


@pytest.mark.usefixtures("_patient")
def test_a_batch_leased_at_the_stop_and_what_redis_does_not_take_then_are_not_lost(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    (batch_id,) = choose(keyspace, 1)
    worker = new_worker()
    worker.model.answers.clear()
    fetcher, held_leases = worker.judging._fetcher, worker.judging.held_leases  # to hold a lease up
    take, cancel_all = fetcher.fetch, held_leases.cancel_all
    taken, cancelled = threading.Event(), threading.Event()

    def slowly(*arguments: Any, **options: Any) -> Any:
        leased = take(*arguments, **options)
        taken.set()
        assert cancelled.wait(60)
        return leased

    monkeypatch.setattr(fetcher, "fetch", slowly)
    monkeypatch.setattr(held_leases, "cancel_all", lambda: (cancel_all(), cancelled.set()))
    taker = threading.Thread(target=worker.judging.run, args=("scripted",))
    taker.start()
    assert taken.wait(60)
    worker.judging.stop(0.05)
    taker.join(60)
    assert (ready(keyspace), holders(keyspace), worker.judging.held) == ([batch_id], {}, 0)
    keyspace.next_case("Redis takes no verdicts")
    (batch_id,) = choose(keyspace, 1)
    worker, refused = new_worker(), threading.Event()

    def say_no(*_: Any) -> None:
        refused.set()
        refuse()

    monkeypatch.setattr(worker.ledger, "record", say_no)
    worker.wake(batch_id)
    assert refused.wait(60)
    wait = worker.judging.loop.wait
    monkeypatch.setattr(worker.judging.loop, "wait", lambda coroutine, timeout_s: wait(coroutine, min(timeout_s, 0.1)))
    worker.judging.stop(0.05)
    assert (worker.judging.held, ready(keyspace)) == (0, [batch_id])
    new_worker().run(batch_id, scored=1)


@pytest.mark.parametrize("script", ["take", "put_back"])
def test_stopping_ends_in_time_though_redis_never_answers(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.setattr(consumer_module, "_CANCEL_S", 0.05)
    (batch_id,) = choose(keyspace, 1)
    worker = new_worker()
    run, cancel_all = keyspace.store.run, worker.judging.held_leases.cancel_all
    called, let_go, answered = threading.Event(), threading.Event(), threading.Event()

    def silent(name: str, *arguments: Any) -> Any:
        if name == script:
            called.set()
            let_go.wait(60)
            answered.set()
        return run(name, *arguments)

    monkeypatch.setattr(keyspace.store, "run", silent)
    monkeypatch.setattr(worker.judging.held_leases, "cancel_all", lambda: (cancel_all(), called.wait(60)))
    if script == "take":
        worker.wake(batch_id)
        assert called.wait(60)
    else:
        worker.begin(batch_id)
    worker.judging.stop(0.05)
    assert (called.is_set(), answered.is_set()) == (True, False)
    let_go.set()
    worker.settle()
    new_worker().sweep_due(scored=1)
