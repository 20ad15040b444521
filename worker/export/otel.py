"""Sends verdicts to an OTLP receiver as spans and events.

A receiver that is down delays them; they wait in the outbox, up to its cap. Redelivered verdicts are the same spans.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from importlib.metadata import version
from typing import Final, Literal, NamedTuple

import httpx
import structlog
from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.logs.v1.logs_pb2 import ResourceLogs, ScopeLogs
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans

from judges.models.credentials import proxy_for
from judges.models.http import tls_context
from judges.models.replies import retry_after_s
from worker.config.graders import providers
from worker.config.redaction import Redaction
from worker.config.settings import Settings
from worker.export.consumer import ExportConsumer
from worker.export.otlp_encoding import SCHEMA_URL, SCOPE, Encoded, VerdictEncoder, delimited, key_values, repeated
from worker.queue.ledger import OutboxEntry
from worker.storage.client import Store, StoreError, address
from worker.telemetry.finding import Check, Finding, broken, cause_of, ok, warning
from worker.telemetry.metrics import Metrics

Kind = Literal["accepted", "rejected", "failing", "busy", "misconfigured", "unreachable"]
# Compressed answers are refused: one of a few kilobytes may be gigabytes of text.
REQUEST_HEADERS: Final = {"content-type": "application/x-protobuf", "accept-encoding": "identity"}
MAX_ANSWER_BYTES: Final = 1024 * 1024
_DEADLINE_S: Final = 30.0
_CONNECT_TIMEOUT_S: Final = 10.0
_RECEIVER: Final = "an OTLP/HTTP receiver that takes protobuf"
_REJECTED: Final = ("rejected", "it refuses the content", "see the receiver's log for what it refuses")
_BUSY: Final = ("busy", "it is busy or restarts", "see the receiver's log, if it lasts")
_ADD_CREDENTIALS: Final = "grant the worker access, or send through a collector that authenticates"
_NO_OTLP: Final = (
    "misconfigured",
    "nothing takes OTLP under this path",
    f"set otlp_endpoint to {_RECEIVER}, without /v1/traces",
)
_MEANINGS: Final[Mapping[int, tuple[Kind, str, str]]] = {
    **dict.fromkeys((400, 413, 422), _REJECTED),
    **dict.fromkeys((408, 429, 502, 503, 504), _BUSY),
    **dict.fromkeys((404, 405), _NO_OTLP),
    401: ("misconfigured", "it asks for credentials", _ADD_CREDENTIALS),
    403: ("misconfigured", "it does not let the worker in", _ADD_CREDENTIALS),
    415: ("misconfigured", "it does not take protobuf", f"set otlp_endpoint to {_RECEIVER}"),
}


class Channel(NamedTuple):
    """One signal: its path, the encoder of its requests, and the type of its answer."""

    path: str
    request: Callable[[Sequence[bytes]], bytes]
    response: type[Message]


class Reply(NamedTuple):
    """The outcome of one request.

    Attributes:
        kind: ``accepted``; ``rejected`` for its content; ``failing``, perhaps over one item; ``busy``, to be retried;
            ``misconfigured``, to be retried but of no use before an operator acts; ``unreachable``.
        reason: The status, or the class of the error, for logs.
        meaning: What the receiver did, for people.
        fix: What to do about it; empty where nothing is to be done.
        status: None without an answer.
        body: None where it was incomplete, or longer than the bound.
        error: Why there was no answer.
    """

    kind: Kind
    reason: str
    meaning: str = ""
    fix: str = ""
    status: int | None = None
    headers: Mapping[str, str] = httpx.Headers()
    body: bytes | None = None
    error: Exception | None = None


class OtlpClient:
    """Connections to one receiver, for use by one thread at a time.

    Attributes:
        deadline_s: How long one request may take, from the connection to the end of the answer.
    """

    # httpx's asynchronous client in an event loop of its own, since only that bounds a whole request: the timeouts of
    # the blocking client apply to each read, and a receiver that sends a byte every few seconds never ends.

    def __init__(self, endpoint: str, *, proxy: str | None = None) -> None:
        """Prepare; the first request connects. ``proxy`` is as ``proxy_for`` takes it."""
        self.deadline_s = _DEADLINE_S
        self._endpoint = endpoint.rstrip("/")
        self._runner = asyncio.Runner()
        # The proxy is found as for judge endpoints; certificates are those that the environment names.
        found = proxy_for(endpoint, proxy)
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S),
            proxy=found,
            verify=tls_context(endpoint, found),
            trust_env=False,
        )
        self._closed = False

    def post(self, path: str, body: bytes) -> Reply:
        """Send one request; errors are replies too."""
        return self._runner.run(self._post(f"{self._endpoint}{path}", body))

    def close(self) -> None:
        """Close connections."""
        if not self._closed:
            self._closed = True
            self._runner.run(self._http.aclose())
            self._runner.close()

    async def _post(self, url: str, body: bytes) -> Reply:
        reply: Reply | None = None
        try:
            async with (
                asyncio.timeout(self.deadline_s),
                self._http.stream("POST", url, content=body, headers=REQUEST_HEADERS) as response,
            ):
                # The status decides, also where the rest of the answer is missing or too long.
                reply = reply_of(response.status_code, response.headers)
                answer = bytearray()
                async for piece in response.aiter_raw():
                    answer += piece
                    if len(answer) > MAX_ANSWER_BYTES:
                        return reply
                reply = reply_of(response.status_code, response.headers, bytes(answer))
        except (TimeoutError, httpx.HTTPError) as error:
            return reply or Reply("unreachable", type(error).__name__, "it does not answer", error=error)
        return reply


def reply_of(status: int, headers: Mapping[str, str], body: bytes | None = None) -> Reply:
    """Classify an answer."""
    known: tuple[Kind, str, str]
    if httpx.codes.is_success(status):
        known = "accepted", "", ""
        # No answer of OTLP begins so, in protobuf or JSON; the page of a sign-in or of a proxy does.
        if (body or b"").lstrip()[:1] == b"<":
            known = "misconfigured", "it answers with a web page", f"set otlp_endpoint to {_RECEIVER}"
    elif httpx.codes.is_redirect(status):
        fix = "set otlp_endpoint to the address that it redirects to, or remove the sign-in page before it"
        known = "misconfigured", "it redirects, and redirects are not followed", fix
    elif status in _MEANINGS:
        known = _MEANINGS[status]
    elif status >= httpx.codes.INTERNAL_SERVER_ERROR:
        known = "failing", "it fails", "see the receiver's log"
    else:
        known = "misconfigured", "it rejects all requests", "see the receiver's log"
    kind, meaning, fix = known
    return Reply(kind, f"HTTP {status}", meaning, fix, status, headers, body)


def rejected_items(channel: Channel, sent: int, reply: Reply) -> int | None:
    """Return how many items of an accepted request the receiver rejected; None where the answer cannot be true."""
    if reply.body is None:
        return None
    answer = channel.response()
    try:
        if "json" in reply.headers.get("content-type", ""):
            json_format.Parse(reply.body, answer, ignore_unknown_fields=True)
        else:
            answer.ParseFromString(reply.body)
    except (DecodeError, json_format.ParseError, ValueError, RecursionError):
        return None
    # rejected_spans or rejected_log_records, by the signal
    counts = {field.name: value for field, value in answer.partial_success.ListFields()}  # type: ignore[attr-defined]
    rejected = sum(value for name, value in counts.items() if name.startswith("rejected_"))
    return rejected if 0 <= rejected <= sent else None


class RequestEncoder:
    """Encodes OTLP requests of one resource."""

    def __init__(self, resource: Mapping[str, str]) -> None:
        sender, scope = Resource(attributes=key_values(resource)), InstrumentationScope(name=SCOPE)
        self._resource_spans = ResourceSpans(resource=sender, schema_url=SCHEMA_URL).SerializeToString()
        self._scope_spans = ScopeSpans(scope=scope, schema_url=SCHEMA_URL).SerializeToString()
        self._resource_logs = ResourceLogs(resource=sender, schema_url=SCHEMA_URL).SerializeToString()
        self._scope_logs = ScopeLogs(scope=scope, schema_url=SCHEMA_URL).SerializeToString()

    def traces(self, spans: Sequence[bytes]) -> bytes:
        """Encode an `ExportTraceServiceRequest`."""
        scope = self._scope_spans + repeated(ScopeSpans.SPANS_FIELD_NUMBER, spans)
        resource = self._resource_spans + delimited(ResourceSpans.SCOPE_SPANS_FIELD_NUMBER, scope)
        return delimited(ExportTraceServiceRequest.RESOURCE_SPANS_FIELD_NUMBER, resource)

    def logs(self, records: Sequence[bytes]) -> bytes:
        """Encode an `ExportLogsServiceRequest`."""
        scope = self._scope_logs + repeated(ScopeLogs.LOG_RECORDS_FIELD_NUMBER, records)
        resource = self._resource_logs + delimited(ResourceLogs.SCOPE_LOGS_FIELD_NUMBER, scope)
        return delimited(ExportLogsServiceRequest.RESOURCE_LOGS_FIELD_NUMBER, resource)


log = structlog.get_logger("tracejudge.export")
_ENCODER: Final = RequestEncoder({"service.name": "tracejudge", "service.version": version("tracejudge-worker")})
_TRACES: Final = Channel("/v1/traces", _ENCODER.traces, ExportTraceServiceResponse)
_LOGS: Final = Channel("/v1/logs", _ENCODER.logs, ExportLogsServiceResponse)
_KEEP_EVERY_S: Final = 5.0
_FIRST_BACKOFF_S: Final = 0.5
_MAX_BACKOFF_S: Final = 20.0
_MAX_ASKED_S: Final = 300.0
_TRIES: Final = 3
_GIVEN_UP_IN_A_ROW: Final = 3
_GIVE_UP_AFTER_S: Final = 300.0
_ABSENT: Final = frozenset({404, 405})
_PART: Final = "otlp receiver"
_CHECK_TIMEOUT_S: Final = 4.0
_LEAST_CHECK_S: Final = 0.5
_WAITS: Final = "verdicts wait in the outbox meanwhile"


class _DeliveryEndedError(Exception):
    """The worker stops, or another one delivers these entries now; undelivered ones stay in the outbox."""


class _Part(NamedTuple):
    """Items for one request, and how often the receiver failed (5xx) over them."""

    items: Sequence[bytes]
    failures: int = 0


class _GiveUpPolicy:
    """Decides whether a single item that the receiver fails over is dropped or retried.

    A receiver that fails over every item is broken, and the items are good. So an item is dropped only if the receiver
    has accepted others lately, or has accepted nothing for so long that this item may be the reason.
    """

    def __init__(self) -> None:
        self._left = 0
        self._since: float | None = None

    def accepted(self) -> None:
        self._left, self._since = _GIVEN_UP_IN_A_ROW, None

    def gives_up(self) -> bool:
        now = time.monotonic()
        if self._since is None:
            self._since = now
        if self._left > 0:
            self._left -= 1
        elif now - self._since < _GIVE_UP_AFTER_S:
            return False
        self._since = now
        return True


class OtelExporter(ExportConsumer):
    """Reads the group ``otel``."""

    exporter = "otel"
    drop_reasons = ("unreadable", "rejected", "server_error", "partial_success")
    # Longer than one request may take: before each, and while it waits, a delivery resets the idle time of its entries.
    stale_ms = 45_000

    def __init__(self, settings: Settings, store: Store, metrics: Metrics) -> None:
        super().__init__(settings, store, metrics)
        endpoint = settings.otlp_endpoint or ""
        self._encoder = VerdictEncoder(
            providers(settings),
            models={model.judge_model: model.model for model in settings.models.values() if model.model is not None},
            explanations=settings.export_explanations,
            redaction=Redaction.of(settings.redact),
        )
        self._ignored = metrics.export_answers_ignored.labels(self.exporter)
        self._receiver = address(endpoint)
        self._client = OtlpClient(endpoint, proxy=settings.proxy)
        self._sends_events = True
        self._policy = _GiveUpPolicy()
        self._backoff_s = _FIRST_BACKOFF_S
        self._logged_reason: str | None = None
        self._logged_ignored = False
        self._delivering: tuple[str, ...] = ()
        self._delivered: list[str] = []
        self._keep_at = 0.0

    @classmethod
    def is_enabled(cls, settings: Settings) -> bool:
        """Return whether the settings name a receiver."""
        return settings.otlp_endpoint is not None

    @classmethod
    def checks(cls, settings: Settings) -> Sequence[Check]:
        """Check the receiver by empty exports."""
        return [Check(_PART, partial(check_receiver, settings.otlp_endpoint or "", settings.proxy))]

    @classmethod
    def keeps(cls, settings: Settings) -> str:
        """Name the receiver, or any that earlier settings may have named."""
        receiver = address(settings.otlp_endpoint) if settings.otlp_endpoint else "an OpenTelemetry backend"
        return f"{receiver} keeps the spans and events that were sent: erase them there, by trace id"

    def run_once(self) -> None:
        """Acknowledge what was delivered while Redis was away, before it is delivered again; then read."""
        self._acknowledge_delivered()
        super().run_once()

    def deliver(self, entries: Sequence[OutboxEntry]) -> None:
        """Send final verdicts, then acknowledge; entries of dead letters and of the canary are only acknowledged."""
        encoded: list[Encoded] = []
        for entry in entries:
            # A receiver would average second judgings, and judgings of canaries, with those of the traffic.
            if entry.kind != "j" or entry.verdict.origin in {"repeat", "canary"}:
                continue
            try:
                encoded.append(self._encoder.encode(entry.verdict))
            except Exception as error:  # noqa: BLE001 - one bad verdict must not block all behind it
                log.warning("verdict cannot be exported", exporter=self.exporter, error=type(error).__name__)
                self.dropped("unreadable", 1)
        self._delivering = tuple(entry.entry_id for entry in entries)
        self._keep_at = time.monotonic() + _KEEP_EVERY_S
        try:
            self._send(_TRACES, [span for each in encoded for span in each.spans])
            if self._sends_events:
                self._send(_LOGS, [event for each in encoded for event in each.events])
        except _DeliveryEndedError:
            return
        self._delivered += self._delivering
        self._acknowledge_delivered()

    def stop(self, timeout_s: float) -> bool:
        """End the thread, then its connections."""
        ended = super().stop(timeout_s)
        if ended:
            self._client.close()
        return ended

    def _send(self, channel: Channel, items: Sequence[bytes]) -> None:
        """Deliver items until each was accepted or dropped: in one request, or in halves after a refusal.

        Raises:
            _DeliveryEndedError: The worker was told to stop, or others took the entries over.
        """
        parts = deque([_Part(items)] if items else [])
        while parts:
            part = parts.popleft()
            self._keep()
            reply = self._client.post(channel.path, channel.request(part.items))
            if reply.kind == "accepted":
                self._accepted(channel, len(part.items), reply)
                continue
            if channel is _LOGS and reply.status in _ABSENT and self._accepts_only_spans(reply):
                return
            if reply.kind == "failing":
                # The parts of a request that failed so often are as suspect as the whole was.
                part = part._replace(failures=part.failures + 1)
            isolates = reply.kind == "rejected" or part.failures >= _TRIES
            if isolates and len(part.items) > 1:
                half = len(part.items) // 2
                parts.extendleft(part._replace(items=items) for items in (part.items[half:], part.items[:half]))
            elif reply.kind == "rejected":
                self._give_up("rejected", reply)
            # Events are dropped at once: spans would wait behind them, and the receiver has just accepted spans.
            elif isolates and (channel is _LOGS or self._policy.gives_up()):
                self._give_up("server_error", reply)
            else:
                self._retry_later(reply)
                # A single suspect goes behind the others: their success shows that the receiver works.
                (parts.append if isolates else parts.appendleft)(part)

    def _accepted(self, channel: Channel, sent: int, reply: Reply) -> None:
        self.record_progress()
        self._policy.accepted()
        self._backoff_s = _FIRST_BACKOFF_S
        if self._logged_reason is not None:
            log.info("otlp export resumed", receiver=self._receiver)
            self._logged_reason = None
        rejected = rejected_items(channel, sent, reply)
        if rejected is None:
            self._ignored.inc()
            if not self._logged_ignored:
                self._logged_ignored = True
                log.warning("otlp answer ignored", receiver=self._receiver, path=channel.path, sent=sent)
        elif rejected > 0:
            log.warning("otlp partial success", receiver=self._receiver, path=channel.path, rejected=rejected)
            self.dropped("partial_success", rejected)

    def _give_up(self, reason: str, reply: Reply) -> None:
        log.warning("otlp item dropped", receiver=self._receiver, reason=reason, status=reply.status)
        self.dropped(reason, 1)

    def _accepts_only_spans(self, reply: Reply) -> bool:
        """Return whether only the path of events is absent; during a deployment both may be."""
        if self._client.post(_TRACES.path, _TRACES.request([])).kind not in {"accepted", "rejected"}:
            return False
        self._sends_events = False
        fix = "none needed for spans; if it is to take events, enable /v1/logs there and restart the worker"
        log.warning("otlp events switched off", receiver=self._receiver, status=reply.status, fix=fix)
        return True

    def _retry_later(self, reply: Reply) -> None:
        """Wait before the next request; the reason is logged when it changes.

        Raises:
            _DeliveryEndedError: The worker was told to stop.
        """
        wait_s = max(self._backoff_s, min(_MAX_ASKED_S, retry_after_s(reply.headers) or 0.0))
        self._backoff_s = min(_MAX_BACKOFF_S, self._backoff_s * 2)
        if reply.reason != self._logged_reason:
            self._logged_reason = reply.reason
            said = {"reason": reply.reason, "meaning": reply.meaning, **({"fix": reply.fix} if reply.fix else {})}
            log.warning("otlp export retrying", receiver=self._receiver, seconds=round(wait_s, 1), **said)
        status = f"answers {reply.reason}: {reply.meaning}," if reply.status else "does not answer"
        self.report_blocked(f"receiver {status}")
        if self._wait(wait_s):
            raise _DeliveryEndedError

    def _acknowledge_delivered(self) -> None:
        if self._delivered:
            self.acknowledge(self._delivered)
            self._delivered.clear()

    def _wait(self, seconds: float) -> bool:
        """Wait, and keep the entries under delivery; True when the exporter was told to stop."""
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0 and not self.stopping.wait(min(left_s, _KEEP_EVERY_S)):
            self._keep()
        return self.stopping.is_set()

    def _keep(self) -> None:
        """Reset the idle time of the entries under delivery every few seconds, so that no worker claims them.

        Raises:
            _DeliveryEndedError: None of them is left: after a long pause of this process others have claimed them, or
                the outbox's cap has removed them.
        """
        if time.monotonic() < self._keep_at:
            return
        self._keep_at = time.monotonic() + _KEEP_EVERY_S
        try:
            ours = self.keep(self._delivering)
        except StoreError:
            # Without Redis no other worker can claim them either.
            return
        if ours == 0:
            log.warning("otlp delivery ended: taken over or cut off", entries=len(self._delivering))
            raise _DeliveryEndedError


def check_receiver(endpoint: str, proxy: str | None = None) -> Sequence[Finding]:
    """Post an export without spans, then one without events."""
    # Empty exports show address, TLS and key, and leave nothing in the receiver.
    began = time.monotonic()
    traces, logs = (address(f"{endpoint.rstrip('/')}/v1/{signal}") for signal in ("traces", "logs"))
    with closing(OtlpClient(endpoint, proxy=proxy)) as client:
        client.deadline_s = _CHECK_TIMEOUT_S
        finding = _exported(traces, client.post("/v1/traces", b""))
        if finding.result != "ok":
            return [finding]
        client.deadline_s = max(_LEAST_CHECK_S, began + _CHECK_TIMEOUT_S - time.monotonic())
        reply = client.post("/v1/logs", b"")
    if reply.status in _ABSENT:
        return [ok(_PART, f"{traces} takes spans; events are not sent, since {logs} answers {reply.reason}")]
    of_logs = _exported(logs, reply)
    return [finding if of_logs.result == "ok" else of_logs]


def _exported(where: str, reply: Reply) -> Finding:
    if reply.kind == "accepted":
        return ok(_PART, where)
    if isinstance(reply.error, TimeoutError | httpx.TimeoutException):
        fix = f"check whether a firewall is between, or it is overloaded; {_WAITS}"
        return broken(_PART, f"{where} does not answer in time", fix)
    if reply.error is not None:
        return broken(_PART, *cause_of(reply.error, where, "the receiver"))
    what = f"{where} answers {reply.reason}: {reply.meaning}"
    if reply.kind in ("busy", "failing"):
        return warning(_PART, what, f"{reply.fix}; {_WAITS}")
    return broken(_PART, what, reply.fix if reply.kind == "rejected" else f"{reply.fix}; {_WAITS}")
