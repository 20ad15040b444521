"""Names of readers in consumer groups: those of the dead go, and no entry and no living reader with them."""

import threading
from collections.abc import Sequence

import pytest
from support.processes import PATIENCE_S, wait_until
from support.stage_parts import Chosen, Ground, make_traces

from worker.core.ingest import consumer as reader
from worker.core.storage import client as store
from worker.core.storage.client import StoreError, leave, retire
from worker.core.storage.keys import INGEST_GROUP


def read(ground: Ground, consumer: str, count: int = 1, *, acknowledge: bool = True) -> Sequence[bytes]:
    """Read new entries as a reader of this name."""
    ground.append("p1", make_traces(range(count)))
    ids = [entry_id for entry_id, _ in ground.read(consumer=consumer)]
    if acknowledge:
        ground.client.xack(ground.keys.traces, INGEST_GROUP, *ids)
    return ids


def names(ground: Ground) -> set[str]:
    return {one["name"].decode() for one in ground.client.xinfo_consumers(ground.keys.traces, INGEST_GROUP)}


def retired(ground: Ground, *keep: str, idle_ms: int = 0) -> int:
    return retire(ground.store, ground.keys.traces, INGEST_GROUP, keep, idle_ms)


def test_names_with_nothing_pending_go_and_the_callers_own_stays(ground: Ground) -> None:
    for name in ("a", "b", "own"):
        read(ground, name)
    read(ground, "holds", acknowledge=False)
    assert retired(ground, "own") == 2
    assert names(ground) == {"own", "holds"}
    assert ground.pending() == 1


def test_a_name_that_was_silent_for_a_moment_only_stays(ground: Ground) -> None:
    read(ground, "a")
    assert retired(ground, idle_ms=60_000) == 0
    assert names(ground) == {"a"}


def test_a_dead_readers_name_goes_once_its_entries_were_taken_over(ground: Ground) -> None:
    read(ground, "dead", 3, acknowledge=False)
    assert retired(ground) == 0
    Chosen(ground).take(ground.claim("heir"))
    assert retired(ground, "heir") == 1
    assert (names(ground), ground.accounting()["sampled"]) == ({"heir"}, 3)


def test_where_no_stream_or_group_is_nothing_is_done(ground: Ground) -> None:
    assert retire(ground.store, ground.keys.verdicts, "otel", idle_ms=0) == 0
    leave(ground.store, ground.keys.verdicts, "otel", "a")
    ground.client.xadd(ground.keys.verdicts, {"v": "1"})
    assert retire(ground.store, ground.keys.verdicts, "otel", idle_ms=0) == 0
    leave(ground.store, ground.keys.verdicts, "otel", "a")


def test_very_many_names_go(ground: Ground) -> None:
    for number in range(1_200):
        ground.client.xgroup_createconsumer(ground.keys.traces, INGEST_GROUP, f"dead-{number}")
    assert [retired(ground), retired(ground), retired(ground)] == [1_000, 200, 0]


def test_a_living_reader_whose_name_goes_while_it_waits_is_given_the_next_entry(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    read(ground, "alive")
    found: list[object] = []
    # As patient as the test: it would else have read in vain, should this thread have stood still meanwhile.
    monkeypatch.setattr(store, "_SOCKET_TIMEOUT_S", 2 * PATIENCE_S)
    readers, waits = store.Store(ground.url, ground.keys), {"count": 10, "block_ms": int(PATIENCE_S * 1000)}
    waiting = threading.Thread(
        target=lambda: found.extend(readers.read_group(ground.keys.traces, INGEST_GROUP, "alive", **waits))
    )
    waiting.start()
    wait_until(lambda: ground.client.info("clients")["blocked_clients"], what="the reader to wait")
    assert retired(ground) == 1
    ground.append("p1", make_traces(range(1)))
    waiting.join(PATIENCE_S)
    readers.close()
    assert len(found) == ground.pending() == 1
    assert names(ground) == {"alive"}


def test_who_leaves_takes_its_own_name_only(ground: Ground) -> None:
    for name in ("a", "b"):
        read(ground, name)
    leave(ground.store, ground.keys.traces, INGEST_GROUP, "a")
    leave(ground.store, ground.keys.traces, INGEST_GROUP, "unknown")
    assert names(ground) == {"b"}


def test_who_leaves_something_behind_leaves_its_name_too(ground: Ground) -> None:
    read(ground, "a", acknowledge=False)
    leave(ground.store, ground.keys.traces, INGEST_GROUP, "a")
    assert (names(ground), ground.pending()) == ({"a"}, 1)


def test_an_ingest_that_stops_takes_its_name_out(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_BLOCK_MS", 1)
    first, second = Chosen(ground), Chosen(ground)
    for chosen in (first, second):
        ground.append("p1", make_traces(range(2)))
        chosen.ingest.run_once()
    assert len(names(ground)) == 2
    assert first.ingest.stop(60)
    assert len(names(ground)) == 1


def test_a_redis_that_is_away_hinders_no_stop(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise StoreError("Redis does not answer (ConnectionError)")

    chosen = Chosen(ground)
    monkeypatch.setattr(ground.store, "run", away)
    assert chosen.ingest.stop(60)
