"""Parts of endpoint replies: the body, tool calls, the quota, the delay asked for, and state to send back."""

import email.utils
import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final, NamedTuple, TypeVar

import msgspec
from msgspec import Raw

from judges.core.model import ChatRequest, FinishReason, Quota, Window
from judges.core.prompt import ToolCall
from judges.parsing.answer import encodable

T = TypeVar("T")
UNREADABLE: Final = (msgspec.DecodeError, ValueError, RecursionError)  # What ``decode_reply`` raises.
_MAX_ID_CHARS: Final = 256
_MAX_TOKENS: Final = 10**9
_MAX_DIGITS: Final = 18  # Of a number that JSON encoders keep exactly.


def decode_reply(body: bytes, kind: type[T]) -> T:
    """Decode the body of a reply, also with NaN, odd characters, a byte order mark, or an array around the whole."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeError):
        text = body.decode(json.detect_encoding(body), "replace").strip("\ufeff\0 \t\r\n")
    value = json.loads(text, strict=False, parse_int=lambda each: (float if len(each) > _MAX_DIGITS else int)(each))
    if "\\u" in text:
        value = json.loads(encodable(json.dumps(value, ensure_ascii=False)))
    for each in [value, *(value if isinstance(value, list) else ())]:
        with suppress(msgspec.ValidationError):
            return msgspec.json.decode(msgspec.json.encode(each), type=kind)
    raise ValueError("no value of the body has the type")


_STOPPED: Final = frozenset(("stop", "tool_calls", "function_call", "end_turn", "stop_sequence", "tool_use", "refusal"))
_CUT: Final = re.compile("length|max_(?:output_)?tokens|context_window")
_WITHHELD: Final = re.compile("filter|safety|prohibited|recitation|blocklist|spii|guardrail")


def finish_reason(reason: object) -> FinishReason:
    """Read why an answer ended, as any of the APIs says it."""
    name = str(reason or "stop").lower()
    if name in _STOPPED:
        return "stop"
    return "content_filter" if _WITHHELD.search(name) else "length" if _CUT.search(name) else "other"


MAX_STATE_BYTES: Final = 256 * 1024  # Larger state is dropped: it would be sent again with every further request.
ABSENT: Final = Raw(b"")
_EMPTY: Final = (b"", b"null")


def keep_state(part: Raw) -> Raw | None:
    """Copy one part of a reply as provider state; None if it is absent, null or too long."""
    # The copy releases the memory of the whole reply.
    written = bytes(part)
    return Raw(written) if written not in _EMPTY and len(written) <= MAX_STATE_BYTES else None


def join_states(**parts: Raw) -> Raw | None:
    """Keep several parts by name as one provider state, all or none."""
    present = {name: part for name, part in parts.items() if bytes(part) not in _EMPTY}
    return keep_state(Raw(msgspec.json.encode(present))) if present else None


def state_parts(state: Raw) -> Mapping[str, Raw]:
    """Return the named parts of a provider state."""
    return msgspec.json.decode(state, type=dict[str, Raw])


_UNITS_S: Final[Mapping[str, float]] = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)
_MAX_CHARS: Final = 40
# The headers with what is left, and with the time of its reset, of both APIs: of requests, then of each kind of tokens.
_QUOTAS: Final = (
    tuple((f"x-ratelimit-remaining-{kind}", f"x-ratelimit-reset-{kind}") for kind in ("requests", "tokens")),
    tuple(
        (f"anthropic-ratelimit-{kind}-remaining", f"anthropic-ratelimit-{kind}-reset")
        for kind in ("requests", "tokens", "input-tokens", "output-tokens")
    ),
)


def read_quota(headers: Mapping[str, str]) -> Quota | None:
    """Read `x-ratelimit-*` or `anthropic-ratelimit-*`: gateways often send those of another API than they serve."""
    for names in _QUOTAS:
        # Every call comes here: without such headers it costs no more than looking for them.
        if any(left in headers for left, _ in names):
            requests, *tokens = (_window(headers, *each) for each in names)
            scarcest = min((window for window in tokens if window), default=None, key=lambda window: window.left)
            if requests is not None or scarcest is not None:
                return Quota(requests, scarcest)
    return None


def _window(headers: Mapping[str, str], left_name: str, reset_name: str) -> Window | None:
    left = _amount(headers.get(left_name) or "")
    if left is None:
        return None
    reset = headers.get(reset_name) or ""
    reset_s = _duration_s(reset)
    reset_at = _unix_time(reset) if reset_s is None else None
    return None if reset_s is None and reset_at is None else Window(left, reset_s, reset_at)


def _amount(text: str) -> float | None:
    try:
        amount = float(text)
    except ValueError:
        return None
    # Some gateways send -1 for "no limit".
    return amount if 0 <= amount < math.inf else None


def _duration_s(text: str) -> float | None:
    """Parse `1s`, `6m0s`, `20ms`, `1h2m3.5s`, or plain seconds."""
    if len(text) > _MAX_CHARS:
        return None
    # The usual form, without the regular expression.
    if text[-1:] == "s" and text[:-1].replace(".", "", 1).isdecimal() and text.isascii():
        return float(text[:-1])
    parts = _PART.findall(text)
    if parts and "".join(amount + unit for amount, unit in parts) == text:
        return sum(float(amount) * _UNITS_S[unit] for amount, unit in parts)
    return _amount(text)


def _unix_time(text: str) -> float | None:
    """Parse an RFC 3339 time; None without a time zone."""
    try:
        time = datetime.fromisoformat(text)
        return time.timestamp() if time.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Read `Retry-After`, in seconds or as a date, as 0 to 3600 s; None if it is absent or neither."""
    value = headers.get("retry-after", "")
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, TypeError, ArithmeticError, LookupError, OSError):
            # Years and zones out of range raise more than ValueError.
            return None
    return None if math.isnan(seconds) else min(3600.0, max(0.0, seconds))


