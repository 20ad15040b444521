"""Questions and answers inside what a function took and gave back: arguments, chain inputs, whole responses.

Workflow spans record Python calls, not conversations. What cannot be understood is kept raw, as JSON, for want of
better: the joining prefers what the model's own span says.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from tracejudge.dialects.messages import asked, conversation, said, said_last
from tracejudge.dialects.reading import Asked, Said
from tracejudge.dialects.values import first_text, is_list, mapping_of, plain, structure_of, text_of
from tracejudge.model import JSONValue

_QUESTIONS: Final = ("query", "question", "input", "user_input", "user_query", "prompt", "message", "text")
_ANSWERS: Final = ("output", "answer", "response", "result", "output_text", "completion", "text", "content")
_INPUT_WRAPPINGS: Final = ("kwargs", "args", "inputs", "input")
_OUTPUT_WRAPPINGS: Final = ("outputs", "output", "return_values", "result", "response")
_MAX_DEPTH: Final = 4
_BROKEN: Final = re.compile(r"\s*(\[\s*\{|\{\s*\")")
"""How an object begins in JSON: a text that does and is none was cut on its way, and is nothing anybody wrote."""


def asked_in(value: object) -> Asked:
    """Tell what was asked: a text as it stands, a conversation, or the question among arguments."""
    if value is None:
        return Asked()
    structure = structure_of(value)
    if isinstance(structure, str):
        return Asked() if _BROKEN.match(structure) else Asked(query=text_of(structure))
    chats = conversation(structure)
    if chats is not None:
        return asked(chats)
    query = _found(structure, _QUESTIONS, _INPUT_WRAPPINGS)
    if isinstance(query, Asked):
        return query
    return Asked(query=query) if query is not None else Asked(raw=_raw(structure))


def said_in(value: object) -> Said:
    """Tell what was answered: a text as it stands, the choice of a response, or the answer among what came back."""
    if value is None:
        return Said()
    structure = structure_of(value)
    if isinstance(structure, str):
        return Said() if _BROKEN.match(structure) else Said(text=text_of(structure))
    mapping = mapping_of(structure)
    if mapping is not None:
        for key, teller in (("choices", said), ("messages", said_last), ("output", said_last)):
            chats = conversation(mapping.get(key)) if is_list(mapping.get(key)) else None
            if chats:
                return teller(chats)
    chats = conversation(structure)
    if chats:
        return said_last(chats)
    text = _found(structure, _ANSWERS, _OUTPUT_WRAPPINGS)
    return Said(text=text) if isinstance(text, str) else Said(raw=_raw(structure))


def _raw(structure: object) -> JSONValue:
    """Keep what was not understood, unless nothing is in it, as in the arguments of a function that takes none."""
    raw = plain(structure)
    return None if _is_empty(raw) else raw


def _is_empty(value: JSONValue) -> bool:
    if isinstance(value, dict):
        return all(_is_empty(item) for item in value.values())
    return all(_is_empty(item) for item in value) if isinstance(value, list) else value in (None, "")


def _found(value: object, keys: Iterable[str], wrappings: Iterable[str], depth: int = 0) -> str | Asked | None:
    """Search a call's arguments, or what it gave back, for the one text that is meant."""
    if depth == _MAX_DEPTH:
        return None
    mapping = mapping_of(value)
    if mapping is not None:
        return _in_mapping(mapping, keys, wrappings, depth)
    if is_list(value):
        texts = [item for item in value if isinstance(item, str)]
        return text_of(texts[0]) if len(texts) == 1 else None
    return text_of(value)


def _in_mapping(
    mapping: Mapping[str, object], keys: Iterable[str], wrappings: Iterable[str], depth: int
) -> str | Asked | None:
    if wrappings is _INPUT_WRAPPINGS and (chats := conversation(mapping.get("messages"))):
        return asked(chats)
    if (text := first_text(mapping, keys)) is not None:
        return text
    for key in wrappings:
        if key in mapping and (found := _found(mapping[key], keys, wrappings, depth + 1)) is not None:
            return found
    values = list(mapping.values())
    return text_of(values[0]) if len(values) == 1 else None
