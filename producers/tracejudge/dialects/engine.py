"""The engine that reads spans by all tables at once, because some instrumentations write several dialects on one."""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, reduce
from importlib.resources import files
from operator import or_
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from tracejudge.dialects import names
from tracejudge.dialects.documents import documents_of
from tracejudge.dialects.input_output import arguments_of, has_object, input_from_value, is_object, output_from_value
from tracejudge.dialects.messages import (
    Chat,
    conversation,
    input_from_messages,
    output_from_last_message,
    output_from_messages,
    tool_result,
)
from tracejudge.dialects.names import Call, RawSpan, Reading, Role, SpanInput, SpanOutput, error_of
from tracejudge.dialects.table import Path, Table, path_of
from tracejudge.dialects.values import (
    clean,
    count_of,
    decoded,
    decoded_or_same,
    is_list,
    literal_of,
    mapping_of,
    plain,
    structure_of,
    text_of,
    tool_definitions,
    unflattened,
)
from tracejudge.model import Document, JSONValue, Usage

_GENERAL: Final = ("openinference", "gen_ai", "openllmetry", "common")
"""Dialects that others write beside their own, in the order in which they are read after them.

OpenInference is first: its converters to GenAI lose distinctions between kinds, and write the description of a tool's
parameters as its arguments."""
# Some write it behind the provider, as `openai.chat`.
_INTERFACE: Final = re.compile(r"\.(chat|responses|messages|completion|generative-ai)$")
_COMPOSED: Final = frozenset({Role.AGENT, Role.CHAIN})
_SEARCHES: Final = frozenset({Role.RETRIEVER, Role.RERANKER})
_MESSAGE_KEYS: Final = frozenset({"role", "content", "parts", "tool_calls"})
_Item = TypeVar("_Item")
_Way = TypeVar("_Way")
_MAX_PLANS: Final = 256
_MAX_KEYS: Final = 8_192
_MAX_KEY_CHARS: Final = 100
_MAX_PUBLISHED: Final = 128
_EMPTY: Final[tuple[object, ...]] = (None, "", [], {})
_NOTHING: Final = Reading()


class _Text(str):
    """A text that is declared as such: it stays as it is, even if it looks like JSON."""

    __slots__ = ()


