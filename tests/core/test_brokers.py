"""Brokers: another one, one with TLS, one behind sentinels, RabbitMQ, one that hangs, and none at all.

Batches wait in Redis, and nothing is judged outside a Celery task: without its broker a worker judges nothing, loses
nothing, and goes on within seconds of the broker's return.
"""

import signal
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from redis import Redis
from support import replies
from support.endpoint import ChatEndpoint
from support.pipeline import Pipeline, make_traces
from support.processes import bounded_s, wait_until
from support.rabbitmq import RabbitMq
from support.redis_kinds import TlsRedis, make_certificates, watched

from worker.base.embedded import EmbeddedRedis
from worker.core.storage.client import StoreError

AtRedis = Callable[[str], Pipeline]
RULES = [{"name": "all", "judges": ["safety"]}]
SHIFT_S = 5.0
RESUMES_S = bounded_s(5.0)
"""Guaranteed time after the broker's return until judging continues."""
RECOVERY_S = bounded_s(30.0)
SECONDS = 60
"""Limit for steps that take seconds, also on a busy machine; the bugs found here took minutes or never ended."""


def seconds_until_judged(pipeline: Pipeline, count: int, *, first: int = 0) -> float:
    """Publish traces, and return the seconds until all were judged."""
    pipeline.publish(make_traces(count, first=first))
    began = time.monotonic()
    account = pipeline.settled(first + count)
    assert (account.scored, account.lost) == (first + count, 0)
    return time.monotonic() - began


def model_at(endpoint: ChatEndpoint) -> dict[str, dict[str, object]]:
    return {"default": {"provider": "openai", "base_url": endpoint.base_url, "model": "judge"}}


def seconds_until_resumed(endpoint: ChatEndpoint, came: int) -> float:
    """Return the seconds from now until another call arrives."""
    began = time.monotonic()
    wait_until(lambda: len(endpoint.calls) > came, what="a call")
    return time.monotonic() - began


@pytest.mark.faults
@pytest.mark.parametrize("end", ["killed", pytest.param("hangs", marks=pytest.mark.slow("a second variant"))])
def test_no_call_reaches_the_endpoint_while_the_broker_is_down(pipeline: Pipeline, end: str) -> None:
    """Regression: evaluations were judged although the broker had never been reachable."""
    with EmbeddedRedis() as broker, ChatEndpoint(replies.slow(0.05, replies.yes_no())) as endpoint:
        models = {"default": {**model_at(endpoint)["default"], "max_in_flight": 4}}
        worker = pipeline.worker(rules=RULES, broker_url=broker.url, models=models)
        pipeline.publish(make_traces(200))
        wait_until(lambda: len(endpoint.calls) > 20, what="judging in full course")
        broker.kill()
        pipeline.publish(make_traces(200, first=200))
        wait_until(lambda: endpoint.in_flight == 0 and _is_quiet(endpoint), SHIFT_S * 4, "the calls under way to end")
        worker.program.wait_for("notifications lost|Connection to broker lost|Cannot connect")
        came = len(endpoint.calls)
        assert came < 400
        time.sleep(SHIFT_S)  # long enough for waits between attempts to grow
        assert len(endpoint.calls) == came, "no call begins outside a task"
        assert pipeline.account().waiting == 400 - came
        if end == "hangs":
            with socket.create_server(("127.0.0.1", broker.port), backlog=64):
                time.sleep(1.0)
        broker.restart()
        took_s = seconds_until_resumed(endpoint, came)
        account = pipeline.settled(400)
        assert (account.scored, account.lost, len(endpoint.calls)) == (400, 0, 400)
        assert took_s < (RESUMES_S if end == "killed" else SECONDS)
        assert worker.program.terminate() == 0


def _is_quiet(endpoint: ChatEndpoint) -> bool:
    came = len(endpoint.calls)
    time.sleep(0.5)
    return len(endpoint.calls) == came


@pytest.mark.slow("1,000 batches")
def test_another_redis_as_broker_holds_at_most_two_messages_for_1_000_batches(pipeline: Pipeline) -> None:
    with EmbeddedRedis() as other:
        pipeline.worker(rules=RULES, broker_url=other.url, roles="ingest", batch_size=1)
        queue = f"{pipeline.prefix}.judge.lexical"
        with Redis(port=other.port) as broker:
            for first in range(0, 1_000, 100):
                pipeline.publish(make_traces(100, first=first))
                assert broker.llen(queue) <= 2
            wait_until(lambda: pipeline.account().waiting == 1_000, what="all batches")
            assert 1 <= broker.llen(queue) <= 2
            assert not any(key.startswith(pipeline.prefix.encode() + b":") for key in broker.scan_iter())
            assert b"Parcel" not in b"".join(broker.lrange(queue, 0, -1))
        judging = pipeline.worker(rules=RULES, broker_url=other.url, roles="judge")
        assert pipeline.settled(1_000).scored == 1_000
        assert "not a notification" not in judging.program.output


