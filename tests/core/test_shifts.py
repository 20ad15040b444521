"""Shifts: who fetches, for how long, how one follows another, and what becomes of one whose thread or loop dies."""

import ctypes
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.judging_parts import MODEL, Desk, Desks, assert_settled, choose, judged, output, ready
from support.processes import wait_until
from support.stage_parts import Ground

from judges.core.model import ModelSettings
from worker.core.config.settings import Rule
from worker.core.judging import consumer as consumer_module
from worker.core.judging.consumer import Shift
from worker.core.queue.leases import Leases
from worker.core.runtime.maintenance import Sweeper

OTHER = ModelSettings(provider="scripted", model="other")
TWO = {"default": MODEL, "other": OTHER}
RULES = (Rule(name="all", judges=("safety",)), Rule(name="also", judges=("safety",), model="other"))


def running(worker: Desk, label: str = "scripted") -> list[Shift]:
    return list(worker.judging._running.get(label, ()))


def age(shift: Shift, seconds: float) -> None:
    """Move the begin of a shift back."""
    shift.began_at -= seconds
    shift.wake()


def test_a_message_that_comes_while_a_young_shift_runs_makes_it_look_again(ground: Ground, desk: Desks) -> None:
    (first,) = choose(ground, 1)
    worker = desk()
    worker.begin(first)
    (shift,) = running(worker)
    second, third = choose(ground, 2, batch_size=1, first=10)
    worker.wake(second)
    wait_until(lambda: len(worker.model.reached) == 3, what="the batches that came later")
    assert (running(worker), worker.judging.held, ready(ground)) == ([shift], 3, [])
    worker.end()
    assert {first, second, third}.isdisjoint(ground.batches())
    assert_settled(ground, scored=3)


def test_an_old_shift_hands_over_and_sees_its_own_batches_to_their_end(ground: Ground, desk: Desks) -> None:
    first, _, third = choose(ground, 3, batch_size=1)
    worker = desk(batch_size=1, shift_s=5.0)
    worker.limits.limit = 1
    worker.begin(first)
    (old,) = running(worker)
    assert (worker.judging.held, worker.notified) == (2, ["scripted"])
    age(old, 5.2)
    wait_until(lambda: len(worker.notified) == 2, what="a message for the successor, since a batch is left")
    wait_until(lambda: len(running(worker)) == 2, what="the successor")
    worker.rest()
    assert worker.judging._current["scripted"] is not old
    worker.model.answers.set()
    worker.settle()
    assert_settled(ground, scored=3)
    assert third not in ground.batches()


def test_of_two_shifts_that_wait_for_slow_calls_the_later_one_goes_on_fetching(ground: Ground, desk: Desks) -> None:
    worker = desk(batch_size=1)
    worker.begin(*choose(ground, 1))
    for number in (1, 2):
        age(running(worker)[-1], 5.5)
        worker.wake(*choose(ground, 1, first=number))
        wait_until(lambda number=number: len(worker.model.reached) == number + 1, what="the next batch")
    assert len(running(worker)) == 2, "never more"
    worker.end()
    assert_settled(ground, scored=3)


def test_a_shift_that_found_no_successor_ends_fetching_all_the_same(ground: Ground, desk: Desks) -> None:
    batch_ids = choose(ground, 3, batch_size=1)
    worker = desk(batch_size=1)
    worker.limits.limit = 1
    worker.judging._notifier = SimpleNamespace(workers=1, notify=worker.notified.append)
    worker.begin(batch_ids[0])
    (shift,) = running(worker)
    age(shift, 5.0 + 1.1)
    wait_until(lambda: "scripted" not in worker.judging._current, what="the end of the fetching")
    assert worker.notified[1:] == ["scripted"]
    worker.end()
    assert (len(judged(ground)), len(ready(ground))) == (2, 1)
    worker.sweep()
    assert_settled(ground, scored=3)


def test_a_queue_that_is_not_consumed_any_more_ends_the_fetching_at_once(ground: Ground, desk: Desks) -> None:
    batch_ids = choose(ground, 4, batch_size=1)
    worker = desk(batch_size=1)
    worker.limits.limit = 1
    worker.begin(batch_ids[0])
    consumed = False
    worker.judging._serves = lambda _: consumed
    worker.end()
    assert (len(judged(ground)), len(ready(ground))) == (2, 2)
    worker.sweep()
    assert len(judged(ground)) == 2
    consumed = True
    worker.sweep()
    assert_settled(ground, scored=4)


