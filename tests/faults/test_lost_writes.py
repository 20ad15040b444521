"""Redis loses confirmed writes: it is flushed, restarts from older data, or fails over to a replica.

What was lost is named in the account, and nothing else: it balances with `lost` 0, and all that came before and after
is judged once. Publishing goes on in the same process, as that of a service does.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from redis import Redis
from redis_faults import ORIGINS
from support.endpoint import ChatEndpoint
from support.pipeline import Pipeline, make_traces
from support.processes import wait_until
from support.redis_kinds import TunedRedis
from support.replies import slow, yes_no

import tracejudge
from worker.base.embedded import ServerBinary

PART = 40
MODEL = "judge"


class Service:
    """One SDK client that keeps publishing, and one worker that keeps judging."""

    def __init__(self, pipeline: Pipeline, endpoint: ChatEndpoint) -> None:
        self.pipeline, self.endpoint = pipeline, endpoint
        self.published = 0

    def publish(self, count: int = PART) -> None:
        for trace in make_traces(count, first=self.published, ended_at=time.time()):
            tracejudge.publish(trace)
        assert tracejudge.flush(60)
        self.published += count

    def work(self) -> None:
        model = {"provider": "openai", "base_url": self.endpoint.base_url, "model": MODEL}
        rules = [{"name": "all", "judges": ["relevance_to_query"]}]
        self.pipeline.worker(models={"default": model}, rules=rules, log_level="warning")

    def assert_balanced(self, *, lost: int) -> None:
        """Wait until everything published is accounted for and no work is left."""
        account = self.pipeline.settled(self.published)
        assert (account.lost, account.lost_by_redis, account.cut_off, account.dropped) == (0, lost, 0, 0), account
        assert (account.published, account.unread, account.waiting) == (self.published, 0, 0)
        ended = self.published - lost
        assert account.sampled + account.duplicate == ended
        ids = [entry.verdict.evaluation_id for entry in self.pipeline.outbox()]
        assert len(set(ids)) == len(ids) == account.scored == account.chosen >= ended


@pytest.fixture(params=["6.2", pytest.param("7", marks=pytest.mark.slow("the other version of Redis"))])
def server(request: pytest.FixtureRequest, redis_binaries: tuple[ServerBinary, ...]) -> Iterator[TunedRedis]:
    with _server(redis_binaries, request.param) as server:
        yield server


def _server(binaries: tuple[ServerBinary, ...], version: str, *options: str) -> TunedRedis:
    binary = next((binary for binary in binaries if binary.origin == ORIGINS[version]), None)
    return TunedRedis(binary, *options) if binary else pytest.skip(f"no Redis {version}")


@contextmanager
def _service(url: str, folder: Path) -> Iterator[Service]:
    with ExitStack() as stack:
        endpoint = stack.enter_context(ChatEndpoint(slow(0.02, yes_no())))
        pipeline = Pipeline(url, "lost", folder, stack)
        tracejudge.init(service="tests", redis_url=url, prefix="lost")
        stack.callback(tracejudge.shutdown)
        yield Service(pipeline, endpoint)


@pytest.fixture
def service(server: TunedRedis, tmp_path: Path) -> Iterator[Service]:
    with _service(server.url, tmp_path) as service:
        yield service


@pytest.mark.slow("a start of a worker, or seconds of CPU, for what shorter tests touch too")
def test_redis_is_flushed_between_batches(service: Service, server: TunedRedis) -> None:
    service.work()
    service.publish()
    service.assert_balanced(lost=0)
    with Redis.from_url(server.url) as client:
        client.flushall()
    service.publish()
    service.assert_balanced(lost=PART)


def test_redis_is_flushed_while_a_worker_holds_batches(service: Service, server: TunedRedis) -> None:
    service.endpoint.behaviour = slow(3, yes_no())
    service.work()
    service.publish()
    wait_until(lambda: len(service.endpoint.calls) >= PART // 2, what="calls under way")
    with Redis.from_url(server.url) as client:
        client.flushdb()
    service.publish()
    service.assert_balanced(lost=PART)
    assert service.pipeline.counter("chosen") > PART, "what was under way has ended, and counts"


@pytest.mark.slow("a start of a worker, or seconds of CPU, for what shorter tests touch too")
def test_redis_restarts_from_an_older_snapshot(service: Service, server: TunedRedis) -> None:
    service.publish()
    service.work()
    service.assert_balanced(lost=0)
    service.publish(5)
    with Redis.from_url(server.url) as client:
        client.save()
    service.publish()
    service.assert_balanced(lost=0)
    server.kill()
    server.restart()
    service.publish()
    service.assert_balanced(lost=PART)


def test_redis_fails_over_without_the_last_writes(redis_binaries: tuple[ServerBinary, ...], tmp_path: Path) -> None:
    """The replica loses its master, which continues; then both swap roles, under the same address."""
    with ExitStack() as stack:
        fast = ("--repl-diskless-sync-delay", "0")
        master = stack.enter_context(_server(redis_binaries, "7", *fast))
        replica = stack.enter_context(_server(redis_binaries, "7", *fast))
        client, other = (stack.enter_context(Redis.from_url(each.url)) for each in (master, replica))
        service = stack.enter_context(_service(master.url, tmp_path))
        service.work()
        service.publish()
        service.assert_balanced(lost=0)
        other.replicaof("127.0.0.1", str(master.port))
        wait_until(lambda: other.info("replication")["master_link_status"] == "up", what="the replica")
        service.publish(5)
        service.assert_balanced(lost=0)

        def has_all() -> bool:
            return other.info("replication")["slave_repl_offset"] >= client.info("replication")["master_repl_offset"]

        wait_until(has_all, what="the replica to have all")
        other.replicaof("NO", "ONE")
        service.publish()
        # From now on the address leads to the data of the former replica.
        client.replicaof("127.0.0.1", str(replica.port))
        wait_until(lambda: client.info("replication").get("master_link_status") == "up", what="the master's data to go")
        client.replicaof("NO", "ONE")
        service.publish()
        service.assert_balanced(lost=PART)
