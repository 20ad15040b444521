"""The gateway where traces are spread over several Redis servers."""

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from gateway_parts import CALL, GatewayProcess, Start
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from redis import Redis
from support.processes import wait_until

from tracejudge.sharding import shard_of
from worker.base.embedded import EmbeddedRedis, ServerBinary

SHARDS = 2


@pytest.fixture
def servers(redis_binaries: tuple[ServerBinary, ...]) -> Iterator[list[EmbeddedRedis]]:
    with EmbeddedRedis(redis_binaries[0], appendonly=True) as first, EmbeddedRedis(redis_binaries[0]) as second:
        yield [first, second]


def entries(server: EmbeddedRedis, prefix: str, kind: bytes = b"t") -> list[dict[str, Any]]:
    with Redis.from_url(server.url) as client:
        return [json.loads(fields[kind]) for _, fields in client.xrange(f"{prefix}:traces") if kind in fields]


def spans(numbers: Sequence[int], session: str | None = None) -> bytes:
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.add(key="service.name").value.string_value = "bot"
    scope = resource.scope_spans.add()
    for number in numbers:
        span = scope.spans.add(trace_id=number.to_bytes(16, "big"), span_id=number.to_bytes(8, "big"), name="chat")
        attributes = CALL if session is None else {**CALL, "gen_ai.conversation.id": session}
        for key, value in attributes.items():
            span.attributes.add(key=key).value.string_value = value
    return request.SerializeToString()


def numbers_of(shard: int, first: int, count: int) -> list[int]:
    """Return numbers, counted from the first, whose trace ids belong to a shard."""
    return [number for number in range(first, first + 99) if shard_of(f"{number:032x}", None, SHARDS) == shard][:count]


def post(gateway: GatewayProcess, content: bytes) -> int:
    return gateway.post("/v1/traces", content, "application/x-protobuf").status_code


@pytest.mark.slow("a lease of 30 s ends")
def test_each_trace_goes_to_its_server_and_one_that_is_away_refuses_only_its_own(
    start: Start, prefix: str, servers: list[EmbeddedRedis]
) -> None:
    urls = ",".join(server.url for server in servers)
    gateway = start(url=servers[0].url, env={"TRACEJUDGE_SHARDS": urls}, gather_s=0.1, gather_max_s=0.5)
    session = next(name for name in map(str, range(99)) if shard_of("", name, SHARDS) == 1)
    plain = [{"service": "bot", "input": "When?", "output": "At nine.", "trace_id": f"p{n}"} for n in range(10)]
    talk = [{**entry, "trace_id": f"{entry['trace_id']}s", "session_id": session} for entry in plain]
    assert gateway.publish([*plain, *talk]).json()["accepted"] == 20
    assert gateway.publish({"trace_id": "p1s", "score": -1}).status_code == 200
    assert post(gateway, spans(range(1, 11))) == 200
    assert post(gateway, spans(range(11, 21), session)) == 200
    wait_until(lambda: sum(len(entries(server, prefix)) for server in servers) == 40, what="all traces")
    for number, server in enumerate(servers):
        stored_entries = entries(server, prefix)
        assert stored_entries
        assert {
            shard_of(stored_entry["trace_id"], stored_entry.get("session_id"), SHARDS)
            for stored_entry in stored_entries
        } == {number}
    assert len(entries(servers[shard_of("p1s", None, SHARDS)], prefix, b"f")) == 1

    servers[1].kill()
    here = next(name for name in map(str, range(99)) if shard_of(name, None, SHARDS) == 0)
    there = next(name for name in map(str, range(99)) if shard_of(name, None, SHARDS) == 1)
    wait_until(lambda: gateway.publish({**plain[0], "trace_id": there}).status_code == 503, what="the refusal")
    assert gateway.publish({**plain[0], "trace_id": here}).status_code == 200
    assert gateway.publish([{**plain[0], "trace_id": each} for each in (f"{here}0", there)]).status_code in {200, 503}
    # So many that the ids of some surely belong there.
    unnamed = [{**plain[0], "trace_id": None}] * 64
    before = len(entries(servers[0], prefix))
    assert [gateway.publish(unnamed).status_code for _ in range(3)] == [503] * 3
    assert len(entries(servers[0], prefix)) == before, "each repeat of traces without ids would be further traces"
    assert gateway.page("/readyz").status_code == 200
    # Spans of a session that belongs there are gathered here, and published when it is back.
    mine = numbers_of(0, 100, 2)
    for number, conversation in zip(mine, (session, None), strict=True):
        assert post(gateway, spans(range(number, number + 1), conversation)) == 200
    wait_until(
        lambda: any(entry["trace_id"] == f"{mine[1]:032x}" for entry in entries(servers[0], prefix)), what="the other"
    )
    # Sessions that go on there make no gateway unready: intake of the other server would end with it.
    for first in range(200, 6_700, 100):
        assert post(gateway, spans(numbers_of(0, first, 4), session)) == 200
        time.sleep(0.2)
        assert gateway.page("/readyz").status_code == 200, gateway.page("/readyz").text
    servers[1].restart()
    wait_until(
        lambda: any(entry["trace_id"] == f"{mine[0]:032x}" for entry in entries(servers[1], prefix)), 90, "the session"
    )
