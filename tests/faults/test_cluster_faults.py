"""A Redis Cluster under traffic: masters fail, slots move, masters come and go; nothing is lost or doubled."""

import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import msgspec
import pytest
from experiment import RECOVERY_S, number, seconds
from support.cluster import Cluster, Node, running_cluster
from support.pipeline import SETTLING_S, Pipeline, make_traces
from support.ports import free_port
from support.processes import Program, wait_until

import tracejudge
from tracejudge.partitions import place_of
from worker.base.accounting import Account, read_account, sum_accounts
from worker.base.embedded import EmbeddedRedis
from worker.core.queue.ledger import OutboxEntry, read_outbox_entry
from worker.core.storage.client import Store, StoreError, make_stores

PARTITIONS = 8
RATE = number(300, 30)
"""Traces a second, each with one evaluation."""
SESSIONS = 50
RULES = [{"name": "all", "judges": ["groundedness"]}]
TOKEN = "a-token-of-the-tests-0123456789"  # noqa: S105 - of this test


class Rig:
    """A cluster, a broker, two workers, a gateway, and traffic through the SDK and the gateway.

    All faults happen to one cluster, one after the other in any order: to start it takes longer than most of them.
    """

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.cluster: Cluster = stack.enter_context(running_cluster(appendonly=True))
        broker = stack.enter_context(EmbeddedRedis())
        self.folder = folder
        self.pipeline = Pipeline(self.cluster.url, "tracejudge", folder, stack)
        self.stores = make_stores(self.cluster.url, "tracejudge", PARTITIONS)
        for store in self.stores:
            stack.callback(store.close)
        self.workers = [self.pipeline.worker(broker_url=broker.url, rules=RULES, log_verdicts="none") for _ in range(2)]
        self.gateway_port = free_port()
        table = {"port": self.gateway_port, "metrics_port": 0, "tokens": {"t": {"token_env": "GATEWAY_TOKEN"}}}
        variables = {
            "TRACEJUDGE_REDIS_URL": self.cluster.url,
            "TRACEJUDGE_BROKER_URL": broker.url,
            "TRACEJUDGE_GATEWAY": json.dumps(table),
            "GATEWAY_TOKEN": TOKEN,
        }
        self.gateway = stack.enter_context(Program("-m", "worker.cli", "gateway", folder=folder, env=variables))
        self.published: dict[str, str | None] = {}
        self.judged_again = self.lost_by_redis = 0
        self._places = itertools.count(), itertools.count(1_000_000)
        self._recent: set[str] = set()
        self._http = stack.enter_context(
            httpx.Client(
                base_url=f"http://127.0.0.1:{self.gateway_port}",
                headers={"Authorization": f"Bearer {TOKEN}"},
                timeout=30,
                trust_env=False,
            )
        )
        wait_until(self._gateway_answers, what="the gateway")

    @contextmanager
    def traffic(self) -> Iterator[None]:
        """Publish until the end of the block, and deliver everything."""
        stop = threading.Event()
        threads = [threading.Thread(target=run, args=(stop,)) for run in (self._publish, self._post)]
        tracejudge.init(service="tests", redis_url=self.cluster.url, max_items=100_000, max_bytes=1 << 30)
        begin = len(self.published)
        try:
            for thread in threads:
                thread.start()
            wait_until(lambda: len(self.published) - begin > RATE, what="traffic")
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join()
            is_delivered = tracejudge.flush(60)
            tracejudge.shutdown()
        assert is_delivered, "the SDK delivers everything"

    def _gateway_answers(self) -> bool:
        assert self.gateway.running, self.gateway.stderr
        try:
            return self._http.post("/v1/tracejudge", json=[]).status_code < 500
        except httpx.TransportError:
            return False

    def _publish(self, stop: threading.Event) -> None:
        for place in self._places[0]:
            if stop.wait(1 / RATE):
                return
            (trace,) = make_traces(1, first=place, session_id=f"session {place % SESSIONS}" if place % 3 == 0 else None)
            self.published[trace.trace_id] = trace.session_id
            tracejudge.publish(trace)

    def _post(self, stop: threading.Event) -> None:
        """Send two traces a second through the gateway, each again until it is taken."""
        for place in self._places[1]:
            if stop.wait(0.5):
                return
            (trace,) = make_traces(1, first=place)
            body = msgspec.to_builtins(trace)
            while True:
                try:
                    if self._http.post("/v1/tracejudge", json=[body]).status_code == 200:
                        break
                except httpx.TransportError:
                    pass
                time.sleep(0.2)
            self.published[trace.trace_id] = None

    def replicated(self) -> Node:
        """Return the master of a partition that has a replica."""
        masters = map(self.cluster.of_partition, range(PARTITIONS))
        return next(master for master in masters if self.cluster.replicas_of(master))

    def verdicts(self, store: Store) -> list[OutboxEntry]:
        entries = store.call(lambda client: client.xrange(store.keys.verdicts))
        return [read for read in map(read_outbox_entry, entries) if read is not None]

    def counted(self) -> float:
        return sum(worker.scrape().total("tracejudge_verdicts_total") for worker in self.workers)

    def works(self) -> bool:
        """Return whether a trace of now is judged in each partition."""
        outboxes = []
        try:
            for store in self.stores:
                newest = store.call(lambda client, store=store: client.xrevrange(store.keys.verdicts, count=50))
                outboxes.append({read.verdict.trace_id for read in map(read_outbox_entry, newest) if read})
        except StoreError:
            return False
        return all(outbox & self._recent for outbox in outboxes)

    def wait_until_it_works(self, what: str) -> float:
        """Wait until traces published from now on are judged in every partition; return the seconds."""
        began = time.monotonic()
        before = set(self.published)
        while True:
            self._recent = self.published.keys() - before
            if self.works():
                return time.monotonic() - began
            assert time.monotonic() - began < RECOVERY_S, f"{what}: no work in {RECOVERY_S:.0f} s"
            time.sleep(0.2)

    def account(self) -> Account:
        return sum_accounts([read_account(store) for store in self.stores])

    def settled(self) -> Account | None:
        """Return the account once everything is accounted for."""
        try:
            account = self.account()
        except StoreError:
            return None
        return account if account.published >= len(self.published) and account.settled else None


