"""What an endpoint says with each reply about what is left to ask for: the headers of OpenAI's and Anthropic's form.

Values that cannot be read are as good as absent: a gateway's mistake must not stop judging.
"""

import math
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final, NamedTuple, Protocol

__all__ = ["Headers", "Quota", "Window", "anthropic_quota", "openai_quota", "read_quota"]

_UNITS_S: Final[Mapping[str, float]] = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)
_MAX_CHARS: Final = 40
_OPENAI_REQUESTS: Final = ("x-ratelimit-remaining-requests", "x-ratelimit-reset-requests")
_OPENAI_TOKENS: Final = ("x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens")
_ANTHROPIC_REQUESTS: Final = ("anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-requests-reset")
_ANTHROPIC_TOKENS: Final = tuple(
    (f"anthropic-ratelimit-{kind}tokens-remaining", f"anthropic-ratelimit-{kind}tokens-reset")
    for kind in ("", "input-", "output-")
)
_ANTHROPIC_REMAINING: Final = (_ANTHROPIC_REQUESTS[0], *(remaining for remaining, _ in _ANTHROPIC_TOKENS))


class Headers(Protocol):
    """A mapping of names in any case, as httpx and aiohttp have it."""

    def get(self, key: str, /) -> str | None:
        """Give a value, None where it is absent."""
        ...


class Window(NamedTuple):
    """So much is left, until ``reset_s`` seconds from now or at ``reset_at``, a Unix time."""

    left: float
    reset_s: float | None
    reset_at: float | None = None


class Quota(NamedTuple):
    """What is left of requests, and of tokens by the scarcest of their kinds."""

    requests: Window | None
    tokens: Window | None


def openai_quota(headers: Headers) -> Quota | None:
    """Read `x-ratelimit-*`; None where there is nothing of it."""
    requests, tokens = headers.get(_OPENAI_REQUESTS[0]), headers.get(_OPENAI_TOKENS[0])
    if requests is None and tokens is None:
        return None
    return _quota(_window(headers, *_OPENAI_REQUESTS), _window(headers, *_OPENAI_TOKENS))


def anthropic_quota(headers: Headers) -> Quota | None:
    """Read `anthropic-ratelimit-*`; None where there is nothing of it."""
    # Here and above: endpoints without such headers pay for no more than looking for them, with every call.
    get = headers.get
    for remaining in _ANTHROPIC_REMAINING:
        if get(remaining) is not None:
            break
    else:
        return None
    requests = _window(headers, *_ANTHROPIC_REQUESTS)
    tokens = [window for names in _ANTHROPIC_TOKENS if (window := _window(headers, *names)) is not None]
    return _quota(requests, min(tokens, default=None, key=lambda window: window.left))


def read_quota(headers: Headers) -> Quota | None:
    """Read either form: what a gateway says is often the form of another API than the one it speaks."""
    return openai_quota(headers) or anthropic_quota(headers)


def _quota(requests: Window | None, tokens: Window | None) -> Quota | None:
    return None if requests is None and tokens is None else Quota(requests, tokens)


def _window(headers: Headers, left_name: str, reset_name: str) -> Window | None:
    said = headers.get(left_name)
    left = None if said is None else _amount(said)
    if left is None:
        return None
    reset = headers.get(reset_name)
    reset_s = _duration_s(reset)
    reset_at = _time(reset) if reset_s is None else None
    return None if reset_s is None and reset_at is None else Window(left, reset_s, reset_at)


def _amount(text: str) -> float | None:
    try:
        amount = float(text)
    except ValueError:
        return None
    # Some gateways say -1 for "no limit".
    return amount if 0 <= amount < math.inf else None


def _duration_s(text: str | None) -> float | None:
    """Read `1s`, `6m0s`, `20ms`, `1h2m3.5s`, or plain seconds."""
    if text is None or len(text) > _MAX_CHARS:
        return None
    if text[-1:] == "s" and text[:-1].replace(".", "", 1).isdecimal() and text.isascii():
        return float(text[:-1])
    parts = _PART.findall(text)
    if parts and "".join(amount + unit for amount, unit in parts) == text:
        return sum(float(amount) * _UNITS_S[unit] for amount, unit in parts)
    return _amount(text)


def _time(text: str | None) -> float | None:
    """Read a time as RFC 3339 writes it; one without a zone says nothing."""
    try:
        time = datetime.fromisoformat(text or "")
        return time.timestamp() if time.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None
