"""Stopping: what runs may end within the grace, the rest is given back at once."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from support.judging_parts import (
    MODEL,
    Desk,
    Desks,
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
from support.stage_parts import Ground

from judges.core.model import ModelSettings
from worker.core.judging import consumer as consumer_module


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is cancelled has its leases given back, also on a machine that takes its time."""
    monkeypatch.setattr(consumer_module, "_CANCEL_S", 60.0)


def once_it_stops(worker: Desk, step: Callable[[], object]) -> None:
    """Run something in the event loop as soon as the stop has begun: it closes the limiters first."""
    worker.limits.close = step


def test_what_runs_may_end_within_the_grace(ground: Ground, desk: Desks) -> None:
    (batch_id,) = choose(ground, 2)
    worker = desk()
    worker.begin(batch_id)
    once_it_stops(worker, worker.model.answers.set)
    worker.judging.stop(60)
    assert worker.judging.held == 0
    assert_settled(ground, scored=2)


def test_a_stopped_worker_gives_its_leases_back_at_once(ground: Ground, desk: Desks) -> None:
    batch_ids = choose(ground, 3, batch_size=1)
    worker = desk(failing(2))
    worker.model.hung = {output(1), output(2)}
    worker.wake(batch_ids[0])
    wait_until(lambda: worker.judging.held == len(ground.batches()) == 2, what="the end of one")
    worker.rest()
    worker.judging.stop(0.05)
    assert (judged(ground), holders(ground), worker.judging.held) == (ids(0), {}, 0)
    assert ready(ground) == [batch_id for batch_id in batch_ids if batch_id in ground.batches()]
    before = ground.everything()
    worker.wake(batch_ids[1])
    worker.look()
    assert ground.everything() == before, "it takes nothing any more"
    desk().run(batch_ids[1])
    assert_settled(ground, scored=3)


def test_all_gates_are_shut_so_that_no_call_begins(desk: Desks) -> None:
    other = ModelSettings(provider="scripted", model="other")
    worker = desk(models={"default": MODEL, "other": other})
    worker.judging.stop(0.1)
    assert [one.is_closed for one in worker.all_limits.values()] == [True, True]


def test_a_worker_in_a_hurry_does_not_wait_for_what_runs(ground: Ground, desk: Desks) -> None:
    (batch_id,) = choose(ground, 1)
    worker = desk()
    worker.begin(batch_id)
    once_it_stops(worker, worker.judging.hurry)
    worker.judging.stop(3600)
    assert (ready(ground), holders(ground)) == ([batch_id], {})


def test_while_it_stops_a_worker_takes_nothing_more(ground: Ground, desk: Desks) -> None:
    choose(ground, 4, batch_size=1)
    worker = desk(batch_size=1)
    worker.limits.limit = 1
    worker.begin(ready(ground)[0])
    assert (worker.judging.held, len(ready(ground))) == (2, 2)
    once_it_stops(worker, worker.model.answers.set)
    worker.judging.stop(60)
    assert (len(judged(ground)), len(ready(ground)), holders(ground)) == (2, 2, {})


def test_what_is_being_taken_as_the_stop_begins_is_given_back_too(
    ground: Ground, desk: Desks, monkeypatch: pytest.MonkeyPatch
) -> None:
    (batch_id,) = choose(ground, 1)
    worker = desk()
    worker.model.answers.clear()
    take, cancel_all = worker.judging._fetcher.fetch, worker.judging._held.cancel_all
    taken, cancelled = threading.Event(), threading.Event()

    def slowly(*arguments: Any, **options: Any) -> Any:
        found = take(*arguments, **options)
        taken.set()
        assert cancelled.wait(60)
        return found

    monkeypatch.setattr(worker.judging._fetcher, "fetch", slowly)
    monkeypatch.setattr(worker.judging._held, "cancel_all", lambda: (cancel_all(), cancelled.set()))
    taker = threading.Thread(target=worker.judging.run, args=("scripted",))
    taker.start()
    assert taken.wait(60)
    worker.judging.stop(0.05)
    taker.join(60)
    assert (ready(ground), holders(ground), worker.judging.held) == ([batch_id], {}, 0)


def test_stopping_ends_in_time_though_redis_takes_no_verdicts(
    ground: Ground, desk: Desks, monkeypatch: pytest.MonkeyPatch
) -> None:
    (batch_id,) = choose(ground, 1)
    worker = desk()
    refused = threading.Event()

    def say_no(*_: Any) -> None:
        refused.set()
        refuse()

    monkeypatch.setattr(worker.ledger, "record", say_no)
    worker.wake(batch_id)
    assert refused.wait(60)
    wait = worker.judging._loop.wait
    monkeypatch.setattr(worker.judging._loop, "wait", lambda coroutine, timeout_s: wait(coroutine, min(timeout_s, 0.1)))
    worker.judging.stop(0.05)
    assert (worker.judging.held, ready(ground)) == (0, [batch_id])
    desk().run(batch_id)
    assert_settled(ground, scored=1)


@pytest.mark.parametrize("script", ["take", "put_back"])
def test_stopping_ends_in_time_though_redis_never_answers(
    ground: Ground, desk: Desks, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.setattr(consumer_module, "_CANCEL_S", 0.05)
    (batch_id,) = choose(ground, 1)
    worker = desk()
    run, cancel_all = ground.store.run, worker.judging._held.cancel_all
    asked, let_go, answered = threading.Event(), threading.Event(), threading.Event()

    def silent(name: str, *arguments: Any) -> Any:
        if name == script:
            asked.set()
            let_go.wait(60)
            answered.set()
        return run(name, *arguments)

    monkeypatch.setattr(ground.store, "run", silent)
    monkeypatch.setattr(worker.judging._held, "cancel_all", lambda: (cancel_all(), asked.wait(60)))
    if script == "take":
        worker.wake(batch_id)
        assert asked.wait(60)
    else:
        worker.begin(batch_id)
    worker.judging.stop(0.05)
    assert (asked.is_set(), answered.is_set()) == (True, False)
    let_go.set()
    worker.settle()
    ground.make_due()
    desk().sweep()
    assert_settled(ground, scored=1)


def test_what_cannot_be_given_back_is_swept(ground: Ground, desk: Desks, monkeypatch: pytest.MonkeyPatch) -> None:
    (batch_id,) = choose(ground, 1)
    worker = desk()
    worker.begin(batch_id)
    monkeypatch.setattr(worker.judging._leases, "put_back", refuse)
    worker.judging.stop(0.05)
    assert worker.judging.held == 0
    ground.make_due()
    desk().sweep()
    assert_settled(ground, scored=1)
