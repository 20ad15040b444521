"""A real HTTP server for Anthropic's Messages API with a configurable behaviour.

The behaviours are those of `support.replies`; `stop_reason` and the counts of tokens are translated. It checks
requests as the real API does, so that a client that works here works there.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from support.endpoint import ChatEndpoint
from support.replies import Behaviour, Call, Reply, failing, resolve

PATH = "/v1/messages"
FIELDS: Final = frozenset(
    {"model", "max_tokens", "messages", "system", "temperature", "output_config", "stop_sequences", "metadata"}
    | {"tools", "tool_choice"}
)
STOP_REASONS: Final = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
SCHEMA_KEYWORDS: Final = frozenset(
    {
        "type",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "enum",
        "const",
        "anyOf",
        "description",
        "pattern",
    }
)


class CachedUsage(NamedTuple):
    """Token counts of a request whose prefix was read from a cache, or written to it."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class MessagesEndpoint(ChatEndpoint):
    """Serves `root_url` + "/v1/messages". Set `behaviour` at any time; invalid requests never reach it."""

    path = PATH

    @property
    def base_url(self) -> str:
        return self.root_url

    def resolve(self, call: Call) -> Reply:
        complaint = next(_errors(call), None)
        return resolve(self.behaviour, call) if complaint is None else failing(400, complaint)

    def completion(self, reply: Reply, call: Call) -> dict[str, Any]:
        refused = reply.refusal is not None
        text = None if refused else reply.text_for(call)
        message = {
            "id": f"msg_{call.index}",
            "type": "message",
            "role": "assistant",
            "model": reply.model or call.body.get("model"),
            "content": [*([] if text is None else [{"type": "text", "text": text}]), *_tool_uses(reply, call)],
            "stop_reason": "refusal" if refused else STOP_REASONS.get(reply.finish_reason, reply.finish_reason),
            "stop_sequence": None,
        }
        return message if reply.usage is None else message | {"usage": _usage(reply.usage)}

    def fault(self, error: Mapping[str, Any]) -> dict[str, Any]:
        kept = {key: error[key] for key in ("type", "message")}
        return {"type": "error", "error": kept, "request_id": "req_0"}


def says(*blocks: Mapping[str, Any], stop_reason: str = "end_turn") -> Behaviour:
    """Answer with these content blocks."""
    return lambda call: Reply(
        raw=json.dumps({"id": f"msg_{call.index}", "content": blocks, "stop_reason": stop_reason})
    )


def _tool_uses(reply: Reply, call: Call) -> list[dict[str, Any]]:
    return [
        {"type": "tool_use", "id": f"toolu_{call.index}_{number}", "name": tool.name, "input": tool.arguments_object()}
        for number, tool in enumerate(reply.tool_calls)
    ]


def _usage(counts: tuple[int, ...]) -> dict[str, int]:
    if isinstance(counts, CachedUsage):
        return counts._asdict()
    return dict(zip(("input_tokens", "output_tokens"), counts, strict=True))


def _errors(call: Call) -> Iterator[str]:
    """Yield the errors of the real API, in its wording."""
    if "anthropic-version" not in call.headers:
        yield "anthropic-version: header is required"
    for field in ("model", "max_tokens", "messages"):
        if field not in call.body:
            yield f"{field}: Field required"
    for field in sorted(call.body.keys() - FIELDS):
        yield f"{field}: Extra inputs are not permitted"
    for number, message in enumerate(call.body.get("messages", ())):
        if message["role"] not in {"user", "assistant"}:
            yield f'messages.{number}.role: Input should be "user" or "assistant"'
        if not message["content"]:
            yield f"messages.{number}: all messages must have non-empty content"
    yield from _tool_errors(call.body)
    form = call.body.get("output_config", {}).get("format")
    if form is not None:
        yield from _schema_errors("output_config.format.schema", form["schema"])


def _tool_errors(body: Mapping[str, Any]) -> Iterator[str]:
    """Yield the errors of tool calls and results: each call must be answered in the next message, first."""
    turns = [(message["role"], _blocks(message)) for message in body.get("messages", ())]
    if "tools" not in body and any(block["type"].startswith("tool_") for _, blocks in turns for block in blocks):
        yield "Requests which include `tool_use` or `tool_result` blocks must define tools"
    if "tool_choice" in body and "tools" not in body:
        yield "tool_choice may only be specified while providing tools"
    asked: list[str] = []
    for number, (role, blocks) in enumerate(turns):
        if number and role == turns[number - 1][0]:
            yield f"messages.{number}: roles must alternate"
        results = [block["tool_use_id"] for block in blocks[: len(asked)] if block["type"] == "tool_result"]
        if results != asked:
            yield f"messages.{number}: `tool_use` ids were found without `tool_result` blocks immediately after"
        asked = [block["id"] for block in blocks if block["type"] == "tool_use"]
        for place, block in enumerate(blocks):
            yield from _block_errors(f"messages.{number}.content.{place}", block)


def _blocks(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [] if isinstance(message["content"], str) else message["content"]


def _block_errors(place: str, block: Mapping[str, Any]) -> Iterator[str]:
    if block["type"] == "text" and not block["text"].strip():
        yield f"{place}: text content blocks must contain non-whitespace text"
    if block["type"] == "tool_use" and not isinstance(block["input"], dict):
        yield f"{place}.tool_use.input: Input should be a valid dictionary"
    if block["type"] == "tool_use" and not re.fullmatch("[a-zA-Z0-9_-]{1,64}", block["name"]):
        yield f"{place}.tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'"


def _schema_errors(place: str, schema: Mapping[str, Any]) -> Iterator[str]:
    for keyword in sorted(schema.keys() - SCHEMA_KEYWORDS):
        yield f"{place}: property '{keyword}' is not supported"
    properties = schema.get("properties", {})
    if "object" in schema.get("type", ()) and schema.get("additionalProperties") is not False:
        yield f"{place}: For 'object' type, 'additionalProperties' must be explicitly set to false"
    parts = [*properties.items(), *((f"anyOf.{number}", part) for number, part in enumerate(schema.get("anyOf", ())))]
    if "items" in schema:
        parts.append(("items", schema["items"]))
    for name, part in parts:
        yield from _schema_errors(f"{place}.{name}", part)
