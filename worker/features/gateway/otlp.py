"""OTLP in protobuf and JSON: the spans and log events of a request by trace, and later as the SDK's `RawSpan`.

On the path of a request nothing is built for an attribute: spans are grouped by trace id and kept as they came.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, NamedTuple, cast

import msgspec
from google.protobuf.message import DecodeError
from msgspec import UNSET, Raw, Struct, UnsetType
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tracejudge.dialects import RawEvent, RawSpan
from tracejudge.dialects.unread import Unread
from tracejudge.dialects.values import structure_of
from worker.core.selection.lenient import NoTraceError, decode_repaired
from worker.features.gateway.admission import (
    EXPLAINED,
    Form,
    Instrumentations,
    Loss,
    RefusedError,
    check_values,
    too_many_values,
)

# Protobuf: numbers of fields in ResourceSpans and ScopeSpans, which those of logs share, and wire types.
_SCOPES: Final = 2
_ITEMS: Final = 2
_LENGTH: Final = 2
_FIXED: Final = {1: 8, 5: 4}
_CONTINUED: Final = 0x80
_MAX_SHIFT: Final = 63
_REMOTE: Final = 0x300  # of a span's flags: it is known that its parent is remote
_MAX_DEPTH: Final = 20
_MAX_NESTED: Final = 100  # as protobuf's own parser
_KINDS: Final = dict(enumerate(("internal", "internal", "server", "client", "producer", "consumer")))
_STATUS: Final = {1: "ok", "1": "ok", 2: "error", "2": "error"}  # a number may be a text in JSON
_EVENT_NAME: Final = "event.name"
_ENVIRONMENTS: Final = ("deployment.environment.name", "deployment.environment")


class Source(NamedTuple):
    """The attributes of a resource for the spans below it."""

    service: str
    environment: str | None
    release: str | None


class Part(Struct, array_like=True):
    """Spans or log events of one trace from one source and scope, as they came."""

    form: str
    is_log: bool
    source: Source
    scope: str
    items: list[bytes]


class Group:
    """The parts of one trace in one request."""

    __slots__ = ("count", "has_root", "parts")

    def __init__(self) -> None:
        self.parts: dict[tuple[Source, str], Part] = {}
        self.has_root = False
        self.count = 0


class Request:
    """The items of one request by trace, and the number of those that cannot be used, by reason."""

    def __init__(self, instrumentations: Instrumentations | None = None, sender: str = "") -> None:
        self.traces: dict[str, Group] = {}
        self.instrumentations = instrumentations
        self._sender = sender
        self.unread: dict[tuple[str, Hashable], Unread] = {}  # Of each instrumentation and sender the first one.
        self.count = 0
        self.ignored = 0  # Log records that are no part of a conversation with a model; they are accepted and not kept.
        self.dropped: dict[str, Loss] = {}

    def drop(self, reason: str, names: Iterable[str] = (), count: int = 1) -> None:
        """Count items that cannot be used; ``names`` are those of attributes of the first one."""
        if count:
            loss = self.dropped.get(reason)
            loss = loss or Loss(reason, 0, names=tuple(names))
            self.dropped[reason] = msgspec.structs.replace(loss, count=loss.count + count)

    def add(
        self,
        part: tuple[str, bool, Source, str],
        item: bytes,
        ids: tuple[bytes, bytes],
        event: str,
        *,
        is_root: bool,
        attributes: "Iterable[KeyValue | _Attribute]" = (),
    ) -> None:
        """Add an item to its trace, or count why it is not used.

        ``part`` is form, kind, source and scope; ``ids`` are trace id and span id, ``event`` that of a log record.
        """
        if part[1] and not event.startswith("gen_ai."):
            self.ignored += 1
            return
        if (len(ids[0]), len(ids[1])) != (16, 8):
            self.drop("no_ids", (pair.key for pair in attributes))
            return
        trace_id = ids[0].hex()
        group = self.traces.get(trace_id)
        if group is None:
            group = self.traces[trace_id] = Group()
        key = part[2], part[3]
        own = group.parts.get(key)
        if own is None:
            own = group.parts[key] = Part(*part, items=[])
        told, subject = self.instrumentations, (part[3], (self._sender, part[2].service))
        if not part[1] and told is not None and told.is_open(*subject) and subject not in self.unread:
            # Kinds are short texts; content is not read here.
            texts = {pair.key: ((pair.value and pair.value.string_value) or "1")[:100] for pair in attributes}
            if (kind := told.examine(part[3], texts)) is not None:
                self.unread[subject] = kind
        own.items.append(item)
        group.has_root |= is_root
        group.count += 1
        self.count += 1


def read_request(
    body: bytes, form: Form, *, is_log: bool, service: str | None, told: Instrumentations | None = None, by: str = ""
) -> Request:
    """Group the items of a request by trace, or raise ``RefusedError``; ``service`` replaces the resource's."""
    request = Request(told, by)
    try:
        if form is Form.PROTOBUF:
            _read_protobuf(request, body, service, is_log=is_log)
        else:
            check_values(body, 1_000_000)
            _read_json(request, body, service, is_log=is_log)
    except (DecodeError, NoTraceError, RecursionError):
        message = f"the body is no valid OTLP in {form.value}"
        if form is Form.JSON:
            message += "; send plain JSON to /v1/tracejudge"
        raise RefusedError(HTTPStatus.BAD_REQUEST, "malformed", message) from None
    return request


