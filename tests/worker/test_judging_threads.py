"""Who gives the word does not do all the work, and neither taking nor ending waits for the other."""

import threading
from collections import Counter
from typing import Any

import pytest
from judging_parts import MODEL, Desk, Desks, assert_settled, choose
from stage_parts import Ground
from support.processes import wait_until

from judges.models.model import ModelSettings
from worker.judging import judging as judging_module
from worker.judging import lane as lane_module
from worker.settings import Rule

OTHER = ModelSettings(provider="scripted", model="other")
TWO = {"default": MODEL, "other": OTHER}
RULES = (Rule(name="all", judges=("safety",)), Rule(name="also", judges=("safety",), model="other"))


def take_slowly(worker: Desk, monkeypatch: pytest.MonkeyPatch) -> "Counter[int]":
    """Let each taking last until all that it took has ended, so that there is always room; count them by thread."""
    takers: Counter[int] = Counter()
    take = worker.judging._take

    def slowly(*arguments: Any) -> int:
        takers[threading.get_ident()] += 1
        found = take(*arguments)
        wait_until(lambda: not worker.judging.held, what="the end of all that was taken")
        return found

    monkeypatch.setattr(worker.judging, "_take", slowly)
    return takers


@pytest.mark.parametrize("given_by", ["the sweeper", "a message"])
def test_who_gives_the_word_takes_once_though_there_is_always_more_room(
    ground: Ground, desk: Desks, monkeypatch: pytest.MonkeyPatch, given_by: str
) -> None:
    batch_ids = choose(ground, 20, batch_size=1)
    worker = desk(batch_size=1)
    worker.gate.limit = 1
    takers = take_slowly(worker, monkeypatch)
    worker.judging.sweep() if given_by == "the sweeper" else worker.judging.run(batch_ids[0])
    assert takers[threading.get_ident()] == 1
    worker.settle()
    assert (takers[threading.get_ident()], takers.total() > 5) == (1, True)
    assert_settled(ground, scored=20)


def test_word_that_comes_as_nothing_was_found_is_heard(
    ground: Ground, desk: Desks, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = desk()
    take = worker.judging._take

    def too_early(*arguments: Any) -> int:
        monkeypatch.undo()
        found = take(*arguments)
        worker.judging.run(*choose(ground, 1))
        return found

    monkeypatch.setattr(worker.judging, "_take", too_early)
    worker.sweep()
    assert_settled(ground, scored=1)


def test_a_judge_model_with_much_to_do_lets_others_have_their_turn(
    ground: Ground, desk: Desks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging_module, "_THREADS", 1)
    choose(ground, 20, batch_size=1, models=TWO, rules=RULES)
    worker = desk(models=TWO, batch_size=1)
    for gate in worker.gates.values():
        gate.limit = 1
    take_slowly(worker, monkeypatch)
    begin = threading.Event()
    worker.judging._takers.submit(begin.wait, 60)
    worker.judging.sweep()
    begin.set()
    worker.settle()
    order = [entry["judge_model"] for entry in ground.outbox("j")]
    assert 5 < Counter(order[:20])["scripted"] < 15
    assert_settled(ground, scored=40)


def test_batches_end_though_all_who_take_are_busy(ground: Ground, desk: Desks) -> None:
    (batch_id,) = choose(ground, 2)
    worker = desk()
    worker.begin(batch_id)
    busy = threading.Event()
    for _ in range(judging_module._THREADS):
        worker.judging._takers.submit(busy.wait, 60)
    worker.model.answers.set()
    wait_until(lambda: not worker.judging.held, what="the end of the batch")
    assert_settled(ground, scored=2)
    busy.set()
    worker.settle()


def test_more_is_taken_though_all_who_end_are_busy(ground: Ground, desk: Desks) -> None:
    batch_ids = choose(ground, 6, batch_size=1)
    worker = desk(batch_size=1)
    worker.gate.limit = 1
    busy = threading.Event()
    for _ in range(judging_module._THREADS):
        worker.judging._enders.submit(busy.wait, 60)
    worker.judging.run(batch_ids[0])
    wait_until(lambda: len(worker.asked) == 6, what="all answers")
    assert len(ground.batches()) == 6
    busy.set()
    worker.settle()
    assert_settled(ground, scored=6)


def test_no_more_is_given_up_at_once_than_memory_is_meant_for(
    ground: Ground, desk: Desks, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_ids = choose(ground, 30, batch_size=1, age_s=7 * 3600.0)
    size = max(ground.client.strlen(ground.keys.batch(batch_id)) for batch_id in batch_ids)
    worker = desk(batch_size=1)
    worker.gate.closed_for_s = 3.0
    worker.model.answers.clear()
    monkeypatch.setattr(lane_module, "_MAX_BYTES", 4 * size)
    worker.judging.sweep()
    assert worker.judging.held == judging_module._AT_ONCE
    worker.judging.sweep()
    assert worker.judging.held == judging_module._AT_ONCE
    worker.end()
    monkeypatch.undo()
    worker.sweep()
    assert_settled(ground, scored=30)
