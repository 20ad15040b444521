"""A gateway killed at random moments under load: what it acknowledged is in the stream, with the same ids."""

import os
import random
import signal
import threading
from collections import Counter

import httpx
import pytest
from gateway_parts import GatewayProcess, Start, Stored, gzipped
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.processes import wait_until

PROTOBUF = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}
CALL = {"gen_ai.operation.name": "chat", "gen_ai.prompt": "is it?", "gen_ai.completion": "yes"}
TRACES = 20


def request_of(chance: random.Random) -> tuple[bytes, list[str]]:
    """Make a request of traces with a root and a call of a model; return it with their ids."""
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.add(key="service.name").value.string_value = "bot"
    spans = resource.scope_spans.add().spans
    ids = [chance.randbytes(16) for _ in range(TRACES)]
    for trace_id in ids:
        root = spans.add(trace_id=trace_id, span_id=chance.randbytes(8), name="root")
        call = spans.add(trace_id=trace_id, span_id=chance.randbytes(8), parent_span_id=root.span_id, name="chat")
        for key, value in (
            ("gen_ai.operation.name", "chat"),
            ("gen_ai.completion", "yes"),
            ("gen_ai.prompt", "is it?"),
        ):
            call.attributes.add(key=key).value.string_value = value
    return gzipped(request.SerializeToString()), [trace_id.hex() for trace_id in ids]


class Load:
    """Sends spans and plain JSON until it is ended, and notes what was acknowledged."""

    def __init__(self, gateway: GatewayProcess, seed: int) -> None:
        self._url, self._chance = gateway.url, random.Random(seed)
        self.acknowledged: list[str] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with httpx.Client(base_url=self._url, timeout=30) as client:
            try:
                while True:
                    content, ids = request_of(self._chance)
                    client.post("/v1/traces", content=content, headers=PROTOBUF).raise_for_status()
                    self.acknowledged += ids
                    plain = {"trace_id": f"{self._chance.getrandbits(128):032x}", "service": "bot", "output": "yes"}
                    client.post("/v1/tracejudge", json=plain).raise_for_status()
                    self.acknowledged.append(plain["trace_id"])
            except httpx.HTTPError:
                return  # it was killed

    def join(self) -> list[str]:
        self._thread.join()
        return self.acknowledged


def kill_and_compare(start: Start, stored: Stored, kills: int) -> None:
    chance = random.Random(kills)
    acknowledged: list[str] = []
    for number in range(kills):
        gateway = start(gather_s=0.2, gather_max_s=2.0)
        load = Load(gateway, number)
        wait_until(lambda load=load: load.acknowledged, what="an acknowledged request")
        threading.Event().wait(chance.uniform(0.0, 1.5))
        os.kill(gateway.program.pid, signal.SIGKILL)
        acknowledged += load.join()
    # Leases of killed processes end after half a minute; here at once.
    due = f"{stored.prefix}:gather:due"
    for trace_id in stored.redis.zrange(due, 0, -1):
        stored.redis.zadd(due, {trace_id: 0})
    start(gather_s=0.2, gather_max_s=2.0)
    wait_until(lambda: not stored.redis.zcard(due), what="all gathered traces to be published")
    found: dict[str, Counter[tuple[str, str]]] = {}
    for trace in stored.entries():
        found.setdefault(trace["trace_id"], Counter())[(trace["id"], trace["span_id"])] += 1
    assert len(acknowledged) > kills * TRACES / 2
    assert [trace_id for trace_id in acknowledged if trace_id not in found] == []
    # Published again after a kill, a trace has the ids that it had before, and so it is sampled once.
    assert {trace_id: ids for trace_id, ids in found.items() if len(ids) > 1} == {}


@pytest.mark.faults
def test_acknowledged_traces_survive_kills(start: Start, stored: Stored) -> None:
    kill_and_compare(start, stored, 2)


@pytest.mark.slow("twenty kills take a minute")
@pytest.mark.faults
@pytest.mark.timeout(600)
def test_acknowledged_traces_survive_twenty_kills(start: Start, stored: Stored) -> None:
    kill_and_compare(start, stored, 20)
