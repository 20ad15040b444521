"""POST JSON to one endpoint over persistent connections, and translate its failures to ``ModelError``.

It uses pyreqwest, a client in Rust: a request costs the event loop's thread a fifth of one through a client in Python.
httpx only parses addresses, finds the trusted certificates, and asks a proxy why it refuses. Redirects are not
followed, because a judge endpoint must not send traces elsewhere. Names are resolved and checked here, and the client
connects to the address that was checked.
"""

import asyncio
import os
import re
import ssl
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Final, NamedTuple

import certifi
import httpx
from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import ConnectError, ConnectTimeoutError, ReadTimeoutError, RequestError
from pyreqwest.proxy import ProxyBuilder
from pyreqwest.response import Response

from judges.core.model import (
    ModelError,
    ModelRejectedError,
    ModelSettings,
    ModelTimeoutError,
    ModelUnavailableError,
)
from judges.models.credentials import (
    AddressRefusedError,
    KeyRefusedError,
    ProxyRefusedError,
    pem_fault,
    proxy_for,
    read_key,
    resolve,
)
from judges.models.provider import ModelSettingsError
from judges.models.reply_errors import REJECTED, as_named
from tracejudge.redis_url import mask_url

_MAX_REPLY_BYTES: Final = 4 * 1024 * 1024
_KEEPALIVE_S: Final = 60.0
_CONNECT_TIMEOUT_S: Final = 10.0
_RESOLVE_EVERY_S: Final = 60.0
_TIMER_S: Final = 0.05  # by which two clocks may differ


