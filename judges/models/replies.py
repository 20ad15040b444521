"""Parts of endpoint replies besides the answer: the remaining quota, and state that the endpoint expects back."""

import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec
from msgspec import Raw

from judges.core.model import Quota, Window

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
# The headers with what is left, and with the time of its reset: of requests, then of each kind of tokens.
_OPENAI: Final = tuple(
    (f"x-ratelimit-remaining-{kind}", f"x-ratelimit-reset-{kind}") for kind in ("requests", "tokens")
)
_ANTHROPIC: Final = tuple(
    (f"anthropic-ratelimit-{kind}-remaining", f"anthropic-ratelimit-{kind}-reset")
    for kind in ("requests", "tokens", "input-tokens", "output-tokens")
)


def openai_quota(headers: Mapping[str, str]) -> Quota | None:
    """Read `x-ratelimit-*`; None without such headers."""
    return _quota(headers, _OPENAI)


def anthropic_quota(headers: Mapping[str, str]) -> Quota | None:
    """Read `anthropic-ratelimit-*`; None without such headers."""
    return _quota(headers, _ANTHROPIC)


def read_quota(headers: Mapping[str, str]) -> Quota | None:
    """Read either form: gateways often send the headers of another API than the one they serve."""
    return openai_quota(headers) or anthropic_quota(headers)


def _quota(headers: Mapping[str, str], names: Sequence[tuple[str, str]]) -> Quota | None:
    # Every call comes here: without such headers it costs no more than looking for them.
    if all(headers.get(left) is None for left, _ in names):
        return None
    requests, *tokens = (_window(headers, *each) for each in names)
    scarcest = min((window for window in tokens if window), default=None, key=lambda window: window.left)
    return None if requests is None and scarcest is None else Quota(requests, scarcest)


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
