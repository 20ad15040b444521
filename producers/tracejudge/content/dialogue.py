"""Conversations as services give them, divided into history, query, tool calls and answer."""

from collections.abc import Iterable
from typing import Any, Final

from tracejudge.content.encode import copied, is_a, is_type_mark, record_of, text_of
from tracejudge.dialects.documents import listed
from tracejudge.dialects.messages import Chat, Parts, conversation
from tracejudge.model import Message, ToolCall

_PAIR: Final = 2
_AUTHORS: Final = ("role", "sender", "author", "speaker", "from", "type")
_WORDS: Final = ("content", "text", "message", "value", "body", "parts", "blocks")
_SPEAKERS: Final = frozenset({"user", "human", "assistant", "ai", "bot", "system", "developer", "tool", "model"})


def chats_in(value: Any) -> list[Chat] | None:
    """Read a plain value that is a message, or a list or object that holds nothing but messages; else None."""
    if not isinstance(value, dict | list):
        return None
    chats = conversation(value)
    return None if isinstance(value, list) and chats is not None and len(chats) != len(value) else chats


def answer_in(value: Any) -> str | Chat | None:
    """Read the answer in the plain form of what a model library returned; None if it is nothing of the kind."""
    if isinstance(value, dict):
        if isinstance(text := value.get("response"), str) and "source_nodes" in value:  # LlamaIndex
            return text
        choices = value.get("choices") or value.get("candidates")
        if isinstance(choices, list):
            # Google puts the message under `content`.
            inner = [choice.get("content") if isinstance(choice, dict) else None for choice in choices]
            found = [one if isinstance(one, dict) else choice for one, choice in zip(inner, choices, strict=True)]
            if chats := conversation(found):
                return chats[0]
        if value.get("object") == "response" and (chats := conversation(value.get("output"))):  # OpenAI
            return chats[-1]
    chats = chats_in(value) or []
    return chats[-1] if chats and chats[-1].role == "assistant" else None


def read_chats(value: Any) -> tuple[list[Chat], list[type]]:
    """Read the messages of a conversation, in every form of an item; return also the types of what is none."""
    items = listed(value)
    if items is None:
        inner = None if is_a(value, str) else (record_of(value) or {}).get("messages")
        items = inner if isinstance(inner, list) else [value]
    found: list[Chat] = []
    unread = []
    for item in items:
        plain_item = copied(item)
        chat = None if is_type_mark(plain_item, item) and not is_a(item, str) else _chat(plain_item)
        if chat is None:
            unread.append(type(item))
        else:
            found.append(chat)
    return found, unread


def _chat(item: Any) -> Chat | None:
    if isinstance(item, list) and len(item) == _PAIR and all(isinstance(one, str) for one in item):
        item = {"role": item[0], "content": item[1]}
    if isinstance(item, str):
        return Chat("user", item)
    if not isinstance(item, dict):
        return None
    if len(item) == 1 and (role := next(iter(item))).lower() in _SPEAKERS:
        item = {"role": role, "content": item[role]}
    role = next((item[key] for key in _AUTHORS if isinstance(item.get(key), str)), "user")
    content = next((item[key] for key in _WORDS if item.get(key) is not None), None)
    if isinstance(content, dict):
        parts = Parts()
        parts.read(content)
        content = content if parts.texts or parts.calls or parts.results else text_of(content)
    elif content is not None and not isinstance(content, str | list):
        content = text_of(content)
    chats = conversation([{**item, "role": role, "content": content, "parts": None}])
    return chats[0] if chats else None


def is_wire_message(item: Any) -> bool:
    """Return whether a message has the form of the wire already."""
    if type(item) is not dict or not item.keys() <= {"role", "content", "name"}:
        return False
    return all(type(text) is str for text in item.values()) and "role" in item and "content" in item


def add_chats(read: dict[str, Any], chats: list[Chat], *, keeps_history: bool) -> None:
    """Divide a conversation into history, query, tool calls and answer, as far as these are not given."""
    # A failed call, or one with an empty answer, must not be judged by the answer before it.
    has_answer = "output" in read or "error" in read
    if not has_answer and chats[-1].role == "assistant" and chats[-1].text is not None:
        read["output"] = chats[-1].text
        chats = chats[:-1]
    place = next((place for place in range(len(chats) - 1, -1, -1) if chats[place].is_query), None)
    if "input" not in read and place is not None and chats[place].text is not None:
        read["input"] = chats[place].text
        since = chats[place + 1 :]
        if since and since[-1].role == "assistant" and since[-1].text == read.get("output"):
            since = since[:-1]
        if not any(chat.text for chat in since):
            chats = chats[:place]
            if calls := calls_of(since):
                read.setdefault("tool_calls", calls)
    if chats and keeps_history:
        read["messages"] = [message for chat in chats for message in _messages_of(chat)]


def calls_of(chats: list[Chat]) -> list[ToolCall]:
    """List the tool calls in order, each with the result of its id, or of its place where there are no ids."""
    results = [result for chat in chats for result in chat.results]
    by_id = {result.id: result.result for result in results if result.id is not None}
    calls = [call for chat in chats for call in chat.calls]
    without_ids = iter([result.result for result in results if result.id is None])
    return [
        ToolCall(call.name, call.arguments, by_id[call.id] if call.id in by_id else next(without_ids, None))
        for call in calls
    ]


def _messages_of(chat: Chat) -> Iterable[Message]:
    """Yield a message with its text and a line for each call, then the results of tools."""
    lines = [] if chat.text is None else [chat.text]
    lines += [f"[tool call {call.name} {text_of(call.arguments)}]" for call in chat.calls]
    if lines or not chat.results:
        yield Message(chat.role, "\n".join(lines) if lines else None, chat.name)
    for result in chat.results:
        yield Message("tool", text_of(result.result))