def reply_content(form: Form, request: Request, *, is_log: bool) -> bytes:
    """Build the content of a reply, with the rejected items if there are any."""
    rejected = sum(loss.count for loss in request.dropped.values())
    parts = [f"{reason} {loss.count}: {EXPLAINED[reason]}" for reason, loss in sorted(request.dropped.items())]
    if request.instrumentations is not None and request.unread:
        parts.append(request.instrumentations.message(request.unread))
    words = "; ".join(filter(None, parts))
    name = "rejected_log_records" if is_log else "rejected_spans"
    if form is Form.PROTOBUF:
        reply = ExportLogsServiceResponse() if is_log else ExportTraceServiceResponse()
        if words:
            setattr(reply.partial_success, name, rejected)
            reply.partial_success.error_message = words
        return reply.SerializeToString()
    camel = "rejectedLogRecords" if is_log else "rejectedSpans"
    # 64-bit integers are strings in OTLP's JSON.
    return msgspec.json.encode({"partialSuccess": {camel: str(rejected), "errorMessage": words}} if words else {})


def _source(attributes: Mapping[str, object], service: str | None) -> Source | None:
    def text(*names: str) -> str | None:
        return next((value[:200] for name in names if isinstance(value := attributes.get(name), str) and value), None)

    named = service or text("service.name")
    return None if named is None else Source(named, text(*_ENVIRONMENTS), text("service.version"))


def _read_protobuf(request: Request, body: bytes, service: str | None, *, is_log: bool) -> None:
    """Read one item after the other: a whole body of empty messages, parsed, takes a hundred times its size."""
    # At most so many resources with their attributes, scopes and items in one request.
    fields = _Splitter(100_000).fields
    for number, of_resource in fields(memoryview(body)):
        if number != 1:
            continue
        members = fields(of_resource)
        resource = b"".join(content for number, content in members if number == 1)
        fields(memoryview(resource))
        attributes = _attributes(_parsed(Resource, resource)[0].attributes)
        source = _source(attributes, service)
        for of_scope in (content for number, content in members if number == _SCOPES):
            parts = fields(of_scope)
            items = [content for number, content in parts if number == _ITEMS]
            if source is None:
                request.drop("no_service", attributes, len(items))
                continue
            scope, _ = _parsed(InstrumentationScope, b"".join(content for number, content in parts if number == 1))
            part = ("p", is_log, source, scope.name)
            for item in items:
                if len(item) > 1024 * 1024:
                    fields(item)
                # Spans and log records have the same names of ids, which their types do not express.
                read: Any
                try:
                    read, content = _parsed(LogRecord if is_log else Span, bytes(item))
                except DecodeError:
                    request.drop("unreadable")
                    continue
                event = (read.event_name or _event_name(read.attributes)) if is_log else ""
                is_root = not is_log and (not read.parent_span_id or read.flags & _REMOTE == _REMOTE)
                both, pairs = (read.trace_id, read.span_id), read.attributes
                request.add(part, content, both, event, is_root=is_root, attributes=pairs)


def _parsed(kind: type[Any], content: bytes) -> tuple[Any, bytes]:
    """Parse a message; texts that are no UTF-8 are repaired first, in the bytes that are returned beside it."""
    try:
        return kind.FromString(content), content
    except DecodeError:
        content = _repaired(memoryview(content), kind.DESCRIPTOR)
        return kind.FromString(content), content


