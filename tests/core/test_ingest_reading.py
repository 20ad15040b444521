"""Reading by ingest: entries that are repeated, claimed, deleted or too many at once are accounted for once."""

from collections.abc import Iterable
from typing import Any

import pytest
from support.stage_parts import IngestHarness, Keyspace, make_trace, make_traces

from worker.base.accounting import read_account
from worker.core.config.settings import MIB, Rule
from worker.core.ingest import consumer as reader
from worker.core.storage.client import Entry, StoreError
from worker.core.storage.keys import INGEST_GROUP


def test_a_stopping_worker_leaves_unwritten_entries_to_others(
    keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = IngestHarness(keyspace)
    keyspace.append("p1", make_traces(range(3)))
    entries = keyspace.read()

    def refuse(*_: Any) -> None:
        raise StoreError("Redis does not answer (ConnectionError)")

    with monkeypatch.context() as away:
        away.setattr(keyspace.store, "run", refuse)
        chosen.ingest.stopping.set()
        with pytest.raises(StoreError):
            chosen.process(entries)
    successor = IngestHarness(keyspace)
    successor.process(keyspace.claim())
    assert keyspace.accounting()["sampled"] == 3


def test_a_dead_readers_entries_are_taken_over_before_new_ones_are_read(
    keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_STALE_MS", 0)
    monkeypatch.setattr(reader, "_BLOCK_MS", 1)
    chosen = IngestHarness(keyspace)
    keyspace.append("p1", make_traces(range(3)))
    assert len(keyspace.read(consumer="dead")) == 3
    keyspace.append("p1", make_traces(range(3, 5)))
    for sampled in (3, 5):
        chosen.ingest.run_once()
        assert keyspace.counted("read", "sampled") == {"read": sampled, "sampled": sampled}
    assert keyspace.pending() == 0


def test_an_entry_that_another_reader_just_claimed_is_not_claimed(keyspace: Keyspace) -> None:
    minute_ms = 60_000
    keyspace.append("p1", make_traces(range(3)))
    ids = [entry_id for entry_id, _ in keyspace.read(consumer="dead")]
    keyspace.client.xclaim(keyspace.keys.traces, INGEST_GROUP, "dead", 0, ids, idle=60 * minute_ms)
    keyspace.client.xclaim(keyspace.keys.traces, INGEST_GROUP, "rival", minute_ms, ids[:2])
    claimed = keyspace.store.claim_stale(keyspace.keys.traces, INGEST_GROUP, "successor", idle_ms=minute_ms, count=10)
    assert [entry_id for entry_id, _ in claimed] == ids[2:]


def test_past_the_bound_of_waiting_work_nothing_is_read(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_PRESSURE_PAUSE_S", 0.001)
    monkeypatch.setattr(reader, "_BLOCK_MS", 1)
    chosen = IngestHarness(keyspace, max_waiting_bytes=1000)
    chosen.pressure.set_waiting({"lexical": 1001})
    keyspace.add(make_trace(1))
    chosen.ingest.run_once()
    assert (keyspace.accounting(), keyspace.pending()) == ({}, 0)
    chosen.pressure.set_waiting({"lexical": 1000})
    chosen.ingest.run_once()
    assert keyspace.accounting()["sampled"] == 1


def test_an_answer_that_was_lost_on_its_way_does_no_harm(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = IngestHarness(keyspace)
    keyspace.append("p1", make_traces(range(3)))
    run = keyspace.store.run
    answers = iter([False, True])

    def lossy(*arguments: Any) -> Any:
        answer = run(*arguments)
        if not next(answers):
            raise StoreError("Redis does not answer (TimeoutError)")
        return answer

    monkeypatch.setattr(keyspace.store, "run", lossy)
    monkeypatch.setattr(chosen.ingest, "backoff", lambda _: None)
    chosen.process()
    assert keyspace.counted("published", "sampled", "chosen") == {"published": 3, "sampled": 3, "chosen": 3}
    assert sum(len(batch.items) for batch in keyspace.batches().values()) == 3


def test_entries_that_are_gone_count_as_cut_off(keyspace: Keyspace) -> None:
    chosen = IngestHarness(keyspace)
    keyspace.append("p1", make_traces(range(5)))
    entries = keyspace.read()
    keyspace.client.xtrim(keyspace.keys.traces, maxlen=2, approximate=False)
    chosen.process([(entry_id, None) for entry_id, _ in entries[:3]] + entries[3:])
    assert keyspace.counted("cut_off", "sampled", "read", "arrived") == {
        "cut_off": 3,
        "sampled": 2,
        "read": 2,
        "arrived": 2,
    }
    assert keyspace.pending() == 0
    account = read_account(keyspace.store)
    assert (account.published, account.cut_off, account.sampled, account.lost) == (5, 3, 2, 0)


def test_ten_thousand_unsampled_traces_at_once_are_one_step(keyspace: Keyspace) -> None:
    """More ids than Lua can spread over the arguments of one call."""
    chosen = IngestHarness(keyspace, rules=(Rule(name="none", judges=("safety",), rate=0.0),))
    keyspace.append("p1", make_traces(range(10_000)))
    chosen.process()
    assert keyspace.counted("not_sampled", "read") == {"not_sampled": 10_000, "read": 10_000}


@pytest.mark.parametrize("way", ["read", "claimed"])
def test_reads_are_bounded_by_entries_and_8_mib(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setattr(reader, "_BLOCK_MS", 1)
    chosen = IngestHarness(keyspace, rules=(Rule(name="none", judges=("safety",), rate=0.0),))
    large = {"output": "x" * (4 * MIB - 1000)}
    for numbers, fields in (((0, 300), {}), ((300, 303), large), ((303, 400), {}), ((400, 405), large)):
        keyspace.append("p1", make_traces(range(*numbers), **fields))
    if way == "claimed":
        monkeypatch.setattr(reader, "_STALE_MS", 0)
        keyspace.read(consumer="dead")
    reads: list[tuple[int, int]] = []
    process = chosen.ingest.process

    def weighed(entries: Iterable[Entry]) -> None:
        entries = list(entries)
        reads.append((len(entries), sum(sum(map(len, fields.values())) for _, fields in entries)))
        process(entries)

    monkeypatch.setattr(chosen.ingest, "process", weighed)
    while sum(count for count, _ in reads) < 405:
        chosen.ingest.run_once()
    assert max(count for count, _ in reads) <= (128 if way == "claimed" else 1_000), reads
    assert max(size for _, size in reads) < 8 * MIB, reads
    assert len(reads) <= 10, reads
    assert keyspace.counted("not_sampled", "read") == {"not_sampled": 405, "read": 405}
    assert keyspace.pending() == 0
