"""The form of a dialect: a table of which attribute of a span holds which part of a trace, and how it is written there.

A table is a file of JSON in `tables`. An attribute is written as

- `NAME`: the attribute of this name,
- `NAME/KEY/…`: a key, or the number of an item, of the JSON that the attribute holds,
- `NAME.#`: the list that is flattened over `NAME.0.…`, `NAME.1.…`,
- `NAME.*`: the object of all attributes `NAME.…`,
- `NAME by OTHER`: JSON if the attribute OTHER is `application/json`, else a text,
- `@EVENT`: the attributes of all events of this name; `@EVENT/KEY/…` is one of the first such event,
- `@messages`, `@answers`: the messages that the table's `events` describe,
- `/name`: the name of the span,

and may end with ` ~ PATTERN`: the first group of the regular expression is taken.
"""

import re
from collections.abc import Container, Iterable, Mapping
from functools import cache, cached_property
from typing import Final, Literal

from msgspec import Struct

from tracejudge.dialects.names import Role

INPUT_WAYS: Final = frozenset({"text", "messages", "value"})
"""Ways in which an input is written: a text, messages, or arguments among which the question is looked for."""
OUTPUT_WAYS: Final = frozenset({"text", "typed", "messages", "choices", "value", "calls"})
"""Ways in which an output is written: a text, a result that stays whole, a conversation whose last answer counts,
choices of which the first counts, returned values, and tool calls, which stand beside the others."""
EVENT_WAYS: Final = frozenset({"attributes", "system", "user", "assistant", "tool", "answer"})
"""What an event holds: further attributes, a message of a role, or an answer."""
_FORM: Final = re.compile(r"(?P<source>.+?)(?: by (?P<mime>\S+))?(?: ~ (?P<pattern>.+))?")


class Path:
    """Where a table finds a value."""

    __slots__ = ("is_event", "is_flat", "is_object", "is_output", "is_plain", "keys", "mime", "name", "pattern")

    def __init__(self, text: str, outputs: Container[str] = ()) -> None:
        form = _FORM.fullmatch(text)
        source, mime, pattern = (text, None, None) if form is None else form.group("source", "mime", "pattern")
        self.mime = mime
        self.pattern = None if pattern is None else re.compile(pattern)
        self.is_event = source.startswith("@")
        self.is_flat, self.is_object = source.endswith(".#"), source.endswith(".*")
        name, *keys = source.removeprefix("@").removesuffix(".#").removesuffix(".*").split("/")
        self.name, self.keys = name, keys
        self.is_output = name in outputs and not self.is_event
        self.is_plain = source == name and mime is None and pattern is None


path_of: Final = cache(Path)
Paths = tuple[str, ...]
PARTS: Final = (
    *("calls", "instructions", "tools", "documents", "reranked", "model", "provider", "response_id"),
    *("session_id", "user_id", "tags", "input_tokens", "output_tokens", "error"),
)
"""The parts of a table that are a list of attributes."""


class Table(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, dict=True):
    """A dialect. Of several attributes the first that holds something is taken.

    Attributes:
        name: Of the dialect.
        prefixes: A span of this dialect has an attribute or an event whose name begins with one of these, or is one
            with a `$` at its end.
        kinds: Attributes with their values in any case, and the kind of span that each means; `*` is any value.
        calls: A span with one of these is a call of a model, unless its kind is named.
        events: Names of events, and what they hold: one of ``EVENT_WAYS``.
        instructions: Attributes of the system prompt, where it is no message.
        tools: Attributes of the tools that the model could call.
        input: Attributes with a way of ``INPUT_WAYS``.
        output: Attributes with a way of ``OUTPUT_WAYS``.
        documents: Attributes of what was found. One that is an output too is read of retrievers and rerankers only.
        reranked: Attributes of the documents that a reranker was given.
        tool: The attributes of the tool call that a tool's span executed.
        searching_tools: Attributes with the value of tools whose results are documents.
        model: One within an output is read of calls of a model only, as is `response_id`.
        providers: Other names of providers.
        tags: Attributes with labels, or with an object whose names and values are tags.
        failed: Attributes with the value of a span that failed, whatever its status.
        error: Attributes that say why, where the status and the events of a span do not.
        capture: The setting of the instrumentation that has the content of calls captured.
        content: Prefixes of further attributes with content, which are not repeated in the published span.
    """

    name: str
    prefixes: Paths
    kinds: Mapping[str, Mapping[str, Role]] = {}
    calls: Paths = ()
    events: Mapping[str, str] = {}
    instructions: Paths = ()
    tools: Paths = ()
    input: Mapping[str, str] = {}
    output: Mapping[str, str] = {}
    documents: Paths = ()
    reranked: Paths = ()
    tool: Mapping[Literal["name", "id", "arguments", "result"], Paths | str] = {}
    searching_tools: Mapping[str, str] = {}
    model: Paths = ()
    provider: Paths = ()
    providers: Mapping[str, str] = {}
    response_id: Paths = ()
    session_id: Paths = ()
    user_id: Paths = ()
    tags: Paths = ()
    input_tokens: Paths = ()
    output_tokens: Paths = ()
    failed: Mapping[str, str] = {}
    error: Paths = ()
    capture: str | None = None
    content: Paths = ()

    @cached_property
    def paths(self) -> dict[str, tuple[Path, ...]]:
        """The paths of each part that is a list, and of each part of a tool call as `tool.name`."""
        outputs = _names(self.output)
        return {part: tuple(Path(text, outputs) for text in texts) for part, texts in self._listed().items()}

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of the attributes that it reads, without flattened ones."""
        return self.kind_names | self.content_names | _names((*self.searching_tools, *self.failed, *self.texts()))

    @cached_property
    def kind_names(self) -> frozenset[str]:
        """The names among these that say what kind of span it is."""
        return _names(self.kinds)

    @cached_property
    def content_names(self) -> frozenset[str]:
        """The names among these of inputs and outputs."""
        return _names((*self.input, *self.output))

    def texts(self) -> list[str]:
        """Return the attributes of these parts, as they are written."""
        return [text for texts in self._listed().values() for text in texts]

    def _listed(self) -> dict[str, Paths]:
        tool = {f"tool.{part}": (paths,) if isinstance(paths, str) else paths for part, paths in self.tool.items()}
        return {part: getattr(self, part) for part in PARTS} | tool

    @cached_property
    def content_prefixes(self) -> Paths:
        """The beginnings of the names of attributes with content, which is published in inputs and outputs."""
        parts = ("instructions", "tools", "documents", "reranked", "tool.arguments", "tool.result")
        listed = (path for part in parts for path in self.paths.get(part, ()))
        names = {path.name for path in (*map(Path, (*self.input, *self.output)), *listed) if not path.is_event}
        # Beside the flattened list of a name there may be other attributes that begin with it.
        ends = ("$", *(f".{digit}" for digit in range(10)))
        return (*(f"{name}{end}" for name in names for end in ends), *self.content)


def _names(texts: Iterable[str]) -> frozenset[str]:
    return frozenset(Path(text).name for text in texts)
