"""Shifts: who fetches, for how long, how one follows another, and what becomes of one whose thread or loop dies."""

import ctypes
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.judging_parts import MODEL, Workers, assert_settled, choose, judged, output, ready
from support.processes import wait_until
from support.stage_parts import Keyspace

from judges.core.model import ModelSettings
from worker.core.config.settings import Rule
from worker.core.judging import consumer as consumer_module
from worker.core.judging.consumer import Shift
from worker.core.queue.leases import Leases
from worker.core.runtime.partition import Sweeper

OTHER = ModelSettings(provider="scripted", model="other")
TWO = {"default": MODEL, "other": OTHER}
RULES = (Rule(name="all", judges=("safety",)), Rule(name="also", judges=("safety",), model="other"))


def age(shift: Shift, seconds: float) -> None:
    """Move the begin of a shift back."""
    shift.began_at -= seconds
    shift.wake()


def test_a_message_that_comes_while_a_young_shift_runs_makes_it_look_again(
    keyspace: Keyspace, new_worker: Workers
) -> None:
    (first,) = choose(keyspace, 1)
    worker = new_worker()
    worker.begin(first)
    (shift,) = worker.judging.running
    second, third = choose(keyspace, 2, batch_size=1, first=10)
    worker.wake(second)
    wait_until(lambda: len(worker.model.reached) == 3, what="the batches that came later")
    assert (worker.judging.running, worker.judging.held, ready(keyspace)) == ([shift], 3, [])
    worker.end()
    assert {first, second, third}.isdisjoint(keyspace.batches())
    assert_settled(keyspace, scored=3)


def test_an_old_shift_hands_over_and_sees_its_own_batches_to_their_end(keyspace: Keyspace, new_worker: Workers) -> None:
    first, _, third = choose(keyspace, 3, batch_size=1)
    worker = new_worker(batch_size=1, shift_s=5.0)
    worker.limits.limit = 1
    worker.begin(first)
    (old,) = worker.judging.running
    assert (worker.judging.held, worker.notified) == (2, ["scripted"])
    age(old, 5.2)
    wait_until(lambda: len(worker.notified) == 2, what="a message for the successor, since a batch is left")
    wait_until(lambda: len(worker.judging.running) == 2, what="the successor")
    worker.rest()
    assert worker.judging._current["scripted"] is not old
    worker.model.answers.set()
    worker.settle()
    assert_settled(keyspace, scored=3)
    assert third not in keyspace.batches()


def test_of_two_shifts_that_wait_for_slow_calls_the_later_one_goes_on_fetching(
    keyspace: Keyspace, new_worker: Workers
) -> None:
    worker = new_worker(batch_size=1)
    worker.begin(*choose(keyspace, 1))
    for number in (1, 2):
        age(worker.judging.running[-1], 5.5)
        worker.wake(*choose(keyspace, 1, first=number))
        wait_until(lambda number=number: len(worker.model.reached) == number + 1, what="the next batch")
    assert len(worker.judging.running) == 2, "never more"
    worker.end()
    assert_settled(keyspace, scored=3)


def test_a_shift_that_found_no_successor_ends_fetching_all_the_same(keyspace: Keyspace, new_worker: Workers) -> None:
    batch_ids = choose(keyspace, 3, batch_size=1)
    worker = new_worker(batch_size=1)
    worker.limits.limit = 1
    worker.judging._notifier = SimpleNamespace(workers=1, notify=worker.notified.append)
    worker.begin(batch_ids[0])
    (shift,) = worker.judging.running
    age(shift, 5.0 + 1.1)
    wait_until(lambda: "scripted" not in worker.judging._current, what="the end of the fetching")
    assert worker.notified[1:] == ["scripted"]
    worker.end()
    assert (len(judged(keyspace)), len(ready(keyspace))) == (2, 1)
    worker.sweep()
    assert_settled(keyspace, scored=3)


def test_a_queue_that_is_not_consumed_any_more_ends_the_fetching_at_once(
    keyspace: Keyspace, new_worker: Workers
) -> None:
    batch_ids = choose(keyspace, 4, batch_size=1)
    worker = new_worker(batch_size=1)
    worker.limits.limit = 1
    worker.begin(batch_ids[0])
    consumed = False
    worker.judging._serves = lambda _: consumed
    worker.end()
    assert (len(judged(keyspace)), len(ready(keyspace))) == (2, 2)
    worker.sweep()
    assert len(judged(keyspace)) == 2
    consumed = True
    worker.sweep()
    assert_settled(keyspace, scored=4)


