"""Shifts and windows: who fetches, for how long, and how much: as each endpoint has use for, and little more."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fixtures import one_redis
from support.judging import (
    HOUR_S,
    MODEL,
    FakeLimits,
    JudgingWorker,
    Workers,
    assert_settled,
    choose,
    holders,
    judged,
    letters,
    output,
    ready,
    texts,
)
from support.processes import wait_until
from support.stages import Keyspace

from judges.core.model import ChatRequest, ModelSettings, ModelUnavailableError
from worker.core.config.settings import Rule
from worker.core.judging import consumer as consumer_module
from worker.core.judging import fetching as fetching_module
from worker.core.judging.consumer import Shift
from worker.core.judging.fetching import PrefetchWindow
from worker.core.queue.leases import Leases

OTHER = ModelSettings(provider="scripted", model="other")
TWO = {"default": MODEL, "other": OTHER}
RULES = (Rule(name="all", judges=("safety",)), Rule(name="also", judges=("safety",), model="other"))
MIB = 1024 * 1024
LIMITS = st.integers(1, 300)
any_redis_server = one_redis


def age(shift: Shift, seconds: float) -> None:
    """Move the begin of a shift back."""
    shift.began_at -= seconds
    shift.wake()


def both(keyspace: Keyspace, new_worker: Workers, **options: Any) -> JudgingWorker:
    """Choose for two judge models, and set up a worker that has both."""
    assert len(choose(keyspace, 6, batch_size=2, models=TWO, rules=RULES)) == 6
    return new_worker(models=TWO, batch_size=2, **options)


def turned_away(_: ChatRequest) -> str:
    raise ModelUnavailableError("the endpoint is left alone", 30.0)


def window_of(*, limit: int = 64, batch_size: int = 32, **limits: float) -> PrefetchWindow:
    return PrefetchWindow("scripted", FakeLimits(limit=limit, **limits), batch_size)


def test_a_young_shift_looks_again_and_an_old_one_hands_over(keyspace: Keyspace, new_worker: Workers) -> None:
    (first,) = choose(keyspace, 1)
    worker = new_worker()
    worker.begin(first)
    (shift,) = worker.judging.running
    second, *_ = choose(keyspace, 2, batch_size=1, first=10)
    worker.wake(second)
    wait_until(lambda: len(worker.model.reached) == 3, what="the batches that came later")
    assert (worker.judging.running, worker.judging.held, ready(keyspace)) == ([shift], 3, [])
    worker.end(scored=3)
    keyspace.next_case("an old shift hands over and sees its own batches to their end")
    first, *_ = choose(keyspace, 3, batch_size=1)
    worker = new_worker(batch_size=1, shift_s=5.0, limit=1)
    worker.begin(first)
    (old,) = worker.judging.running
    assert (worker.judging.held, worker.notified) == (2, ["scripted"])
    age(old, 5.2)
    wait_until(lambda: len(worker.notified) == 2, what="a message for the successor, since a batch is left")
    wait_until(lambda: len(worker.judging.running) == 2, what="the successor")
    worker.rest()
    assert worker.judging._current["scripted"] is not old
    worker.model.answers.set()
    worker.settle(scored=3)


def test_the_later_of_two_shifts_goes_on_fetching(keyspace: Keyspace, new_worker: Workers) -> None:
    worker = new_worker(batch_size=1)
    worker.begin(*choose(keyspace, 1))
    for number in (1, 2):
        age(worker.judging.running[-1], 5.5)
        worker.wake(*choose(keyspace, 1, first=number))
        wait_until(lambda number=number: len(worker.model.reached) == number + 1, what="the next batch")
    assert len(worker.judging.running) == 2, "never more"
    worker.end(scored=3)
    keyspace.next_case("a shift that found no successor ends fetching all the same")
    batch_ids = choose(keyspace, 3, batch_size=1)
    worker = new_worker(batch_size=1, limit=1)
    worker.judging._notifier = SimpleNamespace(workers=1, notify=worker.notified.append)
    worker.begin(batch_ids[0])
    (shift,) = worker.judging.running
    age(shift, 5.0 + 1.1)
    wait_until(lambda: "scripted" not in worker.judging._current, what="the end of the fetching")
    assert worker.notified[1:] == ["scripted"]
    worker.end()
    assert (len(judged(keyspace)), len(ready(keyspace))) == (2, 1)
    worker.sweep(scored=3)
    keyspace.next_case("a queue that is not consumed any more ends the fetching at once")
    batch_ids = choose(keyspace, 4, batch_size=1)
    worker = new_worker(batch_size=1, limit=1)
    worker.begin(batch_ids[0])
    consumed = False
    worker.judging._serves = lambda _: consumed
    worker.end()
    assert (len(judged(keyspace)), len(ready(keyspace))) == (2, 2)
    worker.sweep()
    assert len(judged(keyspace)) == 2
    consumed = True
    worker.sweep(scored=4)


def test_batches_without_capacity_go_to_another_worker(keyspace: Keyspace, new_worker: Workers) -> None:
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
    busy.end(scored=8)


def test_a_dead_or_stuck_event_loop_keeps_no_thread_and_no_lease(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    for how in ("dead", "stuck"):
        keyspace.next_case(how)
        worker, batch_id = new_worker.begun(2)
        let_go = threading.Event()
        if how == "dead":
            worker.judging.loop.stop()
            worker.settle()
            assert worker.judging.held == 0
        else:
            worker.judging.loop.call(lambda let_go=let_go: let_go.wait(60))
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
        worker.settle(scored=2)
    keyspace.next_case("a stop resolves every thread also where the loop has died")
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


def test_no_more_is_held_than_there_is_capacity_for(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_ids = choose(keyspace, 20, batch_size=2)
    worker = new_worker(batch_size=2, limit=4)
    worker.begin(batch_ids[-1])
    assert (worker.judging.held, holders(keyspace).keys(), ready(keyspace)) == (4, set(batch_ids[:4]), batch_ids[4:])
    for batch_id in batch_ids:
        worker.wake(batch_id)
    worker.look()
    worker.rest()
    wait_until(lambda: len(worker.model.reached) == 8, what="all that is held to be asked for")
    assert worker.judging.held == 4
    worker.end(scored=20)
    keyspace.next_case("a batch does not wait for the slowest of another")
    batch_ids = choose(keyspace, 20, batch_size=2)
    worker = new_worker(limit=2)
    worker.model.hung = {min(texts(keyspace, batch_ids[0]))}
    worker.wake(batch_ids[0])
    wait_until(lambda: len(judged(keyspace)) == 19, what="all others")
    wait_until(lambda: worker.judging.held == 1, what="the end of all other batches")
    assert (len(keyspace.batches()), ready(keyspace)) == (1, [])
    worker.model.hung = set()
    worker.settle(scored=20)
    for meant_for, held in ((0.1, 1), (4.5, 5), (50, 20)):
        keyspace.next_case(f"{meant_for} batches")
        batch_ids = choose(keyspace, 20, batch_size=1)
        size = max(keyspace.client.strlen(keyspace.keys.batch(batch_id)) for batch_id in batch_ids)
        monkeypatch.setattr(fetching_module, "_MAX_BYTES", int(meant_for * size))
        worker = new_worker(batch_size=1)
        worker.begin(batch_ids[0])
        worker.look()
        worker.rest()
        assert worker.judging.held == held
        worker.end(scored=20)


def test_with_an_open_circuit_only_what_is_too_old_is_leased(keyspace: Keyspace, new_worker: Workers) -> None:
    batch_ids = choose(keyspace, 4, batch_size=2)
    worker = new_worker()
    worker.limits.blocked_for_s = 3.0
    before = keyspace.everything()
    worker.run(*batch_ids)
    worker.sweep()
    assert (keyspace.everything(), worker.judged_texts) == (before, [])
    worker.limits.blocked_for_s = 0.0
    worker.sweep(scored=4)
    keyspace.next_case("too old")
    choose(keyspace, 20, batch_size=2, age_s=2 * HOUR_S)
    young = choose(keyspace, 4, batch_size=2, first=100)
    worker = new_worker(turned_away, give_up_after=HOUR_S)
    worker.limits.blocked_for_s = 3.0
    sweeps = 0
    while len(letters(keyspace)) < 20:
        worker.sweep()
        sweeps += 1
    assert sweeps < 10
    worker.sweep()
    assert {letter.reason for letter in letters(keyspace).values()} == {"judge_unavailable"}
    assert len(worker.judged_texts) == 20
    assert (sorted(keyspace.batches()), ready(keyspace), holders(keyspace)) == (young, young, {})
    new_worker().sweep(scored=4, dead=20)


def test_one_judge_model_does_not_wait_for_another(keyspace: Keyspace, new_worker: Workers) -> None:
    worker = both(keyspace, new_worker)
    worker.limits.blocked_for_s = 3.0
    worker.sweep()
    assert [len(model.requests) for model in worker.models.values()] == [0, 6]
    assert (len(ready(keyspace)), ready(keyspace, "other")) == (3, [])
    worker.limits.blocked_for_s = 0.0
    worker.sweep()
    assert {entry["judge_model"] for entry in keyspace.outbox("j")} == {"scripted", "other"}
    assert_settled(keyspace, scored=12)
    keyspace.next_case("one that hangs")
    worker = both(keyspace, new_worker)
    worker.limits.limit = 1
    worker.model.answers.clear()
    worker.look()
    wait_until(lambda: len(judged(keyspace)) == 6, what="all of the other model")
    assert {entry["judge_model"] for entry in keyspace.outbox("j")} == {"other"}
    worker.end(scored=12)
    keyspace.next_case("one that the worker does not have")
    both(keyspace, new_worker)
    new_worker().sweep_due()
    assert (len(judged(keyspace)), len(ready(keyspace, "other"))) == (6, 3)
    new_worker(models=TWO).sweep(scored=12)
    keyspace.next_case("a message for one model")
    choose(keyspace, 4, batch_size=2, models=TWO, rules=RULES)
    worker = new_worker(models=TWO)
    worker.notify("other")
    worker.settle()
    assert ({entry["judge_model"] for entry in keyspace.outbox("j")}, len(ready(keyspace))) == ({"other"}, 2)
    worker = new_worker(models=TWO)
    assert worker.judging.circuits() == {"scripted": 0.0, "other": 0.0}
    assert (worker.judging.healthy_models(), worker.judging.models_to_probe()) == (["scripted", "other"], [])
    worker.limits.open_for_s, worker.all_limits["other"].open_for_s = 7.5, None
    assert worker.judging.circuits() == {"scripted": 7.5, "other": None}
    assert (worker.judging.healthy_models(), worker.judging.models_to_probe()) == ([], ["scripted", "other"])


def test_a_window_is_bounded_in_bytes_and_grows_by_what_waits_between_two_attempts() -> None:
    window = window_of(blocked_for_s=0.1)
    assert (window.capacity(), window.is_blocked) == (0, True)
    # An evaluation between two attempts frees its capacity within bounds.
    window = window_of()
    window.acquire(128, 128)
    assert window.capacity() == 0
    window.limits = FakeLimits(limit=64, backing_off=64)
    assert window.capacity() > 0
    window.acquire(64 * 32, 64 * 32)
    window.limits = FakeLimits(limit=64, backing_off=100_000)
    assert window.capacity() == 0
    # It is bounded in bytes.
    window = window_of()
    window.acquire(1, 64 * MIB - 1)
    assert (window.capacity() > 0, window.has_memory) == (True, True)
    window.acquire(1, 1)
    assert (window.capacity(), window.has_memory) == (0, False)
    window.release(1, 1)
    assert (window.capacity() > 0, window.has_memory) == (True, True)
    sizes = ((0, 9, 10), (1, 9, 10), (8, 7, 8), (32, 1, 2), (63, 1, 1), (64, 0, 1))
    for size, capacity, capacity_after in sizes:
        window = window_of(limit=256)
        assert window.capacity() == 1, "one, to see how large they are"
        window.acquire(32, size * MIB)
        window.acquire(0, 0)
        assert window.capacity() == capacity, size
        window.release(32, size * MIB)
        assert window.capacity() == capacity_after, size


SHARES = st.floats(0, 1)
# Some of the capacity is taken, in batches of a size; some evaluations end; the limit changes.
TURNS = st.lists(st.tuples(SHARES, SHARES, SHARES, st.none() | LIMITS), min_size=1, max_size=40)


@given(limit=LIMITS, batch_size=st.integers(1, 64), turns=TURNS)
def test_no_more_is_taken_than_is_of_use_and_no_slot_stays_empty(limit: int, batch_size: int, turns: list[Any]) -> None:
    limits = FakeLimits(limit=limit)
    window, held = PrefetchWindow("scripted", limits, batch_size), 0
    for share, size, ending, new_limit in turns:
        limits.limit = new_limit or limits.limit
        capacity = window.capacity()
        assert capacity >= 0
        assert capacity or held >= limits.limit, "there is something to do for every slot"
        taken = round(capacity * share) * max(1, round(batch_size * size))
        window.acquire(taken, 0)
        held += taken
        if taken:
            assert held <= limits.limit + min(limits.limit, 2 * batch_size) + batch_size - 1
        ended = int(held * ending)
        window.release(ended, 0)
        held -= ended