_NO_ARGUMENTS: Final = "{}"
_REFUSED_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_-]")


def read_call(call_id: object, name: object, arguments: object, number: int) -> ToolCall:
    """Read one call of an answer.

    Without the endpoint's id one is made from the number of calls before it. The name is empty when absent. The
    arguments are the text that the model wrote, or what a server decoded from it.
    """
    if isinstance(arguments, str):
        text = _unwrapped(arguments) if arguments.strip() else _NO_ARGUMENTS
    else:
        text = _NO_ARGUMENTS if arguments is None else msgspec.json.encode(arguments).decode()
    # Mistral's servers demand nine letters and digits as an id.
    return ToolCall(str(call_id or f"call{number:05d}"), str(name or ""), text)


def _unwrapped(text: str) -> str:
    """Return the text inside, if a server encoded the arguments as a JSON string once more."""
    try:
        inner = msgspec.json.decode(text, type=str)
    except (msgspec.DecodeError, UnicodeError):
        return text
    return text if as_object(inner) is None else inner


def calls_so_far(request: ChatRequest) -> int:
    """Count the calls that the messages of a request contain."""
    return sum(len(message.tool_calls) for message in request.messages)


def as_object(arguments: str) -> dict[str, object] | None:
    """Decode the arguments of a call; None if they are no JSON object."""
    try:
        return msgspec.json.decode(arguments, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def sendable_object(arguments: str) -> dict[str, object]:
    """Return the arguments of a call as an object; a text that is none becomes its value ``unreadable``."""
    mapping = as_object(arguments)
    return {"unreadable": arguments} if mapping is None else mapping


def sendable_name(name: str) -> str:
    """Return a name that endpoints accept: 1 to 64 letters, digits, `_` and `-`."""
    return _REFUSED_IN_NAMES.sub("_", name)[:64] or "unnamed"


class ReplyFields(NamedTuple):
    """Fields beside an answer; ``invalid`` names those that were out of bounds and are left out."""

    id: str | None
    model: str | None
    tokens: Sequence[int]
    invalid: tuple[str, ...]


def reply_fields(reply_id: object, model: object, usage: object, token_names: Sequence[str]) -> ReplyFields:
    """Read id and model, texts of at most 256 characters, and token counts up to 10^9; a bad one is 0."""
    known_id, has_id = _identifier(reply_id)
    known_model, has_model = _identifier(model)
    counts = [_count(usage.get(name) or 0) for name in token_names] if isinstance(usage, dict) else []
    has_usage = usage is None or (isinstance(usage, dict) and None not in counts)
    tokens = [count or 0 for count in counts] or [0] * len(token_names)
    valid = {"id": has_id, "model": has_model, "usage": has_usage}
    return ReplyFields(known_id, known_model, tokens, tuple(name for name, is_valid in valid.items() if not is_valid))


def _count(value: object) -> int | None:
    """Return a count of tokens; None if the value is none."""
    # Some servers write numbers as texts; the longest is 10^9.
    if isinstance(value, str) and re.fullmatch("[0-9]{1,10}", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value <= _MAX_TOKENS and value == int(value) else None


def _identifier(value: object) -> tuple[str | None, bool]:
    if value is None:
        return None, True
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() <= _MAX_ID_CHARS:
        return str(value), True
    if isinstance(value, str) and len(value) <= _MAX_ID_CHARS:
        return value, True
    return None, False
