"""Names of readers in consumer groups: those of the dead go, and no entry and no living reader with them."""

import threading
from collections.abc import Sequence

import pytest
from support.processes import PATIENCE_S, wait_until
from support.stage_parts import IngestHarness, Keyspace, make_traces

from worker.core.ingest import consumer as reader
from worker.core.storage import client as store
from worker.core.storage.client import StoreError
from worker.core.storage.keys import INGEST_GROUP


def read(keyspace: Keyspace, consumer: str, count: int = 1, *, acknowledge: bool = True) -> Sequence[bytes]:
    """Read new entries as a reader of this name."""
    keyspace.append("p1", make_traces(range(count)))
    ids = [entry_id for entry_id, _ in keyspace.read(consumer=consumer)]
    if acknowledge:
        keyspace.client.xack(keyspace.keys.traces, INGEST_GROUP, *ids)
    return ids


def names(keyspace: Keyspace) -> set[str]:
    return {
        consumer["name"].decode() for consumer in keyspace.client.xinfo_consumers(keyspace.keys.traces, INGEST_GROUP)
    }


def retired(keyspace: Keyspace, idle_ms: int = 0) -> int:
    return keyspace.store.retire_consumers(keyspace.keys.traces, INGEST_GROUP, idle_ms)


def test_consumers_with_nothing_pending_are_removed(keyspace: Keyspace) -> None:
    for name in ("a", "b"):
        read(keyspace, name)
    read(keyspace, "holds", acknowledge=False)
    assert retired(keyspace) == 2
    assert names(keyspace) == {"holds"}
    assert keyspace.pending() == 1


def test_a_name_that_was_silent_for_a_moment_only_stays(keyspace: Keyspace) -> None:
    read(keyspace, "a")
    assert retired(keyspace, idle_ms=60_000) == 0
    assert names(keyspace) == {"a"}


def test_a_dead_readers_name_goes_once_its_entries_were_taken_over(keyspace: Keyspace) -> None:
    read(keyspace, "dead", 3, acknowledge=False)
    assert retired(keyspace) == 0
    IngestHarness(keyspace).process(keyspace.claim("successor"))
    assert retired(keyspace) == 2
    assert (names(keyspace), keyspace.accounting()["sampled"]) == (set(), 3)


def test_retiring_without_a_stream_or_group_does_nothing(keyspace: Keyspace) -> None:
    assert keyspace.store.retire_consumers(keyspace.keys.verdicts, "otel", idle_ms=0) == 0
    keyspace.store.remove_consumer(keyspace.keys.verdicts, "otel", "a")
    keyspace.client.xadd(keyspace.keys.verdicts, {"v": "1"})
    assert keyspace.store.retire_consumers(keyspace.keys.verdicts, "otel", idle_ms=0) == 0
    keyspace.store.remove_consumer(keyspace.keys.verdicts, "otel", "a")


def test_very_many_names_go(keyspace: Keyspace) -> None:
    for number in range(1_200):
        keyspace.client.xgroup_createconsumer(keyspace.keys.traces, INGEST_GROUP, f"dead-{number}")
    assert [retired(keyspace), retired(keyspace), retired(keyspace)] == [1_000, 200, 0]


def test_a_living_reader_whose_name_goes_while_it_waits_is_given_the_next_entry(
    keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    read(keyspace, "alive")
    entries: list[object] = []
    # As patient as the test: it would else have read in vain, should this thread have stood still meanwhile.
    monkeypatch.setattr(store, "_SOCKET_TIMEOUT_S", 2 * PATIENCE_S)
    readers, waits = store.Store(keyspace.url, keyspace.keys), {"count": 10, "block_ms": int(PATIENCE_S * 1000)}
    waiting = threading.Thread(
        target=lambda: entries.extend(readers.read_group(keyspace.keys.traces, INGEST_GROUP, "alive", **waits))
    )
    waiting.start()
    wait_until(lambda: keyspace.client.info("clients")["blocked_clients"], what="the reader to wait")
    assert retired(keyspace) == 1
    keyspace.append("p1", make_traces(range(1)))
    waiting.join(PATIENCE_S)
    readers.close()
    assert len(entries) == keyspace.pending() == 1
    assert names(keyspace) == {"alive"}


def test_leaving_removes_only_the_consumer_that_leaves(keyspace: Keyspace) -> None:
    for name in ("a", "b"):
        read(keyspace, name)
    keyspace.store.remove_consumer(keyspace.keys.traces, INGEST_GROUP, "a")
    keyspace.store.remove_consumer(keyspace.keys.traces, INGEST_GROUP, "unknown")
    assert names(keyspace) == {"b"}


def test_a_consumer_with_pending_entries_is_not_removed(keyspace: Keyspace) -> None:
    read(keyspace, "a", acknowledge=False)
    keyspace.store.remove_consumer(keyspace.keys.traces, INGEST_GROUP, "a")
    assert (names(keyspace), keyspace.pending()) == ({"a"}, 1)


def test_an_ingest_that_stops_takes_its_name_out(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_BLOCK_MS", 1)
    first, second = IngestHarness(keyspace), IngestHarness(keyspace)
    for chosen in (first, second):
        keyspace.append("p1", make_traces(range(2)))
        chosen.ingest.run_once()
    assert len(names(keyspace)) == 2
    assert first.ingest.stop(60)
    assert len(names(keyspace)) == 1


def test_a_redis_that_is_away_hinders_no_stop(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise StoreError("Redis does not answer (ConnectionError)")

    chosen = IngestHarness(keyspace)
    monkeypatch.setattr(keyspace.store, "run", away)
    assert chosen.ingest.stop(60)
