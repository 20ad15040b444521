"""The trace of one production LLM call, as it travels: wire format, version 1.

A trace is one JSON object in UTF-8. Only ``trace_id``, ``service`` and ``output`` are required; what is
unknown is left out when a trace is read, and is never an error.
"""

from typing import Annotated

from msgspec import Meta, Struct

__all__ = [
    "Document",
    "Feedback",
    "LateFeedback",
    "Message",
    "ProducerReport",
    "Span",
    "ToolCall",
    "Trace",
    "Usage",
]

FeedbackScore = Annotated[float, Meta(ge=-1, le=1)]

JSONValue = object
"""Anything JSON can hold; kept as it came and never interpreted."""


class Message(Struct, frozen=True, omit_defaults=True):
    """One message of the conversation before the query; without content where it only calls tools."""

    role: str
    content: str | None = None
    name: str | None = None


class Document(Struct, frozen=True, omit_defaults=True):
    """One retrieved document; documents stand in rank order."""

    text: str
    id: str | None = None
    score: float | None = None


class ToolCall(Struct, frozen=True, omit_defaults=True):
    """One call of a tool that the model asked for."""

    name: str
    arguments: JSONValue = None
    result: JSONValue = None
    error: str | None = None


class Span(Struct, frozen=True, omit_defaults=True):
    """One step of the whole trace; times are seconds since the epoch."""

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


class Usage(Struct, frozen=True, omit_defaults=True):
    """Tokens the call used."""

    input_tokens: int = 0
    output_tokens: int = 0


class Feedback(Struct, frozen=True, omit_defaults=True):
    """What the end user said, from -1 (bad) to 1 (good)."""

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
    spans: list[Span] | None = None
    usage: Usage | None = None
    error: str | None = None
    feedback: Feedback | None = None
    tags: dict[str, str] | None = None


class LateFeedback(Struct, frozen=True, omit_defaults=True):
    """Feedback that comes after its trace was published (entry kind ``f``)."""

    trace_id: str
    score: FeedbackScore
    comment: str | None = None


class ProducerReport(Struct, frozen=True):
    """A producer's own totals since its start (entry kind ``r``); never differences."""

    producer: str
    seq: int
    service: str
    published: int
    accepted: int
    dropped: dict[str, int]
