"""The gateway: spans per second of one process in gzip requests of 500 spans, beside idle connections and a worker."""

import gzip
import random
import socket
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Final

import httpx
import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from redis import Redis

from benchmarks.figures import Figure, tell
from benchmarks.programs import Program, program, until
from worker.base.embedded import EmbeddedRedis, free_port

__all__ = ["SPANS", "Gateway", "body", "gateway", "running"]

_REQUESTS: Final = 200
_WARM_UP: Final = 20
SPANS: Final = 500
_OF_A_TRACE: Final = 5
_IDLE: Final = 2_000
_CLIENTS: Final = 4
_HEADERS: Final = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}
_WORDS: Final = ("refund", "order", "opens", "nine", "when", "the", "shop", "customer", "please", "delivery", "account")


class Gateway:
    """A gateway that runs, with clients that send requests of 500 spans. Bodies are numbered, so that all differ."""

    def __init__(
        self, process: Program, redis: "Redis", redis_url: str, port: int, clients: Sequence[httpx.Client]
    ) -> None:
        """Send to a gateway that is ready."""
        self.process = process
        self.redis = redis
        self.redis_url = redis_url
        self.port = port
        self._clients = clients
        self._sent = 0

    def send(self, requests: int) -> list[float]:
        """Send requests until all are acknowledged; return the seconds until each reply."""
        numbers = range(self._sent, self._sent + requests)
        self._sent += requests
        bodies = [body(number) for number in numbers]
        with ThreadPoolExecutor(_CLIENTS) as pool:
            return list(pool.map(self._send, numbers, bodies))

    def deliver(self, requests: int) -> None:
        """Send requests and wait until their traces are in the stream."""
        self.send(requests)
        self.join()

    def join(self) -> None:
        """Wait until all traces that were sent are joined and in the stream."""
        traces = self._sent * SPANS // _OF_A_TRACE
        until(
            lambda: int(self.redis.xlen("tracejudge:traces")) >= traces, self.process, what="all traces in the stream"
        )

    def _send(self, number: int, content: bytes) -> float:
        began = time.perf_counter()
        url = f"http://127.0.0.1:{self.port}/v1/traces"
        self._clients[number % _CLIENTS].post(url, content=content, headers=_HEADERS).raise_for_status()
        return time.perf_counter() - began


@contextmanager
def running(python: Sequence[str] = (sys.executable,)) -> Iterator[Gateway]:
    """Run a gateway and a Redis until the block is left."""
    port, metrics_port = free_port(), free_port()
    table = {"port": port, "metrics_port": metrics_port, "gather_s": 1.0}
    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedRedis())
        variables = {
            "TRACEJUDGE_REDIS_URL": server.url,
            "TRACEJUDGE_GATEWAY": msgspec.json.encode(table).decode(),
        }
        process = stack.enter_context(program("gateway", "-m", "worker.cli", "gateway", python=python, **variables))
        redis = stack.enter_context(Redis.from_url(server.url))
        until(lambda: _is_ready(metrics_port), process, what="the gateway to start")
        clients = [stack.enter_context(httpx.Client(timeout=60)) for _ in range(_CLIENTS)]
        yield Gateway(process, redis, server.url, port, clients)


def gateway() -> Iterator[Figure]:
    """Measure acknowledged requests, and then until all traces are joined and in the stream.

    A worker judges what arrives with the lexical model, which takes a core as long as there is work.
    """
    worker_port = free_port()
    with ExitStack() as stack:
        line = stack.enter_context(running())
        worker = stack.enter_context(
            program(
                "worker",
                *("-m", "worker.cli", "worker"),
                TRACEJUDGE_REDIS_URL=line.redis_url,
                TRACEJUDGE_METRICS_PORT=str(worker_port),
                TRACEJUDGE_GRACE_S="0.5",  # what is unfinished when the figures stand is of no use
            )
        )
        until(lambda: _is_ready(worker_port), worker, what="the worker to start")
        tell(f"{_IDLE:,} idle connections")
        for _ in range(_IDLE):
            stack.enter_context(socket.create_connection(("127.0.0.1", line.port)))
        tell(f"{_REQUESTS} requests of {SPANS} spans")
        body_kib = statistics.mean(len(body(number)) for number in range(_WARM_UP + _REQUESTS)) / 1024
        line.send(_WARM_UP)
        cpu_s, began = line.process.cpu_s(), time.perf_counter()
        worker_cpu_s, judged = worker.session_cpu_s(), int(line.redis.xlen("tracejudge:verdicts"))
        delays = line.send(_REQUESTS)
        accepted_s = time.perf_counter() - began
        line.join()
        joined_s = time.perf_counter() - began
        spans = _REQUESTS * SPANS
        cpu_us = 1e6 * (line.process.cpu_s() - cpu_s) / spans
        worker_share = (worker.session_cpu_s() - worker_cpu_s) / joined_s
        judged = int(line.redis.xlen("tracejudge:verdicts")) - judged
        yield Figure(f"spans/s acknowledged, {SPANS} a request of {body_kib:.0f} KiB", f"{spans / accepted_s:,.0f}/s")
        yield Figure("spans/s joined and in the stream", f"{spans / joined_s:,.0f}/s", bar="≥ 8,000/s")
        yield Figure("CPU a span", f"{cpu_us:.0f} µs")
        yield Figure("the worker meanwhile", f"{judged / joined_s:,.0f} verdicts/s, {worker_share:.0%} of a core")
        yield Figure("reply, median", f"{1000 * statistics.median(delays):.0f} ms")
        yield Figure(
            f"memory at most, with {_IDLE:,} idle connections", f"{line.process.peak_mib():.0f} MiB", bar="≤ 300 MiB"
        )


def _is_ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz").is_success
    except httpx.TransportError:
        return False


@cache
def body(number: int) -> bytes:
    """Make a request: traces of a root, a call of a model, and three spans of databases and HTTP."""
    chance = random.Random(number)
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.add(key="service.name").value.string_value = "shop"
    scope = resource.scope_spans.add()
    for _ in range(SPANS // _OF_A_TRACE):
        trace_id, root_id = chance.randbytes(16), chance.randbytes(8)
        for place in range(_OF_A_TRACE):
            span = scope.spans.add(trace_id=trace_id, span_id=chance.randbytes(8), name=f"step {place}", kind=3)
            span.start_time_unix_nano = 1_790_000_000_000_000_000 + place
            span.end_time_unix_nano = span.start_time_unix_nano + 1_000_000_000
            if place == 0:
                span.span_id = root_id
            else:
                span.parent_span_id = root_id
            values = {f"http.attribute.{number}": chance.choice(_WORDS) for number in range(8)}
            if place == 1:
                texts = [" ".join(chance.choices(_WORDS, k=80)) for _ in range(2)]
                messages = [
                    [{"role": role, "parts": [{"type": "text", "content": text}]}]
                    for role, text in zip(("user", "assistant"), texts, strict=True)
                ]
                values |= {
                    "gen_ai.operation.name": "chat",
                    "gen_ai.response.model": "gpt-6.1-sol",
                    "gen_ai.input.messages": msgspec.json.encode(messages[0]).decode(),
                    "gen_ai.output.messages": msgspec.json.encode(messages[1]).decode(),
                }
            for key, value in values.items():
                span.attributes.add(key=key).value.string_value = value
    return gzip.compress(request.SerializeToString(), 6)
