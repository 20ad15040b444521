"""What the store sends to a Redis Cluster and behind sentinels, while slots move and masters change."""

import itertools
from collections.abc import Iterator
from contextlib import closing
from operator import methodcaller
from pathlib import Path

import pytest
from kombu import Connection
from redis import Redis
from redis.crc import key_slot
from support.cluster import Cluster, Node, running_cluster
from support.processes import wait_until
from support.proxy import Proxy
from support.redis_kinds import Watched, watched
from support.stages import IngestHarness, make_traces, three_partitions

import tracejudge
from tracejudge.ids import partition_prefix
from worker.base.embedded import EmbeddedRedis
from worker.core.config.settings import Settings
from worker.core.queue.notify import broker
from worker.core.storage import cluster as cluster_module
from worker.core.storage.client import ScriptCall, Store, StoreError, script_sources
from worker.core.storage.keys import Keys

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


@pytest.mark.slow("a cluster of six servers")
def test_the_plain_address_of_a_node_is_named_as_such(cluster: Cluster, prefix: str) -> None:
    """By whichever error a node answers: it may have some of the keys."""
    wrong = "Redis is a cluster, or its slots have moved: write redis_url as redis+cluster://host:port"
    for node in cluster.nodes:
        with closing(Store(f"redis://{node.address}", Keys(prefix))) as store:
            for keys in ([store.keys.layout], [store.keys.layout, store.keys.traces]):
                if len(keys) > 1 or node is not cluster.master_of(store.keys.layout):
                    with pytest.raises(StoreError) as caught:
                        store.call(methodcaller("delete", *keys))
                    assert str(caught.value) == wrong, (node.address, keys)


def test_each_reason_why_a_cluster_cannot_be_used_is_explained() -> None:
    with Node() as node, EmbeddedRedis() as single:
        url = f"redis+cluster://{node.address}"
        for other, message in (
            (url, r"^Redis does not answer \(ConnectionError\)$"),
            (f"redis://{node.address}", r"^the cluster serves not all of its slots: see CLUSTER"),
        ):
            with closing(Store(other, Keys("t"))) as store, pytest.raises(StoreError, match=message):
                store.open()
        node.ask("CLUSTER", "ADDSLOTS", *range(16_384))
        wait_until(lambda: "cluster_state:ok" in str(node.ask("CLUSTER", "INFO")), 30, "the node to serve its slots")
        for other, message in (
            (f"redis+cluster://127.0.0.1:{single.port}", "^this Redis is no cluster: write"),
            (f"redis+cluster://u:wrong@{node.address}", "^Redis refuses the user or the password"),
        ):
            with closing(Store(other, Keys("t"))) as store, pytest.raises(StoreError, match=message):
                store.open()
        with closing(Store(url, Keys("t"))) as store:
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
