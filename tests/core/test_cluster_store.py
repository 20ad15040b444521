"""What the store and the SDK send to a Redis Cluster."""

from contextlib import closing
from operator import methodcaller

import pytest
from redis import Redis
from support.cluster import Cluster, Node
from support.partition_parts import three_partitions
from support.processes import wait_until
from support.stage_parts import IngestHarness, make_traces

import tracejudge
from worker.base.embedded import EmbeddedRedis
from worker.core.storage.client import ScriptCall, Store, StoreError
from worker.core.storage.keys import Keys


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


def guards(keys: Keys) -> list[str]:
    return [keys.layout, keys.never]


def test_a_slot_that_no_node_serves_is_explained() -> None:
    with Node() as node, closing(Store(f"redis+cluster://{node.address}", Keys("t"))) as store:
        with pytest.raises(StoreError, match=r"^Redis does not answer \(ConnectionError\)$"):
            store.open()
        plain = Store(f"redis://{node.address}", store.keys)
        with closing(plain), pytest.raises(StoreError, match=r"^the cluster serves not all of its slots: see CLUSTER"):
            plain.open()


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
        node.ask("CLUSTER", "ADDSLOTS", *range(16_384))
        wait_until(lambda: "cluster_state:ok" in str(node.ask("CLUSTER", "INFO")), 30, "the node to serve its slots")
        cases = {
            f"redis+cluster://127.0.0.1:{single.port}": "this Redis is no cluster: write",
            f"redis+cluster://u:wrong@{node.address}": "Redis refuses the user or the password",
        }
        for url, expected in cases.items():
            with closing(Store(url, Keys("t"))) as store, pytest.raises(StoreError) as caught:
                store.open()
            assert str(caught.value).startswith(expected), (url, caught.value)
        with closing(Store(f"redis+cluster://{node.address}", Keys("t"))) as store:
            store.open()
            node.kill()
            with pytest.raises(StoreError) as caught:
                store.now_ms()
            assert caught.value.address.endswith(f", master {node.address}"), "the master that is away is named"
