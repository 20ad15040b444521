"""Conversations, divided into history, query, tool calls and answer; and fields of a trace within one of them."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from tracejudge.content.encode import TypeMark, copied_parts, is_a, record_of, text_of
from tracejudge.content.field_names import HOLDERS, field_of, rank, snake_case
from tracejudge.dialects.documents import listed
from tracejudge.dialects.messages import PART_TYPES, Chat, Parts, conversation
from tracejudge.dialects.provider_calls import is_response, response_fields
from tracejudge.log import attributes_of
from tracejudge.model import Message, ToolCall, snake_case_keys

_EXPECTED: Final = frozenset({"expected_response", "expected_facts", "guidelines"})
_ASKS: Final = frozenset({"input", "messages"})
_OF_QUESTION: Final = _EXPECTED | _ASKS | {"context"}
_OF_RESULT: Final = ("output", "context", "messages", "usage")
_PAIR: Final = 2
_AUTHORS: Final = ("role", "sender", "author", "speaker", "from", "type")
_WORDS: Final = ("content", "text", "message", "value", "body", "parts", "blocks")
_ABOUT: Final = frozenset({*_AUTHORS, "name"})
_TEXT_PARTS: Final = frozenset({"text", "input_text", "output_text", "tool_use", "function_call", "message"})
_SPEAKERS: Final = frozenset({"user", "human", "assistant", "ai", "bot", "system", "developer", "tool", "model"})


def chats_in(value: Any) -> list[Chat] | None:
    """Read a plain value that is a message, or a list or object that holds nothing but messages; else None."""
    if not isinstance(value, dict | list):
        return None
    if _are_parts(value):
        return conversation({"role": "user", "content": value})
    chats = conversation([_with_usual_keys(item) for item in value] if isinstance(value, list) else value)
    return None if isinstance(value, list) and chats is not None and len(chats) != len(value) else chats


def answer_in(value: Any) -> dict[str, Any] | None:
    """Read the plain form of what a model library returned: the fields that it fills; None if it is none of these."""
    if isinstance(value, dict):
        if is_response(value):
            return response_fields(value)
        # Completions without messages, by a name beside the text.
        for name, second_key in (("response", "done"), ("response", "source_nodes"), ("text", "raw")):
            if isinstance(text := value.get(name), str) and second_key in value:
                return {"output": text}
        # Google puts the message under `content`, Amazon under `output`.
        candidates, output = value.get("candidates"), value.get("output")
        first = candidates[0] if isinstance(candidates, list) and candidates else {"content": output}
        inner = first.get("content") if isinstance(first, dict) else None
        chats = conversation(inner) if isinstance(inner, dict) else chats_in(value)
    elif _are_parts(value):
        # The content of a message of Anthropic, the output of a response of OpenAI.
        return response_fields({"output": value})
    else:
        chats = chats_in(value)
    if not chats or chats[-1].role != "assistant":
        return None
    calls = calls_of(chats[-1:])
    return {"output": chats[-1].text} | ({"tool_calls": calls} if calls else {})


def _are_parts(value: Any) -> bool:
    """Return whether a value is the content of one message: a list of texts, images, calls."""
    if not isinstance(value, list) or not all(isinstance(part, dict) for part in value):
        return False
    kinds = [part.get("type") for part in value]
    return not _TEXT_PARTS.isdisjoint(kinds) and PART_TYPES.issuperset(set(kinds) - {"message"})


def read_chats(value: Any) -> tuple[list[Chat], list[type]]:
    """Read the messages of a conversation, in every form of an item; return also the types of what is none."""
    if is_a(value, str) and (chats := conversation(value)):
        return chats, []
    items = listed(value)
    if items is None:
        record = {} if is_a(value, str) else record_of(value) or {}
        inner = record.get("messages")
        by_speaker = [{role: text} for role, text in record.items() if role.lower() in _SPEAKERS]
        items = inner if isinstance(inner, list) else by_speaker if len(by_speaker) == len(record) > 0 else [value]
    readable: list[Chat] = []
    unread = []
    for item in items:
        plain_item = copied_parts(item)
        chat = None if type(plain_item) is TypeMark else _chat(plain_item)
        if chat is None:
            unread.append(type(item))
        else:
            readable.append(chat)
    return readable, unread


def _chat(item: Any) -> Chat | None:
    if isinstance(item, list) and len(item) == _PAIR and all(isinstance(part, str) for part in item):
        item = {"role": item[0], "content": item[1]}
    if isinstance(item, str):
        return Chat("user", item)
    if not isinstance(item, dict):
        return None
    item = _with_usual_keys(item)
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
    chats = conversation([{**item, "role": role, "content": content, "parts": None, "blocks": None}])
    if not chats:
        return None
    is_empty = chats[0].text is None and not (chats[0].calls or chats[0].results)
    is_none = is_empty and item.keys().isdisjoint(_WORDS) and any(item[name] for name in item.keys() - _ABOUT)
    return None if is_none else chats[0]


def _with_usual_keys(item: Any) -> Any:
    return snake_case_keys(item) if isinstance(item, dict) else item


def before_query(messages: list[Any], query: str, answer: str) -> list[Any]:
    """Leave out the query, or query and answer, at the end of a conversation that was given with both."""
    last_two = [
        chat if isinstance(chat, dict) else {"role": chat.role, "content": chat.content} for chat in messages[-2:]
    ]
    last = [(record.get("role"), record.get("content")) for record in last_two]
    if last[-1:] == [("user", query)]:
        return messages[:-1]
    return messages[:-2] if answer and last == [("user", query), ("assistant", answer)] else messages


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
    """List the tool calls in order, each with the result of its id, or of its place if there are no ids."""
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


def unwrapped(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of a trace with what is given within one of them; a field that is given by itself comes first.

    Only content is taken: an id or a name within a value stays a tag, so that erasing a person finds every id.
    """
    if not HOLDERS.isdisjoint(fields):
        fields = _without_holders(dict(fields))
    first, answer = fields.get("input"), fields.get("output")
    if is_a(answer, str):
        return fields
    if answer is not None:
        return _without_result(fields, "output", answer)
    if first is not None and not is_a(first, str):
        # A whole trace as one record, such as a model of the service.
        record = record_of(first) or {}
        if {field_of(name) for name in record} >= {"input", "output"}:
            return {
                **record,
                **{name: value for name, value in fields.items() if name != "input" and value is not None},
            }
    for name, value in fields.items():
        if value is not None and not is_a(value, str) and type(name) is str and field_of(name) == "output":
            return _without_result(fields, name, value)
    return fields


