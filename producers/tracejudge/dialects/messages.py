"""Messages of a conversation, in whatever shape they are written.

Parts as the GenAI conventions have them, OpenAI's and Anthropic's requests, the flattened messages of
OpenInference and OpenLLMetry once they are built up again, and LangChain's. The key they stood under is never
believed: a list without anything like a message is no conversation.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

from tracejudge.dialects.parts import Parts, call_of, read_parts, result_of
from tracejudge.dialects.reading import Answered, Asked, Call, Said
from tracejudge.dialects.values import clean, decoded, is_list, mapping_of, text_of
from tracejudge.model import Message

_ROLES: Final = {
    "human": "user",
    "humanmessage": "user",
    "ai": "assistant",
    "aimessage": "assistant",
    "aimessagechunk": "assistant",
    "model": "assistant",
    "systemmessage": "system",
    "toolmessage": "tool",
    "function": "tool",
}
_KNOWN_ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool", *_ROLES})
_CONTENT_KEYS: Final = ("parts", "content", "contents", "tool_calls", "function_call")
_MAX_WRAPPINGS: Final = 3


class Chat(Struct, frozen=True):
    """One message."""

    role: str
    text: str | None = None
    name: str | None = None
    calls: tuple[Call, ...] = ()
    answers: tuple[Answered, ...] = ()

    @property
    def is_query(self) -> bool:
        """Whether a user asks here; some providers carry the answers of tools as a user's message."""
        return self.role == "user" and (self.text is not None or not self.answers)


def conversation(value: object) -> list[Chat] | None:
    """Read the messages of a value; None when it holds none. An item that is no message costs only itself."""
    found = decoded(value)
    if found is None:
        return None
    for _ in range(_MAX_WRAPPINGS):
        mapping = mapping_of(found)
        if mapping is not None and not _is_message(_unwrapped(mapping)):
            found = decoded(mapping.get("messages"))
    if mapping_of(found) is not None:
        found = [found]
    chats = [chat for item in _flat(found) if (chat := _chat(item)) is not None]
    return chats or None


def asked(chats: list[Chat], instructions: object = None) -> Asked:
    """Tell the query, what was said before it, and which tools were called since.

    The query is the last message of a user, even when its text is missing: an earlier one is not what was
    answered.
    """
    place = next((place for place in range(len(chats) - 1, -1, -1) if chats[place].is_query), None)
    before, since = (chats, []) if place is None else (chats[:place], chats[place + 1 :])
    system = _instruction(instructions)
    return Asked(
        query=None if place is None else chats[place].text,
        history=(*system, *(message for chat in before for message in _as_messages(chat))),
        calls=tuple(call for chat in since for call in chat.calls),
        answers=tuple(answer for chat in since for answer in chat.answers),
    )


def said(chats: list[Chat]) -> Said:
    """Tell what the model answered: the first choice when there are several."""
    answer = next((chat for chat in chats if chat.role == "assistant"), chats[0] if chats else None)
    return Said() if answer is None else Said(text=answer.text, calls=answer.calls)


def said_last(chats: list[Chat]) -> Said:
    """Tell the last word of a whole conversation, as an agent's output is one."""
    return said([chat for chat in chats if chat.role == "assistant"][-1:])


def _flat(found: object) -> Iterator[object]:
    """Give the items of a list, and of the lists in it: LangChain batches conversations."""
    for item in found if is_list(found) else ():
        if is_list(item):
            yield from item
        else:
            yield item


def _chat(item: object) -> Chat | None:
    mapping = mapping_of(decoded(item) if isinstance(item, str) else item)
    if mapping is None:
        return None
    message = _unwrapped(mapping)
    if not _is_message(message):
        return None
    role, parts = _role(message), _parts(message)
    text = text_of("\n".join(parts.texts))
    if role == "tool" and not parts.answers:
        answer = Answered(text_of(message.get("tool_call_id")), result_of(message.get("content")))
        return Chat(role, answers=(answer,))
    return Chat(role, text, text_of(message.get("name")), tuple(parts.calls), tuple(parts.answers))


def _unwrapped(mapping: Mapping[str, object]) -> Mapping[str, object]:
    """Open `{"message": …}` of OpenInference and of a choice, and LangChain's serialised objects."""
    inner = mapping_of(mapping.get("message"))
    if inner is not None:
        return inner
    kwargs = mapping_of(mapping.get("kwargs"))
    path = mapping.get("id")
    if kwargs is not None and isinstance(path, list) and path and isinstance(path[-1], str):
        return {"type": path[-1], **kwargs}
    return mapping


def _is_message(mapping: Mapping[str, object]) -> bool:
    has_content = any(key in mapping for key in _CONTENT_KEYS)
    role = mapping.get("role")
    if isinstance(role, str) and role:
        return has_content or role.lower() in _KNOWN_ROLES
    kind = mapping.get("type")
    return isinstance(kind, str) and (kind == "message" or kind.lower() in _KNOWN_ROLES) and has_content


def _role(message: Mapping[str, object]) -> str:
    given = message.get("role")
    role = given if isinstance(given, str) and given else message.get("type")
    word = clean(role) if isinstance(role, str) else "user"
    return _ROLES.get(word.lower(), word)


def _parts(message: Mapping[str, object]) -> Parts:
    found = Parts()
    for key in ("parts", "content", "contents"):
        if found.is_empty:
            read_parts(message.get(key), found)
    calls = message.get("tool_calls")
    for item in calls if is_list(calls) else (message.get("function_call"),):
        if (call := call_of(item)) is not None:
            found.calls.append(call)
    refusal = text_of(message.get("refusal"))
    if refusal is not None and not found.texts:
        found.texts.append(refusal)
    return found


def _instruction(value: object) -> tuple[Message, ...]:
    found = Parts()
    structure = decoded(value)
    read_parts(value if structure is None else structure, found)
    text = text_of("\n".join(found.texts))
    return () if text is None else (Message("system", text),)


def _as_messages(chat: Chat) -> Iterator[Message]:
    if chat.text is not None:
        yield Message(chat.role, chat.text, chat.name)
    for answer in chat.answers:
        if isinstance(answer.result, str) and answer.result:
            yield Message("tool", answer.result)
