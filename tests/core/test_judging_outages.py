"""When Redis goes away in the midst of it, work is left to the sweeper, and nothing is paid for twice."""

from typing import Any

import pytest
from structlog.testing import capture_logs
from support.judging_parts import Workers, assert_settled, choose, holders, ready, refuse, texts
from support.processes import wait_until
from support.stage_parts import Keyspace

from worker.core.storage.client import StoreError


@pytest.mark.parametrize("away", ["take", "already_finished", "finish"])
def test_when_redis_goes_away_the_batch_is_left_to_the_sweeper(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch, away: str
) -> None:
    (batch_id,) = choose(keyspace, 2)
    worker = new_worker()
    with monkeypatch.context() as outage:
        outage.setattr(worker.ledger if away == "already_finished" else worker.judging.leases, away, refuse)
        worker.run(batch_id)
    assert (list(keyspace.batches()), worker.judging.held) == ([batch_id], 0)
    keyspace.make_due()
    worker.sweep()
    assert len(worker.judged_texts) == 2, "each was asked for once"
    assert_settled(keyspace, scored=2)


def test_capacity_that_cannot_be_filled_is_not_tried_over_and_over(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(keyspace, 60, batch_size=1)
    worker = new_worker(batch_size=1)
    worker.limits.limit = 40
    worker.begin(ready(keyspace)[0])
    models: list[str] = []

    def away(*arguments: Any, **_: Any) -> None:
        models.append(arguments[0])
        raise StoreError("Redis does not answer (ConnectionError)")

    with monkeypatch.context() as outage, capture_logs():
        outage.setattr(worker.judging.leases, "take", away)
        worker.end()
    assert 1 <= len(models) <= 5, "not once for each of 42 that left"
    assert len(ready(keyspace)) == 18
    worker.sweep()
    assert_settled(keyspace, scored=60)


def test_a_failed_sweep_raises_and_the_next_one_judges(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = new_worker()
    choose(keyspace, 1)
    with monkeypatch.context() as outage:
        outage.setattr(worker.sweeper.leases, "sweep", refuse)
        with pytest.raises(StoreError):
            worker.look()
    worker.sweep()
    assert_settled(keyspace, scored=1)


def test_a_verdict_waits_for_redis_as_long_as_it_takes(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = new_worker()
    record = worker.ledger.record
    outage = iter([True, False])

    def sometimes(finished: Any) -> Any:
        fresh = record(finished)
        if next(outage, False):
            raise StoreError("Redis does not answer (TimeoutError)")
        return fresh

    monkeypatch.setattr(worker.ledger, "record", sometimes)
    worker.run(*choose(keyspace, 3))
    assert len(worker.judged_texts) == 3
    assert_settled(keyspace, scored=3)


def test_capacity_is_released_when_the_answer_is_there_though_it_cannot_be_written(
    keyspace: Keyspace, new_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = choose(keyspace, 2, batch_size=1)
    worker = new_worker(batch_size=1)
    worker.limits.limit = 1
    worker.model.hung = texts(keyspace, second)
    with monkeypatch.context() as outage, capture_logs():
        outage.setattr(worker.ledger, "record", refuse)
        worker.wake(first)
        wait_until(lambda: holders(keyspace).keys() == {first, second}, what="the second in the capacity of the first")
        wait_until(lambda: worker.judging.windows["scripted"].capacity() == 1, what="the capacity of the first")
    worker.model.hung = set()
    worker.settle()
    assert_settled(keyspace, scored=2)
