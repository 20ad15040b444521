"""How large messages are, in bytes as they are sent."""

from collections.abc import Iterable
from typing import Final

from judges.core.prompt import Message, ToolCall

MESSAGE_OVERHEAD_BYTES: Final = 40  # About what an API writes around a message or a call.


def size_bytes(messages: Iterable[Message]) -> int:
    """Return how many bytes messages take in a request, about."""
    size = 0
    for message in messages:
        size += MESSAGE_OVERHEAD_BYTES + text_bytes(message.content, message.tool_call_id or "") + _state_bytes(message)
        for call in message.tool_calls:
            size += MESSAGE_OVERHEAD_BYTES + text_bytes(call.id, call.name, call.arguments) + _state_bytes(call)
    return size


def text_bytes(*texts: str) -> int:
    """Return how many bytes texts take."""
    return sum(len(text.encode("utf-8", "replace")) for text in texts)


def _state_bytes(part: Message | ToolCall) -> int:
    return 0 if part.provider_state is None else len(bytes(part.provider_state))
