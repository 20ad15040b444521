"""Three Redis servers share the traces of two workers: one is killed and comes back, or they are added one by one."""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import httpx
import msgspec
import pytest
from support.pipeline import SETTLING_S, Pipeline, Worker, make_traces
from support.processes import bounded_s, wait_until

import tracejudge
from tracejudge.sharding import shard_of
from worker.base.accounting import Account, read_account, summed
from worker.base.embedded import EmbeddedRedis, ServerBinary
from worker.base.monitor.series import HOUR_S, read_buckets, read_series
from worker.core.queue.ledger import OutboxEntry, read_outbox_entry
from worker.core.storage.client import Store, make_stores

SHARDS = 3
TRACES = 600
SESSIONS = 10
RULES = [{"name": "all", "judges": ["groundedness"]}]


class Shards:
    """Three servers, a broker of its own, and two workers."""

    def __init__(
        self, stack: ExitStack, binary: ServerBinary, folder: Path, prefix: str, of_worker: Sequence[Mapping[str, str]]
    ) -> None:
        self.servers = [stack.enter_context(EmbeddedRedis(binary, appendonly=True)) for _ in range(SHARDS)]
        broker = stack.enter_context(EmbeddedRedis(binary))
        self.urls, self.prefix = [server.url for server in self.servers], prefix
        self._pipeline, self._broker = Pipeline(self.urls[0], prefix, folder, stack), broker
        self.stores = make_stores(self.urls, self._pipeline.keys)
        self.workers = [self.worker(SHARDS, **each) for each in of_worker]

    def worker(self, servers: int, **settings: str) -> Worker:
        """Start a worker that knows the first servers only."""
        return self._pipeline.worker(
            shards=",".join(self.urls[:servers]), broker_url=self._broker.url, rules=RULES, **settings
        )

    def account(self) -> Account:
        return summed([read_account(store) for store in self.stores])

    def verdicts(self, store: Store) -> list[OutboxEntry]:
        entries = store.call(lambda client: client.xrange(store.keys.verdicts))
        return [read for read in map(read_outbox_entry, entries) if read is not None]

    def counted(self) -> float:
        return sum(worker.scrape().total("tracejudge_verdicts_total") for worker in self.workers)

    def judgements_in_sums(self) -> int:
        store, now = self.stores[0], time.time()
        series = [stored for stored, labels in read_series(store).items() if not labels.segment]
        buckets = read_buckets(store, series, now - HOUR_S, now + HOUR_S, fine=True)
        return sum(bucket.sums.total.judgements for of_series in buckets for bucket in of_series)


@pytest.fixture
def shards(
    redis_binaries: tuple[ServerBinary, ...], tmp_path: Path, prefix: str, request: pytest.FixtureRequest
) -> Iterator[Shards]:
    """Two workers that serve all servers, or what the test's parameter says."""
    with ExitStack() as stack:
        yield Shards(stack, redis_binaries[0], tmp_path, prefix, getattr(request, "param", ({}, {})))


def ready_roles(worker: Worker) -> set[str]:
    """Read which roles the readiness page reports as ready."""
    lines = httpx.get(f"http://127.0.0.1:{worker.port}/readyz", timeout=10).text.splitlines()
    return {line.split()[0] for line in lines if line.split()[1].startswith("ready")}


