"""Direct connections to one endpoint for many small requests: HTTP/1.1, one request at a time on each connection.

A request costs a third of the CPU of one through aiohttp, which matters if an endpoint answers thousands of requests
a second. There are no proxies, no redirects and no compressed replies; connections are kept open between requests.
"""

import asyncio
import re
import socket
import ssl
from base64 import b64encode
from collections.abc import Mapping
from typing import Final, NamedTuple, cast

import httpx
from aiohttp.resolver import DefaultResolver

from judges.models.credentials import GuardedResolver

_LINE_END: Final = b"\r\n"
_HEAD_END: Final = b"\r\n\r\n"
_STATUS: Final = re.compile(rb"HTTP/1\.([01]) (\d{3})(?: [^\r\n]*)?(?:\r\n|\Z)")
_CHUNK: Final = re.compile(rb"([0-9a-fA-F]{1,8})[^\r\n]*\r\n")
_MAX_HEAD_BYTES: Final = 64 * 1024
_FIRST_FINAL_STATUS: Final = 200
Headers = Mapping[str, str]


class RawReply(NamedTuple):
    """A reply; the names of its headers are in lower case."""

    status: int
    headers: Headers
    body: bytes


class BrokenReplyError(OSError):
    """A reply is not HTTP, is cut off, or is too long. The message contains nothing of it."""


