"""The gateway on a Redis Cluster."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest
from gateway_parts import CALL, GatewayProcess, Start
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.cli_parts import Run
from support.cluster import Cluster, running_cluster
from support.partition_parts import PARTITIONS, home, named_in, three_partitions
from support.processes import wait_until
from support.stage_parts import Keyspace


def entries(space: Keyspace, kind: bytes = b"t") -> list[dict[str, Any]]:
    return [json.loads(fields[kind]) for _, fields in space.client.xrange(space.keys.traces) if kind in fields]


def all_entries(keyspaces: Sequence[Keyspace]) -> list[tuple[int, dict[str, Any]]]:
    return [(number, entry) for number, space in enumerate(keyspaces) for entry in entries(space)]


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


def post(gateway: GatewayProcess, content: bytes) -> int:
    return gateway.post("/v1/traces", content, "application/x-protobuf").status_code


def on(cluster: Cluster, start: Start, redis_url: str) -> GatewayProcess:
    variables = {"BROKER_URL": redis_url, "PARTITIONS": str(PARTITIONS)}
    env = {f"TRACEJUDGE_{name}": text for name, text in variables.items()}
    return start(url=cluster.url, env=env, gather_s=0.1, gather_max_s=0.5)


def item(trace_id: str, session: str | None = None) -> dict[str, Any]:
    return {"service": "bot", "input": "When?", "output": "At nine.", "trace_id": trace_id, "session_id": session}


@pytest.fixture
def keyspaces(cluster: Cluster, prefix: str) -> Iterator[list[Keyspace]]:
    with three_partitions(cluster.url, prefix) as keyspaces:
        yield keyspaces


def test_each_trace_goes_to_its_partition(
    start: Start, cluster: Cluster, redis_url: str, keyspaces: list[Keyspace]
) -> None:
    gateway = on(cluster, start, redis_url)
    session = named_in(1)
    plain = [item(f"p{number}") for number in range(10)]
    assert gateway.publish([*plain, *(item(f"p{number}s", session) for number in range(10))]).json()["accepted"] == 20
    assert gateway.publish({"trace_id": "p1s", "score": -1}).status_code == 200
    assert post(gateway, spans(range(1, 11))) == 200
    assert post(gateway, spans(range(11, 21), session)) == 200
    wait_until(lambda: len(all_entries(keyspaces)) == 40, what="all traces")
    places = [(number, home(entry["trace_id"], entry.get("session_id"))) for number, entry in all_entries(keyspaces)]
    assert [place for place in places if place[0] != place[1]] == []
    assert [number for number, space in enumerate(keyspaces) for _ in entries(space, b"f")] == [home("p1s")]


def test_another_number_of_partitions_than_that_of_the_cluster_is_refused(
    clustered: Run, cluster: Cluster, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEJUDGE_PARTITIONS", "4")
    with three_partitions(cluster.url, prefix) as keyspaces:
        name = keyspaces[0].keys.partitions
        complaint = (
            "tracejudge: TRACEJUDGE_PARTITIONS: partitions: "
            f"Redis has {PARTITIONS} partitions by its key {name}, not 4; set partitions to {PARTITIONS}"
        )
        for command in (("gateway", "--port", "0"), ("board", "--port", "0"), ("account",)):
            ended = clustered(*command)
            assert (ended.code, ended.complaint) == (2, complaint), command


@pytest.mark.faults
def test_it_goes_on_after_the_failover_of_a_killed_master(start: Start, redis_url: str, prefix: str) -> None:
    with ExitStack() as stack:
        cluster = stack.enter_context(running_cluster())
        keyspaces = stack.enter_context(three_partitions(cluster.url, prefix))
        gateway = on(cluster, start, redis_url)
        assert gateway.publish([item(named_in(number, start="before")) for number in range(PARTITIONS)]).is_success
        cluster.of_partition(1, prefix).kill()
        # Whatever is refused meanwhile is sent again, under the same ids.
        session = named_in(1, start="session")
        for send in (
            lambda: gateway.publish([item(named_in(number, start="after")) for number in range(PARTITIONS)]).is_success,
            lambda: post(gateway, spans(range(1, 31), session)) == 200,
        ):
            wait_until(send, 30, "the gateway to accept again")
        expected = {named_in(number, start="after") for number in range(PARTITIONS)}
        expected |= {f"{number:032x}" for number in range(1, 31)}
        wait_until(
            lambda: expected <= {entry["trace_id"] for _, entry in all_entries(keyspaces)}, what="what it accepted"
        )
