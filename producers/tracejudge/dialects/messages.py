"""Messages of a conversation, in every shape in which they are written.

Messages come as parts of the GenAI conventions, as requests of OpenAI and Anthropic, as flattened messages of
OpenInference and OpenLLMetry after `unflattened`, and from LangChain. The attribute's name proves nothing: a list
without anything like a message is no conversation.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from msgspec import Struct

from tracejudge.dialects.names import Call, SpanInput, SpanOutput, ToolResult
from tracejudge.dialects.values import (
    ADDRESS,
    clean,
    decoded,
    decoded_or_same,
    first_text,
    is_list,
    mapping_of,
    media_mark,
    plain,
    structure_of,
    text_of,
)
from tracejudge.model import JSONValue, Message

_TEXTS: Final = frozenset({"text", "input_text", "output_text", "refusal", None})
_CALLS: Final = frozenset({"tool_call", "tool_use", "function_call"})
_RESULTS: Final = frozenset({"tool_call_response", "tool_result", "function_call_output"})

_MEDIA: Final = {**{kind: kind for kind in ("image", "audio", "video", "file")}, "document": "file"}
_REFERENCE: Final = re.compile(r"https?:|.{0,99}\s")  # or words
_MIME_TYPES: Final = ("mime_type", "mimeType", "media_type", "mediaType")
_MEDIA_HOLDERS: Final = ("inline_data", "inlineData", "file_data", "fileData")
_MEDIA_TYPES: Final = {
    f"{before}{name}{after}" for name in _MEDIA for before in ("", "input_") for after in ("", "_url")
}
_THOUGHTS: Final = frozenset({"thinking", "redacted_thinking", "reasoning"})
PART_TYPES: Final = frozenset({*_THOUGHTS, *_TEXTS, *_CALLS, *_MEDIA_TYPES}) - {None}

_WRITTEN_TYPES: Final = PART_TYPES | _RESULTS


class Parts:
    """The texts, tool calls and tool results of a message, without thoughts; a file leaves a mark such as `[image]`."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.calls: list[Call] = []
        self.results: list[ToolResult] = []

    def read(self, value: object) -> None:
        """Read content that is a text, a part, or a list of both."""
        for item in value if is_list(value) else (value,):
            if (text := text_of(item)) is not None:
                self.texts.append(text)
            elif (part := mapping_of(item)) is not None:
                self._read_part(part)

    def _read_part(self, part: Mapping[str, object]) -> None:
        # Bedrock writes `{"toolUse": {…}}`, Google `{"function_call": {…}}`.
        called = mapping_of(_first_given(part, ("toolUse", "function_call", "tool_call")))
        done = mapping_of(_first_given(part, ("toolResult", "function_response")))
        content = mapping_of(part.get("message_content")) or done or part
        kind = content.get("type") or content.get("block_type")  # the latter of LlamaIndex
        # The AI SDK writes `tool-call`.
        kind = kind.replace("-", "_") if isinstance(kind, str) else None if kind is None else "unknown"
        if called is not None or kind in _CALLS:
            self.add_call(called or part)
        elif kind in _RESULTS or done is not None:
            # The convention's prose says `result`, its schema `response`; Anthropic says `content`, OpenAI `output`.
            result = _first_given(content, ("response", "result", "content", "output"))
            call_id = first_text(content, ("call_id", "id", "tool_use_id", "toolCallId", "toolUseId"))
            self.results.append(ToolResult(call_id, result_of(result)))
        elif kind in _TEXTS and (text := first_text(content, ("text", "content", "refusal"))) is not None:
            self.texts.append(text)
        elif (mark := _media_mark(content, kind or "")) is not None:
            self.texts.append(mark)

    def add_call(self, value: object) -> None:
        """Read a tool call of any provider; ignored without a name."""
        call = mapping_of(value)
        if call is None:
            return
        call = mapping_of(call.get("tool_call")) or call
        function = mapping_of(call.get("function")) or call
        name = first_text(function, ("name", "toolName"))
        if name is not None:
            arguments = plain(structure_of(_first_given(function, ("arguments", "input", "args"))))
            # Items of OpenAI's responses have an id of their own beside that of the call.
            self.calls.append(Call(name, arguments, first_text(call, ("call_id", "id", "toolCallId", "toolUseId"))))


