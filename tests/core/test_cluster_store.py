"""What the store sends to a Redis Cluster and behind sentinels, while slots move and masters change.

Several partitions in one installation: the monitor's sums, fairness, refusals.
"""

import itertools
import re
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from kombu import Connection
from redis import Redis
from redis.crc import key_slot
from support.cluster import Cluster, Node, running_cluster
from support.processes import free_port, wait_until
from support.proxy import Proxy
from support.redis_kinds import Watched, watched
from support.stages import (
    IngestHarness,
    Keyspace,
    make_traces,
    make_verdict,
    rules_of,
    samples,
    settings_of,
    three_partitions,
)

import tracejudge
from judges.core.verdict import Score
from tracejudge.ids import partition_prefix
from worker.base.embedded import EmbeddedRedis
from worker.base.lookup.label_store import Label, OutboxMatcher, read_labels, write_labels
from worker.base.monitor.counts import read_horizon
from worker.base.monitor.series import HOUR_S, read_buckets, read_series
from worker.base.monitor.sums import PartitionSums, QualitySums
from worker.core.config.settings import Settings
from worker.core.judging.fetching import NoEndpoint, PrefetchWindow, Slots
from worker.core.queue.notify import broker
from worker.core.runtime.partition import BacklogGauges
from worker.core.storage import cluster as cluster_module
from worker.core.storage.client import LayoutError, ScriptCall, Store, StoreError, script_sources
from worker.core.storage.keys import INGEST_GROUP, MONITOR_GROUP, Keys
from worker.core.telemetry.backlog import Backlog, Memory, Position
from worker.core.telemetry.health import Pulse, Readiness
from worker.core.telemetry.metrics import Metrics

PREFIX = partition_prefix("moving", 0)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Watched]:
    with watched(tmp_path) as servers:
        yield servers


def guards(keys: Keys) -> list[str]:
    return [keys.layout, keys.never]


def writes(store: Store, name: str) -> bool:
    try:
        return bool(store.call(lambda client: client.set(name, "1")))
    except StoreError:
        return False


def stands_at(port: int, name: str) -> bool:
    with Redis(port=port) as client:
        return bool(client.exists(name))


class Move:
    """The slot of a partition between two masters; ``send`` moves keys, ``end`` the slot."""

    def __init__(self, cluster: Cluster, keys: Keys) -> None:
        self.slot = key_slot(keys.layout.encode())
        self.source = cluster.master_of(keys.layout)
        self.target = next(node for node in cluster.nodes if node.is_master() and node is not self.source)
        self.cluster = cluster
        self.target.ask("CLUSTER", "SETSLOT", self.slot, "IMPORTING", self.source.id)
        self.source.ask("CLUSTER", "SETSLOT", self.slot, "MIGRATING", self.target.id)

    def send(self, *names: str) -> None:
        self.source.ask("MIGRATE", "127.0.0.1", self.target.port, "", 0, 5000, "KEYS", *names)

    def end(self) -> None:
        self.send(*self.source.ask("CLUSTER", "GETKEYSINSLOT", self.slot, 1000))
        for node in (self.target, self.source, *(each for each in self.cluster.nodes if each.is_master())):
            node.ask("CLUSTER", "SETSLOT", self.slot, "NODE", self.target.id)


def held(node: Node, slot: int) -> dict[str, bytes]:
    """Read all keys of a slot on one node, as their dumps."""
    dumps = {}
    with Redis(port=node.port, single_connection_client=True) as client:
        for name in client.execute_command("CLUSTER GETKEYSINSLOT", slot, 1000):
            client.execute_command("ASKING")
            dumps[name] = client.dump(name)
    return dumps


