"""Any OpenAI-compatible `/chat/completions`: OpenAI, Azure OpenAI, vLLM, Ollama, LiteLLM and others.

Structured output is not requested if a tool may be called, because many servers accept only one of the two. The
bound is `max_tokens`, which all servers know, and `max_completion_tokens` if it is refused. Fields that some servers
add to an answer and require with it later are returned unchanged: DeepSeek's `reasoning_content`, OpenRouter's
`reasoning_details`, the `extra_content` of a call with Gemini's signature, and the `content` list of Mistral's
reasoning models.
"""

from collections.abc import Iterable, Mapping
from contextlib import nullcontext, suppress
from itertools import chain
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from judges.core.model import ChatRequest, ChatResponse, ModelSettings, ModelUnavailableError, ToolsRefusedError
from judges.core.prompt import Message, ToolCall
from judges.models.http import EndpointModel, Reply
from judges.models.provider import bearer, join_path, read_access
from judges.models.replies import (
    ABSENT,
    UNREADABLE,
    as_object,
    calls_so_far,
    decode_reply,
    finish_reason,
    join_states,
    keep_state,
    read_call,
    read_quota,
    reply_fields,
    sendable_name,
    sendable_object,
    state_parts,
)
from judges.models.reply_errors import no_chat_reply
from judges.models.request_options import Asked, Options, OutputBound, Parts, SchemaOptions
from judges.parsing.answer import beside_thoughts

_INSTEAD_OF: Final = {"response_format": "key_patterns", "max_completion_tokens": "max_tokens"}
# OpenAI's, DeepSeek's, and what OpenAI's newer models and OpenRouter report as written.
_CACHE_FIELDS: Final = ("cached_tokens", "prompt_cache_hit_tokens", "cache_write_tokens")
_NO_THOUGHTS: Final = frozenset({b"", b"null", b'""', b"[]"})


class _Message(Struct):
    content: Any = None  # Any: an odd value must not make the answer beside it unreadable.
    refusal: Any = None
    tool_calls: Raw = ABSENT
    reasoning_content: Raw = ABSENT
    reasoning_details: Raw = ABSENT
    reasoning: Raw = ABSENT


class _Choice(Struct):
    message: _Message | None = None
    finish_reason: Any = None


class _Completion(Struct):
    choices: list[_Choice]
    id: Any = None
    model: Any = None
    usage: Any = None


class OpenAIModel(EndpointModel):
    """A judge model behind a `/chat/completions` endpoint."""

    def __init__(self, settings: ModelSettings, api_key: str | None, proxy: str | None = None) -> None:
        super().__init__(settings, join_path(settings.base_url or "", "/chat/completions"), bearer(api_key), proxy)
        self._output = OutputBound(settings)
        self._options = Options(self._endpoint, self._output, _INSTEAD_OF)
        self._schemas = SchemaOptions("response_format", _response_format)
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

    async def _ask(self, request: ChatRequest, *, names_tools: bool) -> ChatResponse:
        messages = request.messages
        body: dict[str, object] = {
            **(self.settings.body or {}),
            "model": self.settings.model,
            "messages": [_encoded(message) for message in messages],
        }
        options: dict[str, Parts] = {}
        if request.schema and not request.offers_tools:
            options |= self._schemas.options(request)
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
    return {"type": "json_schema", "json_schema": {"name": request.schema_name, "strict": True, "schema": schema}}


