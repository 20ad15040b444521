"""Calls of tools as endpoints write them, and in the form in which they take them back.

Models write broken arguments and names that no tool can have, and servers leave parts out. The next request shows
the call again, and vLLM, SGLang and Ollama refuse it for arguments that are no JSON object: so what is sent back is
always in form, whatever came.
"""

import re
from typing import Final

import msgspec

from judges.models.model import ChatRequest
from judges.prompt import ToolCall

__all__ = ["calls_so_far", "has_object", "read_call", "sendable_name", "sendable_object"]

_NO_ARGUMENTS: Final = "{}"
_REFUSED_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_-]")
_MAX_NAME_CHARS: Final = 64


def read_call(call_id: object, name: object, arguments: object, number: int) -> ToolCall:
    """Read one call of an answer.

    Args:
        call_id: What the endpoint calls it; one is made where it has none.
        name: The tool's name; an empty one where there is none.
        arguments: The text that the model wrote, or what a server made of it. Nothing, or blank, is no argument. Some
            servers write the text into JSON once more: then it is the text within.
        number: How many calls came before it in the same conversation.
    """
    # Nine letters and digits, as Mistral's servers demand of an id.
    return ToolCall(str(call_id or f"call{number:05d}"), str(name or ""), _text(arguments))


def calls_so_far(request: ChatRequest) -> int:
    """Count the calls that a request shows."""
    return sum(len(message.tool_calls) for message in request.messages)


def has_object(arguments: str) -> bool:
    """Tell whether the arguments of a call are a JSON object."""
    return _object(arguments) is not None


def sendable_object(arguments: str) -> dict[str, object]:
    """Give the arguments of a call as an object; a text that is none stands in it under ``unreadable``."""
    found = _object(arguments)
    return {"unreadable": arguments} if found is None else found


def sendable_name(name: str) -> str:
    """Give a name that endpoints take: 1 to 64 letters, digits, `_` and `-`."""
    return _REFUSED_IN_NAMES.sub("_", name)[:_MAX_NAME_CHARS] or "unnamed"


def _text(arguments: object) -> str:
    if isinstance(arguments, str):
        return _unwrapped(arguments) if arguments.strip() else _NO_ARGUMENTS
    return _NO_ARGUMENTS if arguments is None else msgspec.json.encode(arguments).decode()


def _unwrapped(text: str) -> str:
    try:
        inner = msgspec.json.decode(text, type=str)
    except (msgspec.DecodeError, UnicodeError):
        return text
    return inner if has_object(inner) else text


def _object(arguments: str) -> dict[str, object] | None:
    try:
        return msgspec.json.decode(arguments, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