@pytest.mark.slow("three servers, one of them away for seconds")
@pytest.mark.parametrize("killed", [1, 0], ids=["a later one", "the first one"])
def test_each_trace_is_judged_once_though_one_of_three_servers_is_killed(shards: Shards, killed: int) -> None:
    traces = [
        msgspec.structs.replace(trace, session_id=f"session {number % SESSIONS}" if number % 3 == 0 else None)
        for number, trace in enumerate(make_traces(2 * TRACES))
    ]
    expected: Counter[int] = Counter(shard_of(each.trace_id, each.session_id, SHARDS) for each in traces)
    assert min(expected[shard] for shard in range(SHARDS)) > TRACES // SHARDS, "each server has its part"
    alive = [store for store in shards.stores if store.shard != killed]
    tracejudge.init(service="tests", shards=shards.urls, prefix=shards.prefix)
    try:
        for trace in traces[:TRACES]:
            tracejudge.publish(trace)
        wait_until(lambda: sum(len(shards.verdicts(store)) for store in shards.stores) > TRACES // 4, SETTLING_S)
        shards.servers[killed].kill()
        killed_at = time.monotonic()
        for trace in traces[TRACES:]:
            tracejudge.publish(trace)
        assert not tracejudge.flush(0.5), "the traces of the server that is away are kept"
        wait_until(lambda: all(len(shards.verdicts(store)) == expected[store.shard] for store in alive), SETTLING_S)
        assert time.monotonic() - killed_at < bounded_s(5), "other servers do not wait for the one that is away"
        up = {str(store.shard): float(store.shard != killed) for store in shards.stores}
        for worker in shards.workers:
            wait_until(
                lambda worker=worker: (
                    {shard: worker.scrape().total("tracejudge_shard_up", shard=shard) for shard in up} == up
                )
            )
            # The sums of the monitor are on the first one.
            roles = {"ingest", "judge", "export"} | ({"monitor"} if killed else set())
            wait_until(lambda worker=worker, roles=roles: ready_roles(worker) >= roles, what="roles to be ready")
        shards.servers[killed].restart()
        assert tracejudge.flush(60)
    finally:
        tracejudge.shutdown()

    def settled() -> Account | None:
        account = shards.account()
        return account if account.published == len(traces) and account.settled else None

    account = wait_until(settled, SETTLING_S, "all traces to be settled")
    assert (account.sampled, account.scored, account.lost, account.lost_by_redis) == (len(traces), len(traces), 0, 0)
    of_shard = {
        store.shard: Counter(entry.verdict.trace_id for entry in shards.verdicts(store)) for store in shards.stores
    }
    once = Counter({trace.trace_id: 1 for trace in traces})
    assert sum(of_shard.values(), Counter()) == once, "each trace is judged once"
    assert {shard: len(names) for shard, names in of_shard.items()} == expected
    wait_until(lambda: shards.judgements_in_sums() >= len(traces), SETTLING_S, "the sums of the monitor")
    assert shards.judgements_in_sums() == len(traces)
    wait_until(lambda: shards.counted() >= len(traces), SETTLING_S, "the metrics of both workers")
    assert shards.counted() == len(traces)


def publish_until(stop: threading.Event, published: dict[str, str | None]) -> None:
    """Publish a trace each few milliseconds, every third one of a session, through whatever client there is."""
    number = 0
    while not stop.wait(0.01):
        (trace,) = make_traces(1, first=number, session_id=f"session {number % SESSIONS}" if number % 3 == 0 else None)
        published[trace.trace_id] = trace.session_id
        tracejudge.publish(trace)
        number += 1


@pytest.mark.slow("six workers one after the other")
@pytest.mark.parametrize("shards", [()], indirect=True, ids=["no worker yet"])
def test_servers_are_added_one_by_one_under_traffic(shards: Shards) -> None:
    """The steps of docs/shards.md: workers restart with the longer list, then the services."""
    stop, published = threading.Event(), dict[str, str | None]()
    before = by_now = dict[str, str | None]()
    workers = [shards.worker(1), shards.worker(1)]
    tracejudge.init(service="tests", shards=shards.urls[:1], prefix=shards.prefix)
    traffic = threading.Thread(target=publish_until, args=(stop, published))
    traffic.start()
    try:
        for servers in range(2, SHARDS + 1):
            for place, former in enumerate(workers):
                workers[place] = shards.worker(servers)
                assert former.program.terminate() == 0, former.program.stderr
            before = dict(published)
            # Entries of the former client are delivered first, as those of a service that ends.
            tracejudge.init(service="tests", shards=shards.urls[:servers], prefix=shards.prefix)
            by_now = dict(published)
            newest = shards.stores[servers - 1]
            wait_until(lambda newest=newest: len(shards.verdicts(newest)) > TRACES // 10, SETTLING_S)
    finally:
        stop.set()
        traffic.join()
        tracejudge.shutdown()

    def settled() -> Account | None:
        account = shards.account()
        return account if account.published == len(published) and account.settled else None

    account = wait_until(settled, SETTLING_S, "all traces to be settled")
    assert (account.sampled, account.scored, account.lost) == (len(published), len(published), 0)
    by_shard = {store.shard: {entry.verdict.trace_id for entry in shards.verdicts(store)} for store in shards.stores}
    assert sum(map(len, by_shard.values())) == len(published) == account.scored, "each trace is judged once"
    assert set().union(*by_shard.values()) == set(published)
    for number, store in enumerate(shards.stores):
        assert len(shards.verdicts(store)) == len(by_shard[number])
        since = {trace_id: session for trace_id, session in published.items() if trace_id not in by_now}
        assert {trace_id for trace_id in since if trace_id in by_shard[number]} == {
            trace_id for trace_id, session in since.items() if shard_of(trace_id, session, SHARDS) == number
        }
    assert any(shard_of(trace_id, before[trace_id], SHARDS) == SHARDS - 1 for trace_id in before), (
        "names move, what is stored stays"
    )
    assert not by_shard[SHARDS - 1] & set(before)
    wait_until(lambda: shards.judgements_in_sums() >= len(published), SETTLING_S, "the sums of the monitor")
    assert shards.judgements_in_sums() == len(published)


@pytest.mark.slow("three servers")
@pytest.mark.parametrize("shards", [({"served_shards": "0"}, {"served_shards": "1,2"})], indirect=True, ids=["apart"])
def test_workers_that_serve_different_servers_pass_messages_on(shards: Shards) -> None:
    traces = make_traces(40)
    tracejudge.init(service="tests", shards=shards.urls, prefix=shards.prefix)
    waited = []
    try:
        for number, trace in enumerate(traces, 1):
            tracejudge.publish(trace)
            began = time.monotonic()
            wait_until(lambda: sum(len(shards.verdicts(store)) for store in shards.stores) == number, SETTLING_S)  # noqa: B023
            waited.append(time.monotonic() - began)
    finally:
        tracejudge.shutdown()
    # A lost message costs a second, and half of them are for the other worker.
    assert sorted(waited)[len(waited) // 2] < bounded_s(0.3)
    assert shards.account().lost == 0
    for worker, served in zip(shards.workers, ({"0"}, {"1", "2"}), strict=True):
        up = {str(shard): worker.scrape().total("tracejudge_shard_up", shard=str(shard)) for shard in range(SHARDS)}
        assert {shard for shard, is_up in up.items() if is_up} == served


@pytest.mark.slow("a server that hangs")
@pytest.mark.parametrize("shards", [({"grace_s": "1"},)], indirect=True, ids=["one worker"])
def test_a_worker_ends_in_order_though_a_server_hangs(shards: Shards) -> None:
    (worker,) = shards.workers
    os.kill(shards.servers[1].pid, signal.SIGSTOP)
    try:
        assert worker.program.terminate() == 0, worker.program.stderr
    finally:
        os.kill(shards.servers[1].pid, signal.SIGCONT)
    assert "worker stopped" in worker.program.stderr