def _encoded(message: Message, *, with_state: bool = False) -> dict[str, object]:
    """Encode a message, with or without the fields that the endpoint added to it."""
    encoded: dict[str, object] = {"role": message.role, "content": message.content}
    if message.images:
        images = [{"type": "image_url", "image_url": {"url": address}} for address in message.images]
        encoded["content"] = [{"type": "text", "text": message.content}, *images]
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
    try:
        completion = decode_reply(reply.body, _Completion)
        if not completion.choices:
            raise ModelUnavailableError("the reply holds no choice")
        # Google sends no message if its filter withheld the answer.
        first, *rest = [
            each
            for each in completion.choices
            if each.message is not None or finish_reason(each.finish_reason) == "content_filter"
        ]
        message = first.message or _Message()
        calls = _calls(message, request)
    except UNREADABLE as error:
        raise no_chat_reply(reply, "the reply is no chat completion") from error
    content = message.content
    text = _text(content)
    state = None
    if request.tools:
        state = join_states(
            content=Raw(msgspec.json.encode(content)) if isinstance(content, list) else ABSENT,
            reasoning_content=message.reasoning_content,
            reasoning_details=message.reasoning_details,
        )
    fields = reply_fields(completion.id, completion.model, completion.usage, ("prompt_tokens", "completion_tokens"))
    usage = completion.usage if isinstance(completion.usage, dict) else {}
    details = usage.get("prompt_tokens_details")
    counts = usage | details if isinstance(details, dict) else usage
    # Read apart: an odd count there must not make the others invalid.
    has_cache = any(map(counts.get, _CACHE_FIELDS))
    *cached, written = reply_fields(None, None, counts, _CACHE_FIELDS).tokens if has_cache else (0, 0, 0)
    cached_tokens = min(max(cached), fields.tokens[0])
    thoughts = (message.reasoning, message.reasoning_content, message.reasoning_details)
    shows_thinking = isinstance(content, list) and len(content) > 1
    shows_thinking = shows_thinking or any(bytes(each) not in _NO_THOUGHTS for each in thoughts)
    text = beside_thoughts(text) if shows_thinking else text
    response = ChatResponse(
        text=text,
        finish_reason=finish_reason(first.finish_reason),
        refusal=bool(message.refusal),
        input_tokens=fields.tokens[0],
        output_tokens=fields.tokens[1],
        cached_tokens=cached_tokens,
        written_tokens=min(written, fields.tokens[0] - cached_tokens),
        response_id=fields.id,
        model=fields.model,
        invalid=fields.invalid,
        quota=read_quota(reply.headers),
        tool_calls=calls,
        provider_state=state,
        elsewhere=() if text.strip() or (calls and request.offers_tools) else _elsewhere(message, calls, rest),
    )
    return response, shows_thinking


def _text(content: object) -> str:
    """Return the text of a `content`: a text, a list of parts, or the object in it, which some servers decode."""
    if isinstance(content, dict) and "type" not in content and "text" not in content:
        return msgspec.json.encode(content).decode()
    texts = (
        part.get("text") if isinstance(part, dict) and part.get("type") in (None, "text", "output_text") else part
        for part in (content if isinstance(content, list) else (content,))
    )
    return "".join(text for text in texts if isinstance(text, str))


def _calls(message: _Message, request: ChatRequest) -> tuple[ToolCall, ...]:
    if (written := bytes(message.tool_calls)) in _NO_THOUGHTS:
        return ()
    calls = list[ToolCall]()
    # Where no call is expected, an unreadable one does not cost the answer beside it.
    with nullcontext() if request.tools else suppress(*UNREADABLE):
        for number, call in enumerate(decode_reply(written, list[dict[str, Any]]), calls_so_far(request)):
            function = call["function"] if isinstance(call.get("function"), dict) else {}
            read = read_call(call.get("id"), function.get("name"), function.get("arguments"), number)
            extra = Raw(msgspec.json.encode(call.get("extra_content")))
            calls.append(read._replace(provider_state=keep_state(extra)))
    return tuple(calls)


def _elsewhere(message: _Message, calls: Iterable[ToolCall], rest: Iterable[_Choice]) -> tuple[tuple[str, str], ...]:
    """List the texts beside an empty `content`, each with its place."""
    thoughts = {"reasoning_content": message.reasoning_content, "reasoning": message.reasoning}
    texts = [("tool_calls", call.arguments) for call in calls]
    texts += [(name, _text(decode_reply(bytes(each), Any))) for name, each in thoughts.items() if bytes(each)]
    whole = [each.message for each in rest if each.message and finish_reason(each.finish_reason) == "stop"]
    texts += [("another choice", _text(each.content)) for each in whole]
    return tuple(each for each in texts if each[1].strip())


def make(settings: ModelSettings, environment: Mapping[str, str], proxy: str | None) -> OpenAIModel:
    """Make the model of checked settings, or raise ``ModelSettingsError``."""
    return OpenAIModel(*read_access(settings, environment, proxy, settings.base_url or ""))
