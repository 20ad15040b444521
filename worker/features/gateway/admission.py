"""Admission of requests: token, encoding and size of the body, replies to those refused, spans that nobody reads.

RefusedError is the only error of a request: its status, a reason for the metrics, and a text for the client that quotes
nothing of the request. Refused requests and dropped items are counted, logged once a minute, and listed for
`tracejudge invalid list`; log and list hold names, ids and counts, never a text of a request and never a token.
"""

import asyncio
import contextlib
import math
import threading
import time
import zlib
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Mapping, Sequence
from enum import Enum
from http import HTTPStatus
from itertools import islice
from typing import Final

import msgspec
import structlog
from msgspec import Struct
from prometheus_client import Counter, Gauge
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from tracejudge.dialects import Dialects, RawSpan
from tracejudge.dialects.names import Role
from tracejudge.dialects.unread import Unread, shown_scope, unread, without_answer
from tracejudge.log import Once
from worker.base.input.unusable import NO_CONTENT, InvalidRecord, LeftOutRecord, UnreadRecord, UnusableInput
from worker.core.config.serving import MIN_TOKEN_CHARS, Listen, Secret
from worker.core.config.settings import Settings, SettingsError
from worker.core.selection.lenient import safe_id, safe_names
from worker.core.telemetry.http_server import Credential
from worker.core.telemetry.metrics import Metric, ProcessMetrics
from worker.features.gateway.feature import GATEWAY

_MOST: Final = 1_000
_EXAMINED: Final = 200  # Spans of an instrumentation without any name like those of a model's call.
log = structlog.get_logger("tracejudge.gateway")
_GZIP: Final = 31  # zlib's window size of gzip
_MAX_MEMBERS: Final = 1_000  # of one gzip body: an empty one has 20 bytes, and costs as much as thousands
# Codes of google.rpc.Status, in which OTLP reports errors.
_RPC_CODES: Final = {400: 3, 401: 16, 403: 7, 404: 5, 405: 12, 408: 4, 413: 3, 415: 3, 429: 8, 503: 14}
_VARINT_BASE: Final = 128

GATEWAY_REJECTED: Final = (
    "content_type", "encoding", "malformed", "too_large", "unauthorized", "rate", "full", "unavailable", "slow",
)  # fmt: skip
"""Why the gateway refuses a whole request."""
GATEWAY_DROPPED: Final = (
    "no_service", "no_ids", "invalid", "trace_too_large", "expired", "redaction", "unreadable", "no_model_call",
)  # fmt: skip
"""Why an item of an accepted request reaches no published trace."""


class GatewayMetrics(ProcessMetrics):
    """The metrics of one gateway process."""

    # fmt: off
    requests = Metric(Counter, "gateway_requests_total", "requests", ("path", "status"),
        "Requests of the gateway by path and HTTP status; paths that do not exist are `other`")
    rejected = Metric(Counter, "gateway_rejected_total", "requests", ("reason",),
        f"Requests refused as a whole, by reason: {', '.join(GATEWAY_REJECTED)}", values=GATEWAY_REJECTED)
    items = Metric(Counter, "gateway_items_total", "items", ("kind",),
        "Accepted items by kind: span, log, json", values=("span", "log", "json"))
    dropped = Metric(Counter, "gateway_dropped_total", "items", ("reason",),
        f"Items of accepted requests that reach no published trace, by reason: {', '.join(GATEWAY_DROPPED)}",
        values=GATEWAY_DROPPED)
    left_out = Metric(Counter, "gateway_fields_left_out_total", "fields", ("field",),
        "Fields of traces that could not be used and were left out")
    published = Metric(Counter, "gateway_published_total", "entries", (),
        "Traces and feedback that this process wrote into the stream")
    gathered_bytes = Metric(Gauge, "gateway_gathered_bytes", "bytes", (),
        "Bytes of spans in Redis that wait for the rest of their trace")
    body_bytes = Metric(Gauge, "gateway_body_bytes", "bytes", (), "Bytes of request bodies in memory")
    connections = Metric(Gauge, "gateway_connections", "connections", (), "Open connections of the intake")


