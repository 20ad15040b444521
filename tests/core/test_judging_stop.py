"""Stopping: what runs may end within the grace, the rest is given back at once."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from support.judging_parts import (
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
)
from support.processes import wait_until
from support.stage_parts import Keyspace

from judges.core.model import ModelSettings
from worker.core.judging import consumer as consumer_module


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is cancelled has its leases given back, also on a machine that takes its time."""
    monkeypatch.setattr(consumer_module, "_CANCEL_S", 60.0)


def once_it_stops(worker: JudgingWorker, step: Callable[[], object]) -> None:
    """Run something in the event loop as soon as the stop has begun: it closes the limiters first."""
    worker.limits.close = step


def test_running_evaluations_may_end_within_the_grace(keyspace: Keyspace, new_worker: Workers) -> None:
    (batch_id,) = choose(keyspace, 2)
    worker = new_worker()
    worker.begin(batch_id)
    once_it_stops(worker, worker.model.answers.set)
    worker.judging.stop(60)
    assert worker.judging.held == 0
    assert_settled(keyspace, scored=2)


def test_a_stopped_worker_gives_its_leases_back_at_once(keyspace: Keyspace, new_worker: Workers) -> None:
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
    new_worker().run(batch_ids[1])
    assert_settled(keyspace, scored=3)


def test_a_stop_closes_all_limiters_so_that_no_call_begins(new_worker: Workers) -> None:
    other = ModelSettings(provider="scripted", model="other")
    worker = new_worker(models={"default": MODEL, "other": other})
    worker.judging.stop(0.1)
    assert [limit.is_closed for limit in worker.all_limits.values()] == [True, True]


def test_a_hurried_stop_does_not_wait_for_running_evaluations(keyspace: Keyspace, new_worker: Workers) -> None:
    (batch_id,) = choose(keyspace, 1)
    worker = new_worker()
    worker.begin(batch_id)
    once_it_stops(worker, worker.judging.hurry)
    worker.judging.stop(3600)
    assert (ready(keyspace), holders(keyspace)) == ([batch_id], {})


def test_a_stopping_worker_leases_no_batch(keyspace: Keyspace, new_worker: Workers) -> None:
    choose(keyspace, 4, batch_size=1)
    worker = new_worker(batch_size=1)
    worker.limits.limit = 1
    worker.begin(ready(keyspace)[0])
    assert (worker.judging.held, len(ready(keyspace))) == (2, 2)
    once_it_stops(worker, worker.model.answers.set)
    worker.judging.stop(60)
    assert (len(judged(keyspace)), len(ready(keyspace)), holders(keyspace)) == (2, 2, {})


def test_a_batch_leased_during_the_stop_is_put_back(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    (batch_id,) = choose(keyspace, 1)
    worker = new_worker()
    worker.model.answers.clear()
    take, cancel_all = worker.judging._fetcher.fetch, worker.judging.held_leases.cancel_all
    taken, cancelled = threading.Event(), threading.Event()

    def slowly(*arguments: Any, **options: Any) -> Any:
        leased = take(*arguments, **options)
        taken.set()
        assert cancelled.wait(60)
        return leased

    monkeypatch.setattr(worker.judging._fetcher, "fetch", slowly)
    monkeypatch.setattr(worker.judging.held_leases, "cancel_all", lambda: (cancel_all(), cancelled.set()))
    taker = threading.Thread(target=worker.judging.run, args=("scripted",))
    taker.start()
    assert taken.wait(60)
    worker.judging.stop(0.05)
    taker.join(60)
    assert (ready(keyspace), holders(keyspace), worker.judging.held) == ([batch_id], {}, 0)


def test_stopping_ends_in_time_though_redis_takes_no_verdicts(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    (batch_id,) = choose(keyspace, 1)
    worker = new_worker()
    refused = threading.Event()

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
    new_worker().run(batch_id)
    assert_settled(keyspace, scored=1)


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
    keyspace.make_due()
    new_worker().sweep()
    assert_settled(keyspace, scored=1)


def test_a_batch_that_cannot_be_put_back_is_swept(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    (batch_id,) = choose(keyspace, 1)
    worker = new_worker()
    worker.begin(batch_id)
    monkeypatch.setattr(worker.judging.leases, "put_back", refuse)
    worker.judging.stop(0.05)
    assert worker.judging.held == 0
    keyspace.make_due()
    new_worker().sweep()
    assert_settled(keyspace, scored=1)
