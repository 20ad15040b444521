"""Messages in the form of Anthropic's API, where calls of tools and their results are blocks of content.

Its messages have two roles alone, in turn: the results of tools are content of the user.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby

from judges.models.function_calls import sendable_name, sendable_object
from judges.prompt import Message

__all__ = ["Block", "as_messages", "marked", "text_blocks"]

Block = dict[str, object]


def as_messages(messages: Sequence[Message]) -> list[dict[str, object]]:
    """Give the messages after the fixed part; those of one role that follow each other become one."""
    spoken = [message for message in messages if message.role != "system"]
    if not any(map(_has_blocks, spoken)):
        return [{"role": message.role, "content": message.content} for message in spoken]
    return [{"role": role, "content": _content(list(said))} for role, said in groupby(spoken, _role)]


def text_blocks(texts: Iterable[str]) -> list[Block]:
    """Give each text a block."""
    return [{"type": "text", "text": text} for text in texts]


def marked(blocks: Sequence[Block]) -> list[Block]:
    """Mark the end of what is the same in all requests of a judge, so that it is cached."""
    return [*blocks[:-1], {**blocks[-1], "cache_control": {"type": "ephemeral"}}]


def _role(message: Message) -> str:
    return "user" if message.role == "tool" else message.role


def _has_blocks(message: Message) -> bool:
    return message.role == "tool" or bool(message.tool_calls)


def _content(said: Sequence[Message]) -> str | list[Block]:
    if len(said) == 1 and not _has_blocks(said[0]):
        return said[0].content
    return [block for message in said for block in _blocks(message)]


def _blocks(message: Message) -> list[Block]:
    if message.role == "tool":
        return [{"type": "tool_result", "tool_use_id": message.tool_call_id, "content": message.content}]
    calls: list[Block] = [
        {"type": "tool_use", "id": call.id, "name": sendable_name(call.name), "input": sendable_object(call.arguments)}
        for call in message.tool_calls
    ]
    # A blank text would be refused.
    return [*text_blocks([message.content] if message.content.strip() else []), *calls]
