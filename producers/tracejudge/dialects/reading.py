"""What one span says, whatever dialect it says it in."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from msgspec import Struct

from tracejudge.model import Document, JSONValue, Message, Usage


class Role(StrEnum):
    """What a span is in its trace; the value stands as the kind of the published span."""

    LLM = "llm"
    AGENT = "agent"
    CHAIN = "chain"
    """A workflow or a chain: a step made of steps."""
    RETRIEVER = "retriever"
    RERANKER = "reranker"
    TOOL = "tool"
    EMBEDDING = "embedding"
    JUDGE = "judge"
    """An evaluator or a guardrail: never judged, nor is what it does."""


class Call(Struct, frozen=True):
    """A call of a tool: asked for by a model, or carried out."""

    name: str
    arguments: JSONValue = None
    id: str | None = None
    result: JSONValue = None
    error: str | None = None


class Answered(Struct, frozen=True):
    """What a tool answered, as the next call of the model was told."""

    id: str | None
    result: JSONValue


class Asked(Struct, frozen=True):
    """What went in."""

    query: str | None = None
    raw: JSONValue = None
    """The input where no query could be told from it."""
    history: tuple[Message, ...] = ()
    calls: tuple[Call, ...] = ()
    """Calls of tools between the query and this span."""
    answers: tuple[Answered, ...] = ()

    def __bool__(self) -> bool:
        return self != Asked()


class Said(Struct, frozen=True):
    """What came out."""

    text: str | None = None
    raw: JSONValue = None
    """The output where no text could be told from it."""
    calls: tuple[Call, ...] = ()

    def __bool__(self) -> bool:
        return self != Said()


class Reading(Struct, frozen=True, kw_only=True):
    """What one dialect understood of a span; what it does not say is None or empty."""

    role: Role | None = None
    asked: Asked = Asked()
    said: Said = Said()
    documents: tuple[Document, ...] = ()
    reranked: tuple[Document, ...] = ()
    """What a reranker was given."""
    tool: Call | None = None
    model: str | None = None
    provider: str | None = None
    response_id: str | None = None
    session_id: str | None = None
    user_id: str | None = None
    usage: Usage | None = None
    error: str | None = None


def merged(readings: Iterable[Reading]) -> Reading:
    """Take each part from the first dialect that has it, so that what was written twice counts once."""
    parts: dict[str, Any] = {}
    for reading in readings:
        for name in Reading.__struct_fields__:
            value = getattr(reading, name)
            if value and name not in parts:
                parts[name] = value
        if reading.role is Role.JUDGE:
            parts["role"] = Role.JUDGE
    return Reading(**parts)
