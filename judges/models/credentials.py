"""Keys of endpoints, the addresses that may be called, and the proxy for them.

A key is read from a variable or a file and never appears in a log line or an error.
"""

import logging
import os
import re
import socket
import ssl
import stat
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import Final

from msgspec import structs

from judges.core.model import ModelSettings

log = logging.getLogger("judges.models.credentials")
_MAX_KEY_BYTES: Final = 16_384
HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")


class KeyRefusedError(ValueError):
    """There is no usable key. The message names the setting and how to fix it, and no part of the key."""


def read_key(settings: ModelSettings, environment: Mapping[str, str]) -> str | None:
    """Read the key that the settings name, or raise ``KeyRefusedError``; None if they name none."""
    return _read(settings.api_key_env, settings.api_key_file, "api_key_", environment)


class SecretText(str):
    """The value of a header from a variable or a file, which no message may contain."""

    __slots__ = ()


def read_headers(settings: ModelSettings, environment: Mapping[str, str]) -> ModelSettings:
    """Read the headers that the settings name into them, or raise ``KeyRefusedError``."""
    headers = dict[str, str]()
    for name, source in (settings.headers or {}).items():
        value = source if isinstance(source, str) else _read(source.env, source.file, f"headers.{name}.", environment)
        if value is None:
            raise KeyRefusedError(f"headers.{name}: names no place; set env or file, one of them")
        headers[name.lower()] = value if value is source else SecretText(value)
    return structs.replace(settings, headers=headers or None)


def _read(variable: str | None, file: str | None, prefix: str, environment: Mapping[str, str]) -> str | None:
    if file is not None:
        key, where = _from_file(file, f"{prefix}file"), f"{prefix}file: the file {file}"
    elif variable is not None:
        key, where = environment.get(variable) or "", f"{prefix}env: the variable {variable}"
        if not key or key.isspace():
            raise KeyRefusedError(f"{where} is not set; export it, or leave the line out")
    else:
        return None
    if not (key.isascii() and key.isprintable()):
        # Checked here, because the client's own error comes with each request and quotes the header.
        raise KeyRefusedError(
            f"{where} holds a line break or another character that no HTTP header may hold; take it out"
        )
    return key


def _from_file(name: str, setting: str) -> str:
    path = Path(name)
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_KEY_BYTES + 1)
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise KeyRefusedError(f"{setting}: the file {name} cannot be read ({why}); give its path") from None
    if not raw.strip() or len(raw) > _MAX_KEY_BYTES:
        raise KeyRefusedError(f"{setting}: the file {name} holds no key; write the key and nothing else into it")
    if mode & stat.S_IROTH:
        log.warning("key file %s is readable by other users; restrict it with chmod 600", name)
    # Editors end the last line.
    return raw.decode("utf-8", "replace").removesuffix("\n").removesuffix("\r")


def pem_fault(path: str | None, *, is_key: bool = False) -> str | None:
    """Open a file of certificates, or of a key; return why it cannot be used and how to fix it, None if it can."""
    try:
        if path and not (is_key and b"PRIVATE KEY-----" in Path(path).read_bytes()):
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
        return f"the file {path} cannot be used ({why}); name a readable PEM file"
    return None


def tls_context(*urls: str | None, kind: type[Exception] = KeyRefusedError) -> ssl.SSLContext:
    """Make a context that trusts what the environment names; one that trusts nobody if no address is https."""
    import httpx  # noqa: PLC0415 - settings import this module

    if any(url is not None and httpx.URL(url).scheme == "https" for url in urls):
        if (fault := pem_fault(os.environ.get("SSL_CERT_FILE"))) is not None:
            raise kind(f"SSL_CERT_FILE: {fault}")
        return httpx.create_ssl_context()
    # Loading the certificates takes 20 ms of CPU.
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


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
NO_PROXY: Final = "none"
_MAX_PORT: Final = 65535
# Deprecated IPv4-compatible addresses, and NAT64 with its well-known and its local prefix.
_EMBEDDING: Final = tuple(map(ip_network, ("::/96", "64:ff9b::/96", "64:ff9b:1::/48")))


class AddressRefusedError(OSError):
    """A name leads to an address that is not allowed. The message contains neither."""


class ProxyRefusedError(ValueError):
    """The proxy cannot be used. The message does not quote it, because it may contain a password."""


async def resolve(host: str, port: int, *, guarded: bool) -> list[str]:
    """Resolve a name to its addresses, of which the first one comes first; an address is its own."""
    # The connection uses an address that was checked, so a name that resolves differently the next time gains nothing
    # (DNS rebinding). ``AddressRefusedError`` if ``guarded`` and one of them is.
    import asyncio  # noqa: PLC0415 - settings import this module

    rows = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(row[4][0]) for row in rows))
    if guarded and any(map(is_guarded, (host, *addresses))):
        raise AddressRefusedError("link-local, metadata or unspecified address")
    return addresses


def proxy_for(url: str, setting: str | None) -> str | None:
    """Find the proxy for an address; None for a direct connection. ``ProxyRefusedError`` if it is no HTTP proxy.

    The setting names one for all addresses, or `none`; unset, HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY decide.
    """
    proxy = setting
    if proxy is None:
        from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined] # noqa: PLC0415 - as above

        import httpx  # noqa: PLC0415 - as above

        parts, proxies = httpx.URL(url), getproxies_environment()
        configured = proxies.get(parts.scheme) or proxies.get("all") or ""
        if not configured or proxy_bypass_environment(parts.netloc.decode(), proxies):
            return None
        proxy = configured if "://" in configured else f"http://{configured}"
    if proxy == NO_PROXY:
        return None
    if not proxy.startswith(("http://", "https://")):
        raise ProxyRefusedError('its proxy is not http:// or https://; set proxy to one that is, or to "none"')
    return proxy


def is_endpoint(url: str) -> bool:
    """Check that a URL can be called."""
    import httpx  # noqa: PLC0415 - as above

    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL:
        # Not raised on: the text of httpx's error may quote a part of a password.
        return False
    usable_port = parts.port is None or 0 < parts.port <= _MAX_PORT
    return parts.scheme in {"http", "https"} and bool(parts.host) and usable_port


def is_guarded(host: str) -> bool:
    """Check whether a host is a guarded address, in any notation, or a name for one."""
    bare = host.partition("%")[0].rstrip(".").lower()
    if bare in ("metadata", "metadata.google.internal", "metadata.goog", "instance-data.ec2.internal"):
        return True
    try:
        # inet_aton reads addresses as the C library does: 2852039166 and 0xa9fea9fe are 169.254.169.254.
        address = ip_address(socket.inet_aton(bare)) if ":" not in bare else ip_address(bare)
    except (OSError, ValueError):
        return False
    if isinstance(address, IPv6Address):
        # An IPv6 address may embed the IPv4 address to which it leads.
        if not address.is_loopback and any(address in network for network in _EMBEDDING):
            address = IPv4Address(int(address) & 0xFFFFFFFF)
        else:
            address = address.ipv4_mapped or address.sixtofour or address
    return any(address in network for network in _GUARDED)
