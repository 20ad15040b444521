"""Addresses that no judge endpoint has any business at: whoever may write a base URL must not reach what they guard.

Clouds give keys to whoever asks at a link-local address. Loopback and private addresses stay allowed: models run there.
"""

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import DefaultResolver

__all__ = ["AddressRefusedError", "GuardedResolver", "is_guarded"]

_GUARDED: Final = tuple(
    ip_network(network)
    for network in (
        "0.0.0.0/8",  # unspecified: this machine, by another name
        "::/128",
        "169.254.0.0/16",  # link-local: the metadata of most clouds
        "fe80::/10",
        "fd00:ec2::/32",  # Amazon's metadata
        "fd20:ce::254/128",  # Google's
        "100.100.100.200/32",  # Alibaba's
        "168.63.129.16/32",  # Azure's
        "192.0.0.192/32",  # Oracle's
    )
)
_GUARDED_NAMES: Final = ("metadata", "metadata.google.internal", "metadata.goog", "instance-data.ec2.internal")
_EMBEDDING: Final = tuple(
    ip_network(network)
    for network in (
        "::/96",  # as addresses of version 4 were once written
        "64:ff9b::/96",  # NAT64, of everybody and of one network
        "64:ff9b:1::/48",
    )
)


class AddressRefusedError(OSError):
    """A name leads to an address that is not allowed. The message names neither."""


class GuardedResolver(AbstractResolver):
    """Resolves names to the addresses that are then connected to, and refuses a name with any guarded one.

    Since the connection uses what was checked, a name that answers otherwise the next time gains nothing.
    """

    def __init__(self) -> None:
        self._resolver = DefaultResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Resolve a name.

        Raises:
            AddressRefusedError: It has a guarded address, or is known to be a guarded name.
            OSError: It has none at all.
        """
        found = await self._resolver.resolve(host, port, family)
        if is_guarded(host) or any(is_guarded(result["host"]) for result in found):
            raise AddressRefusedError("link-local, metadata or unspecified address")
        return found

    async def close(self) -> None:
        """Close what it asks."""
        await self._resolver.close()


def is_guarded(host: str) -> bool:
    """Tell whether a host is a guarded address, in whatever notation, or a name that stands for one."""
    bare = host.partition("%")[0].rstrip(".").lower()
    if bare in _GUARDED_NAMES:
        return True
    address = _read(bare)
    return address is not None and any(address in network for network in _GUARDED)


def _read(text: str) -> IPv4Address | IPv6Address | None:
    try:
        # As the C library reads them: 2852039166 and 0xa9fea9fe are 169.254.169.254.
        address = ip_address(socket.inet_aton(text)) if ":" not in text else ip_address(text)
    except (OSError, ValueError):
        return None
    return _within(address) if isinstance(address, IPv6Address) else address


def _within(address: IPv6Address) -> IPv4Address | IPv6Address:
    """Take an address of version 4 out of one of version 6 that leads to it."""
    if not address.is_loopback and any(address in network for network in _EMBEDDING):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address