def test_with_peers_a_shift_notifies_another_worker_of_batches_without_capacity(
    keyspace: Keyspace, new_worker: Workers
) -> None:
    batch_ids = choose(keyspace, 8, batch_size=2)
    alone, busy, idle = (new_worker(batch_size=2) for _ in range(3))
    for worker in (alone, busy):
        worker.limits.limit = 1
    busy.judging._notifier = SimpleNamespace(workers=2, notify=idle.notify)
    alone.model.hung = {output(number) for number in range(8)}
    alone.wake(batch_ids[0])
    alone.rest()
    assert alone.notified == ["scripted"]
    busy.begin(batch_ids[1])
    idle.settle()
    assert len(idle.judged_texts) == 4
    alone.model.hung = set()
    alone.settle()
    busy.end()
    assert_settled(keyspace, scored=8)


def test_panels_of_one_queue_and_models_of_their_own_are_served_by_their_labels(
    keyspace: Keyspace, new_worker: Workers
) -> None:
    choose(keyspace, 4, batch_size=2, models=TWO, rules=RULES)
    worker = new_worker(models=TWO)
    worker.notify("other")
    worker.settle()
    assert {entry["judge_model"] for entry in keyspace.outbox("j")} == {"other"}
    assert len(ready(keyspace)) == 2


def test_a_killed_shift_releases_its_batches(keyspace: Keyspace, new_worker: Workers) -> None:
    choose(keyspace, 3)
    worker = new_worker()
    died = threading.Event()

    def task() -> None:
        try:
            worker.judging.run("scripted")
        except SystemExit:
            died.set()

    thread = threading.Thread(target=task, daemon=True)
    worker.model.answers.clear()
    thread.start()
    wait_until(lambda: len(worker.model.reached) == 3, what="the calls")
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
    assert died.wait(60)
    assert (worker.judging.held, worker.judging.running) == (0, [])
    keyspace.make_due()
    worker.look()
    worker.model.answers.set()
    worker.settle()
    assert len(worker.judged_texts) == 3
    assert_settled(keyspace, scored=3)


@pytest.mark.parametrize("how", ["dead", "stuck"])
def test_an_event_loop_that_is_dead_or_stuck_keeps_no_thread_and_no_lease(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    (batch_id,) = choose(keyspace, 2)
    worker = new_worker()
    worker.begin(batch_id)
    let_go = threading.Event()
    if how == "dead":
        worker.judging.loop.stop()
        worker.settle()
        assert worker.judging.held == 0
    else:
        worker.judging.loop.call(lambda: let_go.wait(60))
        monkeypatch.setattr(consumer_module, "LOOP_STALLED_S", -1.0)
        worker.judging.held_leases._renewed_at -= 3600
    assert worker.judging.pulse.has_ended, "so that its supervisor ends it"
    keyspace.make_due()
    worker.judging.renew_overdue()
    Leases(keyspace.store, tries_ttl_s=60).sweep(["scripted"])
    assert ready(keyspace) == [batch_id], "nobody has renewed the lease"
    monkeypatch.undo()
    new_worker().sweep()
    let_go.set()
    worker.judging.stop(0.05)
    worker.settle()
    assert_settled(keyspace, scored=2)


def test_a_stop_resolves_every_thread_also_where_the_loop_has_died(keyspace: Keyspace, new_worker: Workers) -> None:
    choose(keyspace, 12, batch_size=2, models=TWO, rules=RULES)
    worker = new_worker(models=TWO)
    for model in worker.models.values():
        model.answers.clear()
    worker.look()
    wait_until(lambda: all(model.reached for model in worker.models.values()), what="the calls")
    worker.judging.loop.stop()
    worker.judging.stop(60)
    worker.settle()


def test_one_worker_sweeps_at_a_time_and_another_takes_over(keyspace: Keyspace, new_worker: Workers) -> None:
    workers = [new_worker() for _ in range(2)]
    for worker in workers:
        worker.sweeper.stopping.set()
    choose(keyspace, 1)
    for worker in workers:
        worker.sweeper.run_once()
    assert [worker.notified for worker in workers] == [["scripted"], []]
    workers[0].settle()
    choose(keyspace, 1, first=1)
    assert keyspace.client.pttl(keyspace.keys.sweeper) <= 3_000
    keyspace.client.delete(keyspace.keys.sweeper)
    workers[1].sweeper.run_once()
    assert workers[1].notified == ["scripted"]
    workers[1].settle()
    assert workers[1].sweeper.stop(1)
    assert not keyspace.client.exists(keyspace.keys.sweeper)


def test_an_unexpected_error_while_sweeping_ends_no_sweeper(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = new_worker()
    sweeper: Sweeper = worker.sweeper
    monkeypatch.setattr(sweeper.stopping, "wait", lambda _: None)
    seen = threading.Event()
    judge_models = sweeper.leases.judge_models

    def fail_once() -> Any:
        monkeypatch.setattr(sweeper.leases, "judge_models", judge_models)
        seen.set()
        raise KeyError("secret")

    monkeypatch.setattr(sweeper.leases, "judge_models", fail_once)
    with capture_logs() as lines:
        choose(keyspace, 1)
        sweeper.start()
        assert seen.wait(60)
        wait_until(lambda: judged(keyspace), what="the verdict")
        assert sweeper.stop(60)
    assert "secret" not in str(lines)