@pytest.mark.slow("a start of a worker")
def test_a_worker_uses_tls(at_redis: AtRedis, tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    with TlsRedis(certificates) as server:
        pipeline = at_redis(f"{server.tls_url}?ssl_ca_certs={certificates.authority}")
        worker = pipeline.worker(rules=RULES)
        seconds_until_judged(pipeline, 10)
        worker.program.wait_for("Connected to rediss://")


@pytest.mark.slow("a start of a worker, or seconds of CPU, for what shorter tests touch too")
@pytest.mark.faults
def test_a_worker_with_sentinels_continues_after_a_failover(at_redis: AtRedis, tmp_path: Path) -> None:
    with watched(tmp_path) as servers:
        pipeline = at_redis(servers.url)
        worker = pipeline.worker(rules=RULES)
        seconds_until_judged(pipeline, 20)
        worker.program.wait_for("Connected to sentinel://")
        servers.fail_over()
        wait_until(lambda: _takes_writes(pipeline), what="our own connections to follow")
        assert seconds_until_judged(pipeline, 20, first=20) < SECONDS
        assert worker.program.running
        assert worker.program.terminate() == 0


def _takes_writes(pipeline: Pipeline) -> bool:
    with suppress(StoreError):
        return bool(pipeline.store.call(lambda client: client.set(f"{pipeline.prefix}-probe", "1")))
    return False


@pytest.mark.slow("RabbitMQ")
def test_rabbitmq_as_broker_is_restarted_and_a_worker_is_killed(pipeline: Pipeline, tmp_path: Path) -> None:
    with RabbitMq(tmp_path) as broker, ChatEndpoint(replies.slow(0.2, replies.yes_no())) as endpoint:
        settings = {"rules": RULES, "broker_url": broker.url, "models": model_at(endpoint), "batch_size": 4}
        worker = pipeline.worker(**settings)
        seconds_until_judged(pipeline, 20)
        worker.program.wait_for("Connected to amqp://")
        broker.kill()
        pipeline.publish(make_traces(100, first=20))
        wait_until(lambda: pipeline.account().chosen == 120, what="the traces to be chosen")
        wait_until(lambda: _is_quiet(endpoint), what="what was under way to end")
        came = len(endpoint.calls)
        time.sleep(2)
        assert len(endpoint.calls) == came, "no call begins outside a task"
        broker.start()
        assert seconds_until_resumed(endpoint, came) < RESUMES_S
        assert pipeline.settled(120).scored == 120
        successor = pipeline.worker(**settings, grace_s=1.0)
        endpoint.behaviour = replies.slow(SECONDS, replies.yes_no())
        pipeline.publish(make_traces(40, first=120))
        wait_until(lambda: endpoint.in_flight == 40, what="all calls to be under way")
        worker.program.kill()
        endpoint.behaviour = replies.yes_no()
        successor.program.signal(signal.SIGTERM)
        assert successor.program.wait() == 0
        pipeline.worker(**settings)
        began = time.monotonic()
        account = pipeline.settled(160)
        assert (account.scored, account.lost) == (160, 0)
        assert time.monotonic() - began < RECOVERY_S
        assert "not a notification" not in worker.program.output + successor.program.output


@pytest.mark.slow("a start of a worker")
def test_variables_of_celery_replace_no_broker(
    pipeline: Pipeline, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=64)).getsockname()[1]
    foreign = {f"CELERY_BROKER{way}_URL": f"redis://127.0.0.1:{hanging}/0" for way in ("", "_READ", "_WRITE")}
    foreign["CELERY_RESULT_BACKEND"] = "xyzzy://"
    for name, value in foreign.items():
        monkeypatch.setenv(name, value)
    worker = pipeline.worker("-m", "celery", "-A", "worker", "worker", rules=RULES)
    assert seconds_until_judged(pipeline, 3) < SECONDS
    assert {name for name in foreign if f'"{name}"' in worker.program.stderr} == set(foreign)