def _media_mark(content: Mapping[str, object], kind: str) -> str | None:
    """Return the mark of an image, a sound or a file; None for a part that is none of them."""
    holders = (content, *(mapping_of(content.get(key)) or {} for key in _MEDIA_HOLDERS))
    mime = next((text for holder in holders if (text := first_text(holder, _MIME_TYPES)) is not None), "")
    named = kind.replace("-", "_").removeprefix("input_").removesuffix("_url")
    # Bedrock writes `{"image": {"format": "png", "source": {…}}}`.
    held = next((name for name in _MEDIA if "source" in (mapping_of(content.get(name)) or ())), "")
    kinds = (text_of(content.get("modality")) or "", mime.partition("/")[0], named, held, "file" if mime else "")
    names = [_MEDIA[name] for name in kinds if name in _MEDIA]
    # Base64 or an address is in the part or in a mapping within it; base64 as such or as a data URL.
    texts = [*_texts(content)] if names else []
    sizes = (len(text) * 3 // 4 for text in texts if not _REFERENCE.match(text))
    return media_mark(names[0], max(sizes, default=0), next(filter(ADDRESS.fullmatch, texts), "")) if names else None


def _texts(value: object, depth: int = 3) -> Iterator[str]:
    if (text := text_of(value)) is not None:
        yield text
    for item in (mapping_of(value) or {}).values() if depth else ():
        yield from _texts(item, depth - 1)


def result_of(value: object) -> JSONValue:
    """Read the result of a tool: its text if it has one, else the structure."""
    if is_list(value):
        parts = Parts()
        parts.read(value)
        if parts.texts:
            return "\n".join(parts.texts)
    return plain(value)


def tool_result(value: object) -> object:
    """Return what a tool returned, where its span holds the record or the message in which it was passed on."""
    if is_list(value) and value and all((mapping_of(part) or {}).keys() == {"text"} for part in value):
        return structure_of(result_of(value))
    record = mapping_of(value)
    if record is None:
        return value
    if record.keys() == {"output", "kwargs"}:  # written by OpenLLMetry for LangChain
        return tool_result(structure_of(record["output"]))
    # LlamaIndex keeps what the function returned beside what the model is told.
    if "tool_name" in record and "raw_output" in record:
        return record["raw_output"]
    if record.keys() == {"result"}:  # into which Google's ADK puts what is no object
        return record["result"]
    # LangChain writes the message to the model, with the result as its content.
    chats = conversation(record) or []
    return chats[0].results[0].result if len(chats) == 1 and chats[0].role == "tool" else value


def _first_given(mapping: Mapping[str, object], keys: tuple[str, ...]) -> object:
    return next((mapping[key] for key in keys if mapping.get(key) is not None), None)


_ROLES: Final = {
    **dict.fromkeys(("human", "humanmessage"), "user"),
    **dict.fromkeys(("ai", "aimessage", "aimessagechunk", "model"), "assistant"),
    "systemmessage": "system",
    **dict.fromkeys(("toolmessage", "function"), "tool"),
}
_KNOWN_ROLES: Final = frozenset({"system", "developer", "user", "assistant", "tool", *_ROLES})
_CONTENT_KEYS: Final = ("parts", "content", "contents", "blocks", "tool_calls", "function_call")


class Chat(Struct, frozen=True):
    """One message."""

    role: str
    text: str | None = None
    name: str | None = None
    calls: tuple[Call, ...] = ()
    results: tuple[ToolResult, ...] = ()
    is_piece: bool = False  # of a streamed answer, not the last one

    @property
    def is_query(self) -> bool:
        """Whether a user asks; some providers send the results of tools as a message of the user."""
        return self.role == "user" and (self.text is not None or not self.results)

    def published(self) -> Iterator[Message]:
        """Yield the text and the textual tool results as messages of a trace."""
        if self.text is not None:
            yield Message(self.role, self.text, self.name)
        for result in self.results:
            if isinstance(result.result, str) and result.result:
                yield Message("tool", result.result)


def conversation(value: object) -> list[Chat] | None:
    """Read the messages of a value; None if it has none. Items that are no messages are skipped."""
    structure = decoded(value)
    if structure is None:
        return None
    for _ in range(3):
        mapping = mapping_of(structure)
        if mapping is not None and not _is_message(_unwrapped(mapping)):
            structure = decoded(mapping.get("messages"))
    if mapping_of(structure) is not None:
        structure = [structure]
    chats: list[Chat] = []
    for item in structure if is_list(structure) else ():
        # LangChain batches conversations: a list in the list.
        several = item if is_list(item) and not _is_pair(item) else (item,)
        chats.extend(chat for message in several if (chat := _chat(message)) is not None)
    return chats or None


def input_from_messages(chats: list[Chat], instructions: object = None) -> SpanInput:
    """Split a conversation into the query, the history before it, and the tool calls after it."""
    # The query is the user's last message, even if its text is missing: the answer is not for an earlier one.
    place = next((place for place in range(len(chats) - 1, -1, -1) if chats[place].is_query), None)
    before, since = (chats, []) if place is None else (chats[:place], chats[place + 1 :])
    parts = Parts()
    parts.read(decoded_or_same(instructions))
    system = text_of("\n".join(parts.texts))
    if before and before[0].role == "system" and before[0].text == system:
        system = None  # some instrumentations write the instructions as an attribute and as a message
    return SpanInput(
        query=None if place is None else chats[place].text,
        history=(
            *(() if system is None else (Message("system", system),)),
            *(message for chat in before for message in chat.published()),
        ),
        calls=tuple(call for chat in since for call in chat.calls),
        results=tuple(result for chat in since for result in chat.results),
    )


def output_from_messages(chats: list[Chat]) -> SpanOutput:
    """Return the model's answer, the first one if there are several choices."""
    answers = [chat for chat in chats if chat.role == "assistant"] or chats
    end = next((number for number, chat in enumerate(answers, 1) if not chat.is_piece), len(answers))
    text = "".join(chat.text or "" for chat in answers[:end])
    return SpanOutput(text=text or None, calls=tuple(call for chat in answers[:end] for call in chat.calls))


def output_from_last_message(chats: list[Chat]) -> SpanOutput:
    """Return the last answer of a whole conversation, which is the output of some agents."""
    return output_from_messages([chat for chat in chats if chat.role == "assistant"][-1:])


def _is_pair(item: object) -> bool:
    """Return whether a message is written as a role and a text, as LangChain takes it."""
    role, text = item if is_list(item) and len(item) == 2 else (None, None)  # noqa: PLR2004
    return isinstance(role, str) and isinstance(text, str) and role.lower() in _KNOWN_ROLES


def _chat(item: object) -> Chat | None:
    if is_list(item) and _is_pair(item):
        item = {"role": item[0], "content": item[1]}
    mapping = mapping_of(decoded(item) if isinstance(item, str) else item)
    if mapping is None:
        return None
    message = _unwrapped(mapping)
    if not _is_message(message):
        return None
    role_text = message.get("role")
    role = role_text if isinstance(role_text, str) and role_text else message.get("type")
    role = clean(role) if isinstance(role, str) else "user"
    role = _ROLES.get(role.lower(), role.lower() if role.lower() in _KNOWN_ROLES else role)
    parts = Parts()
    for key in ("parts", "content", "contents", "blocks"):
        if not (parts.texts or parts.calls or parts.results):
            parts.read(_parts_of(message.get(key)))
    calls = message.get("tool_calls")
    for call in calls if is_list(calls) else (message.get("function_call"),):
        parts.add_call(call)
    refusal = text_of(message.get("refusal"))
    if refusal is not None and not parts.texts:
        parts.texts.append(refusal)
    if role == "tool" and not parts.results:
        content = _first_given(message, ("content", "parts", "contents"))
        result = ToolResult(first_text(message, ("tool_call_id", "id")), result_of(content))
        return Chat(role, results=(result,))
    text = text_of(_without_markers("\n".join(parts.texts)))
    # Google's ADK writes each piece of a stream as a message.
    is_piece = message.get("finish_reason") == ""
    return Chat(role, text, text_of(message.get("name")), tuple(parts.calls), tuple(parts.results), is_piece)


def _parts_of(content: object) -> object:
    parts = structure_of(content) if isinstance(content, str) and content[:1] == "[" else None
    kinds = [(mapping_of(part) or {}).get("type") for part in parts] if is_list(parts) else []
    is_known = kinds and all(isinstance(kind, str) and kind.replace("-", "_") in _WRITTEN_TYPES for kind in kinds)
    return parts if is_known else content


# DSPy writes the fields of a prompt and of an answer into one text, each behind a marker.
_MARKER: Final = re.compile(r"^\[\[ ## (\w+) ## \]\]$", re.MULTILINE)


def _without_markers(text: str) -> str:
    """Return the value of the only field of a text of DSPy, or all of them as JSON; another text as it is."""
    if not text.startswith("[[ ## "):
        return text
    parts = _MARKER.split(text.rpartition("\n\nRespond with the corresponding output fields")[0] or text)
    fields = {name: value.strip() for name, value in zip(parts[1::2], parts[2::2], strict=True)}
    kept = {name: value for name, value in fields.items() if name not in {"completed", "reasoning"}}
    if len(kept) == 1:
        return next(iter(kept.values()))
    return msgspec.json.encode({name: decoded_or_same(value) for name, value in kept.items()}).decode()


def _unwrapped(mapping: Mapping[str, object]) -> Mapping[str, object]:
    # `{"message": …}` of OpenInference and of a choice, and LangChain's serialised objects.
    inner = mapping_of(mapping.get("message"))
    if inner is not None:
        return _unwrapped(inner)
    if "_role" in mapping and "_content" in mapping:  # of Haystack
        return {"role": mapping["_role"], "content": mapping["_content"]}
    kwargs = mapping_of(mapping.get("kwargs"))
    path = mapping.get("id")
    if kwargs is not None and isinstance(path, list) and path and isinstance(path[-1], str):
        return {"type": path[-1], **kwargs}
    # LangChain's `messages_to_dict`: the fields beside the kind.
    data = mapping_of(mapping.get("data"))
    if data is not None and "content" in data:
        return {**mapping, **data}
    return mapping


def _is_message(mapping: Mapping[str, object]) -> bool:
    has_content = any(key in mapping for key in _CONTENT_KEYS)
    role = mapping.get("role")
    if isinstance(role, str) and role:
        return has_content or role.lower() in _KNOWN_ROLES
    kind = mapping.get("type")
    return isinstance(kind, str) and (kind == "message" or kind.lower() in _KNOWN_ROLES) and has_content
