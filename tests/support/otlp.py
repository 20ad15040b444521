"""A real OTLP/HTTP receiver for protobuf with a configurable behaviour, and its messages as plain Python."""

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any, NamedTuple

from aiohttp import web
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from opentelemetry.proto.trace.v1.trace_pb2 import Status as StatusMessage

from support.loopback import HOST, LoopbackServer


class Origin(NamedTuple):
    """The origin of a span or log record. `schema_url` is that of the scope, else of the resource."""

    resource: dict[str, Any]
    scope_name: str
    scope_version: str
    schema_url: str


class Link(NamedTuple):
    trace_id: str
    span_id: str


class Status(NamedTuple):
    code: str  # UNSET, OK, ERROR
    message: str


class Span(NamedTuple):
    trace_id: str
    span_id: str
    parent_span_id: str  # "" for a root
    name: str
    kind: str  # INTERNAL, CLIENT, …
    attributes: dict[str, Any]
    links: list[Link]
    status: Status
    start_ns: int
    end_ns: int
    resource: dict[str, Any]
    scope_name: str
    scope_version: str
    schema_url: str


class Log(NamedTuple):
    event_name: str
    trace_id: str
    span_id: str
    attributes: dict[str, Any]
    body: Any
    severity: str
    time_ns: int
    resource: dict[str, Any]
    scope_name: str
    scope_version: str
    schema_url: str


