"""Reading by ingest: what is repeated, taken over, gone or too much at once comes into the books once all the same."""

from typing import Any

import pytest
from stage_parts import Chosen, Ground, make_trace, make_traces

from worker.books import read_account
from worker.ingest import reader
from worker.keys import INGEST_GROUP
from worker.settings import Rule
from worker.store import StoreError


def test_while_it_stops_a_worker_leaves_what_it_cannot_write_to_others(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = Chosen(ground)
    ground.append("p1", make_traces(range(3)))
    entries = ground.read()

    def refuse(*_: Any) -> None:
        raise StoreError("Redis does not answer (ConnectionError)")

    with monkeypatch.context() as away:
        away.setattr(ground.store, "run", refuse)
        chosen.ingest.stopping.set()
        with pytest.raises(StoreError):
            chosen.take(entries)
    heir = Chosen(ground)
    heir.take(ground.claim())
    assert ground.books()["sampled"] == 3


def test_a_dead_readers_entries_are_taken_over_together_with_new_ones(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_STALE_MS", 0)
    monkeypatch.setattr(reader, "_BLOCK_MS", 1)
    chosen = Chosen(ground)
    ground.append("p1", make_traces(range(3)))
    assert len(ground.read(consumer="dead")) == 3
    ground.append("p1", make_traces(range(3, 5)))
    chosen.ingest.turn()
    assert ground.counted("read", "sampled") == {"read": 5, "sampled": 5}
    assert ground.pending() == 0


def test_what_another_takes_over_at_the_same_moment_is_neither_ours_nor_gone(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    hour_ms, minute_ms = 3_600_000, 60_000
    ground.append("p1", make_traces(range(3)))
    ids = [entry_id for entry_id, _ in ground.read(consumer="dead")]
    ground.client.xclaim(ground.keys.traces, INGEST_GROUP, "dead", 0, ids, idle=hour_ms)
    xclaim = ground.store._redis.xclaim

    def beaten(*arguments: Any, **options: Any) -> Any:
        ground.client.xclaim(ground.keys.traces, INGEST_GROUP, "rival", minute_ms, ids)
        return xclaim(*arguments, **options)

    monkeypatch.setattr(ground.store._redis, "xclaim", beaten)
    claimed = ground.store.claim_stale(ground.keys.traces, INGEST_GROUP, "heir", idle_ms=minute_ms, count=10)
    assert claimed == []
    assert ground.client.xpending(ground.keys.traces, INGEST_GROUP)["consumers"] == [{"name": b"rival", "pending": 3}]


def test_past_the_bound_of_waiting_work_nothing_is_read(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_PRESSURE_PAUSE_S", 0.001)
    monkeypatch.setattr(reader, "_BLOCK_MS", 1)
    chosen = Chosen(ground, max_waiting_bytes=1000)
    chosen.pressure.hear_waiting({"lexical": 1001})
    ground.add(make_trace(1))
    chosen.ingest.turn()
    assert (ground.books(), ground.pending()) == ({}, 0)
    chosen.pressure.hear_waiting({"lexical": 1000})
    chosen.ingest.turn()
    assert ground.books()["sampled"] == 1


def test_an_answer_that_was_lost_on_its_way_does_no_harm(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = Chosen(ground)
    ground.append("p1", make_traces(range(3)))
    run = ground.store.run
    answers = iter([False, True])

    def lossy(*arguments: Any) -> Any:
        answer = run(*arguments)
        if not next(answers):
            raise StoreError("Redis does not answer (TimeoutError)")
        return answer

    monkeypatch.setattr(ground.store, "run", lossy)
    monkeypatch.setattr(chosen.ingest, "stumbled", lambda _: None)
    chosen.take()
    assert ground.counted("published", "sampled", "chosen") == {"published": 3, "sampled": 3, "chosen": 3}
    assert sum(len(batch.items) for batch in ground.batches().values()) == 3


def test_entries_that_are_gone_count_as_cut_off(ground: Ground) -> None:
    chosen = Chosen(ground)
    ground.append("p1", make_traces(range(5)))
    entries = ground.read()
    ground.client.xtrim(ground.keys.traces, maxlen=2, approximate=False)
    chosen.take([(entry_id, None) for entry_id, _ in entries[:3]] + entries[3:])
    assert ground.counted("cut_off", "sampled", "read", "arrived") == {
        "cut_off": 3,
        "sampled": 2,
        "read": 2,
        "arrived": 2,
    }
    assert ground.pending() == 0
    account = read_account(ground.store)
    assert (account.published, account.cut_off, account.sampled, account.lost) == (5, 3, 2, 0)


def test_ten_thousand_unsampled_traces_at_once_are_one_step(ground: Ground) -> None:
    """More ids than Lua can spread over the arguments of one call."""
    chosen = Chosen(ground, rules=(Rule(name="none", judges=("safety",), rate=0.0),))
    ground.append("p1", make_traces(range(10_000)))
    chosen.take()
    assert ground.counted("not_sampled", "read") == {"not_sampled": 10_000, "read": 10_000}


@pytest.mark.parametrize(
    ("rate", "size", "expected"),
    [(0.0, 10, [32, 64, 128, 256, 512, 1_000, 1_000]), (1.0, 10, [32, 64, 128, 190, 190]), (0.0, 4_000, [32, 25, 25])],
    ids=["unsampled", "all-chosen", "large"],
)
def test_as_much_is_read_at_once_as_redis_deals_with_in_a_moment(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, rate: float, size: int, expected: list[int]
) -> None:
    monkeypatch.setattr(reader, "_READ_BYTES", 105_000 if size == 4_000 else 1 << 25)
    chosen = Chosen(ground, rules=(Rule(name="all", judges=("safety",), rate=rate),))
    ground.append("p1", make_traces(range(sum(expected)), output="x" * size))
    counts = []
    read_group = ground.store.read_group

    def counted(*names: str, count: int, block_ms: int) -> Any:
        counts.append(count)
        return read_group(*names, count=count, block_ms=block_ms)

    monkeypatch.setattr(ground.store, "read_group", counted)
    for _ in expected:
        chosen.ingest.turn()
    assert counts == expected
    assert ground.counted("read") == {"read": sum(expected)}