def test_with_peers_a_shift_offers_what_it_cannot_take(ground: Ground, desk: Desks) -> None:
    batch_ids = choose(ground, 8, batch_size=2)
    alone, busy, idle = (desk(batch_size=2) for _ in range(3))
    for worker in (alone, busy):
        worker.limits.limit = 1
    busy.judging._notifier = SimpleNamespace(workers=2, notify=idle.notify)
    alone.model.hung = {output(number) for number in range(8)}
    alone.wake(batch_ids[0])
    alone.rest()
    assert alone.notified == ["scripted"]
    busy.begin(batch_ids[1])
    idle.settle()
    assert len(idle.asked) == 4
    alone.model.hung = set()
    alone.settle()
    busy.end()
    assert_settled(ground, scored=8)


def test_panels_of_one_queue_and_models_of_their_own_are_served_by_their_labels(ground: Ground, desk: Desks) -> None:
    choose(ground, 4, batch_size=2, models=TWO, rules=RULES)
    worker = desk(models=TWO)
    assert worker.judging.labels == ["scripted", "other"]
    worker.notify("other")
    worker.settle()
    assert {entry["judge_model"] for entry in ground.outbox("j")} == {"other"}
    assert len(ready(ground)) == 2


def test_a_shift_whose_thread_is_killed_lets_go_of_its_batches(ground: Ground, desk: Desks) -> None:
    choose(ground, 3)
    worker = desk()
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
    assert (worker.judging.held, running(worker)) == (0, [])
    ground.make_due()
    worker.look()
    worker.model.answers.set()
    worker.settle()
    assert len(worker.asked) == 3
    assert_settled(ground, scored=3)


@pytest.mark.parametrize("how", ["dead", "stuck"])
def test_an_event_loop_that_is_dead_or_stuck_keeps_no_thread_and_no_lease(
    ground: Ground, desk: Desks, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    (batch_id,) = choose(ground, 2)
    worker = desk()
    worker.begin(batch_id)
    let_go = threading.Event()
    if how == "dead":
        worker.judging._loop._loop.call_soon_threadsafe(worker.judging._loop._loop.stop)
        worker.settle()
        assert worker.judging.held == 0
    else:
        worker.judging._loop.call(lambda: let_go.wait(60))
        monkeypatch.setattr(consumer_module, "LOOP_STALLED_S", -1.0)
        worker.judging._held._renewed_at -= 3600
    assert worker.judging.pulse.dead, "so that its supervisor ends it"
    ground.make_due()
    worker.judging.renew_overdue()
    Leases(ground.store, tries_ttl_s=60).sweep(["scripted"])
    assert ready(ground) == [batch_id], "nobody has renewed the lease"
    monkeypatch.undo()
    desk().sweep()
    let_go.set()
    worker.judging.stop(0.05)
    worker.settle()
    assert_settled(ground, scored=2)


def test_a_stop_resolves_every_thread_also_where_the_loop_has_died(ground: Ground, desk: Desks) -> None:
    choose(ground, 12, batch_size=2, models=TWO, rules=RULES)
    worker = desk(models=TWO)
    for model in worker.models.values():
        model.answers.clear()
    worker.look()
    wait_until(lambda: all(model.reached for model in worker.models.values()), what="the calls")
    worker.judging._loop._loop.call_soon_threadsafe(worker.judging._loop._loop.stop)
    worker.judging.stop(60)
    worker.settle()


def test_one_worker_sweeps_at_a_time_and_another_takes_over(ground: Ground, desk: Desks) -> None:
    workers = [desk() for _ in range(2)]
    for worker in workers:
        worker.sweeper.stopping.set()
    choose(ground, 1)
    for worker in workers:
        worker.sweeper.run_once()
    assert [worker.notified for worker in workers] == [["scripted"], []]
    workers[0].settle()
    choose(ground, 1, first=1)
    assert ground.client.pttl(ground.keys.sweeper) <= 3_000
    ground.client.delete(ground.keys.sweeper)
    workers[1].sweeper.run_once()
    assert workers[1].notified == ["scripted"]
    workers[1].settle()
    assert workers[1].sweeper.stop(1)
    assert not ground.client.exists(ground.keys.sweeper)


def test_an_unexpected_error_while_sweeping_ends_no_sweeper(
    ground: Ground, desk: Desks, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = desk()
    sweeper: Sweeper = worker.sweeper
    monkeypatch.setattr(sweeper.stopping, "wait", lambda _: None)
    seen = threading.Event()
    judge_models = sweeper._leases.judge_models

    def fail_once() -> Any:
        monkeypatch.setattr(sweeper._leases, "judge_models", judge_models)
        seen.set()
        raise KeyError("secret")

    monkeypatch.setattr(sweeper._leases, "judge_models", fail_once)
    with capture_logs() as lines:
        choose(ground, 1)
        sweeper.start()
        assert seen.wait(60)
        wait_until(lambda: judged(ground), what="the verdict")
        assert sweeper.stop(60)
    assert "secret" not in str(lines)
