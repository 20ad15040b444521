"""The wire format, version 1: traces, late feedback and producer reports.

A trace is one JSON object in UTF-8. Only ``trace_id``, ``service`` and ``output`` are required; readers ignore
unknown fields.
"""

import re
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any, Final, TypeVar

from msgspec import Meta, Struct
from msgspec.structs import replace

TIMES = ("started_at", "ended_at")
_EARLIEST_S, _LATEST_S = 946_684_800.0, 4_102_444_800.0  # the years 2000 and 2100
FeedbackScore = Annotated[float, Meta(ge=-1, le=1)]


class TextEnum(str, Enum):
    """A closed set of texts; the `StrEnum` that Python 3.10 lacks."""

    __str__ = str.__str__


JSONValue = object  # Any JSON value, stored as it is and never interpreted.


class Message(Struct, frozen=True, omit_defaults=True):
    """One message of the conversation before the query; without content where it only calls tools."""

    role: str
    content: str | None = None
    name: str | None = None


class Document(Struct, frozen=True, omit_defaults=True):
    """One retrieved document, with the file or address it comes from; documents are listed in rank order."""

    text: str
    id: str | None = None
    score: float | None = None
    source: str | None = None


class ToolCall(Struct, frozen=True, omit_defaults=True):
    """One tool call of the model."""

    name: str
    arguments: JSONValue = None
    result: JSONValue = None
    error: str | None = None


class Span(Struct, frozen=True, omit_defaults=True):
    """One step of the trace; times are seconds since the epoch."""

    span_id: str
    name: str
    parent_id: str | None = None
    kind: str | None = None
    started_at: float | None = None
    ended_at: float | None = None
    status: str | None = None
    inputs: JSONValue = None
    outputs: JSONValue = None
    attributes: dict[str, JSONValue] | None = None


class Tool(Struct, frozen=True, omit_defaults=True):
    """A tool that could be called; ``parameters`` is the JSON Schema of its arguments."""

    name: str
    description: str | None = None
    parameters: JSONValue = None


class Usage(Struct, frozen=True, omit_defaults=True):
    """Tokens the call used."""

    input_tokens: int = 0
    output_tokens: int = 0


class Feedback(Struct, frozen=True, omit_defaults=True):
    """The end user's score, from -1 (bad) to 1 (good), and comment."""

    score: FeedbackScore
    comment: str | None = None


class Trace(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One production LLM call, or one request of an agent. Times are seconds since the epoch."""

    trace_id: str
    service: str
    output: str
    id: str | None = None
    span_id: str | None = None
    environment: str | None = None
    release: str | None = None
    name: str | None = None
    session_id: str | None = None
    user_id: str | None = None
    response_id: str | None = None
    started_at: float | None = None
    ended_at: float | None = None
    provider: str | None = None
    model: str | None = None
    input: str | None = None
    messages: list[Message] | None = None
    context: list[Document | str] | None = None
    expected_response: str | None = None
    expected_facts: list[str] | None = None
    guidelines: list[str] | None = None
    tool_calls: list[ToolCall] | None = None
    tools: list[Tool] | None = None
    expected_tools: list[ToolCall] | None = None
    spans: list[Span] | None = None
    usage: Usage | None = None
    error: str | None = None
    feedback: Feedback | None = None
    tags: dict[str, str] | None = None


class LateFeedback(Struct, frozen=True, omit_defaults=True):
    """Feedback for a trace published before (entry kind ``f``)."""

    trace_id: str
    score: FeedbackScore
    comment: str | None = None


class ProducerReport(Struct, frozen=True):
    """A producer's totals since its start, not differences (entry kind ``r``)."""

    producer: str
    seq: int
    service: str
    published: int
    accepted: int
    dropped: dict[str, int]


_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SEPARATORS: Final = re.compile(r"[-. ]")
_MAX_NAME_CHARS: Final = 64


def snake_case(name: str) -> str:
    """Return a name in lower case with underscores."""
    if len(name) > _MAX_NAME_CHARS or (name.islower() and name.isidentifier()):
        return name
    return _SEPARATORS.sub("_", _CAMEL.sub("_", name)).lower()


def snake_case_keys(record: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Return a record with its names in lower case with underscores too; those it has in this form come first."""
    renamed = {short: name for name in record if type(name) is str and (short := snake_case(name)) not in record}
    return {**record, **{short: record[name] for short, name in renamed.items()}} if renamed else record


_MAX_NANOSECONDS = 1e19


def seconds_of(value: float) -> float | None:
    """Return a time since the epoch in seconds; None unless it is between the years 2000 and 2100."""
    # Milliseconds, microseconds and nanoseconds are known by their magnitude: none of them is a plausible other unit.
    if _EARLIEST_S <= value < _LATEST_S:
        return value
    # The comparison comes first, as no float holds any integer.
    seconds = [value / unit for unit in (1e3, 1e6, 1e9)] if 0 < value < _MAX_NANOSECONDS else []
    return next((second for second in seconds if _EARLIEST_S <= second < _LATEST_S), None)


# By id: to look up a type itself runs the `__hash__` of its metaclass, which may be the host's.
_TEXT_ONLY = frozenset({id(str)})
_TEXTS = frozenset(map(id, (str, type(None))))
_TIMES = frozenset(map(id, (float, type(None))))
_SCALARS = frozenset(map(id, (str, int, float, bool)))
_MAX_INTEGER = 2**63


def is_wire_span(span: Span, max_id_chars: int) -> bool:
    """Return whether a span can be sent as it is, as OpenTelemetry's can: all values have the types of the wire."""
    # Types first: values of the host may run code when they are compared.
    texts = span.span_id, span.name, span.parent_id, span.kind, span.status, span.inputs, span.outputs
    if not (_TEXTS.issuperset(map(id, map(type, texts))) and span.span_id and span.name):
        return False
    times = span.started_at, span.ended_at
    attributes = {"": ""} if span.attributes is None else span.attributes
    if not (_TIMES.issuperset(map(id, map(type, times))) and type(attributes) is dict and attributes):
        return False
    kinds = set(map(id, map(type, attributes.values())))
    parent_id, (started_at, ended_at) = span.parent_id, times
    return (
        _TEXT_ONLY.issuperset(map(id, map(type, attributes)))
        and kinds <= _SCALARS
        and (
            id(int) not in kinds
            or all(abs(value) < _MAX_INTEGER for value in attributes.values() if type(value) is int)
        )
        and len(span.span_id) <= max_id_chars
        and (parent_id is None or 0 < len(parent_id) <= max_id_chars)
        and (started_at is None or _EARLIEST_S <= started_at < _LATEST_S)
        and (ended_at is None or _EARLIEST_S <= ended_at < _LATEST_S)
    )


_Timed = TypeVar("_Timed", Trace, Span)


def with_usable_times(record: _Timed) -> tuple[_Timed, tuple[str, ...]]:
    """Return a trace or span with its times in seconds, and the names of the times that are left out of it."""
    started, ended = record.started_at, record.ended_at
    if (started is None or _EARLIEST_S <= started < _LATEST_S) and (ended is None or _EARLIEST_S <= ended < _LATEST_S):
        return record, ()
    times = {
        name: seconds_of(value) for name, value in (("started_at", started), ("ended_at", ended)) if value is not None
    }
    return replace(record, **times), tuple(name for name, seconds in times.items() if seconds is None)