def _without_result(fields: Mapping[str, Any], name: str, result: Any) -> Mapping[str, Any]:
    """Return the fields of a trace whose output is the result of a chain: an answer with its companions."""
    record = result if is_a(result, dict) else attributes_of(result)
    names = [key for key in record if type(key) is str]
    by_field = {field: key for key in sorted(names, key=rank, reverse=True) if (field := field_of(key)) is not None}
    if "output" not in by_field or not is_a(record[by_field["output"]], str):
        return fields
    if not any(_is_companion(fields, field, by_field[field], record[by_field[field]]) for field in by_field):
        return fields
    taken = {field: record[key] for field, key in by_field.items() if field in _OF_RESULT}
    tags = {key: record[key] for key in names if field_of(key) is None}
    rest = {key: value for key, value in fields.items() if key != name and value is not None}
    if "input" in by_field and not any(field_of(key) in ("input", "messages") for key in rest if type(key) is str):
        taken["input"] = record[by_field["input"]]
    return {**(tags if is_a(result, dict) else {}), **taken, **rest}


def _is_companion(fields: Mapping[str, Any], field: str, name: str, value: Any) -> bool:
    """Return whether a part of an object shows that a text beside it is the answer."""
    if field == "context":
        # Texts alone may be the names of sources.
        is_named = snake_case(name).startswith(("context", "retriev"))
        items = listed(value)
        return items is not None and (is_named or not all(is_a(item, str) for item in items))
    if field == "input":
        inputs = [item for key, item in fields.items() if type(key) is str and field_of(key) == "input"]
        questions = [item for item in inputs if item is not None]
        return is_a(value, str) and (not questions or any(is_a(item, str) and item == value for item in questions))
    return (field == "messages" and is_a(value, list)) or (field == "usage" and is_a(value, dict))


def _without_holders(fields: dict[str, Any]) -> dict[str, Any]:
    within: dict[str, Any] = {}
    for name in ("retrieval_context", "retrievalContext"):
        if fields.get("context") is not None and listed(fields.get(name)) is not None:
            # Of DeepEval: what should have been retrieved, beside what was.
            within["tags.context"], fields["context"] = fields.pop("context"), fields.pop(name)
    prompt: Any = fields.get("prompt")
    if is_a(prompt, dict) and is_a(prompt.get("raw"), str):  # of promptfoo, with a label
        fields["prompt"] = prompt["raw"]
    response: Any = fields.get("response")
    if "vars" in fields and is_a(response, dict) and "output" in response:  # of promptfoo, with or without counts
        fields["response"] = {"tokenUsage": {}, **response}
    has_question = any(field_of(name) == "input" for name in fields if type(name) is str and name not in HOLDERS)
    for name in sorted(HOLDERS.intersection(fields)):
        record = fields[name]
        if is_a(record, dict) and record and all(type(key) is str for key in record):
            del fields[name]
            within |= _parts(name, record, has_question=has_question)
    if "prompt" in fields and any(field_of(name) == "input" for name in within):
        within["tags.prompt"] = fields.pop("prompt")  # the question, with what a template adds
    own = {field_of(name) for name, value in fields.items() if type(name) is str and value is not None} - {None}
    taken = {name if field_of(name) not in own else f"tags.{name}": value for name, value in within.items()}
    return {**{name: value for name, value in taken.items() if value is not None}, **fields}


def _parts(holder: str, record: dict[str, Any], *, has_question: bool) -> dict[str, Any]:
    """Read the parts of one value: those that mean a field, and the rest as the value itself or as tags."""
    only = next(iter(record.values())) if len(record) == 1 else None
    if holder in ("outputs", "reference_outputs"):
        return {holder: only if is_a(only, str) else record}
    if holder == "sample":
        return {"output": record["output_text"]} if is_a(record.get("output_text"), str) else {holder: record}
    kept = _EXPECTED if holder == "expectations" else _OF_QUESTION
    parts = {name: value for name, value in record.items() if field_of(name) in kept}
    rest = {name: value for name, value in record.items() if name not in parts}
    if holder != "expectations" and not has_question and _ASKS.isdisjoint(map(field_of, parts)) and rest:
        only = next(iter(rest.values())) if len(rest) == 1 else None
        return {**parts, "inputs": only if is_a(only, str) else rest}
    # Labels of the row, and the variables of a template, have names of their own.
    return parts | {
        name if holder == "inputs" and field_of(name) is None else f"tags.{name}": rest[name] for name in rest
    }
