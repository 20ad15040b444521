"""Any OpenAI-compatible `/chat/completions`: OpenAI, Azure OpenAI, vLLM, Ollama, LiteLLM and others.

Structured output and temperature 0 are asked for until the endpoint says that it does not know them; that is
found out once and remembered. No `max_tokens` is sent: a model that reasons first would exhaust it.
Where a tool may be called, structured output is not asked for: many servers take only one of the two.
What some servers put beside an answer and want back with it is sent back as it came: DeepSeek's `reasoning_content`,
OpenRouter's `reasoning_details`, the `extra_content` of a call, in which Gemini's signature stands, and the `content`
of Mistral's reasoning models, a list with their thoughts.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from judges.models.function_calls import calls_so_far, has_object, read_call, sendable_name, sendable_object
from judges.models.http import HttpEndpoint, Reply, below
from judges.models.model import (
    ChatRequest,
    ChatResponse,
    FinishReason,
    ModelSettings,
    ModelUnavailableError,
    Tool,
    ToolsRefusedError,
)
from judges.models.opaque import NOTHING, kept, parts_of, together
from judges.models.options import Options
from judges.models.quota import openai_quota
from judges.prompt import Message, ToolCall

__all__ = ["OpenAIModel"]

_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "response_format": ("response_format", "json_schema", "structured output"),
    "temperature": ("temperature",),
    "opaque": ("reasoning_content", "reasoning_details", "extra_content"),
}
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
    """Arguments are a text; some servers give the object itself."""

    name: str | None = None
    arguments: Any = None


_NO_FUNCTION: Final = _Function()


class _ToolCall(Struct):
    id: str | int | None = None
    function: _Function | None = None
    extra_content: Raw = NOTHING


class _Part(Struct):
    """A piece of an answer given in pieces, as Mistral's reasoning models do: their thoughts have no text."""

    text: Any = None


class _Message(Struct):
    content: str | list[Raw] | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None
    reasoning_content: Raw = NOTHING
    reasoning_details: Raw = NOTHING


class _Choice(Struct):
    message: _Message
    finish_reason: str | None = None


class _Usage(Struct):
    """Servers leave counts out, or write them as null or as fractions: none of that spoils an answer."""

    prompt_tokens: float | None = None
    completion_tokens: float | None = None


class _Completion(Struct):
    choices: list[_Choice]
    id: str | int | None = None
    model: str | None = None
    usage: _Usage | None = None


class OpenAIModel:
    """A judge model behind a `/chat/completions` endpoint."""

    def __init__(self, settings: ModelSettings, api_key: str | None) -> None:
        """Take the settings of a model that has `base_url` and `model`, and its key if it needs one."""
        self.settings = settings
        self._endpoint = HttpEndpoint(
            below(settings.base_url or "", "/chat/completions"),
            {"authorization": f"Bearer {api_key}"} if api_key else {},
            max_connections=settings.max_in_flight,
            timeout_s=settings.timeout_s,
            allow_link_local=settings.allow_link_local,
        )
        self._options = Options(_OPTIONS)
        self._always_names_tools = False

    async def complete(self, request: ChatRequest) -> ChatResponse:
        """Answer one request; an option that the endpoint does not know is left out from then on.

        Raises:
            ModelError: With the reason why there is no answer.
        """
        names_tools = request.offers_tools or (self._always_names_tools and bool(request.tools))
        try:
            return await self._ask(request, names_tools=names_tools)
        except ToolsRefusedError:
            if names_tools:
                raise
        # LiteLLM before Anthropic's models wants them named wherever messages speak of them. Others would call them.
        response = await self._ask(request, names_tools=True)
        self._always_names_tools = True
        return response

    async def aclose(self) -> None:
        """Close the connections."""
        await self._endpoint.aclose()

    async def _ask(self, request: ChatRequest, *, names_tools: bool) -> ChatResponse:
        body: dict[str, object] = {
            "model": self.settings.model,
            "messages": [_shown(message) for message in request.messages],
        }
        options: dict[str, dict[str, object]] = {"temperature": {"temperature": 0}}
        if any(map(_has_opaque, request.messages)):
            options["opaque"] = {"messages": [_shown_whole(message) for message in request.messages]}
        if names_tools:
            body["tools"] = [_offered(tool) for tool in request.tools]
        if names_tools and not request.may_call:
            body["tool_choice"] = "none"
        if not request.offers_tools:
            schema = {"name": request.schema_name, "strict": True, "schema": request.schema}
            options["response_format"] = {"response_format": {"type": "json_schema", "json_schema": schema}}
        reply = await self._options.post(self._endpoint, body, options, with_tools=bool(request.tools))
        return _response(reply, request)


