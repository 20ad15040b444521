"""What may be shown of an address: never a user, a password, or options, which may hold both."""

import re
from typing import Final

from tracejudge.redis_url import shown

__all__ = ["address", "addresses", "each"]

_BETWEEN: Final = re.compile(r";(?=[A-Za-z0-9+.-]+://)")
"""A `;` with no URL behind it may stand in a password."""


def address(url: str) -> str:
    """Tell where a Redis, broker or endpoint URL points, without user and password, for logs and errors."""
    return shown(url)


def addresses(urls: str) -> str:
    """Tell it of several URLs that stand together with `;` between, as brokers take them."""
    return ";".join(map(address, each(urls)))


def each(urls: str) -> list[str]:
    """Take such URLs apart."""
    return _BETWEEN.split(urls)