def test_every_script_declares_a_key_that_exists_and_one_that_never_does(cluster: Cluster, prefix: str) -> None:
    """So a script whose keys are on two nodes, while their slot moves, is refused and does not stop half-way."""
    end = f"{{{prefix}.0}}:end"
    master = cluster.master_of(end)
    sent = []
    with (
        three_partitions(cluster.url, prefix) as keyspaces,
        closing(Redis(port=master.port)) as client,
        client.monitor() as monitor,
    ):
        tracejudge.init(service="shop", redis_url=cluster.url, prefix=prefix)
        for trace in make_traces(range(30)):
            tracejudge.publish(trace)
        assert tracejudge.flush(30)
        tracejudge.shutdown()
        first = keyspaces[0]
        IngestHarness(first).process()
        first.measure()
        held = [ScriptCall("hold", (first.keys.sweeper,), (holder, 1000)) for holder in ("a", "b")]
        assert first.store.run_each(held) == [1, 0]
        assert first.accounting()["chosen"] > 0, "the scripts themselves see their own keys only"
        client.set(end, 1)
        for row in monitor.listen():
            if row["command"].startswith(f"SET {end}"):
                break
            if row["command"].startswith("EVALSHA "):
                sent.append(row["command"].split(" "))
        exist = [[keyspace.client.exists(key) for key in guards(keyspace.keys)] for keyspace in keyspaces]
    assert exist == [[1, 0]] * 3
    assert len({words[1] for words in sent}) >= 4, "choose, measure, hold and that of the SDK"
    allowed = [guards(keyspace.keys) for keyspace in keyspaces]
    assert [words for words in sent if words[3 : 3 + int(words[2])][-2:] not in allowed] == []


def test_each_reason_why_a_cluster_cannot_be_used_is_explained() -> None:
    def refuses(url: str, message: str) -> None:
        with closing(Store(url, Keys("t"))) as store, pytest.raises(StoreError, match=message):
            store.open()

    with Node() as node, EmbeddedRedis() as single:
        refuses(f"redis+cluster://{node.address}", r"^Redis does not answer \(ConnectionError\)$")
        refuses(f"redis://{node.address}", "^the cluster serves not all of its slots: see CLUSTER")
        node.ask("CLUSTER", "ADDSLOTS", *range(16_384))
        wait_until(lambda: "cluster_state:ok" in str(node.ask("CLUSTER", "INFO")), 30, "the node to serve its slots")
        refuses(f"redis+cluster://127.0.0.1:{single.port}", "^this Redis is no cluster: write")
        refuses(f"redis+cluster://u:wrong@{node.address}", "^Redis refuses the user or the password")
        with closing(Store(f"redis+cluster://{node.address}", Keys("t"))) as store:
            store.open()
            node.kill()
            with pytest.raises(StoreError) as caught:
                store.now_ms()
            assert caught.value.address.endswith(f", master {node.address}"), "the master that is away is named"


