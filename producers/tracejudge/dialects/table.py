"""Dialects as tables: which attribute of a span holds which part of a trace, and how it is written there.

A table is a mapping of JSON types, so that one can stand in a file. An attribute may be followed by `/` and the path to
a value in the JSON that it holds, as in `outputs/choices/0/id`; `/name` alone is the name of the span. `@EVENT/KEY` is
an attribute of the first event of that name.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Final

import msgspec
from msgspec import Struct

from tracejudge.dialects.documents import documents_of
from tracejudge.dialects.messages import conversation, input_from_messages, output_from_last_message
from tracejudge.dialects.openinference import input_from_value, output_from_value, tool_result
from tracejudge.dialects.reading import RawSpan, Reading, Role, SpanInput, SpanOutput, executed_call, usage_of
from tracejudge.dialects.values import (
    decoded_or_same,
    first_text,
    is_list,
    literal_of,
    mapping_of,
    plain,
    structure_of,
    text_of,
)

_NAME: Final = "/name"
# Some write it behind the provider, as `openai.chat`.
_INTERFACE: Final = re.compile(r"\.(chat|responses|messages|completion|generative-ai)$")


def _typed(value: object) -> SpanOutput:
    # Some write it as Python does.
    structure = plain(literal_of(value) or decoded_or_same(value))
    return SpanOutput(text=text_of(structure)) if isinstance(structure, str) else SpanOutput(raw=structure)


def _calls(value: object) -> SpanOutput:
    calls = structure_of(value)
    chats = conversation([{"role": "assistant", "tool_calls": calls}]) if is_list(calls) else None
    return SpanOutput(calls=chats[0].calls) if chats else SpanOutput()


_INPUTS: Final[Mapping[str, Callable[[object, object], SpanInput]]] = {
    "text": lambda value, _: SpanInput(query=text_of(value)),
    "messages": lambda value, instructions: input_from_messages(conversation(value) or [], instructions),
    "value": lambda value, _: input_from_value(decoded_or_same(value)),
}
"""Ways in which an input is written: a text, messages, or arguments among which the question is looked for."""
_OUTPUTS: Final[Mapping[str, Callable[[object], SpanOutput]]] = {
    "text": lambda value: SpanOutput(text=text_of(value)),
    "typed": _typed,
    "messages": lambda value: output_from_last_message(conversation(value) or []),
    "calls": _calls,
    "value": lambda value: output_from_value(decoded_or_same(value)),
}
"""Ways in which an output is written: a text, a result that stays whole, messages, tool calls, or returned values."""


class Table(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A dialect. Of several attributes the first that holds something is taken.

    Attributes:
        name: Of the dialect.
        prefixes: A span of this dialect has an attribute that begins with one of these.
        kinds: Attributes with their values, and the kind of span that each value means.
        instructions: Attributes of the system prompt, where it is no message.
        input: Attributes with a way of ``_INPUTS``.
        output: Attributes with a way of ``_OUTPUTS``; text and tool calls may be in two of them.
        documents: Attributes of a retriever with what it found.
        failed: Attributes with the value of a span that failed, whatever its status.
        error: Attributes that say why.
        tool: The attributes of the name, id, arguments and result of the call that a tool's span executed.
        content: Prefixes of attributes that are in inputs and outputs already, or repeat them.
    """

    name: str
    prefixes: tuple[str, ...]
    kinds: Mapping[str, Mapping[str, Role]]
    instructions: tuple[str, ...] = ()
    input: Mapping[str, str] = {}
    output: Mapping[str, str] = {}
    documents: tuple[str, ...] = ()
    failed: Mapping[str, str] = {}
    error: tuple[str, ...] = ()
    tool: Mapping[str, tuple[str, ...] | str] = {}
    model: tuple[str, ...] = ()
    provider: tuple[str, ...] = ()
    response_id: tuple[str, ...] = ()
    session_id: tuple[str, ...] = ()
    user_id: tuple[str, ...] = ()
    input_tokens: tuple[str, ...] = ()
    output_tokens: tuple[str, ...] = ()
    content: tuple[str, ...] = ()

    def read(self, span: RawSpan) -> Reading:
        """Read the parts of a span; none if it is not of this dialect."""
        if not any(key.startswith(self.prefixes) for key in span.attributes):
            return Reading()
        values = _Values(span)
        kinds = ((text_of(decoded_or_same(values[key])), roles) for key, roles in self.kinds.items())
        role = next((roles[kind] for kind, roles in kinds if kind is not None and kind in roles), None)
        instructions = values.first(self.instructions)
        has_failed = any(values[key] == value for key, value in self.failed.items())
        return Reading(
            role=role,
            error=_first_text(values, self.error) if has_failed else None,
            input=next(
                filter(None, (_INPUTS[way](values[key], instructions) for key, way in self.input.items())), SpanInput()
            ),
            output=_joined([_OUTPUTS[way](values[key]) for key, way in self.output.items()]),
            documents=next(filter(None, (documents_of(values[key]) for key in self.documents)), ())
            if role in {Role.RETRIEVER, Role.RERANKER}
            else (),
            tool=executed_call(
                text_of(values.first(self.tool.get("name", ()))),
                values.first(self.tool.get("arguments", ())),
                text_of(values.first(self.tool.get("id", ()))),
                tool_result(decoded_or_same(values.first(self.tool.get("result", ())))),
            )
            if role is Role.TOOL
            else None,
            model=_first_text(values, self.model),
            provider=_INTERFACE.sub("", _first_text(values, self.provider) or "") or None,
            response_id=_first_text(values, self.response_id),
            session_id=_first_text(values, self.session_id),
            user_id=_first_text(values, self.user_id),
            usage=usage_of(values, self.input_tokens, self.output_tokens),
        )