class RefusedError(Exception):
    """A request is refused as a whole."""

    def __init__(self, status: HTTPStatus, reason: str, message: str, retry_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_s = retry_s


def full(message: str, retry_s: float = 1.0) -> RefusedError:
    """Make the error of a request that finds no room; the client sends it again later."""
    return RefusedError(HTTPStatus.TOO_MANY_REQUESTS, "full", message, retry_s)


def too_many_values() -> RefusedError:
    """Make the error of a body whose values, decoded, would take many times its size."""
    return RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large", "too many values; send fewer items at once")


def check_values(body: bytes, most: int) -> None:
    """Check the number of values of a JSON body, or raise ``RefusedError``: decoded, a megabyte of `{}` becomes fifty.

    Each value but the first follows a comma or a bracket. Those within texts count too, which costs less than to
    tell them apart.
    """
    if sum(map(body.count, (b",", b"{", b"["))) > most:
        raise too_many_values()


class Form(Enum):
    """The encoding of a request and its reply."""

    PROTOBUF = "application/x-protobuf"
    JSON = "application/json"
    LINES = "application/x-ndjson"


_FORMS: Final = {form.value: form for form in Form} | {
    "application/protobuf": Form.PROTOBUF,
    "application/jsonl": Form.LINES,
    "application/jsonlines": Form.LINES,
}


def form_of(request: Request, accepted: Sequence[Form]) -> Form:
    """Return the encoding; ``RefusedError`` if it is not accepted, or compressed by another method than gzip."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    form = _FORMS.get(media)
    if form not in accepted or form is None:
        types = " or ".join(form.value for form in accepted)
        raise RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "content_type", f"Content-Type must be {types}")
    if request.headers.get("content-encoding", "identity").strip().lower() not in {"identity", "gzip", ""}:
        raise RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "encoding", "Content-Encoding must be gzip or identity")
    return form


class Bodies:
    """Reads bodies, all of one process within a bound."""

    def __init__(self, max_body_bytes: int, *, timeout_s: float = 30.0) -> None:
        self._max_body_bytes = max_body_bytes
        # Of all bodies that one process holds at a time: parsed, they take up to twice as much again.
        self._max_held_bytes = max(80 * 1024 * 1024, max_body_bytes)
        self._timeout_s = timeout_s
        self._inflating = asyncio.Lock()
        self.held_bytes = 0  # Bytes of all bodies that are being read or used.

    async def read(self, request: Request) -> "Body":
        """Read and decompress a body, which the caller releases, or raise ``RefusedError``."""
        body = Body(self)
        try:
            declared = request.headers.get("content-length", "0")
            self.check(int(declared) if declared.isdecimal() else 0)
            async with asyncio.timeout(self._timeout_s):
                async for part in self._decompressed(request):
                    self.check(body.size_bytes + len(part))
                    if self.held_bytes + len(part) > self._max_held_bytes:
                        raise full("too many requests at once; send this one again")  # noqa: TRY301 - with the others
                    body.append(part)
        except TimeoutError:
            body.release()
            raise RefusedError(HTTPStatus.REQUEST_TIMEOUT, "slow", "the body did not arrive in time") from None
        except ClientDisconnect:
            body.release()
            raise RefusedError(HTTPStatus.BAD_REQUEST, "slow", "the connection was closed") from None
        except BaseException:
            body.release()
            raise
        return body

    def check(self, size_bytes: int) -> None:
        """Check the size of one body, or raise ``RefusedError``."""
        if size_bytes > self._max_body_bytes:
            message = f"the body is over {self._max_body_bytes:,} bytes, decompressed; send fewer items at once"
            raise RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large", message)

    async def _decompressed(self, request: Request) -> AsyncIterator[bytes]:
        if request.headers.get("content-encoding", "").strip().lower() != "gzip":
            async for part in request.stream():
                yield part
            return
        broken = RefusedError(HTTPStatus.BAD_REQUEST, "malformed", "the body is no valid gzip")
        inflater = zlib.decompressobj(_GZIP)
        received_bytes = members = 0
        async for part in request.stream():
            # Blocks of a stream may be empty, without end.
            received_bytes += len(part)
            self.check(received_bytes)
            while part:
                if inflater.eof:
                    # A gzip file may consist of several members.
                    inflater, members = zlib.decompressobj(_GZIP), members + 1
                    if members >= _MAX_MEMBERS:
                        raise too_many_values()
                try:
                    # Most parts end with 64 KiB. A kilobyte may become a megabyte, and others must not wait for that.
                    yield inflater.decompress(part, 1 << 16)
                    async with self._inflating if inflater.unconsumed_tail else contextlib.nullcontext():
                        while inflater.unconsumed_tail:
                            yield await asyncio.to_thread(inflater.decompress, inflater.unconsumed_tail, 1 << 20)
                except zlib.error:
                    raise broken from None
                part = inflater.unused_data  # noqa: PLW2901 - the next member
        if received_bytes and not inflater.eof:
            raise broken


class Body:
    """The content of one request."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._parts: list[bytes] = []
        self.size_bytes = 0

    def append(self, part: bytes) -> None:
        """Add a part."""
        self._parts.append(part)
        self.size_bytes += len(part)
        self._bodies.held_bytes += len(part)

    def take(self) -> bytes:
        """Return the content, and keep no copy of it."""
        content, self._parts = b"".join(self._parts), []
        return content

    def release(self) -> None:
        """Free the room that the content took."""
        self._bodies.held_bytes -= self.size_bytes
        self._parts, self.size_bytes = [], 0


def status_reply(status: HTTPStatus, message: str, form: Form, retry_s: float | None = None) -> Response:
    """Build an error reply as OTLP wants it: google.rpc.Status in the encoding of the request."""
    headers = {} if retry_s is None else {"Retry-After": str(max(1, math.ceil(retry_s)))}
    if status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = 'Bearer realm="tracejudge"'
    code = _RPC_CODES.get(status, 13)  # INTERNAL
    if form is Form.PROTOBUF:
        text = message.encode()
        # Field 1 is the code; field 2 the message, after its length in two digits.
        digits = len(text) % _VARINT_BASE + _VARINT_BASE, len(text) // _VARINT_BASE
        content = bytes((8, code, 18, *digits)) + text
        return Response(content, status, headers, media_type=form.value)
    content = msgspec.json.encode({"code": code, "message": message})
    return Response(content, status, headers, media_type=Form.JSON.value)


class Client:
    """The holder of one token; without tokens everybody on this machine."""

    def __init__(
        self, name: str, service: str | None, rate: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = name
        self.service = service
        self._rate = rate
        self._clock = clock
        self._level = rate or 0.0
        self._at_s = clock()

    def wait_s(self, items: int) -> float:
        """Count items against the rate; return 0, or after how many seconds they would be admitted."""
        # A request is admitted as a whole as long as the allowance is above zero, and a larger one than the rate leaves
        # a debt. Otherwise it could never be sent.
        if self._rate is None:
            return 0.0
        now = self._clock()
        self._level = min(self._rate, self._level + (now - self._at_s) * self._rate)
        self._at_s = now
        if self._level <= 0:
            return (1 - self._level) / self._rate
        self._level -= items
        return 0.0


class Access:
    """The tokens of one configuration. Its repr shows none."""

    def __init__(self, clients: Mapping[str, Client]) -> None:
        """Set the clients by token; an empty mapping admits everybody."""
        self._clients = tuple(clients.items())
        self._anonymous = None if clients else Client("anonymous", None, None)

    @classmethod
    def from_settings(cls, settings: Settings, environment: Mapping[str, str]) -> "Access":
        """Read all tokens; ``SettingsError`` if one is unusable, or there is none and other machines may connect."""
        clients: dict[str, Client] = {}
        for name, token in GATEWAY.read(settings).tokens.items():
            key = f"gateway.tokens.{name}.token_"
            secret = Secret.from_table(token, key).token(environment, MIN_TOKEN_CHARS) or ""
            if secret in clients:
                raise SettingsError(f"{key[:-1]}: another token has the same value; make each at random")
            clients[secret] = Client(name, token.service, token.rate)
        if not clients and not Listen.from_table(GATEWAY.read(settings), "gateway.").is_local:
            fix = 'set [gateway.tokens.NAME] with token_env, or host = "127.0.0.1"'
            raise SettingsError(f"gateway.host: other machines may connect and no token is required; {fix}")
        return cls(clients)

    def client(self, authorization: str | None) -> Client | None:
        """Return the client of a header, None without a valid token; the time does not depend on the comparison."""
        if self._anonymous is not None:
            return self._anonymous
        shown = Credential(authorization)
        # No early end: the time must not tell which token is similar.
        clients = [client for token, client in self._clients if shown.shows(token)]
        return clients[0] if clients and shown.scheme == "bearer" else None


_MAX_LISTED: Final = 2_000
_NO_CALL: Final = "no_model_call"
_MAX_TOLD: Final = 5  # Instrumentations that one reply names.
EXPLAINED: Final = {
    "no_service": "the resource has no service.name",
    "no_ids": "no trace id of 16 bytes or no span id of 8 bytes",
    "trace_too_large": "the trace is over max_trace_bytes",
    "expired": "no gateway joined the trace within a day",
    "redaction": "a redaction rule failed",
    "unreadable": "not readable as OTLP",
}


class Loss(Struct, frozen=True):
    """Items that reach no published trace: why, how many, and the names and trace id of the first one."""

    reason: str
    count: int = 1
    detail: str = ""
    names: tuple[str, ...] = ()
    trace_id: str | None = None


class Losses:
    """Counts, lists and logs what one process refuses and drops. Safe to share between threads."""

    def __init__(
        self, unusable: UnusableInput, metrics: GatewayMetrics, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._unusable = unusable
        self._metrics = metrics
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str, str], int] = {}
        self._unread: dict[str, Unread] = {}  # By instrumentation.
        self._minute, self._examined = Once(clock), Once(clock, most=_MAX_LISTED)
        self._hour = Once(clock, period_s=3600.0, most=_MAX_LISTED)

    def refuse(self, error: RefusedError, path: str) -> None:
        """Record a request that is refused as a whole."""
        self._metrics.rejected.labels(error.reason).inc()
        self._log(("requests refused", error.reason, path), 1)

    def drop(self, losses: Iterable[Loss], client: str | None = None) -> None:
        """Record dropped items; ``client`` is the name of their token."""
        for loss in losses:
            if not loss.count:
                continue
            self._metrics.dropped.labels(loss.reason).inc(loss.count)
            self._log(("items dropped", loss.reason, ""), loss.count)
            detail = loss.detail or EXPLAINED.get(loss.reason, "")
            told = (loss.reason, f"{detail} ({loss.count:,} items)" if loss.count > 1 else detail)
            names, trace_id = safe_names(loss.names), safe_id(loss.trace_id)
            self._unusable.add_record(InvalidRecord("", time.time(), *told, trace_id, names, client))

    def is_examined(self, scopes: Iterable[str]) -> bool:
        """Return whether traces without a call of all these instrumentations were described within the last minute."""
        return not any(self._examined.is_due(shown_scope(scope)) for scope in scopes)

    def drop_unread(self, counts: Mapping[str, int], trace_id: str, kinds: Iterable[Unread] = ()) -> None:
        """Record the spans of a trace without a call of a model, by instrumentation."""
        total = sum(counts.values())
        self._metrics.dropped.labels(_NO_CALL).inc(total)
        self._log(("items dropped", _NO_CALL, ""), total)
        for kind in kinds:
            self._examined.take(kind.scope)
            self._list(kind, _NO_CALL, trace_id)
        for scope, count in counts.items():
            if (known := self._unread.get(shown_scope(scope))) is not None:
                self._count(known, count)

    def tell_empty(self, spans: Sequence[RawSpan], dialects: Dialects, trace_id: str, *, has_content: bool) -> None:
        """List why a published trace has no answer; of the same instrumentations one a minute is examined."""
        if self._examined.take(frozenset(span.scope for span in spans)):
            for kind in without_answer(spans, dialects, has_content=has_content):
                self._list(kind, NO_CONTENT, trace_id)
                self._count(kind, kind.count)

    def _list(self, kind: Unread, reason: str, trace_id: str) -> None:
        # Services send many such spans, which would displace all others from the list.
        if not self._hour.take((reason, kind.scope, bool(kind.names))):
            return
        if kind.setting:
            log.warning("spans without content", instrumentation=kind.scope, setting=kind.setting)
        if kind.names and (len(self._unread) < _MAX_LISTED or kind.scope in self._unread):
            self._unread[kind.scope] = kind
        told = (reason, f"spans of {kind.scope or '(no name)'}: {kind.words}", safe_id(trace_id), kind.names, None)
        self._unusable.add_record(InvalidRecord("", time.time(), *told))

    def _count(self, kind: Unread, count: int) -> None:
        if kind.names:
            told = (kind.scope or "(no name)", kind.names, count, kind.table, time.time())
            self._unusable.add_unread(UnreadRecord(*told))

    def leave_out(self, field: str, service: str, trace_id: str) -> None:
        """Record a text that was left out of a trace."""
        self._metrics.left_out.labels(field).inc()
        self._unusable.add_left_out(LeftOutRecord(field, "string", service, safe_id(trace_id), time.time()))

    def write(self, *, at_end: bool = False) -> None:
        """Write the list, and log the counts of minutes that have ended."""
        with self._lock:
            due = [subject for subject in self._counts if at_end or self._minute.is_due(subject)]
        for subject in due:
            self._log(subject, 0, at_end=at_end)
        self._unusable.write(at_end=at_end)

    def _log(self, subject: tuple[str, str, str], count: int, *, at_end: bool = False) -> None:
        """Count, and log the count unless the last line about the subject is less than a minute old."""
        with self._lock:
            total = self._counts.pop(subject, 0) + count
            if not total:
                return
            if not self._minute.take(subject) and not at_end:
                self._counts[subject] = total
                return
        event, reason, path = subject
        write = log.info if reason == _NO_CALL else log.warning
        write(event, reason=reason, count=total, **({"path": path} if path else {}))


class Instrumentations:
    """The instrumentations of one process. Safe to share between threads."""

    def __init__(self, dialects: Dialects, clock: Callable[[], float] = time.monotonic) -> None:
        self.dialects = dialects
        self._left: dict[str, int] = {}  # How many spans to examine yet; none of one with a call that a dialect reads.
        self._told = Once(clock)

    def is_open(self, scope: str, sender: Hashable) -> bool:
        """Return whether the spans of an instrumentation are to be examined: nothing was told to the sender."""
        left = self._left.get(scope, int(len(self._left) < _MOST))
        return left > 0 and self._told.is_due((scope, sender))

    def examine(self, scope: str, attributes: Mapping[str, str]) -> Unread | None:
        """Describe a span that no dialect reads, if its attributes are like those of a model's call."""
        span = RawSpan(trace_id="", span_id="", attributes=attributes, scope=scope)
        (kind,) = unread([span], self.dialects)
        if not kind.table and self.dialects.read(span).role is Role.LLM:
            self._left[scope] = 0
        elif kind.is_like_call:
            return kind
        else:
            self._left[scope] = self._left.get(scope, _EXAMINED) - 1
        return None

    def message(self, kinds: Mapping[tuple[str, Hashable], Unread]) -> str:
        """Return the message about these spans by instrumentation and sender, to each of them once a minute."""
        due = (kind for subject, kind in kinds.items() if self.is_open(*subject) and self._told.take(subject))
        return "; ".join(f"spans of {kind.scope!r}: {kind.words}" for kind in islice(due, _MAX_TOLD))
