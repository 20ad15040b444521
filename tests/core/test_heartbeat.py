"""Where takers stand, and who is there: as Redis tells it, on both of its versions."""

import pytest
from support.leases_parts import MODEL, add
from support.stage_parts import Keyspace

from worker.core.queue.leases import Leases
from worker.core.storage.keys import INGEST_GROUP
from worker.core.telemetry import health as presence
from worker.core.telemetry.health import Heartbeat, Readiness, flow_positions, flows, live_workers

TRACE = {"trace_id": "a", "service": "shop", "output": "o"}


def at(keyspace: Keyspace, **capacity: bool) -> dict[str, str | None]:
    return flow_positions(keyspace.store, ("metrics", "otel"), capacity)


def test_without_a_stream_no_reader_has_a_mark(any_redis_url: str, prefix: str) -> None:
    keyspace = Keyspace(any_redis_url, prefix)
    assert at(keyspace) == {"ingest": None, "export:metrics": None, "export:otel": None}
    keyspace.__exit__()


def test_a_reader_s_mark_is_its_last_read_entry_until_all_are_read(keyspace: Keyspace) -> None:
    ids = [keyspace.add(TRACE) for _ in range(3)]
    assert at(keyspace)[INGEST_GROUP] == "0-0"
    keyspace.read(1)
    assert at(keyspace)[INGEST_GROUP] == ids[0]
    keyspace.read()
    assert at(keyspace)[INGEST_GROUP] is None, "read, though not acknowledged"


def test_a_consumer_that_is_connected_and_reads_nothing_turns_unready_within_sixty_seconds(keyspace: Keyspace) -> None:
    seconds = iter(range(1000))
    now = [0.0]
    readiness = Readiness(clock=lambda: now[0])
    for flow in flows(("ingest",), {"metrics": "export"}, ()):
        readiness.add_flow(flow)

    def ready_after(passed_s: int) -> bool:
        for _ in range(passed_s):
            now[0] = float(next(seconds))
            readiness.update(at(keyspace))
        return readiness.role("ingest").ready

    assert ready_after(100), "nothing waits"
    keyspace.add(TRACE)
    keyspace.add(TRACE)
    keyspace.read(1)
    assert ready_after(50)
    assert not ready_after(10), "not ready at 60"
    keyspace.read()
    assert ready_after(1)


def test_a_trimmed_entry_is_not_waiting(keyspace: Keyspace) -> None:
    keyspace.add(TRACE)
    keyspace.client.xtrim(keyspace.keys.traces, maxlen=0)
    assert at(keyspace)[INGEST_GROUP] is None


def test_each_exporter_has_a_mark_of_its_own(keyspace: Keyspace) -> None:
    for group in ("metrics", "otel"):
        keyspace.client.xgroup_create(keyspace.keys.verdicts, group, id="0", mkstream=True)
    keyspace.client.xadd(keyspace.keys.verdicts, {"v": 1})
    keyspace.client.xreadgroup("metrics", "me", {keyspace.keys.verdicts: ">"})
    assert (at(keyspace)["export:metrics"], at(keyspace)["export:otel"]) == (None, "0-0")


def test_a_ready_batch_waits_only_where_there_is_room(keyspace: Keyspace) -> None:
    batch_id = add(keyspace, MODEL)
    assert at(keyspace, **{MODEL: True})[f"judge:{MODEL}"] == batch_id
    assert at(keyspace, **{MODEL: False})[f"judge:{MODEL}"] is None
    Leases(keyspace.store, tries_ttl_s=60).take(MODEL, "me", 1)
    assert at(keyspace, **{MODEL: True})[f"judge:{MODEL}"] is None


def test_only_the_flows_of_a_worker_s_own_roles_are_expected() -> None:
    own = flows(("ingest", "export"), {"metrics": "export", "otel": "export"}, ("m",))
    assert [(name, role) for name, role, *_ in own] == [
        ("ingest", "ingest"),
        ("export:metrics", "export"),
        ("export:otel", "export"),
    ]
    assert [name for name, *_ in flows(("judge",), {"metrics": "export"}, ("a", "b"))] == ["judge:a", "judge:b"]


def test_workers_with_a_recent_heartbeat_are_live(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "HEARTBEAT_MS", 60_000)
    assert live_workers(keyspace.store) == []
    first, second = Heartbeat(keyspace.store), Heartbeat(keyspace.store)
    first.beat({"ingest": True, "judge": False})
    second.beat({"export": True})
    second.beat({"export": False})
    assert sorted((dict(worker.roles) for worker in live_workers(keyspace.store)), key=len) == [
        {"export": False},
        {"ingest": True, "judge": False},
    ]


@pytest.mark.parametrize(("age_s", "there", "kept"), [(9, True, True), (12, False, True), (70, False, False)])
def test_a_heartbeat_counts_for_ten_seconds_and_is_removed_after_a_minute(
    keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch, age_s: int, *, there: bool, kept: bool
) -> None:
    Heartbeat(keyspace.store).beat({"ingest": True})
    name = f"{keyspace.prefix}:workers"
    (process,) = keyspace.client.hkeys(name)
    said_at, message = keyspace.client.hget(name, process).split(b" ")
    keyspace.client.hset(name, process, b"%d %s" % (int(said_at) - age_s * 1000, message))
    monkeypatch.setattr(keyspace.store, "now_ms", lambda: int(said_at))
    assert [worker.process for worker in live_workers(keyspace.store)] == ([process.decode()] if there else [])
    Heartbeat(keyspace.store).beat({"judge": True})
    assert keyspace.client.hexists(name, process) == kept
    assert 0 < keyspace.client.ttl(name) <= 60
