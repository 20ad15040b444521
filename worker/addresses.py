"""What may be shown of an address: never a user, a password, or options, which may hold both."""

from typing import Final

from tracejudge.redis_url import shown

__all__ = ["address", "addresses"]

_UNREADABLE: Final = "(an address that cannot be read)"


def address(url: str) -> str:
    """Tell where a Redis, broker or endpoint URL points, without user and password, for logs and errors."""
    try:
        return shown(url)
    except ValueError:
        return _UNREADABLE


def addresses(urls: str) -> str:
    """Tell it of several URLs that stand together with `;` between, as brokers take them."""
    return ";".join(map(address, urls.split(";")))
