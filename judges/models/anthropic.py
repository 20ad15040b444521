"""Anthropic's Messages API, or a gateway that speaks it.

The request is marked for prompt caching. While the model may ask for more calls of tools, their newest results are
marked too, because each round sends again all that was read before. `max_tokens` is required. Requests whose messages
contain calls of tools must contain the tools, even if none may be called.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

import httpx
import msgspec
from msgspec import Raw, Struct

from judges.core.model import ChatRequest, ChatResponse, ModelSettings
from judges.core.prompt import Message
from judges.models.http import EndpointModel, Reply
from judges.models.provider import ANTHROPIC_URL, ProbeRequest, join_path, read_access
from judges.models.replies import (
    UNREADABLE,
    calls_so_far,
    decode_reply,
    finish_reason,
    keep_state,
    read_call,
    read_quota,
    reply_fields,
    sendable_name,
    sendable_object,
)
from judges.models.reply_errors import no_chat_reply
from judges.models.request_options import Asked, Options, OutputBound, Parts, SchemaOptions
from judges.parsing.answer import beside_thoughts

Block = dict[str, object]
DEFAULT_MAX_OUTPUT_TOKENS: Final = 8192
_THINKING: Final = frozenset({"thinking", "redacted_thinking"})
_TOKEN_FIELDS: Final = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")


class _Message(Struct):
    content: list[Raw]
    # Any: an odd value here must not make the answer unreadable.
    id: Any = None
    model: Any = None
    stop_reason: Any = None
    usage: Any = None


# The parts of the content of an answer: type, fields, and as written.
_Blocks = Sequence[tuple[str, dict[str, Any], Raw]]


class AnthropicModel(EndpointModel):
    """A judge model behind a `/v1/messages` endpoint."""

    def __init__(self, settings: ModelSettings, api_key: str | None, proxy: str | None = None) -> None:
        super().__init__(settings, _below_version(settings.base_url, "/messages"), _headers(api_key), proxy)
        self._output = OutputBound(settings, DEFAULT_MAX_OUTPUT_TOKENS)
        self._options = Options(self._endpoint, self._output, {"output_config": "key_patterns"})
        self._schemas = SchemaOptions(
            "output_config", lambda _, schema: {"format": {"type": "json_schema", "schema": schema}}
        )

    async def complete(self, request: ChatRequest) -> ChatResponse:
        """Answer one request, or raise ``ModelError``."""
        system = _text_blocks(message.content for message in request.messages if message.role == "system")
        messages = _encoded(request.messages)
        body = {**(self.settings.body or {}), "model": self.settings.model, "messages": messages}
        options: dict[str, Parts] = {}
        if request.tools:
            body["tools"] = [
                {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
                for tool in request.tools
            ]
        if request.tools and not request.may_call:
            options["tool_choice"] = {"tool_choice": {"type": "none"}}
        if request.schema and not request.offers_tools:
            options |= self._schemas.options(request)
        options["temperature"] = {"temperature": request.temperature}
        if system:
            body["system"] = system
            options["cache_control"] = {"system": _cached(system)}
        if request.offers_tools:
            options.setdefault("cache_control", {})["messages"] = _with_cached_results(messages)
        reply = await self._options.post(Asked(request, body, options))
        try:
            message = decode_reply(reply.body, _Message)
            parts = [(decode_reply(bytes(raw), Any), raw) for raw in message.content]
        except UNREADABLE as error:
            raise no_chat_reply(reply, "the reply is no message") from error
        blocks = [(str(part.get("type") or "text"), part, raw) for part, raw in parts if isinstance(part, dict)]
        response = _response(request, reply, message, blocks)
        self._output.learn(response, shows_thinking=any(kind in _THINKING for kind, *_ in blocks))
        return response


def _below_version(base_url: str | None, path: str) -> str:
    """Add a path below `/v1`. Most clients of this API expect addresses without `/v1`, ours for OpenAI with it."""
    url = base_url or ANTHROPIC_URL
    has_version = httpx.URL(url).path.rstrip("/").endswith("/v1")
    return join_path(url, path if has_version else f"/v1{path}")


def _headers(api_key: str | None) -> Mapping[str, str]:
    headers = {"anthropic-version": "2023-06-01"}
    # A gateway may need no key.
    return {**headers, "x-api-key": api_key} if api_key else headers


def _text_blocks(texts: Iterable[str]) -> list[Block]:
    return [{"type": "text", "text": text} for text in texts]


def _cached(blocks: Sequence[Block]) -> list[Block]:
    """Mark the last block: the endpoint caches the request up to it."""
    return [*blocks[:-1], {**blocks[-1], "cache_control": {"type": "ephemeral"}}]


def _with_cached_results(messages: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    """Mark the newest results of tools, if the last message contains any."""
    last = messages[-1]
    content = last["content"]
    if not isinstance(content, list) or content[-1]["type"] != "tool_result":
        return list(messages)
    return [*messages[:-1], {**last, "content": _cached(content)}]


def _encoded(messages: Sequence[Message]) -> list[dict[str, object]]:
    """Encode the messages after the system message; adjacent messages of one role become one."""
    spoken = [message for message in messages if message.role != "system"]
    if not any(map(_needs_blocks, spoken)):
        return [{"role": message.role, "content": message.content} for message in spoken]
    encoded: list[dict[str, object]] = []
    for role, group in groupby(spoken, lambda message: "user" if message.role == "tool" else message.role):
        first, *following = group
        if following or _needs_blocks(first):
            blocks = [block for message in (first, *following) for block in _blocks(message)]
            encoded.append({"role": role, "content": blocks})
        else:
            encoded.append({"role": role, "content": first.content})
    return encoded


def _needs_blocks(message: Message) -> bool:
    return message.role == "tool" or bool(message.tool_calls or message.images) or message.provider_state is not None


def _blocks(message: Message) -> list[Block | Raw]:
    if message.role == "tool":
        return [{"type": "tool_result", "tool_use_id": message.tool_call_id, "content": message.content}]
    # The endpoint rejects a blank text.
    texts = _text_blocks([message.content] if message.content.strip() else [])
    calls: list[Block] = [
        {"type": "tool_use", "id": call.id, "name": sendable_name(call.name), "input": sendable_object(call.arguments)}
        for call in message.tool_calls
    ]
    if message.provider_state is None:
        images: list[Block] = [{"type": "image", "source": {"type": "url", "url": each}} for each in message.images]
        return [*texts, *images, *calls]
    # Thinking must be returned at its place among the other blocks. The texts are one block by now, at the first place.
    left = {"text": deque(texts), "tool_use": deque(calls)}
    blocks: list[Block | Raw] = []
    for kind, block in msgspec.json.decode(message.provider_state, type=list[tuple[str, Raw]]):
        if kind in _THINKING:
            blocks.append(block)
        elif left[kind]:
            blocks.append(left[kind].popleft())
    return [*blocks, *left["text"], *left["tool_use"]]


def _response(request: ChatRequest, reply: Reply, message: _Message, blocks: _Blocks) -> ChatResponse:
    fields = reply_fields(message.id, message.model, message.usage, _TOKEN_FIELDS)
    *inputs, output = fields.tokens
    # With an output, the odd count is one of the input: the sum of the others would look like the whole.
    inputs = [0, 0, 0] if output and "usage" in fields.invalid else inputs
    has_thinking = request.tools and any(kind in _THINKING for kind, *_ in blocks)
    kinds = _THINKING | {"text", "tool_use"}
    places = [(kind, raw if kind in _THINKING else None) for kind, _, raw in blocks if kind in kinds]
    written = [block for kind, block, _ in blocks if kind == "tool_use"]
    calls = tuple(
        read_call(call.get("id"), call.get("name"), call.get("input"), number)
        for number, call in enumerate(written, calls_so_far(request))
    )
    texts = [(kind, part) for kind, block, _ in blocks if isinstance(part := block.get(kind), str)]
    text = "".join(part for kind, part in texts if kind == "text")
    text = beside_thoughts(text) if any(kind in _THINKING for kind, *_ in blocks) else text
    elsewhere = [*(each for each in texts if each[0] == "thinking"), *(("tool_use", call.arguments) for call in calls)]
    return ChatResponse(
        text=text,
        finish_reason=finish_reason(message.stop_reason),
        refusal=message.stop_reason == "refusal",
        input_tokens=sum(inputs),
        output_tokens=output,
        written_tokens=inputs[1],
        cached_tokens=inputs[2],
        response_id=fields.id,
        model=fields.model,
        invalid=fields.invalid,
        quota=read_quota(reply.headers),
        tool_calls=calls,
        # The thinking as it was written, with its place among texts and calls.
        provider_state=keep_state(Raw(msgspec.json.encode(places))) if has_thinking else None,
        elsewhere=() if text.strip() or (calls and request.offers_tools) else tuple(elsewhere),
    )


def make(settings: ModelSettings, environment: Mapping[str, str], proxy: str | None) -> AnthropicModel:
    """Make the model of checked settings, or raise ``ModelSettingsError``."""
    return AnthropicModel(*read_access(settings, environment, proxy, settings.base_url or ANTHROPIC_URL))


def probe(settings: ModelSettings, key: str | None) -> ProbeRequest:
    """Make the request that lists models."""
    return ProbeRequest(_below_version(settings.base_url, "/models"), _headers(key))
