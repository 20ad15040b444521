"""Any OpenAI-compatible `/chat/completions`: OpenAI, Azure OpenAI, vLLM, Ollama, LiteLLM and others.

Structured output is not requested where a tool may be called, because many servers accept only one of the two. The
bound is `max_tokens`, which all servers know, and `max_completion_tokens` where it is refused. Fields that some servers
add to an answer and require with it later are returned unchanged: DeepSeek's `reasoning_content`, OpenRouter's
`reasoning_details`, the `extra_content` of a call with Gemini's signature, and the `content` list of Mistral's
reasoning models.
"""

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from judges.core.model import (
    ChatRequest,
    ChatResponse,
    FinishReason,
    ModelSettings,
    ModelUnavailableError,
    ToolsRefusedError,
)
from judges.core.prompt import Message, ToolCall
from judges.models.http import HttpEndpoint, Reply, below, no_chat_reply, reply_fields
from judges.models.provider import OUTPUT_SETTINGS, ProbeRequest, Provider, access, bearer, check_endpoint
from judges.models.replies import (
    ABSENT,
    as_object,
    calls_so_far,
    join_states,
    keep_state,
    openai_quota,
    read_call,
    sendable_name,
    sendable_object,
    state_parts,
)
from judges.models.request_options import Asked, Options, OutputBound, Parts, without_patterns

_INSTEAD_OF: Final = {"response_format": "key_patterns", "max_completion_tokens": "max_tokens"}
_TOKEN_FIELDS: Final = ("prompt_tokens", "completion_tokens")
# OpenAI's, DeepSeek's, and what OpenAI's newer models and OpenRouter report as written.
_CACHE_FIELDS: Final = ("cached_tokens", "prompt_cache_hit_tokens", "cache_write_tokens")
_NO_THOUGHTS: Final = frozenset({b"", b"null", b'""', b"[]"})
_FINISH: Final[Mapping[str | None, FinishReason]] = {
    "stop": "stop",
    "length": "length",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "model_length": "length",
    "content_filter": "content_filter",
    "tool_calls": "stop",
    "function_call": "stop",
    None: "stop",
}


class _Function(Struct):
    name: str | None = None
    # A text by the API; some servers send the object itself.
    arguments: Any = None


_NO_FUNCTION: Final = _Function()


class _ToolCall(Struct):
    id: str | int | None = None
    function: _Function | None = None
    extra_content: Raw = ABSENT


class _Part(Struct):
    """One element of a `content` list; elements with reasoning have no text."""

    text: Any = None


class _Message(Struct):
    content: str | list[Raw] | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None
    reasoning_content: Raw = ABSENT
    reasoning_details: Raw = ABSENT
    reasoning: Raw = ABSENT


class _Choice(Struct):
    message: _Message
    finish_reason: str | None = None


class _Completion(Struct):
    choices: list[_Choice]
    # Any: an odd value here must not make the answer unreadable.
    id: Any = None
    model: Any = None
    usage: Any = None


class OpenAIModel:
    """A judge model behind a `/chat/completions` endpoint."""

    def __init__(self, settings: ModelSettings, api_key: str | None, proxy: str | None = None) -> None:
        self.settings = settings
        self._endpoint = HttpEndpoint(
            below(settings.base_url or "", "/chat/completions"), bearer(api_key), settings, proxy
        )
        self._output = OutputBound(settings)
        self._options = Options(self._endpoint, self._output, _INSTEAD_OF)
        self._always_names_tools = False

    async def complete(self, request: ChatRequest) -> ChatResponse:
        """Answer one request, or raise ``ModelError``; an option that the endpoint rejects is left out from then on."""
        names_tools = request.offers_tools or (self._always_names_tools and bool(request.tools))
        try:
            return await self._ask(request, names_tools=names_tools)
        except ToolsRefusedError:
            if names_tools:
                raise
        # LiteLLM in front of Anthropic's models requires the tools wherever messages contain calls. They are not
        # named always, because other servers would then call them.
        response = await self._ask(request, names_tools=True)
        self._always_names_tools = True
        return response

    async def aclose(self) -> None:
        """Close the connections."""
        await self._endpoint.aclose()

    async def _ask(self, request: ChatRequest, *, names_tools: bool) -> ChatResponse:
        messages = request.messages
        body: dict[str, object] = {
            **(self.settings.body or {}),
            "model": self.settings.model,
            "messages": [_encoded(message) for message in messages],
        }
        options: dict[str, Parts] = {}
        if request.schema and not request.offers_tools:
            options["response_format"] = _response_format(request, plain := without_patterns(request.schema))
            if plain != request.schema:
                options["key_patterns"] = _response_format(request, request.schema)
        options["temperature"] = {"temperature": request.temperature}
        if self.settings.reasoning_effort is not None:
            options["reasoning_effort"] = {"reasoning_effort": self.settings.reasoning_effort}
        parts: Iterable[Message | ToolCall] = chain(messages, *(message.tool_calls for message in messages))
        if any(part.provider_state is not None for part in parts):
            options["provider_state"] = {"messages": [_encoded(message, with_state=True) for message in messages]}
        if names_tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
                }
                for tool in request.tools
            ]
        if names_tools and not request.may_call:
            body["tool_choice"] = "none"
        reply = await self._options.post(Asked(request, body, options))
        response, shows_thinking = _read(reply, request)
        self._output.learn(response, shows_thinking=shows_thinking)
        return response


