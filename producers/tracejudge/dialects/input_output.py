"""Inputs and outputs of functions, in every form in which instrumentations write them: texts, arguments, responses."""

import re
from collections.abc import Iterable
from typing import Final

from tracejudge.dialects.messages import (
    conversation,
    input_from_messages,
    output_from_last_message,
    output_from_messages,
)
from tracejudge.dialects.reading import SpanInput, SpanOutput
from tracejudge.dialects.values import first_text, is_list, mapping_of, plain, structure_of, text_of
from tracejudge.model import JSONValue

_QUERY_KEYS: Final = ("query", "question", "input", "user_input", "user_query", "prompt", "message", "text")
_ANSWER_KEYS: Final = ("output", "answer", "response", "result", "output_text", "completion", "text", "content")
_INPUT_WRAPPINGS: Final = ("kwargs", "args", "inputs", "input", "data")
_CREW_MARKS: Final = frozenset({"tasks_output", "agent_role", "expected_output"})
"""Keys of the outputs of CrewAI, whose messages end before the answer."""
_MAX_DEPTH: Final = 4
# A text that begins like a JSON object and is none was truncated by an instrumentation: neither query nor answer.
_TRUNCATED: Final = re.compile(r"\s*(\[\s*\{|\{\s*\")")

# An object that an instrumentation wrote by its representation: neither query nor answer.
_OBJECT: Final = re.compile(r"<?[A-Z]\w*\(\w+=|<\w[\w.]* object")


def input_from_value(value: object) -> SpanInput:
    """Read an input: a text as it is, a conversation, or the query among arguments."""
    if value is None:
        return SpanInput()
    structure = structure_of(value)
    if isinstance(structure, str):
        return SpanInput(query=_readable(structure))
    chats = conversation(structure)
    if chats is not None:
        return input_from_messages(chats)
    query = _find_text(structure, _QUERY_KEYS, _INPUT_WRAPPINGS)
    if isinstance(query, SpanInput):
        return query
    return SpanInput(query=query) if query is not None else SpanInput(raw=_raw(structure))


def output_from_value(value: object) -> SpanOutput:
    """Read an output: a text as it is, the choice of a response, or the answer among returned values."""
    structure = structure_of(value)
    are_objects = is_list(structure) and all(isinstance(item, str) and _OBJECT.match(item) for item in structure)
    if value is None or are_objects:
        return SpanOutput()
    if isinstance(structure, str):
        return SpanOutput(text=_readable(structure))
    mapping = mapping_of(structure) or {}
    # The typed result among the values that an agent of LangChain returns.
    typed = _raw(mapping.get("raw" if _CREW_MARKS & mapping.keys() else "structured_response"))
    if typed is not None:
        return SpanOutput(text=typed) if isinstance(typed, str) else SpanOutput(raw=typed)
    for key in ("choices", "messages", "output"):
        messages = mapping.get(key)
        if is_list(messages) and (chats := conversation(messages)):
            return output_from_messages(chats) if key == "choices" else output_from_last_message(chats)
    if chats := conversation(structure):
        return output_from_last_message(chats)
    text = _find_text(structure, _ANSWER_KEYS, ("outputs", "output", "return_values", "result", "response"))
    return SpanOutput(text=text) if isinstance(text, str) else SpanOutput(raw=_raw(structure))


def _readable(text: str) -> str | None:
    return None if _TRUNCATED.match(text) or _OBJECT.match(text) else text_of(text)


def _raw(structure: object) -> JSONValue:
    # Nothing instead of empty containers, as in the arguments of a function without parameters.
    raw = plain(structure)
    return None if _is_empty(raw) else raw


def _is_empty(value: JSONValue) -> bool:
    if isinstance(value, dict):
        return all(_is_empty(item) for item in value.values())
    return all(_is_empty(item) for item in value) if isinstance(value, list) else value in (None, "")


def _find_text(value: object, keys: Iterable[str], wrappings: Iterable[str], depth: int = 0) -> str | SpanInput | None:
    """Find the one text among a call's arguments or return values; a conversation among arguments is the input."""
    mapping = mapping_of(value)
    if depth == _MAX_DEPTH:
        return None
    if mapping is None:
        texts = [item for item in value if isinstance(item, str)] if is_list(value) else [value]
        return text_of(texts[0]) if len(texts) == 1 else None
    if wrappings is _INPUT_WRAPPINGS and (chats := conversation(mapping.get("messages"))):
        return input_from_messages(chats)
    if (text := first_text(mapping, keys)) is not None:
        return text
    for key in wrappings:
        if key in mapping and (inner := _find_text(mapping[key], keys, wrappings, depth + 1)) is not None:
            return inner
    values = list(mapping.values())
    alone = text_of(values[0]) if len(values) == 1 else None
    return alone if alone is not None or wrappings is not _INPUT_WRAPPINGS else _common_query(values)


def _common_query(values: Iterable[object]) -> str | None:
    """Return the query that is the same for all parts of a pipeline that are given one, as in Haystack."""
    parts = [part for value in values if (part := mapping_of(value)) is not None]
    queries = {text for part in parts if (text := first_text(part, ("query", "question"))) is not None}
    return queries.pop() if len(queries) == 1 else None


def text_without_objects(text: str) -> str | None:
    """Return a text unless an instrumentation wrote an object by its representation."""
    return None if _OBJECT.match(text) else text_of(text)
