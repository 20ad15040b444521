"""Late feedback between partitions: it reaches the partition of its trace, and counts once."""

import threading
import time
from typing import Any

import pytest
from support.feedback_parts import Passes, complain, gathered, make_due, take
from support.partition_parts import PARTITIONS, named_in, three_partitions
from support.processes import bounded_s, free_port, wait_until
from support.stage_parts import Keyspace, make_trace, make_verdict, settings_of

from worker.base.forget.forget import ForgetTarget, forget_everywhere
from worker.core.config.serving import UserKeys
from worker.core.storage.client import Store, StoreError
from worker.core.telemetry.service import share_threads, stop_threads
from worker.features.late_feedback.feature import FeedbackKeys
from worker.features.late_feedback.pending import PendingFeedback


def test_late_feedback_is_searched_once_in_each_of_eight_partitions_soon(redis_url: str, prefix: str) -> None:
    count = 8
    trace_id = named_in(3, count)
    trace = make_trace(1, trace_id=trace_id, session_id=named_in(7, count))
    with three_partitions(redis_url, prefix, count) as keyspaces:
        keyspaces[7].add(trace)
        for name in (trace_id, named_in(3, count, "unknown")):
            complain(keyspaces[3], name)
        for keyspace in keyspaces:
            take(keyspace)
        passes = [Passes(keyspace) for keyspace in keyspaces]
        stages = [worker.stage for worker in passes]
        for stage in stages:
            stage.stopping = threading.Event()
        share_threads(stages)
        began = time.monotonic()
        for stage in stages:
            stage.start()
        # The last of them is asked last.
        wait_until(lambda: passes[7].outcomes == {"pulled": 1, "not_found": 1}, what="the end of both")
        elapsed_s = time.monotonic() - began
        stop_threads(stages)
        assert elapsed_s < bounded_s(2.0), "a few looks, however many partitions"
        (batch,) = keyspaces[7].batches().values()
        assert [item.trace.trace_id for item in batch.items] == [trace_id]
        for number, keyspace in enumerate(keyspaces):
            assert gathered(keyspace) == {}, number
            taken = keyspace.client.zcard(FeedbackKeys(keyspace.prefix).feedback_taken)
            assert (taken, len(keyspace.batches())) == (0 if number == 3 else 2, int(number == 7)), number


def test_feedback_that_is_handed_on_while_a_trace_is_forgotten_is_erased_too(keyspaces: list[Keyspace]) -> None:
    trace = make_trace(1)
    complain(keyspaces[0], trace.trace_id, comment="the parcel holds a kite")
    take(keyspaces[0])
    keyspaces[1].send(make_verdict())
    pending = PendingFeedback(keyspaces[0].store, 60.0)
    members = pending.read_all()

    def hand_on(place: str, _: int) -> None:
        if place == "verdicts" and members:
            assert pending.hand_over(members.pop())

    settings = settings_of(keyspaces[0])
    target = ForgetTarget(trace_id=trace.trace_id, user_keys=UserKeys(settings, keyspaces[0].store).all())
    erased = forget_everywhere(keyspaces[0].store, settings, target, progress=hand_on)
    assert not members
    assert (erased.feedback, [gathered(keyspace) for keyspace in keyspaces]) == (2, [{}] * PARTITIONS), (
        "its entry, and what waits"
    )
    assert "kite" not in repr([keyspace.everything() for keyspace in keyspaces])


def test_feedback_that_is_handed_over_again_is_taken_once(
    keyspaces: list[Keyspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    complain(keyspaces[0], "ff" * 16)
    take(keyspaces[0])
    pending = PendingFeedback(keyspaces[0].store, 60.0)
    (member,) = pending.read_all()
    with monkeypatch.context() as ended:
        # The worker ends between the two partitions.
        ended.setattr(keyspaces[0].store, "call", lambda _: (_ for _ in ()).throw(StoreError("gone")))
        with pytest.raises(StoreError):
            pending.hand_over(member)
    taken = keyspaces[1].client.zrange(keyspaces[1].keys.feedback, 0, -1)
    assert len(taken) == 1
    keyspaces[1].client.delete(keyspaces[1].keys.feedback)
    assert pending.hand_over(member)
    assert gathered(keyspaces[0]) == gathered(keyspaces[1]) == {}, "it was dealt with there meanwhile"
    keyspaces[1].store.is_away = True
    assert pending.hand_over(member), "a partition that is away is asked last"
    assert len(gathered(keyspaces[2])) == 1


def test_feedback_taken_by_a_partition_is_remembered_for_one_day(keyspaces: list[Keyspace]) -> None:
    complain(keyspaces[0], "ff" * 16)
    take(keyspaces[0])
    pending, taken = PendingFeedback(keyspaces[0].store, 60.0), FeedbackKeys(keyspaces[1].keys.prefix).feedback_taken
    yesterday = keyspaces[1].store.now_ms() - 25 * 3600 * 1000
    keyspaces[1].client.zadd(taken, {"0:1-0": yesterday, "0:2-0": yesterday + 2 * 3600 * 1000})
    (member,) = pending.read_all()
    assert pending.hand_over(member)
    assert set(keyspaces[1].client.zrange(taken, 0, -1)) == {b"0:2-0", f"0:{member.item.entry_id}".encode()}


def test_a_part_of_a_pass_waits_once_for_a_partition_that_does_not_answer(
    keyspaces: list[Keyspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        complain(keyspaces[0], f"{number:032x}")
    take(keyspaces[0])
    make_due(keyspaces[0])
    away = [Store(f"redis://127.0.0.1:{free_port()}/0", keyspaces[0].keys, number) for number in (1, 2)]
    asked = [0, 0]

    def counted(number: int, store: Store) -> None:
        run = store.run

        def count(*arguments: Any) -> Any:
            asked[number] += 1
            return run(*arguments)

        monkeypatch.setattr(store, "run", count)

    for number, store in enumerate(away):
        counted(number, store)
    keyspaces[0].store.partitions = (keyspaces[0].store, *away)
    passes = Passes(keyspaces[0])
    passes.make()
    for store in away:
        store.close()
    assert asked == [1, 1], "each partition costs one wait"
    assert len(gathered(keyspaces[0])) == 5, "all of it waits for the next pass"
