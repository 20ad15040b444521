"""Calls of the APIs of OpenAI and Anthropic: Chat Completions, Responses and Messages.

Requests, responses and the events of streamed responses are read by their shape, as decoded JSON, whichever API they
belong to.
"""

from collections.abc import Iterable, Iterator, Mapping
from io import StringIO
from typing import Any, Final

from tracejudge.dialects.messages import conversation, input_from_messages
from tracejudge.dialects.names import SpanInput
from tracejudge.dialects.values import (
    SCALARS,
    copied_collection,
    first_count,
    first_text,
    is_list,
    mapping_of,
    text_of,
    tool_definitions,
)
from tracejudge.log import attributes_of, member_of
from tracejudge.model import ToolCall, Usage

_REQUEST_KEYS: Final = ("messages", "system", "input", "instructions", "model", "tools")
_ID_KEYS: Final = ("user", "safety_identifier", "metadata", "conversation")
# Not JSON: models and values that the libraries parsed from the texts beside them; long: what no reader here uses.
_SKIPPED: Final = frozenset({"parsed", "parsed_arguments", "parsed_output", "logprobs", "encrypted_content"})
_MAX_DEPTH: Final = 24
_SAME_PARTS: Final = {
    "server_tool_use": "tool_use",
    "mcp_tool_use": "tool_use",
    "mcp_tool_result": "tool_result",
    "mcp_call": "function_call",
    "custom_tool_call": "function_call",
    "custom_tool_call_output": "function_call_output",
}
CACHED_TOKENS: Final = ("cache_read_input_tokens", "cache_creation_input_tokens")
"""Counts of Anthropic that are no part of its `input_tokens`."""


def json_data(value: Any, depth: int = 0) -> Any:
    """Copy the containers of a value, without its code; models of pydantic become dicts, other objects None."""
    kind = type(value)
    if kind is str or id(kind) in SCALARS:
        return value
    base = next((base for base in (str, int, float) if issubclass(kind, base)), None)
    if base is not None or depth >= _MAX_DEPTH:
        return {str: str.__str__, int: int.__int__, float: float.__float__}[base](value) if base else None
    # Not by `model_dump`, which warns about values that do not fit their types and also copies what is skipped here.
    copy = copied_collection(attributes_of(value) if member_of(kind, "model_dump") is not None else value)
    if type(copy) is list or type(copy) is tuple:
        return [json_data(item, depth + 1) for item in copy]
    if type(copy) is not dict:
        return None
    return {
        name: json_data(item, depth + 1) for name, item in copy.items() if type(name) is str and name not in _SKIPPED
    }


def request_data(body: object, more: object = None) -> dict[str, Any]:
    """Copy the parts of a request that a trace shows, so that later changes by the caller do not matter."""
    parts = (copied_collection(body), copied_collection(more))
    fields = {name: value for part in parts if type(part) is dict for name, value in part.items()}
    copied = {key: json_data(fields[key]) for key in (*_REQUEST_KEYS, *_ID_KEYS) if fields.get(key) is not None}
    return {key: value for key, value in copied.items() if value is not None}


def is_unfinished(response: Mapping[str, Any]) -> bool:
    """Return whether a response of the background mode has no answer yet."""
    return response.get("status") in {"queued", "in_progress"}


def is_response(value: Mapping[str, Any]) -> bool:
    """Return whether a record is a response of these APIs."""
    choices = value.get("choices")
    if is_list(choices):
        return bool(choices) and "message" in (mapping_of(choices[0]) or {})
    of_messages = value.get("type") == "message" and is_list(value.get("content"))
    return of_messages or (value.get("object") == "response" and is_list(value.get("output")))


