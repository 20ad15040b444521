"""A Redis Cluster of real servers on loopback: three masters with a replica each, and what a test does to them."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from redis import Redis, RedisError
from redis.crc import key_slot

from support.processes import wait_until
from support.redis_kinds import TunedRedis
from tracejudge.partitions import partition_prefix
from worker.base.embedded import find_servers

NODE_TIMEOUT_MS = 2_000


class Node(TunedRedis):
    """One server of a cluster."""

    def __init__(self, *, appendonly: bool = False) -> None:
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", str(NODE_TIMEOUT_MS))
        super().__init__(next(iter(find_servers())), *options, "--repl-diskless-sync-delay", "0")
        self._appendonly = appendonly

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def ask(self, *command: Any) -> Any:
        with Redis(port=self.port, socket_timeout=5, decode_responses=True) as client:
            return client.execute_command(*command)

    @property
    def id(self) -> str:
        return str(self.ask("CLUSTER", "MYID"))

    def is_master(self) -> bool:
        with Redis(port=self.port, socket_timeout=5) as client:
            return bool(client.info("replication")["role"] == "master")

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


class Cluster:
    """Six nodes, of which three are masters, and further ones that a test adds."""

    def __init__(self, nodes: list[Node], stack: ExitStack) -> None:
        self.nodes = nodes
        self._stack = stack

    @property
    def url(self) -> str:
        """Names two nodes, the first of which may be away."""
        return f"redis+cluster://{self.nodes[0].address},{self.nodes[-1].address}"

    def cli(self, *arguments: str) -> str:
        done = self._run(*arguments)
        assert done.returncode == 0, f"{arguments}: {done.stdout[-2000:]} {done.stderr[-500:]}"
        return done.stdout

    def wait_agreed(self) -> None:
        """Wait until all nodes agree on the owners of slots: redis-cli moves none before."""
        wait_until(lambda: self._run("check", self.nodes[-1].address).returncode == 0, 60, "the nodes to agree")

    def _run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = ["redis-cli", "--cluster", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    def slots(self) -> list[tuple[int, int, int]]:
        """List ranges of slots with the port of their master, as a node that answers knows them."""
        for node in self.nodes:
            try:
                rows = node.ask("CLUSTER", "SLOTS")
                return [(int(row[0]), int(row[1]), int(row[2][1])) for row in rows]
            except (RedisError, OSError):
                continue
        raise AssertionError("no node answers")

    def master_of(self, key: str) -> Node:
        slot = key_slot(key.encode())
        port = next(port for first, last, port in self.slots() if first <= slot <= last)
        return next(node for node in self.nodes if node.port == port)

    def of_partition(self, number: int, prefix: str = "tracejudge") -> Node:
        return self.master_of(f"{partition_prefix(prefix, number)}:traces")

    def replicas_of(self, master: Node) -> list[Node]:
        own = master.id
        rows = [line.split() for line in self.nodes[-1].ask("CLUSTER", "NODES").splitlines()]
        ports = {int(row[1].split("@")[0].rpartition(":")[2]) for row in rows if row[3] == own}
        return [node for node in self.nodes if node.port in ports]

    def is_well(self) -> bool:
        """Return whether every node that answers agrees that all slots are served."""
        states = []
        for node in self.nodes:
            try:
                states.append("cluster_state:ok" in str(node.ask("CLUSTER", "INFO")))
            except (RedisError, OSError):
                continue
        return bool(states) and all(states)

    def wait_well(self) -> None:
        wait_until(self.is_well, 60, "the cluster to be well")

    def add(self) -> Node:
        """Add an empty master."""
        node = self._stack.enter_context(Node())
        self.cli("add-node", node.address, self.nodes[0].address)
        self.nodes.append(node)

        def is_known() -> bool:
            counts = [len(each.ask("CLUSTER", "NODES").splitlines()) for each in self.nodes]
            return min(counts) >= len(self.nodes)

        wait_until(is_known, 60, "all nodes to know the new one")
        return node

    def slots_before(self, key: str) -> int:
        """Count the slots of a key's master up to that of the key, which redis-cli moves before it."""
        slot, port = key_slot(key.encode()), self.master_of(key).port
        return sum(
            min(last, slot) - first + 1 for first, last, owner in self.slots() if owner == port and first <= slot
        )

    def reshard(self, key: str, target: Node) -> None:
        """Move the slot of a key to another master with redis-cli, and all slots that this moves before it."""
        self.wait_agreed()
        source, count = self.master_of(key), self.slots_before(key)
        arguments = ("--cluster-from", source.id, "--cluster-to", target.id, "--cluster-slots", str(count))
        self.cli("reshard", source.address, *arguments, "--cluster-yes", "--cluster-pipeline", "100")

    def remove(self, node: Node) -> None:
        """Move all slots of a master to another one, and take it out of the cluster."""
        self.wait_agreed()
        target = next(each for each in self.nodes if each is not node and each.is_master())
        count = sum(last - first + 1 for first, last, port in self.slots() if port == node.port)
        arguments = ("--cluster-from", node.id, "--cluster-to", target.id, "--cluster-slots", str(count))
        self.cli("reshard", target.address, *arguments, "--cluster-yes", "--cluster-pipeline", "100")
        self.wait_agreed()
        self.cli("del-node", target.address, node.id)
        self.nodes.remove(node)
        node.kill()


@contextmanager
def running_cluster(*, appendonly: bool = False) -> Iterator[Cluster]:
    """Run three masters with a replica each."""
    with ExitStack() as stack:
        nodes = [stack.enter_context(Node(appendonly=appendonly)) for _ in range(6)]
        cluster = Cluster(nodes, stack)
        cluster.cli("create", *(node.address for node in nodes), "--cluster-replicas", "1", "--cluster-yes")
        cluster.wait_well()
        yield cluster
