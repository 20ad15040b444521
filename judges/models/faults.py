"""What an endpoint says when it does not answer, and which of our errors that is.

OpenAI's and Anthropic's errors are read alike: gateways put the one's words into the other's form.
"""

import re
from collections.abc import Iterable
from typing import Final

import httpx
import msgspec
from msgspec import Struct

from judges.models.http import Reply, retry_after_s
from judges.models.model import (
    BadModelRequestError,
    ContentFilteredError,
    InputTooLongError,
    ModelError,
    ModelRejectedError,
    ModelUnavailableError,
    RateLimitedError,
    ToolsRefusedError,
)
from judges.models.quota import read_quota

__all__ = ["Fault", "read_fault", "translated"]

_REJECTED: Final = frozenset({401, 402, 403, 404})
_REJECTED_CODES: Final = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_error"})
_REJECTED_WORDS: Final = ("credit balance is too low", "your specified api usage limits")
_FILTERED_WORDS: Final = ("blocked by content filtering policy",)
_TOO_LONG_CODES: Final = frozenset({"context_length_exceeded", "request_too_large"})
_TOO_LONG_WORDS: Final = ("maximum context length", "prompt is too long", "exceed context limit")
_OPENING_CHARS: Final = 80
_TOOLS_STATUS: Final = frozenset({400, 404, 422, 500, 501})
"""llama.cpp says it with 500, OpenRouter with 404."""
_TOOLS: Final = re.compile(r"\btools\b(?![.\[])|\btool[ _-]?(use|calling|choice)\b|function[ _-]?call|toolconfig")
_REFUSED: Final = re.compile(
    r"support|enable|not permitted|not allowed|unrecogni[sz]ed|unknown|unexpected|requires|must be defined"
)
_MAX_REFUSAL_CHARS: Final = 500


class Fault(Struct):
    """The error of a reply, as far as it says one."""

    message: str = ""
    type: str | None = None
    param: str | None = None
    code: str | int | None = None


class _FaultBody(Fault):
    """The error, wrapped as both APIs do it, or bare as some servers do."""

    error: Fault | str | None = None


def read_fault(body: bytes) -> Fault:
    """Read the error of a reply; an empty one where the body holds none."""
    try:
        found = msgspec.json.decode(body, type=_FaultBody)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Fault()
    if found.error is None:
        return found
    return Fault(message=found.error) if isinstance(found.error, str) else found.error


def translated(reply: Reply, fault: Fault, *, with_tools: bool = False) -> ModelError:
    """Choose the error by status and code. The endpoint's own words stay out: they may quote the prompt.

    Args:
        with_tools: Whether the request speaks of tools.
    """
    error = _tools_refused(reply, fault) if with_tools else None
    error = error or _chosen(reply, fault)
    error.retry_after_s = retry_after_s(reply.headers)
    error.quota = read_quota(reply.headers)
    return error


def _chosen(reply: Reply, fault: Fault) -> ModelError:
    status, code = reply.status, str(fault.code or fault.type or "")
    if status in _REJECTED or code in _REJECTED_CODES or (_is_client_error(status) and _opens(fault, _REJECTED_WORDS)):
        return ModelRejectedError(f"the endpoint rejects us: HTTP {status}")
    if status == httpx.codes.TOO_MANY_REQUESTS:
        return RateLimitedError("the endpoint asks for fewer requests: HTTP 429")
    if status == httpx.codes.REQUEST_TIMEOUT or not _is_client_error(status):
        return ModelUnavailableError(f"the endpoint fails: HTTP {status}")
    if code == "content_filter" or _opens(fault, _FILTERED_WORDS):
        return ContentFilteredError(f"the endpoint's filter refuses the request: HTTP {status}")
    too_long = code in _TOO_LONG_CODES or any(words in fault.message.lower() for words in _TOO_LONG_WORDS)
    if too_long or status == httpx.codes.REQUEST_ENTITY_TOO_LARGE:
        return InputTooLongError(f"the endpoint finds the request too long: HTTP {status}")
    return BadModelRequestError(f"the endpoint does not take this request: HTTP {status}")


def _tools_refused(reply: Reply, fault: Fault) -> ModelError | None:
    """Find the complaint that there can be no tools. A longer text may quote the trace, which proves nothing."""
    message = fault.message.lower()
    if reply.status not in _TOOLS_STATUS or len(message) > _MAX_REFUSAL_CHARS:
        return None
    if not (_REFUSED.search(message) and (fault.param == "tools" or _TOOLS.search(message))):
        return None
    return ToolsRefusedError(
        f"the endpoint takes no tools, and this judge needs a model with function calling: HTTP {reply.status}"
    )


def _is_client_error(status: int) -> bool:
    return httpx.codes.is_client_error(status)


def _opens(fault: Fault, words: Iterable[str]) -> bool:
    """Tell whether an error begins with such words; further on they may be a quotation of the trace."""
    opening = fault.message[:_OPENING_CHARS].lower()
    return any(each in opening for each in words)