class _Values:
    """The values of one span by path; what is JSON is decoded once."""

    __slots__ = ("_decoded", "_messages", "_span", "attributes")

    def __init__(self, span: RawSpan, events: Mapping[str, str]) -> None:
        self._span = span
        self._decoded: dict[str, object] = {}
        self.attributes = span.attributes
        self._messages: dict[str, list[object]] = {}
        if span.events and not events.keys().isdisjoint(event.name for event in span.events):
            self._read_events(events)

    def _read_events(self, ways: Mapping[str, str]) -> None:
        attributes = dict(self.attributes)
        for event in self._span.events:
            way = ways.get(event.name)
            if way == "attributes":
                beside = event.attributes.items()
                attributes |= {key: value for key, value in beside if decoded_or_same(attributes.get(key)) in _EMPTY}
                continue
            # The message is the event's attributes, or one JSON text that holds them; each may be JSON again.
            content = mapping_of(decoded(event.attributes.get(names.EVENT_CONTENT))) or event.attributes
            body = {key: structure_of(value) for key, value in content.items()}
            if way == "answer":
                # A typed result may be in the place of a message.
                message = mapping_of(body.get("message"))
                if message is None or _MESSAGE_KEYS.isdisjoint(message):
                    text = body.pop("message", None) if message is None else content.get("message")
                    message = {**body, "message": None, "content": body.get("content", text)}
                self._messages.setdefault("answers", []).append({"role": "assistant", **message})
            elif way is not None:
                self._messages.setdefault("messages", []).append({"role": way, **body})
        self.attributes = attributes

    def get(self, path: Path) -> Any:
        """Return the value of a path; None if there is none."""
        if path.is_plain:
            return self.attributes.get(path.name)
        value: object
        if path.is_event:
            value = self._event_values(path)
        elif path.is_flat:
            items = unflattened(self.attributes, path.name)
            value = None if items is None else [structure_of(item) for item in items]
        elif path.is_object:
            start = f"{path.name}."
            value = {key[len(start) :]: item for key, item in self.attributes.items() if key.startswith(start)} or None
        elif not path.name:
            value = self._span.name
        elif path.name not in self.attributes:
            return None
        elif path.keys:
            value = _inner(self.structure(path.name), path.keys)
        else:
            value = self.attributes[path.name]
        if path.mime is not None and isinstance(value, str):
            value = self.structure(path.name) if self.attributes.get(path.mime) == names.JSON else _Text(value)
        if path.pattern is not None:
            match = path.pattern.search(value) if isinstance(value, str) else None
            value = match.group(1) if match else None
        return value

    def structure(self, name: str) -> object:
        """Return the value of an attribute, decoded if it is JSON."""
        try:
            return self._decoded[name]
        except KeyError:
            value = self.attributes.get(name)
            structure = decoded_or_same(value)
            if structure is value and (literal := literal_of(value)) is not None:
                structure = literal
            self._decoded[name] = structure
            return structure

    def _event_values(self, path: Path) -> object:
        if path.name in {"messages", "answers"}:
            return self._messages.get(path.name)
        events = self._span.events_named(path.name)
        if path.keys:
            value = next((event.get(path.keys[0]) for event in events), None)
            return _inner(structure_of(value), path.keys[1:]) if path.keys[1:] else value
        start = f"{path.name}."
        return [{key.removeprefix(start): value for key, value in event.items()} for event in events] or None

    def first(self, paths: Iterable[Path], read: Callable[[Any], _Item | None]) -> _Item | None:
        """Return the first of these values that can be read; None if there is none."""
        # Most names are absent: no call for what is not there.
        attributes = self.attributes
        for path in paths:
            value = attributes.get(path.name) if path.is_plain else self.get(path)
            if value is not None and (result := read(value)) is not None:
                return result
        return None


def _text_of(value: object) -> str | None:
    # Some write every value as JSON, also a text.
    return text_of(decoded_or_same(value) if isinstance(value, str) and value[:1] == '"' else value)


def _id_of(value: object) -> str | None:
    value = int(value) if isinstance(value, float) and value.is_integer() else value
    return _text_of(str(value) if type(value) is int else value)


def _unless_empty(value: object) -> Any:
    return None if value == "" else value


def _inner(value: object, keys: Sequence[str]) -> object:
    for key in keys:
        if is_list(value):
            value = value[int(key)] if key.isdecimal() and int(key) < len(value) else None
        else:
            value = (mapping_of(value) or {}).get(key)
    return value


def _flattened(value: object, role: str) -> list[Chat]:
    """Read flattened messages, some of which have no role, or a word in place of their content."""
    messages: list[object] = []
    for item in value if is_list(value) else ():
        if isinstance(item, dict) and "message" not in item:
            content = item.get("content")
            content = None if content == "FILTERED" else content
            messages.append({**item, "role": item.get("role") or role, "content": content})
        else:
            messages.append(item)
    return conversation(messages) or []


def _read_input(path: Path, way: str, values: _Values, instructions: object) -> SpanInput | None:
    value = values.get(path)
    if value is None:
        return None
    if type(value) is _Text or way == "text":
        return SpanInput(text_of(value)) or None
    if way == "value" and path.is_plain:
        value = values.structure(path.name)
    chats = _flattened(value, "user") if path.is_flat else None if way == "value" else conversation(value)
    # The Collector's normaliser writes a workflow's arguments under the key of messages.
    content = input_from_value(value) if chats is None else input_from_messages(chats, instructions)
    # Flattened messages that were redacted are an input, too: the request beside them holds no more.
    return content if content or path.is_flat else None


