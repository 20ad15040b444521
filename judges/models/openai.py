"""Any OpenAI-compatible `/chat/completions`: OpenAI, Azure OpenAI, vLLM, Ollama, LiteLLM and others.

Structured output and temperature 0 are asked for until the endpoint says that it does not know them; that is
found out once and remembered. No `max_tokens` is sent: a model that reasons first would exhaust it.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct

from judges.models.http import HttpEndpoint, Reply, below
from judges.models.model import ChatRequest, ChatResponse, FinishReason, ModelSettings, ModelUnavailableError
from judges.models.options import Options
from judges.models.quota import openai_quota

__all__ = ["OpenAIModel"]

_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "response_format": ("response_format", "json_schema", "structured output"),
    "temperature": ("temperature",),
}
_FINISH: Final[Mapping[str | None, FinishReason]] = {
    "stop": "stop",
    "length": "length",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "model_length": "length",
    "content_filter": "content_filter",
    None: "stop",
}


class _Message(Struct):
    content: str | None = None
    refusal: str | None = None


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

    async def complete(self, request: ChatRequest) -> ChatResponse:
        """Answer one request; an option that the endpoint does not know is left out from then on.

        Raises:
            ModelError: With the reason why there is no answer.
        """
        body = {
            "model": self.settings.model,
            "messages": [{"role": message.role, "content": message.content} for message in request.messages],
        }
        schema = {"name": request.schema_name, "strict": True, "schema": request.schema}
        options: dict[str, dict[str, object]] = {
            "temperature": {"temperature": 0},
            "response_format": {"response_format": {"type": "json_schema", "json_schema": schema}},
        }
        return _response(await self._options.post(self._endpoint, body, options))

    async def aclose(self) -> None:
        """Close the connections."""
        await self._endpoint.aclose()


def _response(reply: Reply) -> ChatResponse:
    try:
        completion = msgspec.json.decode(reply.body, type=_Completion)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelUnavailableError("the reply is no chat completion") from error
    if not completion.choices:
        raise ModelUnavailableError("the reply holds no choice")
    first = completion.choices[0]
    usage = completion.usage or _Usage()
    return ChatResponse(
        text=first.message.content or "",
        finish_reason=_FINISH.get(first.finish_reason and first.finish_reason.lower(), "other"),
        refusal=bool(first.message.refusal),
        input_tokens=max(0, int(usage.prompt_tokens or 0)),
        output_tokens=max(0, int(usage.completion_tokens or 0)),
        response_id=None if completion.id is None else str(completion.id),
        model=completion.model,
        quota=openai_quota(reply.headers),
    )
