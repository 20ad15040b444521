"""A slot of a cluster that moves and is held half-way: scripts are refused as a whole, single commands follow."""

from collections.abc import Iterator

import pytest
from redis import Redis
from redis.crc import key_slot
from support.cluster import Cluster, Node, running_cluster

from tracejudge.ids import partition_prefix
from worker.core.storage import cluster as cluster_module
from worker.core.storage.client import Store, StoreError, script_sources
from worker.core.storage.keys import Keys

PREFIX = partition_prefix("moving", 0)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as running:
        yield running


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


@pytest.mark.slow("a cluster of six servers")
def test_a_script_is_refused_as_a_whole_while_its_slot_moves(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "_WAITS_S", (0.0,))
    keys = Keys(PREFIX)
    store = Store(cluster.url, keys)
    try:
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
            assert (held(move.source, move.slot), held(move.target, move.slot)) == before, f"after {moved} had moved"
            # Single commands find each key where it is.
            assert store.call(lambda client: client.xlen(keys.traces)) == 1
            answers = store.pipeline(lambda pipe: (pipe.get(keys.layout), pipe.hlen(keys.groups), pipe.get(keys.never)))
            assert answers == [b"2", 0, None], f"after {moved} had moved"
        move.end()
        monkeypatch.undo()
        assert store.acquire_lock(keys.sweeper, "a worker", 1000), "scripts go on at the new owner"
        store.make_group(keys.verdicts, "another")
        assert set(held(move.target, move.slot)) >= {keys.sweeper, keys.traces, keys.layout}
    finally:
        store.close()
