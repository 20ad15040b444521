"""POST JSON to one endpoint over connections that stay open, with failures translated.

It calls aiohttp's session itself: httpx over that costs 0.08 ms of CPU a request more, and with its own pool 5 ms
at a hundred in flight. Here httpx only reads addresses and finds the certificates to trust. Redirects are not
followed: a judge endpoint has no business sending traces on. Names are looked up for new connections alone, and guarded
addresses are refused there.
"""

import asyncio
import email.utils
import math
import time
from collections.abc import Mapping
from typing import Final, NamedTuple

import aiohttp
import httpx

from judges.models.addresses import AddressRefusedError, GuardedResolver
from judges.models.model import ModelError, ModelRejectedError, ModelTimeoutError, ModelUnavailableError

__all__ = ["HttpEndpoint", "Reply", "below", "is_endpoint", "retry_after_s"]

_MAX_REPLY_BYTES: Final = 8 * 1024 * 1024
_KEEPALIVE_S: Final = 60.0
_CONNECT_TIMEOUT_S: Final = 10.0
_MAX_PORT: Final = 65535


class Reply(NamedTuple):
    """What the endpoint sent back; header names are found in any case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpEndpoint:
    """One endpoint with its own connections. Use it from one event loop."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        max_connections: int,
        timeout_s: float,
        allow_link_local: bool = False,
    ) -> None:
        self._url = str(httpx.URL(url))
        self._allow_link_local = allow_link_local
        self._headers = {"content-type": "application/json", **headers}
        self._max_connections = max_connections
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def post(self, body: bytes) -> Reply:
        """Send one request and read its whole reply, all within ``timeout_s``.

        Raises:
            ModelTimeoutError: No whole reply in time.
            ModelUnavailableError: No connection, or it broke.
            ModelRejectedError: The endpoint's name leads to an address that is not allowed.
        """
        if self._session is None:
            # Made here, not in __init__: the connections belong to the loop that uses them.
            self._session = _session(
                self._headers, self._max_connections, None if self._allow_link_local else GuardedResolver()
            )
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._session.post(self._url, data=body, allow_redirects=False) as response,
            ):
                return Reply(response.status, response.headers, await _read(response.content))
        except aiohttp.ClientError as error:
            # Before TimeoutError, which aiohttp's error for a host that lets nobody connect is as well.
            raise _unavailable(error) from error
        except TimeoutError as error:
            raise ModelTimeoutError(f"no answer within {self._timeout_s:g} s") from error
        except OSError as error:
            raise _unavailable(error) from error

    async def aclose(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None


def is_endpoint(url: str) -> bool:
    """Tell whether a URL can be called; httpx's own errors may quote a part of a password."""
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL:
        return False
    usable_port = parts.port is None or 0 < parts.port <= _MAX_PORT
    return parts.scheme in {"http", "https"} and bool(parts.host) and usable_port


def below(base_url: str, path: str) -> str:
    """Add a path to an address; a query, as Azure's `api-version`, stays behind it."""
    url = httpx.URL(base_url)
    return str(url.copy_with(path=f"{url.path.rstrip('/')}{path}"))


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Read `Retry-After`, in seconds or as a date; nothing where it is absent or says neither."""
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


def _session(
    headers: Mapping[str, str], max_connections: int, resolver: GuardedResolver | None
) -> aiohttp.ClientSession:
    # What it leaves at its default matters too: proxies and netrc of the environment are not looked at.
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=max_connections,
            keepalive_timeout=_KEEPALIVE_S,
            ssl=httpx.create_ssl_context(),
            resolver=resolver,
        ),
        headers=headers,
        cookie_jar=aiohttp.DummyCookieJar(),
        # No total: `post` has a timer of its own, and each costs.
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S),
    )


async def _read(content: aiohttp.StreamReader) -> bytes:
    """Read piece by piece: a reply may say nothing of its length, and be small only until it is unpacked."""
    pieces: list[bytes] = []
    size = 0
    async for piece in content.iter_any():
        size += len(piece)
        if size > _MAX_REPLY_BYTES:
            raise ModelUnavailableError(f"the reply is longer than {_MAX_REPLY_BYTES} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def _unavailable(error: Exception) -> ModelError:
    if isinstance(error.__cause__, AddressRefusedError):
        return ModelRejectedError(
            "the name of the endpoint leads to a link-local, metadata or unspecified address, where no judge model"
            " belongs; if this one does, set allow_link_local = true"
        )
    return ModelUnavailableError(f"no connection to the endpoint ({type(error).__name__})")
