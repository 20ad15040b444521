"""POST JSON to one endpoint over persistent connections, and translate its failures to ``ModelError``.

It uses aiohttp: a request through httpx costs 0.08 ms of CPU more, and 5 ms with its own pool at a hundred in flight.
Endpoints for decisions are called over ``connections``, unless through a proxy. httpx only parses addresses and finds
the trusted certificates. Redirects are not followed, because a judge endpoint must not send traces elsewhere. Names are
resolved for new connections only, and guarded addresses are refused there.
"""

import asyncio
import os
import re
import ssl
from collections.abc import Mapping
from typing import Final, NamedTuple

import aiohttp
import httpx

from judges.core.model import ModelError, ModelRejectedError, ModelSettings, ModelTimeoutError, ModelUnavailableError
from judges.models.connections import BrokenReplyError, Connections
from judges.models.credentials import AddressRefusedError, GuardedResolver, KeyRefusedError, pem_fault
from judges.models.reply_errors import REJECTED, as_named
from tracejudge.redis_url import mask_url

_MAX_REPLY_BYTES: Final = 4 * 1024 * 1024
_KEEPALIVE_S: Final = 60.0
_CONNECT_TIMEOUT_S: Final = 10.0


class Reply(NamedTuple):
    """A reply of the endpoint; header names are found in any case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpEndpoint:
    """One endpoint with its own connections. Use it from one event loop."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        settings: ModelSettings,
        proxy: str | None = None,
        *,
        is_direct: bool = False,
    ) -> None:
        """Make a client; with ``is_direct`` and no proxy, requests bypass aiohttp, which costs more CPU."""
        self._is_direct = is_direct and proxy is None
        self._connections: Connections | None = None
        self._url = str(httpx.URL(url))
        self._proxy = proxy
        self._headers = {"content-type": "application/json", **headers}
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None

    async def post(self, body: bytes) -> Reply:
        """Send one request and read its whole reply within ``timeout_s``.

        Raises:
            ModelTimeoutError: The reply was not complete in time.
            ModelUnavailableError: There was no connection, or it broke.
            ModelRejectedError: The endpoint's name leads to an address that is not allowed.
        """
        if self._is_direct:
            return await self._post_directly(body)
        if self._session is None:
            # Made here, not in __init__: the connections belong to the loop that uses them.
            self._session = self._open()
        timeout_s = self._settings.timeout_s
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._session.post(self._url, data=body, allow_redirects=False) as response,
            ):
                return _as_named(Reply(response.status, response.headers, await _read(response.content)))
        except aiohttp.ClientError as error:
            # Before TimeoutError: aiohttp's error for a connection that is not accepted in time is both.
            raise _unavailable(error, self.address) from error
        except TimeoutError as error:
            raise ModelTimeoutError(f"no answer within {timeout_s:g} s") from error
        except OSError as error:
            raise _unavailable(error, self.address) from error

    async def _post_directly(self, body: bytes) -> Reply:
        settings = self._settings
        if self._connections is None:
            self._connections = Connections(
                self._url,
                self._headers,
                tls_context(self._url),
                max_bytes=_MAX_REPLY_BYTES,
                keepalive_s=_KEEPALIVE_S,
                connect_timeout_s=_CONNECT_TIMEOUT_S,
                guarded=not settings.allow_link_local,
            )
        try:
            return _as_named(Reply(*await self._connections.post(body, settings.timeout_s)))
        except AddressRefusedError as error:
            raise _refused_address() from error
        except TimeoutError as error:
            raise ModelTimeoutError(f"no answer within {settings.timeout_s:g} s") from error
        except OSError as error:
            raise _unavailable(error, self.address) from error

    def _open(self) -> aiohttp.ClientSession:
        # Not `trust_env`, which reads the environment and ~/.netrc in a thread for each call; the proxy is found once.
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=self._settings.max_in_flight,
                keepalive_timeout=_KEEPALIVE_S,
                ssl=tls_context(self._url, self._proxy),
                resolver=None if self._settings.allow_link_local else GuardedResolver(),
            ),
            headers=self._headers,
            proxy=self._proxy,
            cookie_jar=aiohttp.DummyCookieJar(),
            # No total: `post` has its own timer, and each costs.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S),
        )

    @property
    def address(self) -> str:
        """The address of requests, without user, password and query, for messages."""
        return mask_url(self._url)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that no message may contain: the key, and passwords and queries in the addresses."""
        urls = [httpx.URL(url) for url in (self._url, self._proxy) if url is not None]
        keys = (self._headers.get(name, "").removeprefix("Bearer ") for name in ("authorization", "x-api-key"))
        return (*keys, *(url.password for url in urls), *(value for url in urls for value in url.params.values()))

    async def aclose(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None
        if self._connections is not None:
            await self._connections.aclose()
            self._connections = None


def below(base_url: str, path: str) -> str:
    """Add a path to an address, before its query, such as Azure's `api-version`."""
    url = httpx.URL(base_url)
    return str(url.copy_with(path=f"{url.path.rstrip('/')}{path}"))


