"""Calls of tools as endpoints write them, and as they accept them back."""

import re
from typing import Final

import msgspec

from judges.core.model import ChatRequest
from judges.core.prompt import ToolCall

_NO_ARGUMENTS: Final = "{}"
_REFUSED_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_-]")
_MAX_NAME_CHARS: Final = 64


def read_call(call_id: object, name: object, arguments: object, number: int) -> ToolCall:
    """Read one call of an answer.

    Args:
        call_id: The endpoint's id; without one, an id is made from the number.
        name: The tool's name; empty when absent.
        arguments: The text that the model wrote, or what a server decoded from it.
        number: How many calls came before it in the same conversation.
    """
    if isinstance(arguments, str):
        text = _unwrapped(arguments) if arguments.strip() else _NO_ARGUMENTS
    else:
        text = _NO_ARGUMENTS if arguments is None else msgspec.json.encode(arguments).decode()
    # Mistral's servers demand nine letters and digits as an id.
    return ToolCall(str(call_id or f"call{number:05d}"), str(name or ""), text)


def _unwrapped(text: str) -> str:
    """Return the text inside, where a server encoded the arguments as a JSON string once more."""
    try:
        inner = msgspec.json.decode(text, type=str)
    except (msgspec.DecodeError, UnicodeError):
        return text
    return text if as_object(inner) is None else inner


def calls_so_far(request: ChatRequest) -> int:
    """Count the calls that the messages of a request contain."""
    return sum(len(message.tool_calls) for message in request.messages)


def as_object(arguments: str) -> dict[str, object] | None:
    """Decode the arguments of a call; None where they are no JSON object."""
    try:
        return msgspec.json.decode(arguments, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def sendable_object(arguments: str) -> dict[str, object]:
    """Return the arguments of a call as an object; a text that is none becomes its value ``unreadable``."""
    found = as_object(arguments)
    return {"unreadable": arguments} if found is None else found


def sendable_name(name: str) -> str:
    """Return a name that endpoints accept: 1 to 64 letters, digits, `_` and `-`."""
    return _REFUSED_IN_NAMES.sub("_", name)[:_MAX_NAME_CHARS] or "unnamed"