def kill(rig: Rig) -> None:
    """Kill the master of a partition; its replica takes over, and it comes back as a replica."""
    master = rig.replicated()
    master.kill()
    rig.wait_until_it_works("kill -9")
    master.restart()


def fail_over(rig: Rig) -> None:
    """Make a replica the master, as an upgrade of the servers does."""
    replica = rig.cluster.replicas_of(rig.replicated())[0]
    replica.ask("CLUSTER", "FAILOVER")
    wait_until(replica.is_master, 30, "the failover")


def move(rig: Rig) -> None:
    """Move the slot of a partition to another master and back, ten times."""
    # redis-cli moves the first slots of a master: the fewer come before, the sooner this one has moved.
    key = min((store.keys.traces for store in rig.stores), key=rig.cluster.slots_before)
    home = rig.cluster.master_of(key)
    other = next(node for node in rig.cluster.nodes if node.is_master() and node is not home)
    for turn in range(number(10, 2)):
        rig.cluster.reshard(key, other if turn % 2 == 0 else home)


def add(rig: Rig) -> None:
    """Add a master, and give it its share of the slots."""
    rig.cluster.add()
    rig.cluster.wait_agreed()
    rig.cluster.cli("rebalance", rig.cluster.nodes[0].address, "--cluster-use-empty-masters")


def remove(rig: Rig) -> None:
    """Take the master of a partition out of the cluster."""
    rig.cluster.remove(rig.cluster.of_partition(1))


def hang(rig: Rig) -> None:
    """Stop the master of a partition without closing its connections, until after the failover."""
    master = rig.replicated()
    master.pause()
    try:
        rig.wait_until_it_works("SIGSTOP")
    finally:
        master.resume()


def lose_two(rig: Rig) -> None:
    """Take two of three masters away: no majority is left to promote a replica."""
    masters = [node for node in rig.cluster.nodes if node.is_master()][:2]
    for master in masters:
        master.kill()
    time.sleep(seconds(60, 8))
    for master in masters:
        master.restart()


FAULTS: dict[str, Callable[[Rig], None]] = {
    "kill": kill,
    "failover": fail_over,
    "move": move,
    "add": add,
    "remove": remove,
    "hang": hang,
    "two of three": lose_two,
}
SLOW = pytest.mark.slow("a cluster of six servers under traffic")
ENDURANCE = pytest.mark.endurance("redis-cli moves thousands of slots, or a minute passes")
# A failover may lose the last writes that the replica lacks.
LOSES = frozenset({"kill", "hang"})


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with ExitStack() as stack:
        yield Rig(stack, tmp_path_factory.mktemp("cluster"))


@pytest.mark.parametrize(
    "fault",
    [pytest.param(name, marks=SLOW if name in {"kill", "failover"} else ENDURANCE) for name in FAULTS],
)
def test_nothing_is_lost_or_doubled(rig: Rig, fault: str) -> None:
    began = time.monotonic()
    with rig.traffic():
        FAULTS[fault](rig)
        rig.cluster.wait_well()
        waited_s = rig.wait_until_it_works(fault)
    account = wait_until(rig.settled, SETTLING_S, "everything to be settled")
    verdicts = [entry.verdict for store in rig.stores for entry in rig.verdicts(store)]
    ids = Counter(verdict.evaluation_id for verdict in verdicts)
    assert account.lost == 0, account
    assert [name for name, count in ids.items() if count > 1] == []
    wait_until(lambda: rig.counted() >= len(ids) + rig.judged_again, SETTLING_S, "the metrics")
    again, lost = int(rig.counted()) - len(ids) - rig.judged_again, account.lost_by_redis - rig.lost_by_redis
    rig.judged_again, rig.lost_by_redis = rig.judged_again + again, account.lost_by_redis
    text = f"{fault}: of {len(rig.published)} traces {lost} lost by Redis, {again} judged again"
    print(f"{text}, works after {waited_s:.1f} s, {time.monotonic() - began:.0f} s in all")  # noqa: T201 - the figures
    assert len(rig.published) - len({verdict.trace_id for verdict in verdicts}) <= rig.lost_by_redis, text
    if fault not in LOSES:
        assert (lost, again) == (0, 0), text
    for store in rig.stores:
        names = {entry.verdict.trace_id for entry in rig.verdicts(store)}
        wrong = [name for name in names if place_of(name, rig.published[name]) % PARTITIONS != store.partition]
        assert wrong == [], store.partition