def _first_text(values: Mapping[str, object], keys: Sequence[str]) -> str | None:
    text = first_text(values, keys)
    # Some write every value as JSON, also a text.
    return text_of(decoded_or_same(text)) if text is not None and text.startswith('"') else text


class _Values(Mapping[str, object]):
    """The values of a span by attribute, or by attribute and key."""

    def __init__(self, span: RawSpan) -> None:
        self._span = span
        self._decoded: dict[tuple[str, str], object] = {}  # Once for all of their paths.

    def __getitem__(self, key: str) -> object:
        if key == _NAME:
            return self._span.name
        source, *path = key.split("/")
        if source.startswith("@"):
            event, source, values = source[1:], path.pop(0), next(self._span.events_named(source[1:]), {})
        else:
            event, values = "", self._span.attributes
        if not path or source not in values:
            return values.get(source)
        if (event, source) not in self._decoded:
            self._decoded[event, source] = structure_of(values[source])
        value = self._decoded[event, source]
        for name in path:
            if is_list(value):
                value = value[int(name)] if name.isdigit() and int(name) < len(value) else None
            else:
                value = (mapping_of(value) or {}).get(name)
        return value

    def first(self, keys: Sequence[str] | str) -> object:
        """Return the first of these values that is there."""
        listed = (keys,) if isinstance(keys, str) else keys
        return next((value for key in listed if (value := self[key]) is not None), None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._span.attributes)

    def __len__(self) -> int:
        return len(self._span.attributes)


def _joined(outputs: Sequence[SpanOutput]) -> SpanOutput:
    """Join outputs of several attributes: the first text or structure, and all tool calls."""
    first = next((output for output in outputs if output.text is not None or output.raw is not None), SpanOutput())
    return SpanOutput(first.text, first.raw, tuple(call for output in outputs for call in output.calls))


@cache
def tables() -> tuple[Table, ...]:
    """Load the tables of this package."""
    folder = files("tracejudge.dialects").joinpath("tables")
    sources = sorted((file for file in folder.iterdir() if file.name.endswith(".json")), key=lambda file: file.name)
    return tuple(msgspec.json.decode(file.read_bytes(), type=Table) for file in sources)
