"""The parts of one message: texts, calls of tools, and what tools answered."""

from collections.abc import Mapping
from typing import Final

from tracejudge.dialects.reading import Answered, Call
from tracejudge.dialects.values import first_text, is_list, mapping_of, plain, structure_of, text_of
from tracejudge.model import JSONValue

_TEXTS: Final = frozenset({"text", "input_text", "output_text", "refusal", None})
_CALLS: Final = frozenset({"tool_call", "tool_use", "function_call"})
_ANSWERS: Final = frozenset({"tool_call_response", "tool_result", "function_call_output"})


class Parts:
    """What the parts read so far hold. Images, sounds, files and thoughts are left out: judges read answers."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.calls: list[Call] = []
        self.answers: list[Answered] = []

    @property
    def is_empty(self) -> bool:
        """Whether nothing was found."""
        return not (self.texts or self.calls or self.answers)


def read_parts(value: object, into: Parts) -> None:
    """Read content that is a text, a part, or a list of both."""
    items = value if is_list(value) else (value,)
    for item in items:
        if (text := text_of(item)) is not None:
            into.texts.append(text)
        elif (part := mapping_of(item)) is not None:
            _read_part(part, into)


def call_of(value: object) -> Call | None:
    """Read a call of a tool as any provider writes it; None without a name."""
    found = mapping_of(value)
    if found is None:
        return None
    found = mapping_of(found.get("tool_call")) or found
    function = mapping_of(found.get("function")) or found
    name = text_of(function.get("name"))
    if name is None:
        return None
    given = next((function[key] for key in ("arguments", "input", "args") if function.get(key) is not None), None)
    return Call(name, plain(structure_of(given)), first_text(found, ("id", "call_id")))


def result_of(value: object) -> JSONValue:
    """Read what a tool answered: its text where it is one, else the structure."""
    if is_list(value):
        parts = Parts()
        read_parts(value, parts)
        if parts.texts:
            return "\n".join(parts.texts)
    return plain(value)


def _read_part(part: Mapping[str, object], into: Parts) -> None:
    content = mapping_of(part.get("message_content")) or part
    kind = content.get("type")
    if mapping_of(part.get("tool_call")) is not None or (isinstance(kind, str) and kind in _CALLS):
        if (call := call_of(part)) is not None:
            into.calls.append(call)
    elif isinstance(kind, str) and kind in _ANSWERS:
        into.answers.append(_answered(content))
    elif kind is None or (isinstance(kind, str) and kind in _TEXTS):
        text = first_text(content, ("text", "content", "refusal"))
        into.texts.extend(() if text is None else (text,))


def _answered(part: Mapping[str, object]) -> Answered:
    # The convention's prose says `result`, its schema `response`; Anthropic says `content`, OpenAI `output`.
    given = next((part[key] for key in ("response", "result", "content", "output") if part.get(key) is not None), None)
    return Answered(first_text(part, ("id", "tool_use_id", "call_id")), result_of(given))
