"""Any OpenAI-compatible `/chat/completions`: OpenAI, Azure OpenAI, vLLM, Ollama, LiteLLM and others.

Structured output and temperature 0 are asked for until the endpoint says that it does not know them; that is
found out once and remembered. No `max_tokens` is sent: a model that reasons first would exhaust it.
"""

import email.utils
import math
import re
import time
from collections.abc import Mapping
from typing import Final

import httpx
import msgspec
from msgspec import Struct

from judges.models.http import HttpEndpoint, Reply
from judges.models.model import (
    BadModelRequestError,
    ChatRequest,
    ChatResponse,
    ContentFilteredError,
    FinishReason,
    InputTooLongError,
    ModelError,
    ModelRejectedError,
    ModelSettings,
    ModelUnavailableError,
    RateLimitedError,
)

__all__ = ["OpenAIModel"]

_REJECTED: Final = frozenset({401, 402, 403, 404})
_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "response_format": ("response_format", "json_schema", "structured output"),
    "temperature": ("temperature",),
}
_COMPLAINT: Final = re.compile(
    r"support|unknown|unrecogni[sz]ed|unexpected|not allowed|not permitted|invalid|extra|needs|requires|must"
)
_MAX_COMPLAINT_CHARS: Final = 500
_FINISH: Final[Mapping[str | None, FinishReason]] = {
    "stop": "stop",
    "length": "length",
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


class _Fault(Struct):
    message: str = ""
    type: str | None = None
    param: str | None = None
    code: str | int | None = None


class _FaultBody(_Fault):
    """The error, wrapped as OpenAI does it, or bare as some servers do."""

    error: _Fault | str | None = None


class OpenAIModel:
    """A judge model behind a `/chat/completions` endpoint."""

    def __init__(self, settings: ModelSettings, api_key: str | None) -> None:
        """Take the settings of a model that has `base_url` and `model`, and its key if it needs one."""
        self.settings = settings
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._endpoint = HttpEndpoint(
            _completions_url(settings.base_url or ""),
            headers,
            max_connections=settings.max_in_flight,
            timeout_s=settings.timeout_s,
        )
        self._refused_options: frozenset[str] = frozenset()

    async def complete(self, request: ChatRequest) -> ChatResponse:
        """Answer one request; an option that the endpoint does not know is left out from then on.

        Raises:
            ModelError: With the reason why there is no answer.
        """
        while True:
            tried_without = self._refused_options
            reply = await self._endpoint.post(self._body(request, tried_without))
            if reply.status == httpx.codes.OK:
                return _response(reply)
            error = _error(reply)
            refused = _refused_option(reply.status, error) - tried_without
            if not refused:
                raise _translated(reply, error)
            self._refused_options |= refused

    async def aclose(self) -> None:
        """Close the connections."""
        await self._endpoint.aclose()

    def _body(self, request: ChatRequest, without: frozenset[str]) -> bytes:
        body: dict[str, object] = {
            "model": self.settings.model,
            "messages": [{"role": role, "content": content} for role, content in request.messages],
        }
        if "temperature" not in without:
            body["temperature"] = 0
        if "response_format" not in without:
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": request.schema_name, "strict": True, "schema": request.schema},
            }
        return msgspec.json.encode(body)


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
        finish_reason=_FINISH.get(first.finish_reason, "other"),
        refusal=bool(first.message.refusal),
        input_tokens=max(0, int(usage.prompt_tokens or 0)),
        output_tokens=max(0, int(usage.completion_tokens or 0)),
        response_id=None if completion.id is None else str(completion.id),
        model=completion.model,
    )


def _completions_url(base_url: str) -> str:
    """Add the path; a query, as Azure's `api-version`, stays behind it."""
    url = httpx.URL(base_url)
    return str(url.copy_with(path=f"{url.path.rstrip('/')}/chat/completions"))


def _error(reply: Reply) -> _Fault:
    try:
        body = msgspec.json.decode(reply.body, type=_FaultBody)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _Fault()
    if body.error is None:
        return body
    return _Fault(message=body.error) if isinstance(body.error, str) else body.error


def _refused_option(status: int, error: _Fault) -> frozenset[str]:
    """Find which optional part of the request an endpoint complains about."""
    if status not in (httpx.codes.BAD_REQUEST, httpx.codes.UNPROCESSABLE_ENTITY):
        return frozenset()
    param, message = (error.param or "").lower(), error.message.lower()
    if param in {"", "none", "null"} and len(message) <= _MAX_COMPLAINT_CHARS and _COMPLAINT.search(message):
        # Some servers name the option only in words. Longer texts may quote the prompt, which proves nothing.
        param = message
    return frozenset(option for option, hints in _OPTIONS.items() if any(hint in param for hint in hints))


def _translated(reply: Reply, error: _Fault) -> ModelError:
    """Choose the error by status and code. The endpoint's own words stay out: they may quote the prompt."""
    status, code = reply.status, str(error.code or error.type or "")
    if code in ("insufficient_quota", "billing_hard_limit_reached") or status in _REJECTED:
        return ModelRejectedError(f"the endpoint rejects us: HTTP {status}")
    if status == httpx.codes.TOO_MANY_REQUESTS:
        return RateLimitedError("the endpoint asks for fewer requests: HTTP 429", _retry_after_s(reply.headers))
    if status == httpx.codes.REQUEST_TIMEOUT or not httpx.codes.is_client_error(status):
        return ModelUnavailableError(f"the endpoint fails: HTTP {status}")
    if code == "content_filter":
        return ContentFilteredError(f"the endpoint's filter refuses the request: HTTP {status}")
    too_long = code == "context_length_exceeded" or "maximum context length" in error.message.lower()
    if too_long or status == httpx.codes.REQUEST_ENTITY_TOO_LARGE:
        return InputTooLongError(f"the endpoint finds the request too long: HTTP {status}")
    return BadModelRequestError(f"the endpoint does not take this request: HTTP {status}")


def _retry_after_s(headers: httpx.Headers) -> float | None:
    """Read `Retry-After`, in seconds or as a date."""
    value = headers.get("retry-after", "")
    try:
        seconds = float(value)
        return max(0.0, seconds) if math.isfinite(seconds) else None
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError):
        return None