def _read_output(path: Path, way: str, values: _Values) -> SpanOutput | None:
    value = values.get(path)
    if value is None:
        return None
    if way in {"value", "typed"} and path.is_plain:
        value = values.structure(path.name)
    if type(value) is _Text or way == "text":
        output = SpanOutput(text_of(value))
    elif way == "typed":
        structure = plain(value)
        output = SpanOutput(text_of(structure)) if isinstance(structure, str) else SpanOutput(raw=structure)
    elif way == "calls":
        chats = conversation([{"role": "assistant", "tool_calls": structure_of(value)}]) or []
        output = SpanOutput(calls=tuple(call for chat in chats for call in chat.calls))
    else:
        messages = _flattened(value, "assistant") if path.is_flat else None if way == "value" else conversation(value)
        output_of = output_from_messages if way == "choices" else output_from_last_message
        output = output_from_value(value) if messages is None else output_of(messages)
    return output if output != SpanOutput() or path.is_flat else None


class _Plan:
    """The tables of one kind of span, and the paths of all of them for each part.

    Most paths name an attribute that a span does not have: of spans with the attributes ``shape`` it has no others.
    """

    def __init__(self, tables: Sequence[Table], shape: Collection[str] | None) -> None:
        def is_possible(path: Path) -> bool:
            is_open = path.is_event or path.is_flat or path.is_object or not path.name
            return shape is None or path.name in shape or is_open

        def ways_of(ways: Mapping[str, _Way]) -> list[tuple[Path, _Way]]:
            return [(path, way) for text, way in ways.items() if is_possible(path := path_of(text))]

        self.tables = tables
        self._is_common = all(table.prefixes == ("",) for table in tables)
        self._events = {name: way for table in reversed(tables) for name, way in table.events.items()}
        self._kinds = [
            (path, {kind.lower(): role for kind, role in kinds.items()})
            for table in tables
            for path, kinds in ways_of(table.kinds)
        ]
        self._inputs = [way for table in tables for way in ways_of(table.input)]
        self._outputs = [ways for table in tables if (ways := ways_of(table.output))]
        self._paths: dict[str, tuple[Path, ...]] = defaultdict(tuple)
        for table in tables:
            for part, paths in table.paths.items():
                self._paths[part] += tuple(filter(is_possible, paths))
        self._failed = [pair for table in tables for pair in ways_of(table.failed)]
        self._named = {path.name for part in ("session_id", "user_id", "tags") for path in self._paths[part]}
        self._searching = [pair for table in tables for pair in ways_of(table.searching_tools)]
        self._providers = {name: new for table in reversed(tables) for name, new in table.providers.items()}

    def read(self, span: RawSpan) -> Reading:
        """Read a span."""
        values, paths = _Values(span, self._events), self._paths
        error = None
        if any(values.get(path) == value for path, value in self._failed):
            error = values.first(paths["error"], _text_of)
        if error is None and span.status == "error":
            error = error_of(span) or values.first(paths["error"], _text_of) or "error"
        session_id, user_id = values.first(paths["session_id"], _id_of), values.first(paths["user_id"], _id_of)
        if self._is_common:
            is_plain = session_id is user_id is error is None
            return _NOTHING if is_plain else Reading(session_id=session_id, user_id=user_id, error=error)
        role = self._role(values)
        if role is Role.JUDGE:
            return Reading(role=role)
        output = self._output(values, role)
        # The model and the id in an output are those of the call of a model.
        is_call = role is Role.LLM
        model = values.first((path for path in paths["model"] if is_call or not path.is_output), _text_of)
        if role is None and values.first(paths["calls"], _unless_empty) is not None:
            # Operations may have any name; one with the answer of a model, or its failure, is a call.
            is_named = values.first((path for path, _ in self._kinds if path.name), _unless_empty) is not None
            role = Role.LLM if not is_named or (model is not None and (output or error)) else None
        if role is Role.LLM and output.field is not None:
            output = SpanOutput(output.field, calls=output.calls)  # beside what describes the response
        provider = (values.first(paths["provider"], _text_of) or "").lower()
        tokens = values.first(paths["input_tokens"], count_of), values.first(paths["output_tokens"], count_of)
        return Reading(
            role=role,
            input=self._input(values, role),
            output=output,
            documents=self._documents(values, role),
            reranked=documents_of(values.first(paths["reranked"], _unless_empty)) if role is Role.RERANKER else (),
            tool=self._tool(values) if role is Role.TOOL else None,
            tools=tuple(values.first(paths["tools"], tool_definitions) or ()),
            model=model,
            provider=self._providers.get(provider) or _INTERFACE.sub("", provider) or None,
            response_id=values.first(
                (path for path in paths["response_id"] if is_call or not path.is_output), _text_of
            ),
            session_id=session_id,
            user_id=user_id,
            tags=tuple(self._tags(values)),
            usage=Usage(tokens[0] or 0, tokens[1] or 0) if any(tokens) else None,  # some write zeros of a stream
            error=error,
        )

    def _input(self, values: _Values, role: Role | None) -> SpanInput:
        instructions = values.first(self._paths["instructions"], _unless_empty)
        cut = SpanInput()
        for path, way in self._inputs:
            # What a reranker is given is no conversation.
            is_read = role is not Role.RERANKER or way != "messages"
            content = _read_input(path, way, values, instructions) if is_read else None
            if content is None or (role in _COMPOSED and has_object(content.query)):
                continue
            if not isinstance(content.raw, str):
                return content
            cut = cut or content
        return cut if instructions is None else replace(input_from_messages([], instructions), raw=cut.raw)

    def _output(self, values: _Values, role: Role | None) -> SpanOutput:
        """Read the output of the first table that has one, and the tool calls that are written beside it."""
        cut = SpanOutput()
        for paths in self._outputs:
            output: SpanOutput | None = None
            for path, way in paths:
                if way == "calls":
                    beside = _read_output(path, way, values) or SpanOutput()
                    output = replace(output, calls=(*output.calls, *beside.calls)) if output else beside or None
                elif output is None and (role is not Role.RERANKER or way not in {"messages", "choices"}):
                    output = _read_output(path, way, values)
                    if output is not None and role in _COMPOSED and is_object(output.text):
                        output = None
            if output:
                return output
            cut = output if output is not None and cut.raw is None else cut
        return cut

    def _documents(self, values: _Values, role: Role | None) -> tuple[Document, ...]:
        """Read the first list of documents, or a later one of the same texts that has their ids."""
        documents: tuple[Document, ...] = ()
        for path in self._paths["documents"]:
            # An output is a document only where documents are looked for.
            value = values.get(path) if role in _SEARCHES or not path.is_output else None
            if value is None or any(document.id for document in documents):
                continue
            listed = documents_of(value, reads_text=not is_object(value))
            if not documents or [document.text for document in listed] == [document.text for document in documents]:
                documents = listed
        if role is Role.TOOL and not documents and any(values.get(path) == kind for path, kind in self._searching):
            documents = documents_of(values.first(self._paths["tool.result"], _unless_empty))
        return documents

    def _tags(self, values: _Values) -> Iterator[object]:
        for path in self._paths["tags"]:
            value = structure_of(values.get(path))
            if is_list(value):
                yield from value
            elif (mapping := mapping_of(value)) is not None:
                yield from (pair for pair in mapping.items() if f"{path.name}.{pair[0]}" not in self._named)

    def _role(self, values: _Values) -> Role | None:
        """Return the first kind that an attribute names; a judge in any of them is a judge."""
        first = None
        for path, roles in self._kinds:
            value = values.get(path)
            if value is None:
                continue
            kind = _text_of(value)
            role = roles.get((kind or "").lower()) or roles.get("*")
            if role is Role.JUDGE:
                return role
            first = first or role
        return first

    def _tool(self, values: _Values) -> Call | None:
        paths = self._paths
        name = values.first(paths["tool.name"], _text_of)
        if name is None:
            return None
        arguments = arguments_of(structure_of(values.first(paths["tool.arguments"], _unless_empty)))
        result = _result(values.first(paths["tool.result"], _unless_empty))
        return Call(name, plain(arguments), values.first(paths["tool.id"], _text_of), plain(result))