def _response_format(request: ChatRequest, schema: Mapping[str, object]) -> dict[str, object]:
    named = {"name": request.schema_name, "strict": True, "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


def _encoded(message: Message, *, with_state: bool = False) -> dict[str, object]:
    """Encode a message, with or without the fields that the endpoint added to it."""
    encoded: dict[str, object] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        calls: list[dict[str, object]] = []
        for call in message.tool_calls:
            text = call.arguments
            arguments = text if as_object(text) is not None else msgspec.json.encode(sendable_object(text)).decode()
            function = {"name": sendable_name(call.name), "arguments": arguments}
            calls.append({"id": call.id, "type": "function", "function": function})
            if with_state and call.provider_state:
                calls[-1]["extra_content"] = call.provider_state
        encoded |= {"content": message.content or None, "tool_calls": calls}
    if message.tool_call_id is not None:
        encoded["tool_call_id"] = message.tool_call_id
    return {**encoded, **state_parts(message.provider_state)} if with_state and message.provider_state else encoded


def _read(reply: Reply, request: ChatRequest) -> tuple[ChatResponse, bool]:
    """Return the answer, and whether thoughts are reported beside it."""
    shows_thinking = False
    try:
        completion = msgspec.json.decode(reply.body, type=_Completion)
        content = completion.choices[0].message.content if completion.choices else None
        if isinstance(content, list):
            pieces = [msgspec.json.decode(piece, type=_Part).text for piece in content]
            text = "".join(piece for piece in pieces if isinstance(piece, str))
            shows_thinking = len(pieces) > 1
        else:
            text = content or ""
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise no_chat_reply(reply, "the reply is no chat completion") from error
    if not completion.choices:
        raise ModelUnavailableError("the reply holds no choice")
    first = completion.choices[0]
    message = first.message
    state = None
    if request.tools:
        state = join_states(
            content=Raw(msgspec.json.encode(content)) if isinstance(content, list) else ABSENT,
            reasoning_content=message.reasoning_content,
            reasoning_details=message.reasoning_details,
        )
    calls: list[ToolCall] = []
    for number, call in enumerate(message.tool_calls or (), calls_so_far(request)):
        function = call.function or _NO_FUNCTION
        read = read_call(call.id, function.name, function.arguments, number)
        calls.append(read._replace(provider_state=keep_state(call.extra_content)))
    fields = reply_fields(completion.id, completion.model, completion.usage, _TOKEN_FIELDS)
    usage = completion.usage if isinstance(completion.usage, dict) else {}
    details = usage.get("prompt_tokens_details")
    counts = usage | details if isinstance(details, dict) else usage
    # Read apart: an odd count there must not make the others invalid.
    has_cache = any(map(counts.get, _CACHE_FIELDS))
    *cached, written = reply_fields(None, None, counts, _CACHE_FIELDS).tokens if has_cache else (0, 0, 0)
    cached_tokens = min(max(cached), fields.tokens[0])
    thoughts = (message.reasoning, message.reasoning_content, message.reasoning_details)
    shows_thinking = shows_thinking or any(bytes(each) not in _NO_THOUGHTS for each in thoughts)
    response = ChatResponse(
        text=text,
        finish_reason=_FINISH.get(first.finish_reason and first.finish_reason.lower(), "other"),
        refusal=bool(message.refusal),
        input_tokens=fields.tokens[0],
        output_tokens=fields.tokens[1],
        cached_tokens=cached_tokens,
        written_tokens=min(written, fields.tokens[0] - cached_tokens),
        response_id=fields.id,
        model=fields.model,
        invalid=fields.invalid,
        quota=openai_quota(reply.headers),
        tool_calls=tuple(calls),
        provider_state=state,
    )
    return response, shows_thinking


PROVIDER: Final = Provider(
    make=lambda settings, environment, proxy: OpenAIModel(
        settings, *access(settings, environment, proxy, settings.base_url or "")
    ),
    check=check_endpoint,
    probe=lambda settings, key: ProbeRequest(below(settings.base_url or "", "/models"), bearer(key)),
    own_settings=OUTPUT_SETTINGS | {"reasoning_effort"},
)
