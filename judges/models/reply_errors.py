"""The errors that replies describe: how they are found, and which ``ModelError`` each is."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import httpx
import msgspec
from msgspec import Struct, structs

from judges.core.model import (
    BadModelRequestError,
    ContentFilteredError,
    InputTooLongError,
    ModelError,
    ModelRejectedError,
    ModelUnavailableError,
    RateLimitedError,
    ToolsRefusedError,
)
from judges.models.replies import UNREADABLE, decode_reply, read_quota, retry_after_s
from tracejudge.content.redact import redact_credentials

if TYPE_CHECKING:
    from judges.models.http import HttpEndpoint, Reply

_QUOTED_CHARS: Final = 20  # A message that has so many characters in a row in common with the request quotes it.
_BLOCK_CHARS: Final = _QUOTED_CHARS // 2
_MIN_SECRET_CHARS: Final = 6
_MASKED_KEY: Final = re.compile(r"\S*\*{3,}\S*")  # OpenAI shows the beginning and the end of a wrong key.


def quote_message(message: str, request: object = None, secrets: Iterable[str] = ()) -> str:
    """Return the first 300 characters of an endpoint's message on one line, without secrets and request texts."""
    text = message[:2_000]
    for secret in secrets:
        if len(secret) >= _MIN_SECRET_CHARS:
            text = text.replace(secret, "[key]")
    text = _MASKED_KEY.sub("[key]", redact_credentials(text, text.encode("utf-8", "surrogatepass")))
    text = _without_quotes(text, [each for each in _texts(request) if len(each) >= _QUOTED_CHARS])
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())
    return line[:300]


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        for each in value:
            yield from _texts(each)


def _without_quotes(text: str, quotable: Sequence[str]) -> str:
    """Replace every part of a text that is in another text as well."""
    hidden = bytearray(len(text))
    # A quote of 20 characters contains a whole block of 10 wherever it begins, so few blocks need to be searched for.
    for block_at in range(0, len(text) - _BLOCK_CHARS + 1, _BLOCK_CHARS):
        block = text[block_at : block_at + _BLOCK_CHARS]
        holding = [each for each in quotable if block in each]
        last = min(block_at, len(text) - _QUOTED_CHARS)
        for start in range(max(0, block_at - _BLOCK_CHARS), last + 1) if holding else ():
            quote = text[start : start + _QUOTED_CHARS]
            if any(quote in each for each in holding):
                hidden[start : start + _QUOTED_CHARS] = bytes([1]) * _QUOTED_CHARS
    marked = groupby(zip(hidden, text, strict=True), key=lambda pair: pair[0])
    return "".join("[...]" if is_hidden else "".join(sign for _, sign in part) for is_hidden, part in marked)


# Each 4xx: these stop the model until an operator acts, the next ones are final for their request. The rest comes from
# proxies and gateways, and passes: 408, 409, 423, 424, 425, 498, 499 and so on.
REJECTED: Final = frozenset({401, 402, 403, 404, 405, 407, 410, 421, 451})
_ABSENT: Final = frozenset({404, 405, 410})
_REJECTED_CODES: Final = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_error"})
_REJECTED_WORDS: Final = ("credit balance is too low", "your specified api usage limits")
_FILTERED_CODES: Final = frozenset(
    {"content_filter", "content_policy_violation", "data_inspection_failed", "moderation_blocked"}
)
_FILTERED_WORDS: Final = (
    "blocked by content filtering policy",
    "your input was flagged",
    "your prompt was flagged",
    "response was filtered due to the prompt",
    "rejected as a result of our safety system",
    "content exists risk",
    "data may contain inappropriate content",
    "content violates usage guidelines",
)
_TOO_LONG_CODES: Final = frozenset({"context_length_exceeded", "request_too_large", "max_tokens_exceeded"})
_TOO_LONG_WORDS: Final = ("maximum context length", "prompt is too long", "exceed context limit")
_OVERSIZED_WORDS: Final = ("request too large",)
_LIMIT_AND_REQUESTED: Final = re.compile(r"\blimit:? (\d{1,15})\b[^.;]{0,60}\brequested:? (\d{1,15})\b")
_OPENING_CHARS: Final = 80
_TOOLS_STATUS: Final = frozenset({400, 404, 422, 500, 501})  # llama.cpp reports it with 500, OpenRouter with 404.
_TOOLS: Final = re.compile(r"\btools\b(?![.\[])|\btool[ _-]?(use|calling|choice)\b|function[ _-]?call|toolconfig")
_REFUSED: Final = re.compile(
    r"support|enable|not permitted|not allowed|unrecogni[sz]ed|unknown|unexpected|requires|must be defined"
)
_MAX_REFUSAL_CHARS: Final = 500
# Parts of the words by which APIs name errors, with the status that those errors have.
_NAMED: Final[Mapping[str, int]] = {
    "quota": 429, "rate_limit": 429, "exhausted": 429, "too_many": 429, "api_key": 401, "auth": 401, "permission": 403,
    "not_found": 404, "invalid": 400, "bad_request": 400, "content": 400, "context": 400,
}  # fmt: skip
# Words of errors without such a name, with their status. An unknown text may pass, as an overload does.
_SAID: Final = (
    (re.compile(r"\bquota\b|rate[- ]limit|too many requests"), 429),
    (re.compile(r"\bapi[- ]key\b|unauthori[sz]ed|authentication"), 401),
    (re.compile(r"\bmodel\b.{0,60}\b(?:not found|not exist)"), 404),
    (re.compile(r"\bcontext (?:length|window|size)\b"), 413),
)


