"""What a model gets for a call: what the tool returned, between marks, and what we say of the call, outside of them."""

from typing import Final, NamedTuple

from judges.exploring.texts import CUT, NO_ROOM, WITHHELD
from judges.prompt import Message, marked, neutralise

__all__ = ["Result", "cut", "returned", "said", "withheld"]

_FAULT: Final = '{"error"'
"""How a toolbox opens what it says of a call that is wrong."""
_AROUND_BYTES: Final = 500
"""More than marks and our words take beside what is shown of a cut result."""
_LEAST_SHOWN_BYTES: Final = 500
"""Less of a result is not worth showing."""
_LEAST_ASKED_BYTES: Final = 100
"""Tools give no shorter piece."""


class Result(NamedTuple):
    """One result.

    Attributes:
        message: What is sent.
        shown: What stands between the marks; empty where there are none.
        reads: Whether it shows something of the trace, and no fault of the call.
        size_bytes: How long what the tool returned is.
        is_cut: Whether only its beginning is shown.
    """

    message: Message
    shown: str = ""
    reads: bool = False
    size_bytes: int = 0
    is_cut: bool = False


def returned(call_id: str, found: str) -> Result:
    """Show what a tool returned."""
    shown = neutralise(found)
    message = _message(call_id, marked("tool result", shown))
    return Result(message, shown, reads=not shown.startswith(_FAULT), size_bytes=_size_of(shown))


def said(call_id: str, text: str) -> Result:
    """Say something of a call."""
    return Result(_message(call_id, text), size_bytes=_size_of(text))


def cut(result: Result, max_bytes: int, most_bytes: int) -> Result | None:
    """Show only the beginning of a result; nothing where that is not worth it.

    Args:
        result: What is too long.
        max_bytes: How long all of it may be now.
        most_bytes: What the model is told to ask for at most.
    """
    shown_bytes = max_bytes - _AROUND_BYTES
    if result.is_cut or not result.reads or shown_bytes < _LEAST_SHOWN_BYTES:
        return None
    shown = result.shown.encode("utf-8", "replace")[:shown_bytes].decode("utf-8", "ignore")
    told = CUT.format(size=result.size_bytes, shown=_size_of(shown), most=most_bytes)
    message = result.message._replace(content=f"{marked('tool result', shown)}\n{told}")
    return result._replace(message=message, shown=shown, is_cut=True)


def withheld(result: Result, most_bytes: int) -> Result:
    """Say that a result is left out, and how much the model may ask for."""
    text = WITHHELD if most_bytes >= _LEAST_ASKED_BYTES else NO_ROOM
    message = result.message._replace(content=text.format(size=result.size_bytes, most=most_bytes))
    return Result(message, size_bytes=result.size_bytes)


def _size_of(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def _message(call_id: str, content: str) -> Message:
    return Message("tool", content, tool_call_id=call_id)
