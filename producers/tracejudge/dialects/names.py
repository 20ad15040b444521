"""The names of attributes and events that code needs beside the tables of the dialects, and a span as it is read."""

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

from tracejudge.dialects.values import mapping_of, text_of
from tracejudge.model import Document, JSONValue, Message, TextEnum, Tool, Usage

OPERATION: Final = "gen_ai.operation.name"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
SYSTEM_INSTRUCTIONS: Final = "gen_ai.system_instructions"
TOOL_DEFINITIONS: Final = "gen_ai.tool.definitions"
PROMPT: Final = "gen_ai.prompt"
COMPLETION: Final = "gen_ai.completion"
ERROR_TYPE: Final = "error.type"
EVENT_CONTENT: Final = "gen_ai.event.content"
EVENT_EXCEPTION: Final = "exception"
EXCEPTION_TYPE: Final = "exception.type"
EXCEPTION_MESSAGE: Final = "exception.message"

JSON: Final = "application/json"
REDACTED: Final = "__REDACTED__"  # Written by OpenInference in place of content that is not captured.
FINAL_RESULT: Final = "final_result"  # The tool by which a model called by Pydantic AI gives its typed answer.

# --- our own worker ----------------------------------------------------------------------------------------------
OWN_ATTRIBUTES: Final = frozenset({"tracejudge.evaluation.id", "tracejudge.judge.name", "tracejudge.judge.version"})
OWN_SCOPE: Final = "tracejudge"


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
    raw: JSONValue = None  # The output as it is, without a recognisable text or with several; a text is cut-off JSON.
    calls: tuple[Call, ...] = ()
    field: str | None = None  # The text in `raw` that may be the answer.

    def __bool__(self) -> bool:
        return self.text is not None or not isinstance(self.raw, str | None) or bool(self.calls)


class Reading(Struct, frozen=True, kw_only=True):
    """The parts of a span that a dialect recognised; the others are None or empty."""

    role: Role | None = None
    input: SpanInput = SpanInput()
    output: SpanOutput = SpanOutput()
    documents: tuple[Document, ...] = ()
    reranked: tuple[Document, ...] = ()  # Documents given to a reranker.
    tool: Call | None = None
    tools: tuple[Tool, ...] = ()  # Tools that the model could call.
    model: str | None = None
    provider: str | None = None
    response_id: str | None = None
    session_id: str | None = None
    user_id: str | None = None
    tags: tuple[object, ...] = ()  # Labels, and pairs of a name and a value.
    usage: Usage | None = None
    error: str | None = None


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


def error_of(span: RawSpan) -> str | None:
    """Return the type and the message of the error of a span that failed."""
    # An exception's event has the type and message that the span and its status may lack.
    exception = next(iter(reversed(list(span.events_named(EVENT_EXCEPTION)))), {})
    kind = text_of(span.attributes.get(ERROR_TYPE)) or text_of(exception.get(EXCEPTION_TYPE))
    message = text_of(exception.get(EXCEPTION_MESSAGE)) or text_of(span.description) or ""
    words = message.partition("Traceback (most recent call last)")[0].strip() or None  # LangSmith writes the stack, too
    if kind is None or words is None:
        return kind or words
    return words if words.startswith(kind) else f"{kind}: {words}"


def by_name(arguments: object) -> object:
    """Return arguments by name, as models call tools, where a wrapper writes how the function was called."""
    called = mapping_of(arguments) or {}
    named, positional = mapping_of(called.get("kwargs")), called.get("args")
    # A tool may have a parameter of that name beside others.
    if named is None or not (isinstance(positional, list | tuple) or len(called) == 1):
        return arguments
    if isinstance(positional, list | tuple) and len(positional) == 1 and not named:
        only = mapping_of(positional[0])
        return arguments if only is None else only
    return arguments if positional else named