def _shown(message: Message) -> dict[str, object]:
    shown: dict[str, object] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        shown |= {"content": message.content or None, "tool_calls": [_called(call) for call in message.tool_calls]}
    if message.tool_call_id is not None:
        shown["tool_call_id"] = message.tool_call_id
    return shown


def _shown_whole(message: Message) -> dict[str, object]:
    """Show a message with what the endpoint put beside it."""
    shown = _shown(message)
    if message.tool_calls:
        shown["tool_calls"] = [
            _called(call) if call.opaque is None else {**_called(call), "extra_content": call.opaque}
            for call in message.tool_calls
        ]
    return shown if message.opaque is None else {**shown, **parts_of(message.opaque)}


def _has_opaque(message: Message) -> bool:
    return message.opaque is not None or any(call.opaque is not None for call in message.tool_calls)


def _called(call: ToolCall) -> dict[str, object]:
    text = call.arguments
    arguments = text if has_object(text) else msgspec.json.encode(sendable_object(text)).decode()
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": sendable_name(call.name), "arguments": arguments},
    }


def _offered(tool: Tool) -> dict[str, object]:
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
    }


def _response(reply: Reply, request: ChatRequest) -> ChatResponse:
    try:
        completion = msgspec.json.decode(reply.body, type=_Completion)
        texts = [_text(choice.message.content) for choice in completion.choices[:1]]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelUnavailableError("the reply is no chat completion") from error
    if not texts:
        raise ModelUnavailableError("the reply holds no choice")
    first = completion.choices[0]
    usage = completion.usage or _Usage()
    return ChatResponse(
        text=texts[0],
        finish_reason=_FINISH.get(first.finish_reason and first.finish_reason.lower(), "other"),
        refusal=bool(first.message.refusal),
        input_tokens=max(0, int(usage.prompt_tokens or 0)),
        output_tokens=max(0, int(usage.completion_tokens or 0)),
        response_id=None if completion.id is None else str(completion.id),
        model=completion.model,
        quota=openai_quota(reply.headers),
        tool_calls=_calls(first.message.tool_calls, request) if first.message.tool_calls else (),
        opaque=_opaque(first.message) if request.tools else None,
    )


def _text(content: str | list[Raw] | None) -> str:
    """Join what is said."""
    if not isinstance(content, list):
        return content or ""
    texts = [msgspec.json.decode(piece, type=_Part).text for piece in content]
    return "".join(text for text in texts if isinstance(text, str))


def _opaque(message: _Message) -> Raw | None:
    pieces = Raw(msgspec.json.encode(message.content)) if isinstance(message.content, list) else NOTHING
    beside = {"reasoning_content": message.reasoning_content, "reasoning_details": message.reasoning_details}
    return together(content=pieces, **beside)


def _calls(calls: list[_ToolCall], request: ChatRequest) -> tuple[ToolCall, ...]:
    numbered = enumerate(calls, calls_so_far(request))
    return tuple(_call(call, call.function or _NO_FUNCTION, number) for number, call in numbered)


def _call(call: _ToolCall, function: _Function, number: int) -> ToolCall:
    read = read_call(call.id, function.name, function.arguments, number)
    return read._replace(opaque=kept(call.extra_content))
