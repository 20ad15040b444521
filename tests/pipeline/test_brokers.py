"""Brokers: another one, one with TLS, one behind sentinels, one that hangs, and none at all.

Batches wait in Redis and every worker looks once a second, so a broker only makes it faster. RabbitMQ is tested where
`rabbitmq-server` is on PATH, and skipped elsewhere, in CI as well: it needs Erlang, which no wheel brings, and what is
ours about it (addresses, options, a message with a batch id) the other tests run through the same code.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from redis import Redis
from support.pipeline import Pipeline, make_traces
from support.processes import free_port, wait_until
from support.redis_kinds import TlsRedis, make_certificates, watched

from worker.embedded import EmbeddedRedis
from worker.store import StoreError

AtRedis = Callable[[str], Pipeline]
RULES = [{"name": "all", "judges": ["safety"]}]
RABBITMQ = shutil.which("rabbitmq-server")
SECONDS = 60
"""What takes seconds takes no longer on a busy machine either; what went wrong took minutes, or for ever."""


def judged_within_s(pipeline: Pipeline, count: int, *, first: int = 0) -> float:
    """Publish and tell how long it took until all was judged."""
    pipeline.publish(make_traces(count, first=first))
    began = time.monotonic()
    account = pipeline.settled(first + count)
    assert (account.scored, account.lost) == (first + count, 0)
    return time.monotonic() - began


def test_without_any_broker_judging_goes_on_within_seconds(pipeline: Pipeline) -> None:
    """Celery looks for its broker for ever; it must neither end for that nor keep the stages from starting."""
    worker = pipeline.worker(rules=RULES, broker_url=f"redis://127.0.0.1:{free_port()}/0")
    assert judged_within_s(pipeline, 20) < SECONDS
    assert judged_within_s(pipeline, 20, first=20) < SECONDS
    worker.program.wait_for("wake-ups are lost")
    assert worker.program.running
    assert worker.program.terminate() == 0


@pytest.mark.faults
def test_a_broker_that_goes_away_ends_no_worker(pipeline: Pipeline) -> None:
    with EmbeddedRedis() as other:
        worker = pipeline.worker(rules=RULES, broker_url=other.url)
        judged_within_s(pipeline, 20)
        other.kill()
        assert judged_within_s(pipeline, 20, first=20) < SECONDS
        other.restart()
        judged_within_s(pipeline, 20, first=40)
        assert worker.program.running


def test_another_redis_serves_as_broker_and_holds_nothing_but_wake_ups(pipeline: Pipeline) -> None:
    with EmbeddedRedis() as other:
        pipeline.worker(rules=RULES, broker_url=other.url, roles="ingest")
        pipeline.publish(make_traces(5))
        with Redis(port=other.port) as broker:
            queue = f"{pipeline.prefix}.judge"
            wait_until(lambda: broker.llen(queue), what="a wake-up")
            assert not any(key.startswith(pipeline.prefix.encode() + b":") for key in broker.scan_iter())
            assert b"Parcel" not in b"".join(broker.lrange(queue, 0, -1))
        judging = pipeline.worker(rules=RULES, broker_url=other.url, roles="judge")
        assert pipeline.settled(5).scored == 5
        assert "no wake-up of ours" not in judging.program.output


@pytest.fixture
def hanging_port() -> Iterator[int]:
    """Where somebody listens, takes whatever comes, and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield listener.getsockname()[1]


def test_a_broker_that_hangs_delays_nothing(pipeline: Pipeline, hanging_port: int) -> None:
    """Ingest sent wake-ups itself, and waited ten seconds for each."""
    pipeline.worker(rules=RULES, broker_url=f"redis://127.0.0.1:{hanging_port}/0", batch_size=2)
    assert judged_within_s(pipeline, 40) < SECONDS


def test_a_worker_runs_through_tls_and_trusts_only_its_authority(at_redis: AtRedis, tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    with TlsRedis(certificates) as server:
        pipeline = at_redis(f"{server.tls_url}?ssl_ca_certs={certificates.authority}")
        worker = pipeline.worker(rules=RULES)
        judged_within_s(pipeline, 10)
        worker.program.wait_for("Connected to rediss://")
        stranger = pipeline.worker(rules=RULES, redis_url=server.tls_url)
        stranger.program.wait_for("Redis does not answer")
        stranger.program.wait_for("Cannot connect to rediss://")


@pytest.mark.faults
def test_a_worker_behind_sentinels_goes_on_after_a_failover(at_redis: AtRedis, tmp_path: Path) -> None:
    with watched(tmp_path) as servers:
        pipeline = at_redis(servers.url)
        worker = pipeline.worker(rules=RULES)
        judged_within_s(pipeline, 20)
        worker.program.wait_for("Connected to sentinel://")
        servers.fail_over()
        wait_until(lambda: _takes_writes(pipeline), what="our own connections to follow")
        assert judged_within_s(pipeline, 20, first=20) < SECONDS
        assert worker.program.running
        assert worker.program.terminate() == 0


def _takes_writes(pipeline: Pipeline) -> bool:
    with suppress(StoreError):
        return bool(pipeline.store.call(lambda client: client.set(f"{pipeline.prefix}-probe", "1")))
    return False


@pytest.fixture
def rabbitmq_url(tmp_path: Path) -> Iterator[str]:
    if RABBITMQ is None:
        pytest.skip("no rabbitmq-server: see the docstring of this module")
    port = free_port()
    own = {
        "HOME": str(tmp_path),
        "RABBITMQ_NODENAME": f"tracejudge-{port}@localhost",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_MNESIA_BASE": str(tmp_path / "mnesia"),
        "RABBITMQ_LOG_BASE": str(tmp_path / "log"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(tmp_path / "plugins"),
    }
    server = subprocess.Popen([RABBITMQ], env={**os.environ, **own}, start_new_session=True)
    try:
        wait_until(lambda: _listens(port), what="RabbitMQ to listen")
        yield f"amqp://guest:guest@127.0.0.1:{port}//"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def test_rabbitmq_serves_as_broker(pipeline: Pipeline, rabbitmq_url: str) -> None:
    worker = pipeline.worker(rules=RULES, broker_url=rabbitmq_url)
    judged_within_s(pipeline, 20)
    worker.program.wait_for("Connected to amqp://")
    assert "no wake-up of ours" not in worker.program.output
    assert worker.program.terminate() == 0


def test_a_message_that_would_end_celery_ends_no_worker(pipeline: Pipeline) -> None:
    """One of the wrong shape ended the process, was given back, and ended the next."""
    worker = pipeline.worker(rules=RULES)
    queue = f"{pipeline.prefix}.judge"
    with Redis.from_url(pipeline.redis_url) as broker:
        for poison in (b"no JSON at all", b"[]", b"{}", b'{"body": 7, "properties": {}, "headers": {}}', b"\xff" * 9):
            broker.lpush(queue, poison)
        wait_until(lambda: not broker.llen(queue), what="the messages to be taken")
    judged_within_s(pipeline, 20)
    assert worker.program.running
    assert worker.program.terminate() == 0
