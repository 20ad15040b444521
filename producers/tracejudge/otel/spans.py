"""From a span of the OpenTelemetry SDK to one the dialects read."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.trace import SpanContext, Status, StatusCode

from tracejudge.dialects import RawEvent, RawSpan

_NANOSECONDS: Final = 1e9
_MAX_EVENTS: Final = 512
_SHELL_BYTES: Final = 800  # the span itself, its ids and times
_VALUE_BYTES: Final = 120  # a key and a value beside their letters


class Ids(NamedTuple):
    """A span context in lower-case hex."""

    trace_id: str
    span_id: str


def ids_of(context: SpanContext | None) -> Ids | None:
    """Write the ids of a span context; None when it has none."""
    if context is None or not context.is_valid:
        return None
    return Ids(f"{context.trace_id:032x}", f"{context.span_id:016x}")


def raw_span(span: ReadableSpan) -> RawSpan | None:
    """Copy what a span holds; None when it has no valid ids."""
    ids = ids_of(span.context)
    if ids is None:
        return None
    parent = span.parent
    scope = span.instrumentation_scope
    return RawSpan(
        trace_id=ids.trace_id,
        span_id=ids.span_id,
        name=span.name,
        parent_id=None if parent is None else f"{parent.span_id:016x}",
        is_local_root=parent is None or parent.is_remote,
        kind=span.kind.name.lower(),
        started_at=_seconds(span.start_time),
        ended_at=_seconds(span.end_time),
        status=_status(span.status),
        description=span.status.description,
        attributes=dict(span.attributes or {}),
        events=tuple(_raw_event(event) for event in span.events[:_MAX_EVENTS]),
        scope=None if scope is None else scope.name,
    )


def weight_bytes(span: RawSpan) -> int:
    """Estimate the memory a span holds."""
    return _SHELL_BYTES + _weight(span.attributes) + sum(_weight(event.attributes) for event in span.events)


def _raw_event(event: Event) -> RawEvent:
    return RawEvent(event.name, dict(event.attributes or {}))


def _seconds(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / _NANOSECONDS


def _status(status: Status) -> str | None:
    return {StatusCode.OK: "ok", StatusCode.ERROR: "error"}.get(status.status_code)


def _weight(attributes: Mapping[str, object]) -> int:
    return sum(_VALUE_BYTES + _letters(value) for value in attributes.values())


def _letters(value: object) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list | tuple):
        return sum(_VALUE_BYTES + _letters(item) for item in value)
    if isinstance(value, Mapping):
        return _weight(value)
    return 0
