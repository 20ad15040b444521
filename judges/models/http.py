"""POST JSON to one endpoint: httpx's interface over aiohttp's connections, with failures translated.

httpx's own pool costs 5 ms of CPU a request at a hundred in flight; this transport, called directly, a
fraction of a millisecond. Redirects are not followed: a judge endpoint has no business sending traces on.
"""

import asyncio
import email.utils
import math
import time
from collections.abc import Mapping
from typing import Final, NamedTuple

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

from judges.models.model import ModelTimeoutError, ModelUnavailableError

__all__ = ["HttpEndpoint", "Reply", "below", "is_endpoint", "retry_after_s"]

_MAX_REPLY_BYTES: Final = 8 * 1024 * 1024
_KEEPALIVE_S: Final = 60.0
_CONNECT_TIMEOUT_S: Final = 10.0
_MAX_PORT: Final = 65535


class Reply(NamedTuple):
    """What the endpoint sent back."""

    status: int
    headers: httpx.Headers
    body: bytes


class HttpEndpoint:
    """One endpoint with its own connections. Use it from one event loop."""

    def __init__(self, url: str, headers: Mapping[str, str], *, max_connections: int, timeout_s: float) -> None:
        self._url = httpx.URL(url)
        self._headers = httpx.Headers({"content-type": "application/json", **headers})
        self._timeout_s = timeout_s
        self._timeout = {"connect": _CONNECT_TIMEOUT_S, "pool": None, "read": None}
        self._limits = httpx.Limits(max_connections=max_connections, keepalive_expiry=_KEEPALIVE_S)
        self._transport: AiohttpTransport | None = None

    async def post(self, body: bytes) -> Reply:
        """Send one request and read its whole reply, all within ``timeout_s``.

        Raises:
            ModelTimeoutError: No whole reply in time.
            ModelUnavailableError: No connection, or it broke.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._exchange(body)
        except (TimeoutError, httpx.ReadTimeout) as error:
            raise ModelTimeoutError(f"no answer within {self._timeout_s:g} s") from error
        except (httpx.HTTPError, aiohttp.ClientError, OSError) as error:
            # The transport calls a refused connection a ConnectTimeout, and lets replies that are no HTTP through.
            cause = error.__cause__ if isinstance(error.__cause__, aiohttp.ClientError) else error
            raise ModelUnavailableError(f"no connection to the endpoint ({type(cause).__name__})") from error

    async def aclose(self) -> None:
        """Close the connections."""
        if self._transport is not None:
            await self._transport.aclose()
            self._transport = None

    async def _exchange(self, body: bytes) -> Reply:
        if self._transport is None:
            # Made here, not in __init__: the connections belong to the loop that uses them.
            self._transport = AiohttpTransport(limits=self._limits)
        request = httpx.Request(
            "POST", self._url, headers=self._headers, content=body, extensions={"timeout": self._timeout}
        )
        response = await self._transport.handle_async_request(request)
        try:
            return Reply(response.status_code, response.headers, await _read(response))
        finally:
            await response.aclose()


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


def retry_after_s(headers: httpx.Headers) -> float | None:
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


async def _read(response: httpx.Response) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.aiter_bytes():
        size += len(chunk)
        if size > _MAX_REPLY_BYTES:
            raise ModelUnavailableError(f"the reply is longer than {_MAX_REPLY_BYTES} bytes")
        chunks.append(chunk)
    return b"".join(chunks)