class Fault(Struct):
    """The error that a reply describes; empty fields if it describes none."""

    message: str = ""
    type: str | None = None
    param: str | None = None
    code: str | float | None = None
    metadata: Any = None


def read_fault(body: bytes) -> Fault:
    """Read the error of a reply; an empty one if the body contains none."""
    try:
        return _fault(decode_reply(body, Any))
    except UNREADABLE:
        return Fault()


def _fault(raw: object) -> Fault:
    """Find the error: wrapped, bare, as a text, in an array (Google), or in a list of places (FastAPI)."""
    if isinstance(raw, str):
        return Fault(raw)
    if isinstance(raw, list):
        faults = [_fault(each) for each in raw[:20]]
        return Fault() if not faults else structs.replace(faults[0], message="; ".join(each.message for each in faults))
    if not isinstance(raw, dict):
        return Fault()
    inner = next((raw[name] for name in ("error", "errors", "detail") if raw.get(name)), None)
    if isinstance(inner, str | list | dict):
        return _fault(inner)
    texts = {name: value for name, value in raw.items() if isinstance(value, str)}
    place = ".".join(map(str, raw["loc"])) if isinstance(raw.get("loc"), list) else ""
    message = texts.get("message") or (f"{place}: {texts['msg']}" if "msg" in texts else "")
    code = raw["code"] if type(raw.get("code")) in (int, float) else texts.get("code")
    return Fault(message, texts.get("type") or texts.get("status"), texts.get("param"), code, raw.get("metadata"))


def as_named(reply: "Reply") -> "Reply":
    """Change the status of a reply that holds an error in place of an answer from 200 to what the error names."""
    try:
        body = decode_reply(reply.body, dict[str, Any])
        match body.get("choices"):
            case [{"finish_reason": "error"} as choice, *_]:
                body = choice  # OpenRouter's, for an answer that broke off.
        fault, has_answer = _fault(body), any(map(body.get, ("choices", "content", "answers", "data")))
    except UNREADABLE:
        return reply
    if has_answer or not (body.get("error") or fault.message):
        return reply
    code = re.fullmatch("([45][0-9]{2})(?:[.]0)?", str(fault.code))
    # A code such as `unsupported_parameter` is told apart by the type beside it.
    named = f"{fault.code} {fault.type}".lower()
    opening = fault.message[:_OPENING_CHARS].lower()
    statuses = [status for part, status in _NAMED.items() if part in named]
    statuses += [status for words, status in _SAID if words.search(opening)]
    status = next(iter(statuses), httpx.codes.BAD_GATEWAY)
    return reply._replace(status=int(code[1]) if code else status, body=msgspec.json.encode(body))


