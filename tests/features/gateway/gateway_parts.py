"""A real gateway process, and what it wrote."""

import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from redis import Redis
from support.processes import Program, wait_until
from support.scrape import CLIENT, scrape

from worker.base.input.unusable import InvalidRecord, read_invalid
from worker.core.storage.client import Store
from worker.core.storage.keys import Keys

Start = Callable[..., "GatewayProcess"]
GZIP_PROTOBUF = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}
CALL = {"gen_ai.operation.name": "chat", "gen_ai.completion": "yes", "gen_ai.prompt": "is it?"}


class GatewayProcess:
    """One `tracejudge gateway`, and its replies."""

    def __init__(self, program: Program, stack: ExitStack) -> None:
        self.program = program
        # The log line is JSON, with keys in any order.
        text = program.wait_for(r'^\{.*"gateway started".*\}$').group()
        started = json.loads(text)
        self.url = started["intake"]
        self.metrics_port = int(started["metrics"].rsplit(":", 1)[1].split("/")[0])
        # Its connection stays open: many others may be opened before it is used again.
        limits = httpx.Limits(keepalive_expiry=None)
        self.http = stack.enter_context(httpx.Client(base_url=self.url, timeout=60, limits=limits))
        wait_until(lambda: self.page("/readyz").status_code == 200, what="the gateway to be ready")

    def post(self, path: str, content: bytes | str, media: str = "application/json", **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.http.post(path, content=content, headers={"Content-Type": media, **named})

    def publish(self, value: Any, **headers: str) -> httpx.Response:
        return self.post("/v1/tracejudge", json.dumps(value), **headers)

    def page(self, path: str) -> httpx.Response:
        return CLIENT.get(f"http://127.0.0.1:{self.metrics_port}{path}")

    def total(self, name: str, **labels: str) -> float:
        return scrape(self.metrics_port).total(f"tracejudge_gateway_{name}", **labels)

    def peak_mib(self) -> float:
        """Return the most memory that the process has held so far."""
        text = Path(f"/proc/{self.program.pid}/status").read_text()
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmHWM:")) / 1024


class Stored:
    """What is in the stream."""

    def __init__(self, redis: Redis, prefix: str, redis_url: str) -> None:
        self.redis, self.prefix, self.redis_url = redis, prefix, redis_url

    def entries(self, kind: str = "t") -> list[dict[str, Any]]:
        stored_entries = self.redis.xrange(f"{self.prefix}:traces")
        return [json.loads(fields[kind.encode()]) for _, fields in stored_entries if kind.encode() in fields]

    def invalid(self, count: int) -> list[InvalidRecord]:
        """Wait for records of `tracejudge invalid list`, and return them, the oldest first."""
        with closing(Store(self.redis_url, Keys(self.prefix))) as store:
            wait_until(lambda: len(read_invalid(store)) >= count, what=f"{count} invalid records")
            return read_invalid(store)[::-1]

    def wait(self, count: int) -> list[dict[str, Any]]:
        wait_until(lambda: len(self.entries()) >= count, what=f"{count} traces in the stream")
        return self.entries()


def gzipped(content: bytes) -> bytes:
    packer = zlib.compressobj(wbits=31)
    return packer.compress(content) + packer.flush()


class Call(NamedTuple):
    """A span by its ids and attributes."""

    trace_id: bytes
    span_id: bytes = b"s" * 8
    parent_id: bytes = b""
    attributes: Mapping[str, str] = CALL


def request_of(spans: Iterable[Call], *, scope: str = "") -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.add(key="service.name").value.string_value = "bot"
    scope_spans = resource.scope_spans.add()
    scope_spans.scope.name = scope
    for trace_id, span_id, parent_id, attributes in spans:
        span = scope_spans.spans.add(trace_id=trace_id, span_id=span_id, parent_span_id=parent_id, name="step")
        span.end_time_unix_nano = 1_790_000_000_000_000_000
        for key, value in attributes.items():
            span.attributes.add(key=key).value.string_value = value
    return request


def span_request(spans: list[tuple[bytes, bytes, bytes]]) -> bytes:
    """Encode spans, given as trace id, span id and parent id; those with a parent are calls of a model."""
    calls = [Call(*ids, attributes=CALL if ids[2] else {}) for ids in spans]
    return gzipped(request_of(calls).SerializeToString())