def _repaired(data: memoryview, descriptor: Any, depth: int = 0) -> bytes:
    copy = bytearray()
    at = 0
    if depth > _MAX_NESTED:
        raise DecodeError("too deep")
    try:
        while at < len(data):
            start = at
            tag, at = _varint(data, at)
            field = descriptor.fields_by_number.get(tag >> 3)
            if tag & 7 != _LENGTH:
                at = at + _FIXED[tag & 7] if tag & 7 in _FIXED else _varint(data, at)[1]
                copy += data[start:at]
                continue
            head = data[start:at]
            size, at = _varint(data, at)
            content, at = data[at : at + size], at + size
            if field is not None and field.type == field.TYPE_STRING:
                content = memoryview(bytes(content).decode(errors="replace").encode())
            elif field is not None and field.type == field.TYPE_MESSAGE:
                content = memoryview(_repaired(content, field.message_type, depth + 1))
            copy += bytes(head) + _written_varint(len(content)) + content
    except IndexError:
        raise DecodeError("cut off") from None
    if at != len(data):
        raise DecodeError("cut off")
    return bytes(copy)


def _written_varint(number: int) -> bytes:
    digits = bytearray()
    while number >= _CONTINUED:
        digits.append(number & 0x7F | _CONTINUED)
        number >>= 7
    digits.append(number)
    return bytes(digits)


class _Splitter:
    """Splits the messages of one request, as many fields as it may have."""

    def __init__(self, most: int) -> None:
        self._left = most

    def fields(self, data: memoryview) -> list[tuple[int, memoryview]]:
        """Return the fields that have a length, by number; ``RefusedError`` if the request has too many fields."""
        fields: list[tuple[int, memoryview]] = []
        at, end, skipped = 0, len(data), 0
        try:
            while at < end:
                tag, at = _varint(data, at)
                kind, number = tag & 7, tag >> 3
                if kind == _LENGTH and number:
                    size, at = _varint(data, at)
                    fields.append((number, data[at : at + size]))
                    at += size
                elif kind in _FIXED and number:
                    skipped, at = skipped + 1, at + _FIXED[kind]
                elif kind == 0 and number:
                    skipped, at = skipped + 1, _varint(data, at)[1]
                else:
                    raise DecodeError("unknown field")
                if len(fields) + skipped > self._left:
                    raise too_many_values()
        except IndexError:
            raise DecodeError("cut off") from None
        if at != end:
            raise DecodeError("cut off")
        self._left -= len(fields)
        return fields


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    number = data[at]
    at += 1
    if number < _CONTINUED:
        return number, at
    number, shift = number - _CONTINUED, 7
    while (digit := data[at]) >= _CONTINUED:
        number, shift, at = number | (digit - _CONTINUED) << shift, shift + 7, at + 1
        if shift > _MAX_SHIFT:
            raise DecodeError("varint too long")
    return number | digit << shift, at + 1


def _event_name(attributes: "Iterable[KeyValue | _Attribute]") -> str:
    """Return the name of an event that has it among its attributes, as before OTLP 1.5."""
    return next((pair.value.string_value or "" for pair in attributes if pair.key == _EVENT_NAME and pair.value), "")


class _Value(Struct, rename="camel"):
    string_value: str | None = None
    bool_value: bool | None = None
    int_value: int | str | None = None
    double_value: float | str | None = None
    array_value: dict[str, Any] | None = None
    kvlist_value: dict[str, Any] | None = None
    bytes_value: str | None = None


class _Attribute(Struct):
    key: str = ""
    value: _Value | None = None


class _Resource(Struct):
    attributes: list[_Attribute] = []


class _Scope(Struct):
    name: str = ""


class _ScopeItems(Struct, rename="camel"):
    scope: _Scope | None = None
    spans: list[Raw] = []
    log_records: list[Raw] = []


class _ResourceItems(Struct, rename="camel"):
    resource: _Resource | None = None
    scope_spans: list[_ScopeItems] = []
    scope_logs: list[_ScopeItems] = []


class _Items(Struct, rename="camel"):
    resource_spans: list[_ResourceItems] | UnsetType = UNSET
    resource_logs: list[_ResourceItems] | UnsetType = UNSET


class _Ids(Struct, rename="camel"):
    """The parts of a span or log record that are read while its request waits."""

    trace_id: str = ""
    span_id: str = ""
    parent_span_id: str | None = None
    flags: int = 0
    event_name: str = ""
    attributes: Raw = Raw(b"[]")