def tls_context(*urls: str | None, kind: type[Exception] = KeyRefusedError) -> ssl.SSLContext:
    """Make a context that trusts what the environment names; one that trusts nobody if no address is https."""
    if any(url is not None and httpx.URL(url).scheme == "https" for url in urls):
        if (fault := pem_fault(os.environ.get("SSL_CERT_FILE"))) is not None:
            raise kind(f"SSL_CERT_FILE: {fault}")
        return httpx.create_ssl_context()
    # Loading the certificates takes 20 ms of CPU.
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


async def _read(content: aiohttp.StreamReader) -> bytes:
    # In pieces: a reply may not announce its length, and a compressed one grows.
    pieces: list[bytes] = []
    size = 0
    async for piece in content.iter_any():
        size += len(piece)
        if size > _MAX_REPLY_BYTES:
            raise ModelUnavailableError(f"the reply is longer than {_MAX_REPLY_BYTES} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def _unavailable(error: Exception, address: str) -> ModelError:
    if isinstance(error.__cause__, AddressRefusedError):
        return _refused_address()
    if isinstance(error, BrokenReplyError):
        return ModelUnavailableError(str(error))
    if isinstance(error, aiohttp.ClientHttpProxyError) and error.status in REJECTED:
        rejected = ModelRejectedError(f"the proxy rejects the connection to {address}: HTTP {error.status}")
        rejected.status = error.status
        return rejected
    return ModelUnavailableError(f"no connection to {address} ({type(error).__name__})")


def _refused_address() -> ModelRejectedError:
    return ModelRejectedError(
        "the name of the endpoint leads to a link-local, metadata or unspecified address, where no judge model"
        " belongs; if this one does, set allow_link_local = true"
    )


_CONTENT_TYPE: Final = re.compile(r"[\w.+-]{1,60}/[\w.+-]{1,60}", re.ASCII)


def no_chat_reply(reply: Reply, why: str, expected: str = "a chat endpoint") -> ModelUnavailableError:
    """Make the error for a reply with status 200 that is no answer, as a web page is."""
    kind = content_type(reply)
    if kind is None:
        return ModelUnavailableError(why)
    return ModelUnavailableError(f"{why}: this is not {expected}, it answers with {kind}; check base_url")


def content_type(reply: Reply) -> str | None:
    """Return the content type of a reply; None if it is JSON or absent."""
    kind = _CONTENT_TYPE.match(reply.headers.get("content-type", ""))
    return None if kind is None or kind[0].endswith("json") else kind[0]


def _as_named(reply: Reply) -> Reply:
    # The quotation marks of a text within an answer are escaped.
    return as_named(reply) if reply.status == httpx.codes.OK and b'"error"' in reply.body else reply
