"""A Redis Cluster of real servers on loopback: three masters with a replica each, and what a test does to them."""

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from redis import Redis, RedisError
from redis.crc import key_slot

from support.processes import wait_until
from support.redis_kinds import TunedRedis
from tracejudge.ids import partition_prefix
from worker.base.embedded import find_servers

NODE_TIMEOUT_MS = 2_000
_ATTEMPTS = 3
_NOT_WELL = frozenset({"fail", "fail?", "handshake", "noaddr"})


class Node(TunedRedis):
    """One server of a cluster."""

    def __init__(self, *, appendonly: bool = False) -> None:
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", str(NODE_TIMEOUT_MS))
        super().__init__(next(iter(find_servers())), *options, "--repl-diskless-sync-delay", "0")
        self._appendonly = self.appendonly = appendonly

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def ask(self, *command: Any) -> Any:
        with Redis(port=self.port, socket_timeout=5, decode_responses=True) as client:
            return client.execute_command(*command)

    @property
    def id(self) -> str:
        return str(self.ask("CLUSTER", "MYID"))

    def known(self) -> list[list[str]]:
        """Return the lines of `CLUSTER NODES`: id, address, flags, master, ping, pong, epoch, link, slots."""
        return [line.split() for line in self.ask("CLUSTER", "NODES").splitlines()]

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

    def _run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = ["redis-cli", "--cluster", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)

    def _change(self, command: Callable[[], Sequence[str]]) -> None:
        """Run redis-cli until its command is done; after a failure mend what it left, as an operator does.

        Args:
            command: Returns the arguments by the present state, and none once everything is done.
        """
        failure = ""
        for _ in range(_ATTEMPTS):
            self.wait_well()
            arguments = command()
            if not arguments:
                return
            done = self._run(*arguments)
            if done.returncode != 0:
                failure = f"{arguments}: {done.stdout[-2000:]} {done.stderr[-500:]}"
                self._run("fix", self.nodes[-1].address, "--cluster-yes")
        self.wait_well()
        assert not command(), failure

    def slots(self) -> list[tuple[int, int, int]]:
        """List ranges of slots in order, with the port of their master, as a node that answers knows them."""
        for node in self.nodes:
            try:
                rows = node.ask("CLUSTER", "SLOTS")
                return sorted((int(row[0]), int(row[1]), int(row[2][1])) for row in rows)
            except (RedisError, OSError):
                continue
        raise AssertionError("no node answers")

    def owner(self, slot: int) -> Node:
        port = next(port for first, last, port in self.slots() if first <= slot <= last)
        return next(node for node in self.nodes if node.port == port)

    def master_of(self, key: str) -> Node:
        return self.owner(key_slot(key.encode()))

    def of_partition(self, number: int, prefix: str = "tracejudge") -> Node:
        return self.master_of(partition_prefix(prefix, number))

    def replicas_of(self, master: Node) -> list[Node]:
        own = master.id
        ports = {int(row[1].split("@")[0].rpartition(":")[2]) for row in self.nodes[-1].known() if row[3] == own}
        return [node for node in self.nodes if node.port in ports]

    def is_well(self) -> bool:
        """Return whether all nodes know each other, agree on masters and slots, and replicas are in sync."""
        views = set()
        try:
            for node in self.nodes:
                rows = node.known()
                flags = {flag for row in rows for flag in row[2].split(",")}
                replication = node.ask("INFO", "replication")
                if (
                    len(rows) != len(self.nodes)
                    or flags & _NOT_WELL
                    or any(row[7] != "connected" for row in rows)
                    or "cluster_state:ok" not in str(node.ask("CLUSTER", "INFO"))
                    or replication.get("master_link_status", "up") != "up"
                ):
                    return False
                # A slot in motion is in the view of its two masters alone.
                views.add(frozenset((row[0], row[3], *row[8:]) for row in rows))
        except (RedisError, OSError):
            return False
        return len(views) == 1

    def wait_well(self) -> None:
        wait_until(self.is_well, 60, "the cluster to be well")

    def add(self) -> Node:
        """Add an empty master."""
        self.wait_well()
        node = self._stack.enter_context(Node(appendonly=self.nodes[0].appendonly))
        self.cli("add-node", node.address, self.nodes[0].address)
        self.nodes.append(node)
        self.wait_well()
        return node

    def fill(self, node: Node, weight: float = 1) -> None:
        """Move slots to a master by its weight: the first ones of each other master, which weighs 1."""

        def command() -> Sequence[str]:
            sizes = Counter[int]()
            for first, last, port in self.slots():
                sizes[port] += last - first + 1
            share = sizes.total() * weight / (len(sizes.keys() - {node.port}) + weight)
            options = (
                "--cluster-use-empty-masters",
                "--cluster-weight",
                f"{node.id}={weight}",
                "--cluster-threshold",
                "1",
            )
            return () if sizes[node.port] > 0.9 * share else ("rebalance", self.nodes[0].address, *options)

        self._change(command)

    def reshard(self, slot: int, target: Node) -> None:
        """Move a slot to another master, and all slots of its master before it, which redis-cli moves first."""

        def command() -> Sequence[str]:
            source = self.owner(slot)
            ranges = ((first, last) for first, last, port in self.slots() if port == source.port and first <= slot)
            count = sum(min(last, slot) - first + 1 for first, last in ranges)
            names = ("--cluster-from", source.id, "--cluster-to", target.id, "--cluster-slots", str(count))
            return () if source is target else ("reshard", source.address, *names, "--cluster-yes")

        self._change(command)

    def remove(self, node: Node) -> None:
        """Move each range of a master's slots to the master of the next range, and remove it from the cluster."""
        for _, last, port in self.slots():
            if port == node.port:
                self.reshard(last, self.owner(last + 1))
        # One without slots becomes a replica by itself.
        self.wait_well()
        self.cli("del-node", next(each for each in self.nodes if each is not node).address, node.id)
        self.nodes.remove(node)
        node.kill()
        self.wait_well()


@contextmanager
def running_cluster(*, appendonly: bool = False) -> Iterator[Cluster]:
    """Run three masters with a replica each."""
    with ExitStack() as stack:
        nodes = [stack.enter_context(Node(appendonly=appendonly)) for _ in range(6)]
        cluster = Cluster(nodes, stack)
        cluster.cli("create", *(node.address for node in nodes), "--cluster-replicas", "1", "--cluster-yes")
        cluster.wait_well()
        yield cluster