@pytest.mark.slow("a cluster of six servers")
def test_a_script_is_refused_as_a_whole_while_its_slot_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts are refused as a whole, single commands follow."""
    with running_cluster() as cluster:
        monkeypatch.setattr(cluster_module, "_WAITS_S", (0.0,))
        keys = Keys(PREFIX)
        with closing(Store(cluster.url, keys)) as store:
            store.make_group(keys.traces, "ingest")
            store.make_group(keys.verdicts, "metrics")
            store.call(lambda client: client.xadd(keys.traces, {"v": "1", "t": "{}"}))
            move = Move(cluster, keys)
            for moved in ((), (keys.layout,), (keys.traces,), (keys.account_all, keys.groups)):
                if moved:
                    move.send(*moved)
                before = held(move.source, move.slot), held(move.target, move.slot)
                for script in script_sources():
                    # The keys that exist, on either side, and one that does not.
                    for names in ((keys.traces, keys.dead), (keys.account_all, keys.layout), (keys.leases,)):
                        with pytest.raises(StoreError, match="a slot is moving"):
                            store.run(script, names, ("1", "2"))
                assert (held(move.source, move.slot), held(move.target, move.slot)) == before, (
                    f"after {moved} had moved"
                )
                # Single commands find each key where it is.
                assert store.call(lambda client: client.xlen(keys.traces)) == 1
                answers = store.pipeline(
                    lambda pipe: (pipe.get(keys.layout), pipe.hlen(keys.groups), pipe.get(keys.never))
                )
                assert answers == [b"2", 0, None], f"after {moved} had moved"
            move.end()
            monkeypatch.undo()
            assert store.acquire_lock(keys.sweeper, "a worker", 1000), "scripts go on at the new owner"
            store.make_group(keys.verdicts, "another")
            assert set(held(move.target, move.slot)) >= {keys.sweeper, keys.traces, keys.layout}


@pytest.mark.faults
def test_writes_and_scripts_follow_the_master_through_a_failover(servers: Watched) -> None:
    """In scripts Redis 6.2 tells in the middle of an error that it was demoted."""
    store, scripted = Store(servers.url, Keys()), Store(servers.url, Keys("scripted"))

    def held() -> bool:
        try:
            scripted.run("finish", [f"scripted:{name}" for name in "abcdefg"], ("batch", "model"))
        except StoreError:
            return False
        return True

    assert writes(store, "before")
    assert held()
    assert stands_at(servers.first.port, "before")
    parameters = broker(Settings(redis_url=servers.url))
    with Connection(parameters.url, transport_options=parameters.transport_options) as connection:
        connection.SimpleQueue("sentinel-test").put({"x": 1})
    assert stands_at(servers.first.port, "sentinel-test"), "kombu finds the master through the same sentinels"
    servers.fail_over()
    tries = itertools.count()
    wait_until(lambda: next(tries) >= 0 and writes(store, "after"), what="a write to be taken")
    assert next(tries) <= 10, "soon; what keeps its connections is refused for ever"
    assert stands_at(servers.second.port, "after")
    wait_until(held, what="a script to run")
    store.close()
    scripted.close()


@pytest.mark.faults
def test_writes_follow_when_the_master_dies(servers: Watched) -> None:
    store = Store(servers.url, Keys())
    assert writes(store, "before")
    servers.lose_master()
    wait_until(lambda: writes(store, "after"), what="a write to be taken")
    assert stands_at(servers.second.port, "after")
    store.close()


@pytest.mark.faults
def test_a_name_that_moved_is_asked_again_when_the_old_master_takes_no_writes(servers: Watched) -> None:
    """Connections to the demoted master were kept, and every write failed until somebody restarted the worker."""
    with (
        Proxy(servers.first.port) as name,
        closing(Store(f"redis://127.0.0.1:{name.port}/0", Keys())) as store,
    ):
        assert writes(store, "before")
        servers.fail_over()
        wait_until(lambda: not writes(store, "between"), what="the old master to refuse")
        name.target_port = servers.second.port  # connections stay where they were made to
        wait_until(lambda: writes(store, "after"), what="a write to be taken")
        assert stands_at(servers.second.port, "after")


# --- several partitions ---
class Monitored:
    """The monitor of one worker, with the reader of each further outbox, turned by hand."""

    def __init__(self, keyspaces: list[Keyspace]) -> None:
        settings = settings_of(keyspaces[0])
        self.sums = QualitySums(settings, keyspaces[0].store, Metrics(settings), rules_of(settings))
        self.sums.gather_s = 0.0
        self.readers = [PartitionSums(keyspace.store, self.sums) for keyspace in keyspaces[1:]]
        for thread in (self.sums, *self.readers):
            thread.stopping.set()
            thread.prepare()
        self._store = keyspaces[0].store

    def turn(self) -> None:
        for thread in (self.sums, *self.readers):
            thread.run_once()

    def judgements(self) -> int:
        now = time.time()
        buckets = read_buckets(self._store, list(read_series(self._store)), now - HOUR_S, now + HOUR_S, fine=True)
        return sum(bucket.sums.total.judgements for of_series in buckets for bucket in of_series)


def send(keyspace: Keyspace, first: int, count: int) -> None:
    scores = (Score("safety", 1.0, passed=True),)
    keyspace.send(*(make_verdict(first + number, outcome="scored", scores=scores) for number in range(count)))


def test_the_sums_hold_each_verdict_of_every_partition_once(keyspaces: list[Keyspace]) -> None:
    def lags() -> list[int]:
        return [keyspace.measure(groups=(MONITOR_GROUP,)).outbox[MONITOR_GROUP].lag for keyspace in keyspaces]

    first, second = Monitored(keyspaces), Monitored(keyspaces)
    for number, keyspace in enumerate(keyspaces):
        send(keyspace, 100 * number, 20 + number)
    first.turn()
    assert (first.judgements(), lags()) == (20 + 21 + 22, [0, 0, 0])
    # A worker that was stopped in between adds what another one has added meanwhile.
    reader, last = first.readers[0], second.readers[1]
    position = reader.after_id
    send(keyspaces[1], 300, 10)
    second.sums.is_active = True
    second.readers[0].run_once()
    assert (first.judgements(), reader.after_id) == (73, position)
    reader.run_once()
    assert (first.judgements(), reader.after_id) == (73, None), "the position has moved, so that nothing is added"
    reader.run_once()
    assert reader.after_id == second.readers[0].after_id
    # The group of a worker that ended after adding does not lag for ever.
    send(keyspaces[2], 400, 5)
    pass_group, last.pass_group = last.pass_group, lambda _: None
    last.run_once()
    assert lags()[2] == 5
    last.after_id, last.pass_group = None, pass_group
    last.run_once()
    assert (lags()[2], first.judgements()) == (0, 78)
    assert [keyspace.accounting()[f"exported:{MONITOR_GROUP}"] for keyspace in keyspaces] == [20, 31, 27]


def test_detection_waits_for_the_furthest_outbox_and_not_for_one_that_is_away(keyspaces: list[Keyspace]) -> None:
    Monitored(keyspaces).turn()
    store, now = keyspaces[0].store, time.time() + 100
    assert read_horizon(store, now) == now
    send(keyspaces[2], 0, 1)
    assert read_horizon(store, now) < now
    keyspaces[2].store.is_away = True
    assert read_horizon(store, now) == now


def test_a_search_for_labelled_traces_leaves_out_a_partition_that_goes_away(
    keyspaces: list[Keyspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, keyspace in enumerate(keyspaces):
        send(keyspace, 10 * number, 5)
    store = keyspaces[0].store
    labels = [Label(f"{number + 1:032x}", "safety", "safety", passed=True, drawn=1.0) for number in range(30)]
    write_labels(store, labels)
    matcher = OutboxMatcher(store)

    def labelled() -> list[int]:
        while matcher.step():
            pass
        return sorted(int(label.label.trace_id, 16) - 1 for label in read_labels(store) if label.verdicts)

    with monkeypatch.context() as away:
        away.setattr(keyspaces[1].store, "call", lambda _: (_ for _ in ()).throw(StoreError("gone")))
        assert (labelled(), matcher.seen) == ([*range(5), *range(20, 25)], 10)
    # The next round reads what has come on each of them, and all of the one that is back.
    for number, keyspace in enumerate(keyspaces):
        send(keyspace, 10 * number + 5, 2)
    assert (labelled(), matcher.seen) == ([*range(7), *range(10, 17), *range(20, 27)], 21)


def test_a_backlog_of_one_partition_leaves_slots_for_another() -> None:
    slots, limits = Slots(2), NoEndpoint(64)
    windows = [PrefetchWindow("m", limits, 8, slots) for _ in range(2)]
    held = 0
    while (batches := windows[0].capacity()) > 0:
        windows[0].acquire(8 * batches, 1)
        held += 8 * batches
    assert held == 64 + 2 * 8, "as much as a single window may hold"
    while windows[1].capacity() > 0:
        windows[1].acquire(8, 1)
    assert windows[1].evaluations == 32, "half of the slots"
    windows[0].release(32, 0)
    assert (windows[0].capacity() > 0, windows[1].capacity() > 0) == (False, False), "the sum is bounded"
    windows[0].release(24, 0)
    assert windows[0].capacity() > 0
    woken: list[str] = []
    slots.on_release(lambda: woken.append("other"))
    slots.report_release()
    assert woken == ["other"]


def test_gauges_are_the_sums_over_partitions_and_name_one_that_is_away(keyspaces: list[Keyspace]) -> None:
    settings = settings_of(keyspaces[0])
    metrics = Metrics(settings)
    gauges = BacklogGauges(settings, metrics)
    for partition in range(2):
        traces, outbox = Position(10 + partition, 1, 1000.0 * partition), {"metrics": Position(4, 0, 0.0)}
        backlog = Backlog(traces, 100, 5, 2, 3, 0, outbox=outbox, bytes={"traces": 7})
        gauges.update(partition, backlog, Memory(50 + partition, 1000 - 900 * partition))
    gauges.report_away(1)
    backlog = samples(metrics)
    sums = {"stream_lag": 21, "stream_capacity": 200, "stream_oldest_seconds": 1, "batches_waiting": 6}
    sums |= {"batches_parked": 4, "dead_letters": 6}
    assert {name: backlog[name,] for name in sums} == sums
    assert backlog["outbox_lag", "exporter=metrics"] == 8
    assert backlog["stored_max_bytes", "what=traces"] == 2 * settings.max_stream_bytes
    assert (backlog["partition_up", "partition=0"], ("partition_up", "partition=1") in backlog) == (1, False)
    assert (backlog["redis_used_bytes",], backlog["redis_max_bytes",]) == (51, 100), "of the fullest"
    assert gauges.lag == {"stream": 21, "batches": 6, "parked": 4, "outbox": {"metrics": 8}}


def test_another_number_of_partitions_is_refused(keyspaces: list[Keyspace]) -> None:
    """The first that wrote it decides, also between two workers that found none."""
    url, key = keyspaces[0].url, keyspaces[0].keys.partitions
    assert [keyspace.client.get(keyspace.keys.partitions) for keyspace in keyspaces] == [b"3", None, None]
    first, further = (Store(url, keyspace.keys, number) for number, keyspace in enumerate(keyspaces[:2]))
    with closing(first), closing(further):
        first.partitions = further.partitions = first, further
        with pytest.raises(LayoutError, match=rf"has 3 partitions by its key {re.escape(key)}, not 2; set partitions"):
            first.open()
        further.open()
        keyspaces[0].client.delete(key)
        first.open()
        keyspaces[0].client.set(key, "3")
        with pytest.raises(StoreError, match=r"there are 3 partitions by .*, and 2 configured; set partitions to 3"):
            first.make_group(first.keys.traces, INGEST_GROUP)
        further.make_group(further.keys.traces, INGEST_GROUP)
    with closing(Store(f"redis://127.0.0.1:{free_port()}/0", Keys("t"))) as away:
        with pytest.raises(StoreError):
            away.now_ms()
        assert away.is_away, "a store knows it"


def test_a_role_is_ready_while_one_partition_lets_it_make_progress() -> None:
    now = [0.0]
    readiness = Readiness(clock=lambda: now[0])
    threads = [SimpleNamespace(pulse=Pulse(0.0)) for _ in range(3)]
    loop = threads.pop()
    for partition, thread in enumerate(threads):
        readiness.watch("ingest", "ingest", thread, partition)
    readiness.watch("event-loop", "ingest", loop, None)
    threads[0].pulse = Pulse(0.0, blocked_by="Redis does not answer", blocked_since=0.0)
    now[0] = 20.0
    threads[1].pulse = loop.pulse = Pulse(20.0)
    assert [state.ready for state in readiness.roles()] == [True]
    assert [readiness.roles(partition)[0].ready for partition in (0, 1)] == [False, True]
    threads[1].pulse = threads[0].pulse
    assert readiness.role("ingest").why == "ingest: Redis does not answer for 20 s"
    threads[1].pulse, loop.pulse = Pulse(20.0), Pulse(20.0, has_ended=True)
    assert not readiness.role("ingest").ready, "all partitions need the event loop"
