"""Requests to one endpoint over persistent connections; its failures become ``ModelError``.

httpx only parses addresses and finds the trusted certificates. Redirects are not followed, because a judge endpoint
must not send traces elsewhere. Names are resolved and checked here, and a connection leads to an address that was
checked.
"""

import asyncio
import ssl
import zlib
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NamedTuple, cast

import httptools
import httpx

from judges.core.model import ModelError, ModelRejectedError, ModelSettings, ModelTimeoutError, ModelUnavailableError
from judges.models.credentials import AddressRefusedError, SecretText, resolve, tls_context
from judges.models.reply_errors import REJECTED, as_named
from tracejudge.redis_url import mask_url

_KEEPALIVE_S: Final = 60.0
_CONNECT_TIMEOUT_S: Final = 10.0
_RESOLVE_EVERY_S: Final = 60.0
_MAX_BYTES: Final = 4 * 1024 * 1024
_FIRST_FINAL: Final = 200
_GZIP_OR_ZLIB: Final = 32 + zlib.MAX_WBITS
_TIMER_S: Final = 0.05  # by which two clocks may differ


class Reply(NamedTuple):
    """A reply of the endpoint; the names of its headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class BrokenReplyError(OSError):
    """A reply is no HTTP, or is cut off. The message contains nothing of it."""


class ReplyTooLongError(OSError):
    """A reply is longer than is read."""

    def __init__(self) -> None:
        super().__init__(f"the reply is longer than {_MAX_BYTES} bytes")


class Connection(asyncio.Protocol):
    """One connection, from which replies come whole. `httptools` calls the methods ``on_…``."""

    def __init__(self, address: str) -> None:
        """Make the protocol of a connection to ``address``."""
        self.address = address
        self.used_at = 0.0
        self.is_open = False
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[Reply] | None = None

    async def ask(self, request: bytes, deadline: float, *, for_tunnel: bool = False) -> Reply:
        """Send a request and read its whole reply. If that fails or is cancelled, the connection is closed.

        The deadline is on the clock of the event loop. ``for_tunnel``: a proxy's reply that grants it ends with its
        head. ``TimeoutError``, ``ReplyTooLongError``, or ``OSError`` if the connection broke or the reply is not HTTP.
        """
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Reply] = loop.create_future()
        self._waiter = waiter
        self._parser, self._for_tunnel = httptools.HttpResponseParser(self), for_tunnel
        self._headers: dict[str, str] = {}
        self._pieces: list[bytes] = []
        self._has_head, self._received, self._size = False, 0, 0
        cast("asyncio.Transport", self._transport).write(request)
        # A timer of its own, because `asyncio.timeout` costs a context and a cancellation for each request.
        timer = loop.call_at(deadline, self._fail, TimeoutError())
        try:
            return await waiter
        except BaseException:
            self.close()  # The reply may still come, and would be taken for that of the next request.
            raise
        finally:
            timer.cancel()

    async def start_tls(self, tls: ssl.SSLContext, host: str) -> None:
        """Speak TLS with the host at the end of a tunnel from now on; raises ``OSError``."""
        loop, transport = asyncio.get_running_loop(), cast("asyncio.Transport", self._transport)
        self._transport = await loop.start_tls(transport, self, tls, server_hostname=host)

    def close(self) -> None:
        """Close the connection at once."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep what requests are written to."""
        self._transport, self.is_open = cast("asyncio.Transport", transport), True

    def data_received(self, data: bytes) -> None:
        """Parse a part of a reply; without a request, the endpoint is about to close, or does not speak HTTP."""
        if self._waiter is None:
            self.close()
            return
        self._received += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail(BrokenReplyError("the reply is not HTTP/1.1"))
        # Headers, trailers and the sizes of chunks may be as long again as the longest body.
        if self._waiter is not None and self._received > 2 * _MAX_BYTES:
            self._fail(ReplyTooLongError())

    def connection_lost(self, exc: Exception | None) -> None:
        """End the reply, which has no length if it ends with the connection."""
        self.is_open = False
        if self._waiter is None:
            return
        if exc is None and self._has_head and not {"content-length", "transfer-encoding"} & self._headers.keys():
            self.on_message_complete()
        else:
            self._fail(exc if isinstance(exc, OSError) else BrokenReplyError("the connection ended before the reply"))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header or a trailer."""
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """End a reply without a body."""
        self._has_head = True
        if self._for_tunnel and self._parser.get_status_code() == _FIRST_FINAL:
            self._complete(b"")

    def on_body(self, body: bytes) -> None:
        """Keep a part of the body, unless it is too long."""
        self._size += len(body)
        if self._size <= _MAX_BYTES:
            self._pieces.append(body)
        else:
            self._fail(ReplyTooLongError())

    def on_message_complete(self) -> None:
        """Hand over the reply, but for one such as 100 Continue, which another one follows."""
        if self._parser.get_status_code() < _FIRST_FINAL:
            self._headers, self._has_head = {}, False
            return
        if not self._parser.should_keep_alive():
            self.close()
        body = b"".join(self._pieces)
        if (encoding := self._headers.get("content-encoding", "identity").lower()) != "identity":
            try:
                if encoding not in ("gzip", "x-gzip", "deflate"):
                    raise BrokenReplyError("the reply is compressed by a method that was not offered")
                packed = zlib.decompressobj(_GZIP_OR_ZLIB)
                try:
                    unpacked = packed.decompress(body, _MAX_BYTES + 1)
                except zlib.error:
                    raise BrokenReplyError("the reply cannot be unpacked") from None
                if len(unpacked) > _MAX_BYTES:
                    raise ReplyTooLongError
                if not packed.eof:
                    raise BrokenReplyError("the compressed reply is cut off")
                body = unpacked
            except OSError as error:
                self._fail(error)
                return
        self._complete(body)

    def _complete(self, body: bytes) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(Reply(self._parser.get_status_code(), self._headers, body))

    def _fail(self, error: OSError) -> None:
        self.close()
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)


class HttpEndpoint:
    """One endpoint with its own connections, at most ``max_in_flight``. Use it from one event loop."""

    def __init__(self, url: str, headers: Mapping[str, str], settings: ModelSettings, proxy: str | None = None) -> None:
        """Make an endpoint. It connects with the first request, so in the process that sends it."""
        self._target, self._proxy = httpx.URL(url), None if proxy is None else httpx.URL(proxy)
        # Of `read_headers`; names that are set here are refused.
        self._own = {name: value for name, value in (settings.headers or {}).items() if isinstance(value, str)}
        self._headers = {"content-type": "application/json", **headers, **self._own}
        self._settings = settings
        target, login = self._target, {}
        where = target.raw_path.decode("ascii")
        if self._proxy is not None and target.scheme == "http":
            where = f"http://{target.netloc.decode('ascii')}{where}"
            login = _login("proxy-authorization", self._proxy)
        fixed = {
            "host": target.netloc.decode("ascii"),
            "user-agent": "tracejudge",
            "accept": "*/*",
            "accept-encoding": "gzip, deflate",
            **login,
            **_login("authorization", target),
            **self._headers,
        }
        self._get = _head(f"GET {where}", fixed) + b"\r\n"
        self._post = _head(f"POST {where}", fixed) + b"content-length: "
        self._tls: ssl.SSLContext | None = None
        self._idle: list[Connection] = []
        self._free = asyncio.Semaphore(settings.max_in_flight)
        # Addresses of the name, or of the proxy, that were checked and not found dead, the next to be used first.
        self._addresses: list[str] = []
        self._resolved_at = 0.0
        self._resolving = asyncio.Lock()

    async def get(self) -> Reply:
        """Ask for what is at the address; raises as ``post``."""
        return await self._send(self._get)

    async def post(self, body: bytes) -> Reply:
        """Send one request and read its whole reply within ``timeout_s``, or raise ``ModelTimeoutError``.

        ``ModelUnavailableError`` without a connection, ``ModelRejectedError`` if address or proxy refuse.
        """
        reply = await self._send(b"%b%d\r\n\r\n%b" % (self._post, len(body), body))
        # Only the reply itself can have such a key: the quotation marks of a text within an answer are escaped.
        return as_named(reply) if reply.status == httpx.codes.OK and b'"error"' in reply.body else reply

    async def _send(self, request: bytes) -> Reply:
        loop, timeout_s = asyncio.get_running_loop(), self._settings.timeout_s
        deadline = loop.time() + timeout_s
        try:
            if self._free.locked():
                async with asyncio.timeout_at(deadline):
                    await self._free.acquire()
            else:
                await self._free.acquire()
            try:
                return await self._ask(request, deadline)
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

    async def _ask(self, request: bytes, deadline: float) -> Reply:
        loop = asyncio.get_running_loop()
        if self._is_stale:
            await self._resolve(deadline)
        # Nothing is sent again here, though the endpoint may close a connection while a request is on its way: verdicts
        # list every call.
        connection = self._take(loop.time() - _KEEPALIVE_S) or await self._connect(deadline)
        reply = await connection.ask(request, deadline)
        if connection.is_open:
            connection.used_at = loop.time()
            self._idle.append(connection)
        return reply

    @property
    def _is_stale(self) -> bool:
        """Whether no address is known, or the name may lead elsewhere by now."""
        return not self._addresses or asyncio.get_running_loop().time() > self._resolved_at + _RESOLVE_EVERY_S

    def _take(self, used_after: float) -> Connection | None:
        """Take the last used connection, without those that ended, were idle for long, or lead elsewhere."""
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
            if not self._is_stale:
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
        """Texts that no message may contain: keys, headers that are read, and passwords and queries in addresses."""
        urls = [url for url in (self._target, self._proxy) if url is not None]
        values = [value for name in ("authorization", "x-api-key") if (value := self._headers.get(name))]
        values += [value for value in self._own.values() if isinstance(value, SecretText)]
        values += [text for url in urls for text in (*_login("", url).values(), url.password, *url.params.values())]
        # An endpoint may quote a value without its scheme, as `Bearer`.
        return (*values, *(part for value in values for part in value.split()[1:]))

    async def aclose(self) -> None:
        """Close the connections that are not in use."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


class EndpointModel:
    """A judge model behind one endpoint."""

    def __init__(self, settings: ModelSettings, url: str, headers: Mapping[str, str], proxy: str | None = None) -> None:
        self.settings = settings
        self._endpoint = HttpEndpoint(url, headers, settings, proxy)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._endpoint.aclose()


def _head(line: str, headers: Mapping[str, str]) -> bytes:
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
