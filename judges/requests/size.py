"""How large a request is, in bytes as it is sent, and in tokens as it may be charged."""

import math
from collections.abc import Iterable
from itertools import chain
from typing import Final

from judges.core.model import ChatRequest, ModelSettings
from judges.core.prompt import Message, ToolCall
from judges.requests.request import BYTES_PER_TOKEN

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


def most_tokens(request: ChatRequest, settings: ModelSettings) -> tuple[int, int]:
    """Estimate the tokens of a request, and the most that its answer may have.

    Without `thinking_tokens` the thinking of a model is not reserved: most models do not think.
    """
    # A classifier is sent the pairs alone. Each question takes as much besides its text as a message.
    pairs = settings.provider == "classifier"
    asked = [
        Message("user", "".join(one.pair or () if pairs else (one.instructions, *chain.from_iterable(one.options))))
        for one in request.questions
    ]
    size = size_bytes(asked if pairs else (*request.messages, *asked)) + sum(len(str(tool)) for tool in request.tools)
    answer = request.max_output_tokens or 1024
    output = settings.max_output_tokens or answer + (settings.thinking_tokens or 0)
    return math.ceil(size / BYTES_PER_TOKEN), output * request.output_factor


def _state_bytes(part: Message | ToolCall) -> int:
    return 0 if part.provider_state is None else len(bytes(part.provider_state))
