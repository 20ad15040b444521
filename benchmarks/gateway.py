"""The gateway: spans per second of one process in gzip requests of 500 spans, beside idle connections and a worker."""

import gzip
import random
import socket
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Final

import httpx
import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from redis import Redis

from benchmarks.figures import Figure, tell
from benchmarks.programs import program, until
from worker.base.embedded import EmbeddedRedis, free_port

__all__ = ["gateway"]

_REQUESTS: Final = 200
_WARM_UP: Final = 20
_SPANS: Final = 500
_OF_A_TRACE: Final = 5
_IDLE: Final = 2_000
_CLIENTS: Final = 4
_HEADERS: Final = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}
_WORDS: Final = ("refund", "order", "opens", "nine", "when", "the", "shop", "customer", "please", "delivery", "account")


def gateway() -> Iterator[Figure]:
    """Measure acknowledged requests, and then until all traces are joined and in the stream.

    A worker judges what arrives with the lexical model, which takes a core as long as there is work.
    """
    port, metrics_port, worker_port = free_port(), free_port(), free_port()
    table = {"port": port, "metrics_port": metrics_port, "gather_s": 1.0}
    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedRedis())
        running = stack.enter_context(
            program(
                "gateway",
                *("-m", "worker.cli", "gateway"),
                TRACEJUDGE_REDIS_URL=server.url,
                TRACEJUDGE_GATEWAY=msgspec.json.encode(table).decode(),
            )
        )
        worker = stack.enter_context(
            program(
                "worker",
                *("-m", "worker.cli", "worker"),
                TRACEJUDGE_REDIS_URL=server.url,
                TRACEJUDGE_METRICS_PORT=str(worker_port),
                TRACEJUDGE_GRACE_S="0.5",  # what is unfinished when the figures stand is of no use
            )
        )
        redis = stack.enter_context(Redis.from_url(server.url))
        until(lambda: _is_ready(metrics_port) and _is_ready(worker_port), running, worker, what="both to start")
        tell(f"{_IDLE:,} idle connections")
        for _ in range(_IDLE):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        tell(f"{_REQUESTS} requests of {_SPANS} spans")
        bodies = [_body(random.Random(number)) for number in range(_WARM_UP + _REQUESTS)]
        clients = [stack.enter_context(httpx.Client(timeout=60)) for _ in range(_CLIENTS)]
        delays: list[float] = []

        def send(number: int) -> None:
            began = time.perf_counter()
            url = f"http://127.0.0.1:{port}/v1/traces"
            clients[number % _CLIENTS].post(url, content=bodies[number], headers=_HEADERS).raise_for_status()
            delays.append(time.perf_counter() - began)

        with ThreadPoolExecutor(_CLIENTS) as pool:
            list(pool.map(send, range(_WARM_UP)))
            delays.clear()
            cpu_s, began = running.cpu_s(), time.perf_counter()
            worker_cpu_s, judged = worker.session_cpu_s(), int(redis.xlen("tracejudge:verdicts"))
            list(pool.map(send, range(_WARM_UP, _WARM_UP + _REQUESTS)))
            accepted_s = time.perf_counter() - began
        traces = (_WARM_UP + _REQUESTS) * _SPANS // _OF_A_TRACE
        until(lambda: int(redis.xlen("tracejudge:traces")) >= traces, running, what="all traces in the stream")
        joined_s = time.perf_counter() - began
        cpu_us = 1e6 * (running.cpu_s() - cpu_s) / (_REQUESTS * _SPANS)
        worker_share = (worker.session_cpu_s() - worker_cpu_s) / joined_s
        judged = int(redis.xlen("tracejudge:verdicts")) - judged
        spans = _REQUESTS * _SPANS
        body_kib = statistics.mean(map(len, bodies)) / 1024
        yield Figure(f"spans/s acknowledged, {_SPANS} a request of {body_kib:.0f} KiB", f"{spans / accepted_s:,.0f}/s")
        yield Figure("spans/s joined and in the stream", f"{spans / joined_s:,.0f}/s", bar="≥ 8,000/s")
        yield Figure("CPU a span", f"{cpu_us:.0f} µs")
        yield Figure("the worker meanwhile", f"{judged / joined_s:,.0f} verdicts/s, {worker_share:.0%} of a core")
        yield Figure("reply, median", f"{1000 * statistics.median(delays):.0f} ms")
        yield Figure(
            f"memory at most, with {_IDLE:,} idle connections", f"{running.peak_mib():.0f} MiB", bar="≤ 300 MiB"
        )


def _is_ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz").is_success
    except httpx.TransportError:
        return False


def _body(chance: random.Random) -> bytes:
    """Make a request: traces of a root, a call of a model, and three spans of databases and HTTP."""
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.add(key="service.name").value.string_value = "shop"
    scope = resource.scope_spans.add()
    for _ in range(_SPANS // _OF_A_TRACE):
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