def translated(
    reply: "Reply", fault: Fault, body: Mapping[str, object], endpoint: "HttpEndpoint", *, with_tools: bool = False
) -> ModelError:
    """Choose the error by status and code. Its ``message`` is what ``quote_message`` leaves of the endpoint's."""
    error = (_tools_refused(reply, fault) if with_tools else None) or _chosen(reply, fault, endpoint.address)
    error.status = reply.status
    is_plain_text = reply.headers.get("content-type", "").startswith("text/plain")
    message = fault.message or (reply.body.decode("utf-8", "replace") if is_plain_text else "")
    error.message = quote_message(message, body, endpoint.secrets)
    error.retry_after_s = retry_after_s(reply.headers)
    error.quota = read_quota(reply.headers)
    return error


def _chosen(reply: "Reply", fault: Fault, address: str) -> ModelError:
    status, code = reply.status, str(fault.code or fault.type or "")
    is_client_error = httpx.codes.is_client_error(status)
    is_flagged = isinstance(fault.metadata, dict) and "flagged_input" in fault.metadata
    # OpenRouter's message begins with the name of the model, which may be long.
    is_filtered = code in _FILTERED_CODES or is_flagged or _opens_with(fault, _FILTERED_WORDS, 2 * _OPENING_CHARS)
    if is_client_error and is_filtered:
        return ContentFilteredError(f"the endpoint's filter refuses the request: HTTP {status}")
    is_rejected = status in REJECTED or code in _REJECTED_CODES
    if is_rejected or (is_client_error and _opens_with(fault, _REJECTED_WORDS)):
        absent = f"HTTP {status} from {address}; check base_url and model"
        return ModelRejectedError(absent if status in _ABSENT else f"the endpoint rejects the request: HTTP {status}")
    if status == httpx.codes.TOO_MANY_REQUESTS:
        match = _LIMIT_AND_REQUESTED.search(fault.message[:_MAX_REFUSAL_CHARS].lower().replace(",", ""))
        # Waiting does not help a request that needs more tokens than the endpoint grants in a whole minute.
        is_oversized = int(match[2]) > int(match[1]) if match is not None else _opens_with(fault, _OVERSIZED_WORDS)
        return (
            InputTooLongError("the request alone is larger than the endpoint's rate limit: HTTP 429")
            if is_oversized
            else RateLimitedError("the endpoint asks for fewer requests: HTTP 429")
        )
    too_long = code in _TOO_LONG_CODES or any(words in fault.message.lower() for words in _TOO_LONG_WORDS)
    if is_client_error and (too_long or status == httpx.codes.REQUEST_ENTITY_TOO_LARGE):
        return InputTooLongError(f"the endpoint finds the request too long: HTTP {status}")
    if status in {400, 406, 411, 413, 414, 415, 416, 417, 422, 431, 494}:
        return BadModelRequestError(f"the endpoint does not take this request: HTTP {status}")
    return ModelUnavailableError(f"the endpoint fails: HTTP {status}")


def _tools_refused(reply: "Reply", fault: Fault) -> ModelError | None:
    """Recognise the complaint that the endpoint supports no tools."""
    message = fault.message.lower()
    # A longer text may quote the trace, which proves nothing.
    if reply.status not in _TOOLS_STATUS or len(message) > _MAX_REFUSAL_CHARS:
        return None
    if not (_REFUSED.search(message) and (fault.param == "tools" or _TOOLS.search(message))):
        return None
    return ToolsRefusedError(
        f"the endpoint takes no tools, and this judge needs a model with function calling: HTTP {reply.status}"
    )


def _opens_with(fault: Fault, words: Iterable[str], chars: int = _OPENING_CHARS) -> bool:
    # Only the beginning: later words may be a quotation of the trace.
    opening = fault.message[:chars].lower()
    return any(each in opening for each in words)


_CONTENT_TYPE: Final = re.compile(r"[\w.+-]{1,60}/[\w.+-]{1,60}", re.ASCII)


def no_chat_reply(reply: "Reply", why: str, expected: str = "a chat endpoint") -> ModelUnavailableError:
    """Make the error for a reply with status 200 that is no answer, as a web page is."""
    kind = content_type(reply)
    if kind is None:
        return ModelUnavailableError(why)
    return ModelUnavailableError(f"{why}: this is not {expected}, it answers with {kind}; check base_url")


def content_type(reply: "Reply") -> str | None:
    """Return the content type of a reply; None if it is JSON or absent."""
    kind = _CONTENT_TYPE.match(reply.headers.get("content-type", ""))
    return None if kind is None or kind[0].endswith("json") else kind[0]
