"""Messages in the form of Anthropic's API, where calls of tools and their results are blocks of content.

Its messages have two roles alone, in turn: the results of tools are content of the user. What a model thought stands in
blocks that must come back unchanged, and in their places among the others.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

import msgspec
from msgspec import Raw, Struct

from judges.models.function_calls import sendable_name, sendable_object
from judges.models.opaque import kept
from judges.prompt import Message

__all__ = ["THOUGHTS", "Block", "as_messages", "marked", "placed_thoughts", "text_blocks", "with_cached_results"]

Block = dict[str, object]

THOUGHTS: Final = frozenset({"thinking", "redacted_thinking"})
"""The types of the blocks in which a model thinks."""
_PLACES: Final = frozenset({"text", "tool_use"})


class _Typed(Struct):
    type: str


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


def with_cached_results(messages: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    """Mark the newest results of tools, so that all up to them is cached for the next request."""
    last = messages[-1]
    content = last["content"]
    if not isinstance(content, list) or content[-1]["type"] != "tool_result":
        return list(messages)
    return [*messages[:-1], {**last, "content": marked(content)}]


def placed_thoughts(content: Raw) -> Raw | None:
    """Keep what a model thought, as it was written, with the places of its words and calls; else nothing.

    Args:
        content: The blocks of an answer.
    """
    blocks = [(msgspec.json.decode(block, type=_Typed).type, block) for block in _blocks_of(content)]
    placed = [(kind, block if kind in THOUGHTS else None) for kind, block in blocks if kind in THOUGHTS | _PLACES]
    has_thoughts = any(block is not None for _, block in placed)
    return kept(Raw(msgspec.json.encode(placed))) if has_thoughts else None


def _blocks_of(content: Raw) -> list[Raw]:
    return msgspec.json.decode(content, type=list[Raw])


def _role(message: Message) -> str:
    return "user" if message.role == "tool" else message.role


def _has_blocks(message: Message) -> bool:
    return message.role == "tool" or bool(message.tool_calls) or message.opaque is not None


def _content(said: Sequence[Message]) -> str | list[Block | Raw]:
    if len(said) == 1 and not _has_blocks(said[0]):
        return said[0].content
    return [block for message in said for block in _blocks(message)]


def _blocks(message: Message) -> list[Block | Raw]:
    if message.role == "tool":
        return [{"type": "tool_result", "tool_use_id": message.tool_call_id, "content": message.content}]
    # A blank text would be refused.
    words = text_blocks([message.content] if message.content.strip() else [])
    calls: list[Block] = [
        {"type": "tool_use", "id": call.id, "name": sendable_name(call.name), "input": sendable_object(call.arguments)}
        for call in message.tool_calls
    ]
    return [*words, *calls] if message.opaque is None else _in_their_places(message.opaque, words, calls)


def _in_their_places(opaque: Raw, words: Sequence[Block], calls: Sequence[Block]) -> list[Block | Raw]:
    """Put what was thought among the other blocks as it stood; the words are one block by now, where the first was."""
    left = {"text": deque(words), "tool_use": deque(calls)}
    found: list[Block | Raw] = []
    for kind, block in msgspec.json.decode(opaque, type=list[tuple[str, Raw]]):
        if kind in THOUGHTS:
            found.append(block)
        elif left[kind]:
            found.append(left[kind].popleft())
    return [*found, *left["text"], *left["tool_use"]]
