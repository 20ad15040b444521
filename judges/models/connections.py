"""A connection to an endpoint in the event loop: HTTP/1.1 as `httptools` parses it, one request at a time."""

import asyncio
import ssl
import zlib
from collections.abc import Mapping
from typing import Final, NamedTuple, cast

import httptools

_MAX_BYTES: Final = 4 * 1024 * 1024
_FIRST_FINAL: Final = 200
_GZIP_OR_ZLIB: Final = 32 + zlib.MAX_WBITS


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
        self.received = 0
        """Bytes that came after the last request."""
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[Reply] | None = None

    async def ask(self, request: bytes, deadline: float, *, for_tunnel: bool = False) -> Reply:
        """Send a request and read its whole reply. If that fails or is cancelled, the connection is closed.

        Args:
            request: Its head and body.
            deadline: By when the reply has to be complete, on the clock of the event loop.
            for_tunnel: Whether it asks a proxy for a tunnel; a reply that grants it ends with its head.

        Raises:
            TimeoutError: The reply was not complete in time.
            ReplyTooLongError: It is too long.
            OSError: The connection broke, or the reply is not HTTP.
        """
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Reply] = loop.create_future()
        self._waiter = waiter
        self._parser, self._for_tunnel = httptools.HttpResponseParser(self), for_tunnel
        self._headers: dict[str, str] = {}
        self._pieces: list[bytes] = []
        self._has_head, self.received, self._size = False, 0, 0
        cast("asyncio.Transport", self._transport).write(request)
        # A timer of its own, because `asyncio.timeout` costs a context and a cancellation for each request.
        timer = loop.call_at(deadline, _expire, waiter)
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
        self.received += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail(BrokenReplyError("the reply is not HTTP/1.1"))
        # Headers, trailers and the sizes of chunks may be as long again as the longest body.
        if self._waiter is not None and self.received > 2 * _MAX_BYTES:
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
        elif self._waiter is not None:
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
                body = _unpacked(body, encoding)
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


def _unpacked(body: bytes, encoding: str) -> bytes:
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
    return unpacked


def _expire(waiter: "asyncio.Future[Reply]") -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())