def read_spans(body: bytes) -> list[Span]:
    """Decode an export request of traces; raises `google.protobuf.message.DecodeError`."""
    return [
        _span(span, _origin(resource, scope))
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def read_logs(body: bytes) -> list[Log]:
    """Decode an export request of logs; raises `google.protobuf.message.DecodeError`."""
    return [
        _log(record, _origin(resource, scope))
        for resource in ExportLogsServiceRequest.FromString(body).resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
    ]


def _origin(resource: Any, scope: Any) -> Origin:
    return Origin(
        resource=attributes_of(resource.resource.attributes),
        scope_name=scope.scope.name,
        scope_version=scope.scope.version,
        schema_url=scope.schema_url or resource.schema_url,
    )


def _span(span: Any, origin: Origin) -> Span:
    return Span(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_span_id=span.parent_span_id.hex(),
        name=span.name,
        kind=SpanMessage.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        attributes=attributes_of(span.attributes),
        links=[Link(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
        status=Status(
            StatusMessage.StatusCode.Name(span.status.code).removeprefix("STATUS_CODE_"), span.status.message
        ),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        **origin._asdict(),
    )


def _log(record: Any, origin: Origin) -> Log:
    return Log(
        event_name=record.event_name,
        trace_id=record.trace_id.hex(),
        span_id=record.span_id.hex(),
        attributes=attributes_of(record.attributes),
        body=_value(record.body),
        severity=record.severity_text,
        time_ns=record.time_unix_nano,
        **origin._asdict(),
    )


def attributes_of(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return attributes_of(value.kvlist_value.values)
    return getattr(value, kind)


# --- the receiver ---
CONTENT_TYPE = "application/x-protobuf"


@dataclass(frozen=True)
class Accept:
    """The answer to an export. Rejected items are the last ones of the request, and are not stored.

    `body` replaces the answer of OTLP. `rejected` may claim more items than the request has.
    """

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    rejected: int = 0
    message: str = ""
    delay_s: float = 0.0
    body: bytes | None = None
    content_type: str = CONTENT_TYPE


@dataclass
class Export:
    """One request as it arrived. Header names are in lower case; `status` stays None if the client did not wait."""

    path: str
    headers: dict[str, str]
    size_bytes: int  # decompressed
    spans: tuple[Span, ...] = ()
    logs: tuple[Log, ...] = ()
    status: int | None = None

    @property
    def is_of_spans(self) -> bool:
        return self.path == "/v1/traces"

    @property
    def items(self) -> tuple[Span | Log, ...]:
        return self.spans or self.logs


Behaviour = Accept | Callable[[Export], "Behaviour"]


def failing(status: int, *, retry_after: str | float | None = None) -> Accept:
    """Refuse the whole request; `retry_after` in seconds or as an HTTP date."""
    return Accept(status=status, headers={} if retry_after is None else {"Retry-After": str(retry_after)})


def partial(rejected: int, message: str = "rejected") -> Accept:
    return Accept(rejected=rejected, message=message)


def refuses_items(poison: Callable[[Span | Log], bool], *, status: int = 400) -> Behaviour:
    """Refuse every request that contains a given item, as collectors do with one bad span in a batch."""
    return lambda export: failing(status) if any(map(poison, export.items)) else Accept()


class OtlpReceiver(LoopbackServer):
    """Serves `endpoint` + "/v1/traces" and "/v1/logs". Set `behaviour` at any time."""

    def __init__(self, behaviour: Behaviour | None = None, *, port: int = 0) -> None:
        super().__init__(port=port)
        self.behaviour: Behaviour = behaviour or Accept()
        self._lock = threading.Lock()
        self._exports: list[Export] = []
        self._spans: list[Span] = []
        self._logs: list[Log] = []

    @property
    def exports(self) -> tuple[Export, ...]:
        """All requests, refused ones included."""
        with self._lock:
            return tuple(self._exports)

    @property
    def spans(self) -> tuple[Span, ...]:
        """Accepted items in order of arrival; an item that came twice is there twice."""
        with self._lock:
            return tuple(self._spans)

    @property
    def logs(self) -> tuple[Log, ...]:
        """Accepted items in order of arrival; an item that came twice is there twice."""
        with self._lock:
            return tuple(self._logs)

    def forget(self) -> None:
        """Clear the records."""
        with self._lock:
            self._exports, self._spans, self._logs = [], [], []

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/traces", self._receive), web.post("/v1/logs", self._receive)]

    async def _receive(self, request: web.Request) -> web.Response:
        body = await request.read()  # decompressed by aiohttp
        headers = {name.lower(): value for name, value in request.headers.items()}
        export, wrong = Export(request.path, headers, len(body)), None
        try:
            if export.is_of_spans:
                export.spans = tuple(read_spans(body))
            else:
                export.logs = tuple(read_logs(body))
            wrong = failing(415) if request.content_type != CONTENT_TYPE else None
        except DecodeError:
            wrong = failing(400)
        with self._lock:
            self._exports.append(export)
        reply = wrong or _resolve(self.behaviour, export)
        await asyncio.sleep(reply.delay_s)
        return _response(self._settle(export, reply), export)

    def _settle(self, export: Export, reply: Accept) -> Accept:
        with self._lock:
            export.status = reply.status
            if reply.status < 300:
                rejected = reply.rejected if 0 <= reply.rejected <= len(export.items) else 0
                self._spans += export.spans[: len(export.spans) - rejected]
                self._logs += export.logs[: len(export.logs) - rejected]
        return reply


class Dribbler(ThreadingTCPServer):
    """A receiver that sends an endless answer, a byte at a time, until the client ends the connection."""

    def __init__(self, begins: bytes) -> None:
        super().__init__((HOST, 0), BaseRequestHandler)
        self.endpoint = f"http://{HOST}:{self.server_address[1]}"
        self.ended = threading.Event()
        """The client has ended its connection."""
        self._begins = begins
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()

    def finish_request(self, connection: Any, _: Any) -> None:
        connection.recv(65536)
        connection.settimeout(0.1)
        with suppress(OSError):
            connection.sendall(self._begins)
            while not self._is_closed(connection):
                if self._begins:
                    connection.sendall(b"x")
        self.ended.set()

    @staticmethod
    def _is_closed(connection: Any) -> bool:
        try:
            return not connection.recv(65536)
        except TimeoutError:
            return False


def _resolve(behaviour: Behaviour, export: Export) -> Accept:
    while not isinstance(behaviour, Accept):
        behaviour = behaviour(export)
    return behaviour


def _response(reply: Accept, export: Export) -> web.Response:
    answer = ExportTraceServiceResponse() if export.is_of_spans else ExportLogsServiceResponse()
    if reply.rejected or reply.message:
        setattr(answer.partial_success, f"rejected_{'spans' if export.is_of_spans else 'log_records'}", reply.rejected)
        answer.partial_success.error_message = reply.message
    body = answer.SerializeToString() if reply.status < 300 else b""
    body = body if reply.body is None else reply.body
    return web.Response(body=body, status=reply.status, headers=reply.headers, content_type=reply.content_type)
