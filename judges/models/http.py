"""POST JSON to one endpoint over persistent connections, and translate its failures to ``ModelError``.

httpx only parses addresses and finds the trusted certificates. Redirects are not followed, because a judge endpoint
must not send traces elsewhere. Names are resolved and checked here, and a connection leads to an address that was
checked.
"""

import asyncio
import os
import re
import ssl
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import httpx

from judges.core.model import (
    ModelError,
    ModelRejectedError,
    ModelSettings,
    ModelTimeoutError,
    ModelUnavailableError,
)
from judges.models.connections import Connection, Reply, ReplyTooLongError
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

_KEEPALIVE_S: Final = 60.0
_CONNECT_TIMEOUT_S: Final = 10.0
_RESOLVE_EVERY_S: Final = 60.0
_TIMER_S: Final = 0.05  # by which two clocks may differ


class HttpEndpoint:
    """One endpoint with its own connections, at most ``max_in_flight``. Use it from one event loop."""

    def __init__(self, url: str, headers: Mapping[str, str], settings: ModelSettings, proxy: str | None = None) -> None:
        """Make an endpoint. It connects with the first request, so in the process that sends it."""
        self._target, self._proxy = httpx.URL(url), None if proxy is None else httpx.URL(proxy)
        self._headers = {"content-type": "application/json", **headers}
        self._settings = settings
        target, login = self._target, {}
        through = self._proxy if target.scheme == "http" else None
        where = target.raw_path.decode("ascii")
        if through is not None:
            where = f"http://{target.netloc.decode('ascii')}{where}"
            login = _login("proxy-authorization", through)
        fixed = {
            "host": target.netloc.decode("ascii"),
            "user-agent": "tracejudge",
            "accept": "*/*",
            "accept-encoding": "gzip, deflate",
            **login,
            **_login("authorization", target),
            **self._headers,
        }
        self._head = _head(f"POST {where}", fixed) + b"content-length: %d\r\n\r\n"
        self._tls: ssl.SSLContext | None = None
        self._idle: list[Connection] = []
        self._free = asyncio.Semaphore(settings.max_in_flight)
        # Addresses of the name, or of the proxy, that were checked and not found dead, the next to be used first.
        self._addresses: list[str] = []
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
            if self._free.locked():
                async with asyncio.timeout_at(deadline):
                    await self._free.acquire()
            else:
                await self._free.acquire()
            try:
                reply = await self._post((self._head % len(body)) + body, deadline)
            finally:
                self._free.release()
        except AddressRefusedError as error:
            raise ModelRejectedError(
                "the name of the endpoint leads to a link-local, metadata or unspecified address, where no judge model"
                " belongs; if this one does, set allow_link_local = true"
            ) from error
        except ReplyTooLongError as error:
            raise ModelUnavailableError(str(error)) from error
        except TimeoutError as error:
            # Name and connection have less time than the whole request.
            if loop.time() < deadline - _TIMER_S:
                raise self._unavailable(error) from error
            raise ModelTimeoutError(f"no answer within {timeout_s:g} s") from error
        except OSError as error:
            raise self._unavailable(error) from error
        # The quotation marks of a text within an answer are escaped.
        return as_named(reply) if reply.status == httpx.codes.OK and b'"error"' in reply.body else reply

    async def _post(self, request: bytes, deadline: float) -> Reply:
        loop = asyncio.get_running_loop()
        while True:
            if not self._addresses or loop.time() > self._resolved_at + _RESOLVE_EVERY_S:
                await self._resolve(deadline)
            connection = self._take(loop.time() - _KEEPALIVE_S)
            was_used = connection is not None
            if connection is None:
                connection = await self._connect(deadline)
            try:
                reply = await connection.ask(request, deadline)
            except TimeoutError:
                raise
            except OSError:
                # The endpoint closed a connection that was not in use while this request was on its way.
                if was_used and not connection.received:
                    continue
                raise
            if connection.is_open:
                connection.used_at = loop.time()
                self._idle.append(connection)
            return reply

    def _take(self, used_after: float) -> Connection | None:
        """Take the connection that was used last, and close those that the endpoint has closed or no longer expects."""
        while self._idle:
            last = self._idle.pop()
            if last.is_open and last.used_at > used_after and last.address in self._addresses:
                return last
            last.close()
        return None

    async def _resolve(self, deadline: float) -> None:
        """Look up the addresses of the name, unless another request has done so meanwhile."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout_at(min(deadline, loop.time() + _CONNECT_TIMEOUT_S)), self._resolving:
            if self._addresses and loop.time() <= self._resolved_at + _RESOLVE_EVERY_S:
                return
            # The proxy resolves the name of the endpoint. Its own is not checked: an operator chose it.
            guarded = self._proxy is None and not self._settings.allow_link_local
            first = self._proxy or self._target
            self._addresses = await resolve(first.host, _port(first), guarded=guarded)
            self._resolved_at = loop.time()

    async def _connect(self, deadline: float) -> Connection:
        """Connect to the first address that answers; those that do not are forgotten."""
        loop, failed = asyncio.get_running_loop(), OSError("the name has no address")
        each_s = _CONNECT_TIMEOUT_S / max(len(self._addresses), 1)
        for address in tuple(self._addresses):
            try:
                async with asyncio.timeout_at(min(deadline, loop.time() + each_s)):
                    return await self._open(address, deadline)
            except ModelError:
                raise
            except OSError as error:
                failed = error
                with suppress(ValueError):  # Another request may have forgotten it.
                    self._addresses.remove(address)
        raise failed

    async def _open(self, address: str, deadline: float) -> Connection:
        loop, first = asyncio.get_running_loop(), self._proxy or self._target
        if self._tls is None:
            self._tls = tls_context(str(self._target), None if self._proxy is None else str(self._proxy))
        tls, name = (self._tls, first.host) if first.scheme == "https" else (None, None)
        _, connection = await loop.create_connection(
            lambda: Connection(address), address, _port(first), ssl=tls, server_hostname=name
        )
        if self._proxy is not None and self._target.scheme == "https":
            host = f"{self._target.raw_host.decode('ascii')}:{_port(self._target)}"
            head = _head(f"CONNECT {host}", {"host": host, **_login("proxy-authorization", self._proxy)})
            reply = await connection.ask(head + b"\r\n", deadline, for_tunnel=True)
            if reply.status != httpx.codes.OK:
                connection.close()
                raise self._refused(reply.status)
            await connection.start_tls(self._tls, self._target.host)
        return connection

    def _refused(self, status: int) -> ModelError:
        """Make the error for a proxy that does not lead to the endpoint."""
        text = f"the proxy rejects the connection to {self.address}: HTTP {status}"
        if status not in REJECTED:
            return ModelUnavailableError(text)
        error = ModelRejectedError(text)
        error.status = status
        return error

    def _unavailable(self, error: Exception) -> ModelUnavailableError:
        return ModelUnavailableError(f"no connection to {self.address} ({type(error).__name__})")

    @property
    def address(self) -> str:
        """The address of requests, without user, password and query, for messages."""
        return mask_url(str(self._target))

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that no message may contain: the key, and passwords and queries in the addresses."""
        urls = [url for url in (self._target, self._proxy) if url is not None]
        keys = (self._headers.get(name, "").removeprefix("Bearer ") for name in ("authorization", "x-api-key"))
        return (*keys, *(url.password for url in urls), *(value for url in urls for value in url.params.values()))

    async def aclose(self) -> None:
        """Close the connections that are not in use."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


def _head(line: str, headers: Mapping[str, str]) -> bytes:
    """Write the lines of a request but for the empty one."""
    lines = [f"{line} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "".join(f"{each}\r\n" for each in lines).encode("latin-1")


def _login(name: str, url: httpx.URL) -> dict[str, str]:
    """Make the header for user and password of an address; none without them."""
    if not url.userinfo:
        return {}
    pair = f"{url.username}:{url.password}".encode()
    return {name: f"Basic {b64encode(pair).decode('ascii')}"}


def _port(url: httpx.URL) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


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