_items_decoder = msgspec.json.Decoder(_Items)
_ids_decoder = msgspec.json.Decoder(_Ids, strict=False)  # Numbers may be texts.
_attributes_decoder = msgspec.json.Decoder(list[_Attribute])


def _decoded(raw: bytes | Raw, decoder: msgspec.json.Decoder[Any]) -> Any:
    """Decode JSON; in the second attempt without what is no UTF-8, and without ``null``, the absence of a field."""
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        plain = _without_null(decode_repaired(raw))
    try:
        return decoder.decode(msgspec.json.encode(plain))
    except (msgspec.DecodeError, RecursionError):
        raise NoTraceError("wrong_type") from None


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_null(item) for key, item in value.items() if item is not None}
    return [_without_null(item) for item in value if item is not None] if isinstance(value, list) else value


def _resources(body: bytes, *, is_log: bool) -> Sequence[_ResourceItems]:
    """Return the resources of a request in JSON; ``RefusedError`` if it is of another path: a 200 would lose it."""
    items: _Items = _decoded(body, _items_decoder)
    resources, others = items.resource_spans, items.resource_logs
    if is_log:
        resources, others = others, resources
    if resources is not UNSET:
        return resources
    if others is UNSET and not _without_null(decode_repaired(body)):
        return ()
    path = "/v1/tracejudge" if others is UNSET else "/v1/traces" if is_log else "/v1/logs"
    kind = "plain JSON" if others is UNSET else "spans" if is_log else "log records"
    name = "resourceLogs" if is_log else "resourceSpans"
    raise RefusedError(HTTPStatus.BAD_REQUEST, "malformed", f"the body has no {name}; send {kind} to {path}")


def _read_json(request: Request, body: bytes, service: str | None, *, is_log: bool) -> None:
    for resource in _resources(body, is_log=is_log):
        attributes = _json_attributes(resource.resource.attributes if resource.resource else ())
        source = _source(attributes, service)
        for scope in resource.scope_logs if is_log else resource.scope_spans:
            raws = [raw for raw in (scope.log_records if is_log else scope.spans) if bytes(raw) != b"null"]
            if source is None:
                request.drop("no_service", attributes, len(raws))
                continue
            part = ("j", is_log, source, scope.scope.name if scope.scope else "")
            for raw in raws:
                try:
                    ids: _Ids = _decoded(raw, _ids_decoder)
                    both = bytes.fromhex(ids.trace_id), bytes.fromhex(ids.span_id)
                except (NoTraceError, ValueError, RecursionError):
                    request.drop("no_ids")
                    continue
                name = ids.event_name or (_event_name(_pairs(ids.attributes)) if is_log else "")
                is_root = not is_log and (not ids.parent_span_id or ids.flags & _REMOTE == _REMOTE)
                request.add(part, bytes(raw), both, name, is_root=is_root, attributes=_pairs(ids.attributes))


def _pairs(raw: Raw) -> Iterator[_Attribute]:
    # What is no list of attributes is counted as unreadable afterwards.
    with contextlib.suppress(NoTraceError, ValueError, RecursionError):
        yield from _decoded(raw, _attributes_decoder)


# ---- after the request: items as the SDK's types ----


class Decoded(NamedTuple):
    """The spans of a trace with their sources, and the log events by the span that they belong to."""

    spans: list[tuple[Source, RawSpan]]
    events: list[tuple[str, RawEvent]]
    unreadable: int


def decode_parts(trace_id: str, parts: Iterable[Part]) -> Decoded:
    """Read all items of one trace; a span that arrived twice is one."""
    spans: dict[str, tuple[Source, RawSpan]] = {}
    events: list[tuple[str, RawEvent]] = []
    seen: Counter[bytes] = Counter()
    unreadable = 0
    for part in parts:
        source = Source(*part.source)
        own: Counter[bytes] = Counter()
        for item in part.items:
            try:
                if part.is_log:
                    own[item] += 1
                    # A client that got no reply sends a request again. Within one request, equal log records are a
                    # text that was said twice in the same millisecond.
                    if own[item] > seen[item]:
                        seen[item] = own[item]
                        events.append(_log_event(part.form, item))
                else:
                    span = _span(part.form, trace_id, part.scope, item)
                    spans[span.span_id] = (source, span)
            except (DecodeError, NoTraceError, ValueError, TypeError, RecursionError):
                unreadable += 1
    return Decoded(list(spans.values()), events, unreadable)


