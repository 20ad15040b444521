"""A judge model is dead when the circuits of all workers that call it are open, for the shortest of their times."""

from collections.abc import Mapping

import msgspec
import pytest
from support.stage_parts import Keyspace, use_script_time

from worker.core.telemetry.health import Heartbeat

PUBLISHED_MS = 10_000
NOW_S = 1_700_000_000

Circuits = Mapping[str, float | None]


def published(keyspace: Keyspace) -> list[dict[str, float | None]]:
    fields = keyspace.client.hvals(keyspace.keys.circuits)
    return [msgspec.json.decode(field.split(b" ", 1)[1]) for field in fields]


@pytest.fixture
def _still(keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the clock."""
    use_script_time(monkeypatch, keyspace, str(NOW_S))


def publish(keyspace: Keyspace, process: str, circuits: Circuits, *, ago_ms: int) -> None:
    """Store the circuits that a worker published some time before the stopped clock."""
    field = b"%d %s" % (NOW_S * 1000 - ago_ms, msgspec.json.encode(circuits))
    keyspace.client.hset(keyspace.keys.circuits, process, field)


def idle_worker(keyspace: Keyspace) -> Heartbeat:
    """Make the heartbeat of a worker that judges nothing."""
    return Heartbeat(keyspace.store, dict)


@pytest.mark.parametrize(
    ("published_circuits", "dead"),
    [
        ([], {}),
        ([{"a": 0.0, "b": 0.0}], {}),
        ([{"a": 7.5, "b": 0.0}], {"a": 7.5}),
        ([{"a": 30.0}, {"a": 4.0}, {"a": 12.0}], {"a": 4.0}),
        ([{"a": 30.0}, {"a": 0.0}], {}),
        ([{"a": 1.0}, {"b": 2.0}], {"a": 1.0, "b": 2.0}),
        ([{"a": 1.0, "b": 2.0}, {"b": 0.0}], {"a": 1.0}),
        ([{}, {"a": 1.0}], {"a": 1.0}),
        ([{"a": None}, {"a": 30.0}, {"a": None}], {"a": 30.0}),
        ([{"a": None}, {"a": 0.0}, {"a": 30.0}], {}),
        ([{"a": None}, {"a": None}], {}),
    ],
    ids=[
        "nobody",
        "all well",
        "the only one",
        "all",
        "one gets through",
        "each its own",
        "some of both",
        "idle",
        "the others have not asked yet",
        "one gets through and another has not asked yet",
        "nobody has asked yet",
    ],
)
def test_a_model_is_dead_when_all_workers_that_call_it_report_an_open_circuit(
    keyspace: Keyspace, published_circuits: list[Circuits], dead: dict[str, float]
) -> None:
    workers = [Heartbeat(keyspace.store, lambda circuits=circuits: circuits) for circuits in published_circuits]
    for worker in workers:
        worker.exchange_circuits()
    assert [worker.exchange_circuits() for worker in (*workers, idle_worker(keyspace))] == [dead] * (
        len(published_circuits) + 1
    )


@pytest.mark.parametrize(
    ("published_circuits", "configured"),
    [([], set()), ([{"a": None}], {"a"}), ([{"a": 0.0}, {"b": 9.0}, {"b": None, "c": None}], {"a", "b", "c"})],
    ids=["nobody", "not asked yet", "several"],
)
def test_configured_models_are_those_of_all_workers(
    keyspace: Keyspace, published_circuits: list[Circuits], configured: set[str]
) -> None:
    for circuits in published_circuits:
        Heartbeat(keyspace.store, lambda circuits=circuits: circuits).exchange_circuits()
    heartbeat = idle_worker(keyspace)
    assert heartbeat.configured_models is None, "nothing is known before the first exchange"
    heartbeat.exchange_circuits()
    assert heartbeat.configured_models == configured


def test_a_worker_that_judges_nothing_only_listens(keyspace: Keyspace) -> None:
    before = keyspace.everything()
    assert idle_worker(keyspace).exchange_circuits() == {}
    assert keyspace.everything() == before


def test_published_circuits_follow_the_state_of_the_worker(keyspace: Keyspace) -> None:
    here: dict[str, float | None] = {}
    worker = Heartbeat(keyspace.store, lambda: here)
    dead = []
    for open_for_s in (None, 0.0, 3.5, 0.0):
        here["a"] = open_for_s
        dead.append(worker.exchange_circuits())
    assert dead == [{}, {}, {"a": 3.5}, {}]
    assert published(keyspace) == [{"a": 0.0}], "one entry for each worker"


@pytest.mark.usefixtures("_still")
def test_circuits_of_a_worker_that_ended_expire(keyspace: Keyspace) -> None:
    publish(keyspace, "ended", {"a": 0.0, "b": 60.0}, ago_ms=PUBLISHED_MS + 1)
    publish(keyspace, "ahead of our time", {"a": 0.0}, ago_ms=-PUBLISHED_MS - 1)
    worker = Heartbeat(keyspace.store, lambda: {"a": 5.0})
    assert (worker.exchange_circuits(), worker.configured_models) == ({"a": 5.0}, {"a"})
    assert published(keyspace) == [{"a": 5.0}], "and is not kept"


@pytest.mark.usefixtures("_still")
@pytest.mark.parametrize("ago_ms", [PUBLISHED_MS, -PUBLISHED_MS], ids=["busy", "ahead of our time"])
def test_published_circuits_count_until_they_expire(keyspace: Keyspace, ago_ms: int) -> None:
    publish(keyspace, "another", {"a": 0.0}, ago_ms=ago_ms)
    assert Heartbeat(keyspace.store, lambda: {"a": 5.0}).exchange_circuits() == {}
    assert published(keyspace) == [{"a": 0.0}, {"a": 5.0}], "and is kept"


@pytest.mark.usefixtures("_still")
def test_circuits_of_a_model_without_workers_expire(keyspace: Keyspace) -> None:
    publish(keyspace, "ended", {"a": 60.0}, ago_ms=PUBLISHED_MS + 1)
    heartbeat = idle_worker(keyspace)
    assert (heartbeat.exchange_circuits(), heartbeat.configured_models) == ({}, set())
    assert published(keyspace) == []