class ReplyParser:
    """Reads one reply from the pieces in which it arrives."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._data = bytearray()
        self._head: tuple[int, dict[str, str]] | None = None
        self._length: int | None = None  # None until the connection closes.
        self._body: bytearray | None = None  # Of a reply in chunks.
        self.keeps_open = True

    def feed(self, data: bytes) -> RawReply | None:
        """Add a piece; return the reply once it is complete. Too long or no HTTP raises ``BrokenReplyError``."""
        self._data += data
        if self._head is None and not self._read_head():
            return None
        if self._body is not None:
            return self._reply(self._body) if self._read_chunks(self._body) else None
        if len(self._data) > self._max_bytes or (self._length or 0) > self._max_bytes:
            raise BrokenReplyError(f"the reply is longer than {self._max_bytes} bytes")
        if self._length is None or len(self._data) < self._length:
            return None
        # More than was announced cannot be told from the reply to the next request.
        self.keeps_open = self.keeps_open and len(self._data) == self._length
        return self._reply(self._data[: self._length])

    def end(self) -> RawReply:
        """Return the reply that the end of the connection completes; raises ``BrokenReplyError`` if none."""
        if self._head is None or self._length is not None or self._body is not None:
            raise BrokenReplyError("the connection ended before the reply")
        return self._reply(self._data)

    def _reply(self, body: bytearray) -> RawReply:
        status, headers = cast("tuple[int, dict[str, str]]", self._head)
        return RawReply(status, headers, bytes(body))

    def _read_head(self) -> bool:
        while (end := self._data.find(_HEAD_END)) >= 0:
            head = bytes(self._data[:end])
            match = _STATUS.match(head)
            if match is None:
                raise BrokenReplyError("the reply is not HTTP/1.1")
            del self._data[: end + len(_HEAD_END)]
            status = int(match[2])
            if status < _FIRST_FINAL_STATUS:
                continue  # such as 100 Continue: the reply follows
            lines = head[match.end() :].decode("latin-1").split("\r\n")
            fields = (line.partition(":") for line in lines if line)
            headers = {name.strip().lower(): value.strip() for name, _, value in fields}
            self._head = status, headers
            options = {option.strip().lower() for option in headers.get("connection", "").split(",")}
            # HTTP/1.0 closes the connection unless it says otherwise, and HTTP/1.1 the reverse.
            self.keeps_open = "keep-alive" in options if match[1] == b"0" else "close" not in options
            self._find_length(status, headers)
            return True
        if len(self._data) > _MAX_HEAD_BYTES:
            raise BrokenReplyError("the reply has no end of its headers")
        return False

    def _find_length(self, status: int, headers: Headers) -> None:
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise BrokenReplyError("the reply is compressed, which was not asked for")
        length = headers.get("content-length")
        if status in {204, 304}:
            self._length = 0
        elif "transfer-encoding" in headers:
            if headers["transfer-encoding"].lower() != "chunked":
                raise BrokenReplyError("the reply has an unknown transfer encoding")
            self._body = bytearray()
        elif length is None:
            self.keeps_open = False
        elif length.isascii() and length.isdigit():
            self._length = int(length)
        else:
            raise BrokenReplyError("the reply has no valid length")

    def _read_chunks(self, body: bytearray) -> bool:
        while (match := _CHUNK.match(self._data)) is not None:
            size = int(match[1], 16)
            if len(body) + size > self._max_bytes:
                raise BrokenReplyError(f"the reply is longer than {self._max_bytes} bytes")
            if not size:
                rest = bytes(self._data[match.end() :])
                if len(rest) < len(_LINE_END):
                    return False
                # Trailers are not read, so that the connection cannot be used again if there are any.
                self.keeps_open = self.keeps_open and rest == _LINE_END
                return True
            end = match.end() + size
            if len(self._data) < end + len(_LINE_END):
                return False
            body += self._data[match.end() : end]
            del self._data[: end + len(_LINE_END)]
        if len(self._data) > _MAX_HEAD_BYTES:
            raise BrokenReplyError("a chunk of the reply has no size")
        return False


class _Connection(asyncio.Protocol):
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._transport: asyncio.Transport | None = None
        self._parser: ReplyParser | None = None
        self._waiter: asyncio.Future[RawReply] | None = None
        self.used_at = 0.0
        self.is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.is_open = cast("asyncio.Transport", transport), True

    def send(self, request: bytes, loop: asyncio.AbstractEventLoop) -> "asyncio.Future[RawReply]":
        """Send a request; the future ends with its reply."""
        self._parser, self._waiter = ReplyParser(self._max_bytes), loop.create_future()
        cast("asyncio.Transport", self._transport).write(request)
        return self._waiter

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            self.close()  # No request is open: the endpoint ends the connection, or does not speak HTTP.
            return
        try:
            reply = self._parser.feed(data)
        except BrokenReplyError as error:
            self._end(error)
            return
        if reply is not None:
            if not self._parser.keeps_open:
                self.close()
            self._end(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if self._parser is None:
            return
        try:
            self._end(self._parser.end())
        except BrokenReplyError as error:
            self._end(exc if isinstance(exc, OSError) else error)

    def close(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def _end(self, result: RawReply | OSError) -> None:
        waiter, self._parser, self._waiter = self._waiter, None, None
        if isinstance(result, OSError):
            self.close()
        if waiter is None or waiter.done():
            return
        if isinstance(result, OSError):
            waiter.set_exception(result)
        else:
            waiter.set_result(result)


class Connections:
    """The connections to one address. Used from one event loop.

    Args:
        url: The address of every request.
        headers: Sent with every request, besides `host` and the length.
        tls: For `https`.
        max_bytes: Longest body of a reply.
        keepalive_s: Connections that were unused for longer are not used again.
        connect_timeout_s: For the name, each address and TLS together.
        guarded: Whether link-local, metadata and unspecified addresses are refused.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        tls: ssl.SSLContext,
        *,
        max_bytes: int,
        keepalive_s: float,
        connect_timeout_s: float,
        guarded: bool,
    ) -> None:
        parts = httpx.URL(url)
        self._host = parts.host
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = tls if parts.scheme == "https" else None
        login = {}
        if parts.userinfo:
            pair = f"{parts.username}:{parts.password}".encode()
            login["authorization"] = f"Basic {b64encode(pair).decode('ascii')}"
        lines = [
            f"POST {parts.raw_path.decode('ascii')} HTTP/1.1",
            f"host: {parts.netloc.decode('ascii')}",
            "accept-encoding: identity",
            *(f"{name}: {value}" for name, value in {**login, **headers}.items()),
        ]
        self._head = "\r\n".join(lines).encode("latin-1") + b"\r\ncontent-length: "
        self._max_bytes = max_bytes
        self._keepalive_s = keepalive_s
        self._connect_timeout_s = connect_timeout_s
        self._resolver = GuardedResolver() if guarded else DefaultResolver()
        self._idle: list[_Connection] = []

    async def post(self, body: bytes, timeout_s: float) -> RawReply:
        """Send one request and read its whole reply.

        Raises:
            TimeoutError: The reply was not complete in time.
            OSError: There was no connection in time, it broke, or the reply is not HTTP.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        connection = None
        while self._idle and connection is None:
            # The one that was used last; the others have been idle for longer.
            last = self._idle.pop()
            if last.is_open and began - last.used_at < self._keepalive_s:
                connection = last
            else:
                last.close()
        if connection is None:
            try:
                connection = await self._connect(loop, min(timeout_s, self._connect_timeout_s))
            except TimeoutError as error:
                raise OSError(f"no connection within {min(timeout_s, self._connect_timeout_s):g} s") from error
        waiter = connection.send(b"%b%d\r\n\r\n%b" % (self._head, len(body), body), loop)
        # Its own timer: `asyncio.timeout` costs a context and a cancellation for each request.
        timer = loop.call_at(began + timeout_s, _expire, waiter)
        try:
            reply = await waiter
        except BaseException:
            # The reply may still come, and would be taken for another request's.
            connection.close()
            raise
        finally:
            timer.cancel()
        if connection.is_open:
            connection.used_at = loop.time()
            self._idle.append(connection)
        return reply

    async def aclose(self) -> None:
        """Close the connections that are not in use."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        await self._resolver.close()

    async def _connect(self, loop: asyncio.AbstractEventLoop, timeout_s: float) -> _Connection:
        failed: OSError = OSError("the name has no address")
        async with asyncio.timeout(timeout_s):
            for address in await self._resolver.resolve(self._host, self._port, socket.AF_UNSPEC):
                try:
                    _, connection = await loop.create_connection(
                        lambda: _Connection(self._max_bytes),
                        address["host"],
                        address["port"],
                        ssl=self._tls,
                        server_hostname=self._host if self._tls is not None else None,
                    )
                except OSError as error:
                    failed = error
                else:
                    return connection
        raise failed


def _expire(waiter: "asyncio.Future[RawReply]") -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())