def _value(value: AnyValue, depth: int = 0) -> object:
    kind = value.WhichOneof("value")
    if kind is None or depth > _MAX_DEPTH:
        return None
    if kind == "array_value":
        return [_value(item, depth + 1) for item in value.array_value.values]
    if kind == "kvlist_value":
        return {attribute.key: _value(attribute.value, depth + 1) for attribute in value.kvlist_value.values}
    return None if kind == "bytes_value" else getattr(value, kind)


def _attributes(attributes: Iterable[KeyValue]) -> dict[str, object]:
    # Most values are texts that are not empty, and asking for the kind costs more than reading one.
    return {attribute.key: (value := attribute.value).string_value or _value(value) for attribute in attributes}


def _span(form: str, trace_id: str, scope: str, item: bytes) -> RawSpan:
    span: Any
    if form == "p":
        span, read = Span.FromString(item), cast("Callable[[Any], dict[str, object]]", _attributes)
        span_id, parent, status = span.span_id.hex(), span.parent_span_id.hex(), span.status
    else:
        span, read = _decoded(item, _span_decoder), _json_attributes
        span_id, parent = span.span_id.lower(), (span.parent_span_id or "").lower()
        status = span.status or _JsonStatus()
    return RawSpan(
        trace_id=trace_id,
        span_id=span_id,
        name=span.name,
        parent_id=parent or None,
        is_local_root=not parent or span.flags & _REMOTE == _REMOTE,
        kind=_KINDS.get(span.kind, "internal"),
        started_at=_seconds(span.start_time_unix_nano),
        ended_at=_seconds(span.end_time_unix_nano),
        status=_STATUS.get(status.code),
        description=status.message or None,
        attributes=read(span.attributes),
        events=tuple(RawEvent(event.name, read(event.attributes)) for event in span.events[:512]),
        scope=scope or None,
    )


def _log_event(form: str, item: bytes) -> tuple[str, RawEvent]:
    """Read a log event and the id of its span."""
    if form == "p":
        message = LogRecord.FromString(item)
        span_id, name = message.span_id.hex(), message.event_name
        attributes, body = _attributes(message.attributes), _value(message.body)
    else:
        record: _JsonLog = _decoded(item, _log_decoder)
        span_id, name = record.span_id.lower(), record.event_name
        attributes, body = _json_attributes(record.attributes), _json_value(record.body)
    # The conversation is in the body of the events of semantic conventions 1.30, some write it as JSON; and in the
    # attributes since.
    body = structure_of(body)
    content = {**attributes, **body} if isinstance(body, dict) else attributes
    return span_id, RawEvent(name or str(attributes.get(_EVENT_NAME)), content)


def _seconds(nanoseconds: int | str) -> float | None:
    number = int(nanoseconds or 0)
    return number / 1e9 if number > 0 else None


class _JsonStatus(Struct):
    code: int | str = 0
    message: str = ""


class _JsonEvent(Struct):
    name: str = ""
    attributes: list[_Attribute] = []


class _JsonSpan(Struct, rename="camel"):
    span_id: str
    name: str = ""
    parent_span_id: str | None = None
    flags: int = 0
    kind: int | str = 0
    start_time_unix_nano: int | str = 0
    end_time_unix_nano: int | str = 0
    status: _JsonStatus | None = None
    attributes: list[_Attribute] = []
    events: list[_JsonEvent] = []


class _JsonLog(Struct, rename="camel"):
    span_id: str
    event_name: str = ""
    attributes: list[_Attribute] = []
    body: _Value | None = None


_span_decoder = msgspec.json.Decoder(_JsonSpan, strict=False)
_log_decoder = msgspec.json.Decoder(_JsonLog)


def _json_value(value: _Value | None, depth: int = 0) -> object:
    if value is None or depth > _MAX_DEPTH:
        return None
    if value.int_value is not None:
        return int(value.int_value)
    if value.double_value is not None:
        return float(value.double_value)
    if value.array_value is not None:
        inner = msgspec.convert(_without_null(value.array_value.get("values") or []), list[_Value])
        return [_json_value(item, depth + 1) for item in inner]
    if value.kvlist_value is not None:
        pairs = msgspec.convert(_without_null(value.kvlist_value.get("values") or []), list[_Attribute])
        return _json_attributes(pairs, depth + 1)
    return value.string_value if value.bool_value is None else value.bool_value


def _json_attributes(attributes: Iterable[_Attribute], depth: int = 0) -> dict[str, object]:
    return {attribute.key: _json_value(attribute.value, depth) for attribute in attributes}