class Reply(NamedTuple):
    """A reply of the endpoint; header names are found in any case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpEndpoint:
    """One endpoint with its own connections. Use it from one event loop."""

    def __init__(self, url: str, headers: Mapping[str, str], settings: ModelSettings, proxy: str | None = None) -> None:
        """Make an endpoint; the first request makes the client, so that it belongs to the process that sends it."""
        parts = httpx.URL(url)
        self._url = str(parts)
        self._host, self._port = parts.host, parts.port or (443 if parts.scheme == "https" else 80)
        self._proxy = proxy
        self._headers = {"content-type": "application/json", **headers}
        self._settings = settings
        self._client: Client | None = None
        self._connects_to: str | None = None  # The address of the client; None if the proxy resolves the name.
        # Addresses of the name that were checked and not found dead, the next to be used first.
        self._addresses: list[str | None] = []
        self._resolved_at = 0.0
        self._resolving = asyncio.Lock()

    async def post(self, body: bytes) -> Reply:
        """Send one request and read its whole reply within ``timeout_s``.

        Raises:
            ModelTimeoutError: The reply was not complete in time.
            ModelUnavailableError: There was no connection, or it broke.
            ModelRejectedError: The endpoint's name leads to an address that is not allowed, or the proxy refuses.
        """
        loop, timeout_s = asyncio.get_running_loop(), self._settings.timeout_s
        deadline = loop.time() + timeout_s
        try:
            return _as_named(await self._post(body, deadline))
        except AddressRefusedError as error:
            raise ModelRejectedError(
                "the name of the endpoint leads to a link-local, metadata or unspecified address, where no judge model"
                " belongs; if this one does, set allow_link_local = true"
            ) from error
        except ConnectError as error:
            raise await self._refused(error) from error
        except TimeoutError as error:
            # Name and connection have less time than the whole request.
            if loop.time() < deadline - _TIMER_S and not isinstance(error, ReadTimeoutError):
                raise self._unavailable(error) from error
            raise ModelTimeoutError(f"no answer within {timeout_s:g} s") from error
        except (RequestError, OSError) as error:
            raise self._unavailable(error) from error

    async def _post(self, body: bytes, deadline: float) -> Reply:
        loop = asyncio.get_running_loop()
        untried: int | None = None
        while True:
            client = self._client
            if client is None or self._connects_to not in self._addresses[:1] or self._is_stale:
                client = await self._open(deadline)
            address = self._connects_to
            # Addresses that other requests find dead, or that a later look-up brings, add no tries.
            untried = len(self._addresses) if untried is None else untried
            # A call that is cancelled goes on in the client, and holds its connection, until this time.
            left_s = max(deadline - loop.time(), 0.001)
            request = client.post(self._url).body_bytes(body).timeout(timedelta(seconds=left_s)).build_streamed()
            try:
                async with request as response:
                    return Reply(response.status, response.headers, await _read(response))
            except (ConnectError, ConnectTimeoutError):
                # Nothing was sent: the other addresses of the name are tried.
                if address in self._addresses[:1]:
                    del self._addresses[:1]
                untried -= 1
                if untried <= 0 or loop.time() >= deadline:
                    raise

    async def _open(self, deadline: float) -> Client:
        """Return the client of an address to which the name leads now.

        A new one costs up to 60 ms, for which it reads all certificates, so it is kept while its address is right.
        """
        loop = asyncio.get_running_loop()
        async with self._resolving:
            if not self._addresses or self._is_stale:
                addresses: list[str | None] = [None]
                if self._proxy is None:
                    async with asyncio.timeout_at(min(deadline, loop.time() + _CONNECT_TIMEOUT_S)):
                        guarded = not self._settings.allow_link_local
                        addresses = [*await resolve(self._host, self._port, guarded=guarded)]
                self._addresses = sorted(addresses, key=lambda address: address != self._connects_to)
                self._resolved_at = loop.time()
            if self._client is None or self._connects_to != self._addresses[0]:
                self._client, self._connects_to = self._build(self._addresses[0]), self._addresses[0]
            return self._client

    @property
    def _is_stale(self) -> bool:
        """Whether the name may lead elsewhere by now."""
        return asyncio.get_running_loop().time() > self._resolved_at + _RESOLVE_EVERY_S

    def _build(self, address: str | None) -> Client:
        connect_s = _CONNECT_TIMEOUT_S / len(self._addresses)
        builder = (
            ClientBuilder()
            .default_headers(self._headers)
            .user_agent("tracejudge")
            .follow_redirects(enable=False)
            .referer(enable=False)
            .max_connections(self._settings.max_in_flight)
            .connect_timeout(timedelta(seconds=connect_s))
            .pool_idle_timeout(timedelta(seconds=_KEEPALIVE_S))
        )
        builder = builder.no_proxy() if self._proxy is None else builder.proxy(ProxyBuilder.all(self._proxy))
        if not {"SSL_CERT_FILE", "SSL_CERT_DIR"} & os.environ.keys():
            # Without them the system's certificates are trusted, of which an image may have none.
            builder = builder.add_root_certificate_pem(Path(certifi.where()).read_bytes())
        if address is not None:
            builder = builder.resolve(self._host, address, self._port)
        return builder.build()

    async def _refused(self, error: ConnectError) -> ModelError:
        """Make the error of a connection that was refused; a proxy is asked why, which the client does not tell."""
        if self._proxy is not None and "tunnel" in _causes(error):
            try:
                async with httpx.AsyncClient(proxy=self._proxy, trust_env=False, timeout=_CONNECT_TIMEOUT_S) as client:
                    await client.head(f"https://{self._host}:{self._port}")
            except httpx.ProxyError as refused:
                status = re.match(r"\d{3}", str(refused))
                if status is not None and int(status[0]) in REJECTED:
                    text = f"the proxy rejects the connection to {self.address}: HTTP {status[0]}"
                    rejected = ModelRejectedError(text)
                    rejected.status = int(status[0])
                    return rejected
            except httpx.HTTPError:
                pass
        return self._unavailable(error)

    def _unavailable(self, error: Exception) -> ModelUnavailableError:
        if isinstance(error, RequestError) and "CaUsedAsEndEntity" in _causes(error):
            text = "its certificate is that of an authority; issue one with basicConstraints = CA:FALSE"
            return ModelUnavailableError(f"no connection to {self.address}: {text}")
        return ModelUnavailableError(f"no connection to {self.address} ({type(error).__name__})")

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
        client, self._client = self._client, None
        if client is not None:
            await client.close()


def _causes(error: RequestError) -> str:
    return " ".join(cause["message"] for cause in error.details["causes"] or ())


async def _read(response: Response) -> bytes:
    # In pieces: a reply may not announce its length, and a compressed one grows.
    pieces: list[bytes] = []
    size = 0
    while (piece := await response.body_reader.read_chunk()) is not None:
        size += len(piece)
        if size > _MAX_REPLY_BYTES:
            raise ModelUnavailableError(f"the reply is longer than {_MAX_REPLY_BYTES} bytes")
        pieces.append(bytes(piece))
    return b"".join(pieces)


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


def bearer(api_key: str | None) -> dict[str, str]:
    """Return the header that carries a key."""
    return {"authorization": f"Bearer {api_key}"} if api_key else {}


def access(
    settings: ModelSettings, environment: Mapping[str, str], proxy: str | None, url: str
) -> tuple[str | None, str | None]:
    """Read the key of an endpoint and find the proxy for its address; else raise ``ModelSettingsError``."""
    try:
        key, proxy_url = read_key(settings, environment), proxy_for(url, proxy)
    except KeyRefusedError as error:
        raise ModelSettingsError(str(error)) from None
    except ProxyRefusedError as error:
        raise ModelSettingsError(f"base_url: {error}") from error
    try:
        tls_context(url, proxy_url)  # A file that cannot be used is an error now, and not of each request.
    except KeyRefusedError as error:
        raise ModelSettingsError(f"base_url: the variable {error}") from None
    return key, proxy_url


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
