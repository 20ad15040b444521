"""What judging reports of itself: whether its event loop lives, and for which judge models there is capacity."""

import threading

import pytest
from support.judging_parts import Workers, choose, output
from support.processes import wait_until
from support.stage_parts import Keyspace


def test_an_event_loop_that_ended_unasked_is_dead_and_one_that_was_stopped_is_not(
    new_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    judging = new_worker().judging
    assert not judging.pulse.has_ended
    with monkeypatch.context() as fallen:
        fallen.setattr(judging.loop, "_thread", threading.Thread())
        assert judging.pulse.has_ended
    judging.stop(0)
    assert not judging.pulse.has_ended


def test_there_is_capacity_until_the_slots_are_taken_or_the_endpoint_is_left_alone(
    keyspace: Keyspace, new_worker: Workers
) -> None:
    batch_ids = choose(keyspace, 4, batch_size=1)
    worker = new_worker(batch_size=1)
    worker.limits.limit = 1
    assert worker.judging.capacity() == {"scripted": True}
    worker.model.hung = {output(number) for number in range(4)}
    worker.wake(batch_ids[0])
    wait_until(lambda: worker.judging.held == 2, what="the slots to be taken")
    assert worker.judging.capacity() == {"scripted": False}
    worker.judging.stop(0)
    shut = new_worker()
    shut.limits.blocked_for_s = 5.0
    assert shut.judging.capacity() == {"scripted": False}