def _result(value: object) -> object:
    # A result that is a text may be written as JSON, too.
    if type(value) is _Text:
        return value
    is_quoted = isinstance(value, str) and len(value) > 1 and value[0] == value[-1] == '"'
    return tool_result(decoded_or_same(value) if is_quoted else structure_of(value))


class Dialects:
    """A set of tables. Of a part that several tables find on a span, the first table's is taken."""

    def __init__(self, tables: Iterable[Table]) -> None:
        self.tables = sorted(tables, key=lambda table: _GENERAL.index(table.name) if table.name in _GENERAL else -1)
        self.prefixes = tuple(prefix.rstrip("$") for table in self.tables for prefix in table.prefixes if prefix)
        self._content_prefixes = tuple(prefix for table in self.tables for prefix in table.content_prefixes)
        self._dialects = sum(1 << place for place, table in enumerate(self.tables, 1) if table.prefixes != ("",))
        self._masks: dict[str, int] = {}  # The tables of a name, as bits, and whether it holds content.
        self._names = frozenset[str]().union(*(table.names for table in self.tables))
        self._plans: dict[tuple[int, tuple[str, ...] | None], _Plan] = {}

    def read(self, span: RawSpan) -> Reading:
        """Read a span in all dialects."""
        if span.scope == names.OWN_SCOPE or not names.OWN_ATTRIBUTES.isdisjoint(span.attributes):
            return Reading(role=Role.JUDGE)
        return self._plan(span).read(span)

    def capture(self, span: RawSpan) -> str | None:
        """Return the setting that has the content of a span captured, as its first table says."""
        return next((table.capture for table in self._plan(span).tables if table.capture), None)

    def attributes_to_publish(self, span: RawSpan) -> dict[str, JSONValue]:
        """Return the first attributes of a span in plain JSON, without content, which is elsewhere in the trace."""
        attributes, masks = span.attributes, self._masks
        kept = [key for key in attributes if not (masks[key] if key in masks else self._mask(key)) & 1]
        return {
            key if key.isascii() else clean(key): value
            for key in kept[:_MAX_PUBLISHED]
            if (value := plain(attributes[key])) is not None
        }

    def is_read(self, key: str) -> bool:
        """Return whether a table of a dialect is for spans with this attribute."""
        return bool((self._masks[key] if key in self._masks else self._mask(key)) & self._dialects)

    def _plan(self, span: RawSpan) -> _Plan:
        masks, mask = self._masks, 0
        for key in span.attributes:
            mask |= masks[key] if key in masks else self._mask(key)
        for event in span.events:
            if event.name != names.EVENT_EXCEPTION:  # of any dialect
                mask |= masks[event.name] if event.name in masks else self._mask(event.name)
        mask >>= 1
        # An event may hold further attributes.
        shape = None if span.events else tuple([key for key in span.attributes if key in self._names])
        plan = self._plans.get((mask, shape))
        if plan is None and len(self._plans) >= _MAX_PLANS:
            shape = None
            plan = self._plans.get((mask, shape))
        if plan is None:
            chosen = [table for place, table in enumerate(self.tables) if mask >> place & 1 or table.prefixes == ("",)]
            plan = _Plan(chosen, shape)
            if len(self._plans) < 2 * _MAX_PLANS:
                self._plans[mask, shape] = plan
        return plan

    def _mask(self, key: str) -> int:
        ended = f"{key}$"  # a prefix with this end is a whole name
        is_content = ended.startswith(self._content_prefixes)
        bits = (1 << place for place, table in enumerate(self.tables, 1) if ended.startswith(table.prefixes))
        mask = reduce(or_, bits, int(is_content))
        if len(self._masks) < _MAX_KEYS and len(key) <= _MAX_KEY_CHARS:
            self._masks[key] = mask
        return mask


@cache
def builtin() -> Dialects:
    """Return the tables of this package."""
    folder = files("tracejudge.dialects").joinpath("tables")
    sources = sorted((file for file in folder.iterdir() if file.name.endswith(".json")), key=lambda file: file.name)
    return Dialects(msgspec.json.decode(file.read_bytes(), type=Table) for file in sources)
