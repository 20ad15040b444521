"""Anthropic's Messages API, or a gateway that speaks it.

Structured output, temperature 0 and the mark by which the fixed part is cached are asked for until the endpoint
says that it does not take them; that is found out once and remembered. So are the newest results of tools, as long as
the model may ask for more: each round sends again all that was read before. `max_tokens` must be sent; an answer
that it cuts off is asked for once more with twice as many. Messages that speak of tools need the tools beside them
in every request, also where none may be called.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import httpx
import msgspec
from msgspec import Raw, Struct, structs

from judges.models.blocks import THOUGHTS, as_messages, marked, placed_thoughts, text_blocks, with_cached_results
from judges.models.function_calls import calls_so_far, read_call
from judges.models.http import HttpEndpoint, Reply, below
from judges.models.model import (
    BadModelRequestError,
    ChatRequest,
    ChatResponse,
    FinishReason,
    InputTooLongError,
    ModelError,
    ModelSettings,
    ModelUnavailableError,
    Tool,
)
from judges.models.options import Options
from judges.models.quota import Quota, anthropic_quota
from judges.prompt import ToolCall

__all__ = ["DEFAULT_MAX_OUTPUT_TOKENS", "PUBLIC_URL", "AnthropicModel"]

PUBLIC_URL: Final = "https://api.anthropic.com"
DEFAULT_MAX_OUTPUT_TOKENS: Final = 8192

_API_VERSION: Final = "2023-06-01"
_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "output_config": ("output_config", "output_format", "output format", "json_schema", "structured output"),
    "temperature": ("temperature",),
    "cache_control": ("cache_control", "prompt caching"),
    "tool_choice": ("tool_choice",),
}
_MAX_TOKENS: Final = "max_tokens"
_FINISH: Final[Mapping[str | None, FinishReason]] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "stop",
    "refusal": "stop",
    _MAX_TOKENS: "length",
    "model_context_window_exceeded": "length",
    None: "stop",
}


class _Block(Struct):
    """A part of the answer, a text or a call of a tool; whatever else is left alone."""

    type: str
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None


class _Usage(Struct):
    """Gateways leave counts out, or write them as null or as fractions: none of that spoils an answer."""

    input_tokens: float | None = None
    cache_creation_input_tokens: float | None = None
    cache_read_input_tokens: float | None = None
    output_tokens: float | None = None


class _Message(Struct):
    content: list[_Block]
    id: str | None = None
    model: str | None = None
    stop_reason: str | None = None
    usage: _Usage | None = None


class _Content(Struct):
    """The parts as they were written."""

    content: Raw


class _Asked(NamedTuple):
    message: _Message
    body: bytes
    quota: Quota | None
    request: ChatRequest


class AnthropicModel:
    """A judge model behind a `/v1/messages` endpoint."""

    def __init__(self, settings: ModelSettings, api_key: str | None) -> None:
        """Take the settings of a model that has `model`, and its key; a gateway may do without."""
        self.settings = settings
        headers = {"anthropic-version": _API_VERSION}
        self._endpoint = HttpEndpoint(
            _messages_url(settings.base_url or PUBLIC_URL),
            {**headers, "x-api-key": api_key} if api_key else headers,
            max_connections=settings.max_in_flight,
            timeout_s=settings.timeout_s,
            allow_link_local=settings.allow_link_local,
        )
        self._max_tokens = settings.max_output_tokens or DEFAULT_MAX_OUTPUT_TOKENS
        self._options = Options(_OPTIONS)

    async def complete(self, request: ChatRequest) -> ChatResponse:
        """Answer one request; one that was cut off is asked again, and the tokens of both tries are given.

        Raises:
            ModelError: With the reason why there is no answer.
        """
        first = await self._ask(request, self._max_tokens)
        if first.message.stop_reason != _MAX_TOKENS:
            return _response(first)
        try:
            second = await self._ask(request, 2 * self._max_tokens)
        except (BadModelRequestError, InputTooLongError):
            # Twice as many are more than this model may write: the answer stays cut off, and was paid for.
            return _response(first)
        except ModelError as error:
            cut_off = _response(first)
            error.input_tokens, error.output_tokens = cut_off.input_tokens, cut_off.output_tokens
            raise
        return _after(_response(first), _response(second))

    async def aclose(self) -> None:
        """Close the connections."""
        await self._endpoint.aclose()

    async def _ask(self, request: ChatRequest, max_tokens: int) -> _Asked:
        fixed = [message.content for message in request.messages if message.role == "system"]
        messages = as_messages(request.messages)
        body: dict[str, object] = {
            "model": self.settings.model,
            "max_tokens": max_tokens,
            "messages": messages,
        }
        options: dict[str, dict[str, object]] = {"temperature": {"temperature": 0}}
        if request.tools:
            body["tools"] = [_offered(tool) for tool in request.tools]
        if request.tools and not request.may_call:
            options["tool_choice"] = {"tool_choice": {"type": "none"}}
        if not request.offers_tools:
            options["output_config"] = {"output_config": {"format": {"type": "json_schema", "schema": request.schema}}}
        if fixed:
            body["system"] = text_blocks(fixed)
            options["cache_control"] = {"system": marked(text_blocks(fixed))}
        if request.offers_tools:
            options.setdefault("cache_control", {})["messages"] = with_cached_results(messages)
        reply = await self._options.post(self._endpoint, body, options, with_tools=bool(request.tools))
        return _Asked(_read(reply), reply.body, anthropic_quota(reply.headers), request)


def _messages_url(base_url: str) -> str:
    """Add the path. Most clients take addresses without the version, ours for OpenAI takes them with it: both serve."""
    has_version = httpx.URL(base_url).path.rstrip("/").endswith("/v1")
    return below(base_url, "/messages" if has_version else "/v1/messages")


def _offered(tool: Tool) -> dict[str, object]:
    return {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}


def _read(reply: Reply) -> _Message:
    try:
        return msgspec.json.decode(reply.body, type=_Message)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelUnavailableError("the reply is no message") from error


def _response(asked: _Asked) -> ChatResponse:
    message = asked.message
    usage = message.usage or _Usage()
    calls = [block for block in message.content if block.type == "tool_use"]
    # All priced as input. That is too much from the first hit on: a hit costs a tenth, the write before it 1.25 times.
    inputs = (usage.input_tokens, usage.cache_creation_input_tokens, usage.cache_read_input_tokens)
    return ChatResponse(
        text="".join(block.text or "" for block in message.content if block.type == "text"),
        finish_reason=_FINISH.get(message.stop_reason, "other"),
        refusal=message.stop_reason == "refusal",
        input_tokens=sum(map(_count, inputs)),
        output_tokens=_count(usage.output_tokens),
        response_id=message.id,
        model=message.model,
        quota=asked.quota,
        tool_calls=_calls(calls, asked.request) if calls else (),
        opaque=_thoughts(asked) if asked.request.tools else None,
    )


def _thoughts(asked: _Asked) -> Raw | None:
    if not any(block.type in THOUGHTS for block in asked.message.content):
        return None
    return placed_thoughts(msgspec.json.decode(asked.body, type=_Content).content)


def _calls(blocks: list[_Block], request: ChatRequest) -> tuple[ToolCall, ...]:
    numbered = enumerate(blocks, calls_so_far(request))
    return tuple(read_call(block.id, block.name, block.input, number) for number, block in numbered)


def _after(first: ChatResponse, second: ChatResponse) -> ChatResponse:
    """Give the second answer with the tokens of both."""
    return structs.replace(
        second,
        input_tokens=first.input_tokens + second.input_tokens,
        output_tokens=first.output_tokens + second.output_tokens,
    )


def _count(tokens: float | None) -> int:
    return max(0, int(tokens or 0))