def response_fields(response: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a trace that a response fills."""
    fields = call_fields({}, response)
    calls = fields.pop("tool_calls", None)
    return {**fields, "tool_calls": list(calls.values())} if calls else fields


def call_fields(request: Mapping[str, Any], response: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a trace that a call fills; `tool_calls` by their ids."""
    asked = _asked(request)
    answer = next(iter(conversation([_answer(response)]) or ()), None)
    metadata = mapping_of(request.get("metadata")) or {}
    conversed = request.get("conversation")
    error = response.get("error")
    details = mapping_of(error)
    results = {done.id: done.result for done in (*asked.results, *(answer.results if answer else ())) if done.id}
    fields = {
        "input": asked.query,
        "messages": list(asked.history),
        "output": None if answer is None else answer.text,
        "tool_calls": {
            call.id or f"{place} {call.name}": ToolCall(
                call.name, call.arguments, results.get(call.id or ""), call.error
            )
            for place, call in enumerate((*asked.calls, *(answer.calls if answer else ())))
        },
        "tools": tool_definitions(request.get("tools")),
        "model": text_of(response.get("model")) or text_of(request.get("model")),
        "response_id": text_of(response.get("id")),
        "usage": _usage(mapping_of(response.get("usage")) or {}),
        "user_id": first_text(request, ("safety_identifier", "user")) or first_text(metadata, ("user_id",)),
        "session_id": first_text(metadata, ("session_id",))
        or text_of((mapping_of(conversed) or {}).get("id", conversed)),
        "error": text_of(error)
        if details is None
        else ": ".join(text for key in ("type", "code", "message") if (text := text_of(details.get(key)))) or None,
    }
    return {name: value for name, value in fields.items() if value not in (None, [], {})}


def _asked(request: Mapping[str, Any]) -> SpanInput:
    items = request.get("messages") or request.get("input")
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    messages: list[Mapping[str, Any]] = []
    for item in items if is_list(items) else ():
        message = mapping_of(item) or {}
        content = message.get("content")
        if "role" not in message:
            # An item of the Responses API that is no message: a call, its result, or a thought.
            is_result = str(message.get("type")).endswith("_output")
            message = {"role": "tool" if is_result else "assistant", "content": list(_parts([message]))}
        elif is_list(content):
            message = {**message, "content": list(_parts(content))}
        messages.append(message)
    return input_from_messages(conversation(messages) or [], request.get("system") or request.get("instructions"))


def _answer(response: Mapping[str, Any]) -> dict[str, Any]:
    choices = response.get("choices")
    if is_list(choices):
        first = mapping_of(choices[0]) if choices else None
        message = mapping_of((first or {}).get("message")) or {}
        spoken = (mapping_of(message.get("audio")) or {}).get("transcript")
        return {**message, "role": "assistant", "content": message.get("content") or spoken}
    content: list[object] = []
    output = response.get("output")
    for item in output if is_list(output) else ():
        record = mapping_of(item) or {}
        inner = record.get("content")
        content += inner if record.get("type") == "message" and is_list(inner) else [record]
    parts = response.get("content")
    return {"role": "assistant", "content": _joined(_parts(content or (parts if is_list(parts) else ())))}


def _parts(content: Iterable[object]) -> Iterator[object]:
    """Yield the parts of a message, calls and results of tools of all kinds as function calls and their results."""
    for item in content:
        part = mapping_of(item)
        if part is None:
            yield item
            continue
        kind = part.get("type")
        call_id = part.get("call_id") or part.get("id")  # an item has an id of its own beside the call's
        yield {**part, "type": _SAME_PARTS.get(str(kind), kind), "id": call_id}
        if kind == "mcp_call":
            result = part.get("output") or part.get("error")
            yield {"type": "function_call_output", "id": call_id, "output": result}


def _joined(parts: Iterable[object]) -> list[object]:
    """Join texts that follow each other: an answer with citations is one text in many parts."""
    joined: list[Any] = []
    for part in parts:
        text = first_text(part, ("text", "refusal")) if isinstance(part, Mapping) else None
        if text is not None and joined and isinstance(joined[-1], str):
            joined[-1] += text
        else:
            joined.append(part if text is None else text)
    return joined


def _usage(counts: Mapping[str, Any]) -> Usage | None:
    read = first_count(counts, ("input_tokens", "prompt_tokens"))
    written = first_count(counts, ("output_tokens", "completion_tokens"))
    if read is None and written is None:
        return None
    cached = [first_count(counts, (key,)) or 0 for key in CACHED_TOKENS]
    return Usage((read or 0) + sum(cached), written or 0)


class _Block:
    """A text or tool call of a streamed answer; the text of a call is its arguments."""

    def __init__(self, head: Mapping[str, Any]) -> None:
        self.head = dict(head)
        self.text = StringIO()  # not a list of the pieces: an object for each token takes twenty times its text

    def part(self) -> dict[str, Any]:
        """Return it as a part of a message."""
        kind, text = self.head.get("type"), self.text.getvalue()
        if kind in {None, "text"}:
            return {"type": "text", "text": text}
        return {**self.head, "input": text} if text else self.head


class StreamedAnswer:
    """A response put together from the events of its stream, of which it may be the first part only."""

    def __init__(self) -> None:
        self._head: dict[str, Any] = {}
        self._blocks: dict[object, _Block] = {}
        self._whole: Mapping[str, Any] | None = None
        self._is_complete = False
        self._room = 1_000_000

    def add(self, event: Mapping[str, Any]) -> None:
        """Add the next event."""
        kind = event.get("type")
        if isinstance(event.get("error"), Mapping):
            self._head["error"] = event["error"]
        elif kind == "error":  # of the Responses API, where its fields stand in the event
            self._head["error"] = {"code": event.get("code"), "message": event.get("message")}
        elif is_list(event.get("choices")):
            self._add_chunk(event)
        elif isinstance(kind, str) and kind.startswith("response."):
            self._add_response_event(kind, event)
        else:
            place = event.get("index")
            message, block = mapping_of(event.get("message")), mapping_of(event.get("content_block"))
            delta = mapping_of(event.get("delta")) or {}
            if event.get("type") in {"message_start", "message_delta"}:
                self._begin(message or event)
                self._is_complete |= event.get("type") == "message_delta"
            elif block is not None:
                self._write(place, block.get("text"), block)
            elif delta.get("type") in {"text_delta", "input_json_delta"}:
                self._write(place, delta.get("text") or delta.get("partial_json"))

    def response(self) -> dict[str, Any]:
        """Return the response so far; empty if nothing of the answer arrived."""
        if self._whole is not None:
            return {**self._head, **self._whole}
        blocks = self._blocks.values()
        if not (self._is_complete or "error" in self._head or any(block.text.tell() for block in blocks)):
            return {}
        return {**self._head, "content": [block.part() for block in blocks]}

    def _begin(self, event: Mapping[str, Any]) -> None:
        if (counts := mapping_of(event.get("usage"))) is not None:
            usage = {name: count for name, count in counts.items() if count is not None}
            self._head["usage"] = {**self._head.get("usage", {}), **usage}
        if "id" not in self._head:  # each chunk repeats them
            self._head |= {name: event[name] for name in ("id", "model") if event.get(name)}

    def _write(self, key: object, text: object, head: Mapping[str, Any] | None = None) -> None:
        block = self._blocks.get(key)
        if block is None:
            block = self._blocks[key] = _Block(head or {})
        if isinstance(text, str) and self._room > 0:
            block.text.write(text[: self._room])
            self._room -= len(text)

    def _add_chunk(self, chunk: Mapping[str, Any]) -> None:
        self._begin(chunk)
        for choice in chunk["choices"]:
            delta = mapping_of(choice.get("delta"))
            if choice.get("index", 0) != 0 or delta is None:
                continue
            self._is_complete |= choice.get("finish_reason") is not None
            for name in ("content", "refusal"):
                if delta.get(name):
                    self._write(name, delta[name])
            function_call = delta.get("function_call")  # of older models
            calls: Any = delta.get("tool_calls") or ([] if function_call is None else [{"function": function_call}])
            for call in calls:
                function = mapping_of(call.get("function")) or {}
                head = {"type": "tool_use", "id": call.get("id"), "name": function.get("name")}
                self._write(("call", call.get("index", 0)), function.get("arguments"), head)

    def _add_response_event(self, kind: str, event: Mapping[str, Any]) -> None:
        response, item = mapping_of(event.get("response")), mapping_of(event.get("item"))
        place = event.get("output_index")
        if response is not None:
            self._begin(response)
            if kind in {"response.completed", "response.incomplete", "response.failed"}:
                self._whole = response
                self._blocks.clear()
        elif kind == "response.output_item.added" and item is not None and "name" in item:
            head = {**item, "type": "function_call", "input": None, "arguments": None}
            self._write((place, None), None, head)
        elif kind.endswith(("_arguments.delta", "_input.delta")):
            self._write((place, None), event.get("delta"))
        elif kind in {"response.output_text.delta", "response.refusal.delta"}:
            self._write((place, event.get("content_index")), event.get("delta"))
