"""The contents of one span in a form that all dialects share."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from tracejudge.dialects import names
from tracejudge.dialects.values import first_count, first_text, literal_of, mapping_of, plain, structure_of, text_of
from tracejudge.model import Document, JSONValue, Message, TextEnum, Usage


class Role(TextEnum):
    """Role of a span in its trace; the value is the kind of the published span."""

    LLM = "llm"
    AGENT = "agent"
    CHAIN = "chain"  # A workflow or chain: a step made of steps.
    RETRIEVER = "retriever"
    RERANKER = "reranker"
    TOOL = "tool"
    EMBEDDING = "embedding"
    JUDGE = "judge"  # An evaluator or guardrail: never judged, nor are the spans below it.


class Call(Struct, frozen=True):
    """A tool call, requested by a model or executed."""

    name: str
    arguments: JSONValue = None
    id: str | None = None
    result: JSONValue = None
    error: str | None = None


class ToolResult(Struct, frozen=True):
    """The result of a tool, as passed to the next call of the model."""

    id: str | None
    result: JSONValue


class SpanInput(Struct, frozen=True):
    """The input of a span."""

    query: str | None = None
    raw: JSONValue = None  # The input as it is, if it contains no recognisable query.
    history: tuple[Message, ...] = ()
    calls: tuple[Call, ...] = ()  # Tool calls between the query and this span.
    results: tuple[ToolResult, ...] = ()

    def __bool__(self) -> bool:
        return self != SpanInput()


class SpanOutput(Struct, frozen=True):
    """The output of a span."""

    text: str | None = None
    raw: JSONValue = None  # The output as it is, if it contains no recognisable text.
    calls: tuple[Call, ...] = ()

    def __bool__(self) -> bool:
        return self != SpanOutput()


class Reading(Struct, frozen=True, kw_only=True):
    """The parts of a span that a dialect recognised; the others are None or empty."""

    role: Role | None = None
    input: SpanInput = SpanInput()
    output: SpanOutput = SpanOutput()
    documents: tuple[Document, ...] = ()
    reranked: tuple[Document, ...] = ()  # Documents given to a reranker.
    tool: Call | None = None
    model: str | None = None
    provider: str | None = None
    response_id: str | None = None
    session_id: str | None = None
    user_id: str | None = None
    usage: Usage | None = None
    error: str | None = None


def merged(readings: Iterable[Reading]) -> Reading:
    """Combine readings: each part comes from the first that has it; a judge in any of them is a judge."""
    parts: dict[str, Any] = {}
    for reading in readings:
        for name in Reading.__struct_fields__:
            value = getattr(reading, name)
            if value and name not in parts:
                parts[name] = value
        if reading.role is Role.JUDGE:
            parts["role"] = Role.JUDGE
    return Reading(**parts)


class RawEvent(Struct, frozen=True):
    """An event of a span."""

    name: str
    attributes: Mapping[str, object]


class RawSpan(Struct, frozen=True, kw_only=True):
    """A span that has ended. Ids are lower-case hex, times seconds since the epoch."""

    trace_id: str
    span_id: str
    name: str = ""
    parent_id: str | None = None
    is_local_root: bool = False  # Whether it has no parent in this process.
    kind: str | None = None
    started_at: float | None = None
    ended_at: float | None = None
    status: str | None = None  # `ok`, `error` or None.
    description: str | None = None  # Description of an error status.
    attributes: Mapping[str, object] = {}
    events: tuple[RawEvent, ...] = ()
    scope: str | None = None  # Name of the instrumentation.

    @property
    def is_request(self) -> bool:
        """Whether it answers a request, so that it is a root also where its service calls itself."""
        return self.kind in {"server", "consumer"}

    def events_named(self, name: str) -> Iterator[Mapping[str, object]]:
        """Yield the attributes of the events of a name, in order."""
        return (event.attributes for event in self.events if event.name == name)


def common(span: RawSpan) -> Reading:
    """Read the parts that belong to no dialect: session, user and error."""
    attributes = span.attributes
    table = attributes.get(names.METADATA) or literal_of(attributes.get(names.LITELLM_METADATA))
    metadata = mapping_of(structure_of(table)) or {}
    return Reading(
        session_id=first_text(attributes, names.SESSION_IDS) or first_text(metadata, names.METADATA_SESSION_IDS),
        user_id=first_text(attributes, names.USER_IDS) or first_text(metadata, names.METADATA_USER_IDS),
        error=_error(span) if span.status == "error" else None,
    )


_STACK: Final = "Traceback (most recent call last)"


def _error(span: RawSpan) -> str:
    # An exception's event has the type and message that the span and its status may lack.
    exception = next(iter(reversed(list(span.events_named(names.EVENT_EXCEPTION)))), {})
    kind = text_of(span.attributes.get(names.ERROR_TYPE)) or text_of(exception.get(names.EXCEPTION_TYPE))
    told = text_of(exception.get(names.EXCEPTION_MESSAGE)) or text_of(span.description) or ""
    words = told.partition(_STACK)[0].strip() or None  # LangSmith writes the stack behind the message
    if kind is None or words is None:
        return kind or words or "error"
    return words if words.startswith(kind) else f"{kind}: {words}"


def executed_call(name: str | None, arguments: object, call_id: str | None, result: object) -> Call | None:
    """Return the tool call that a span executed; None without a name."""
    return None if name is None else Call(name, plain(by_name(structure_of(arguments))), call_id, plain(result))


def by_name(arguments: object) -> object:
    """Return arguments by name, as models call tools, where a wrapper writes how the function was called."""
    called = mapping_of(arguments) or {}
    # A tool may have a parameter of that name beside others.
    is_wrapped = "kwargs" in called and ("args" in called or len(called) == 1)
    return called["kwargs"] if is_wrapped and not called.get("args") else arguments


def usage_of(attributes: Mapping[str, object], input_keys: Iterable[str], output_keys: Iterable[str]) -> Usage | None:
    """Read the token counts; None if neither is present, or both are zero, which some write of a stream."""
    tokens = first_count(attributes, input_keys), first_count(attributes, output_keys)
    return None if not any(tokens) else Usage(tokens[0] or 0, tokens[1] or 0)
