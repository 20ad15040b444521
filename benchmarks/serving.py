"""A small HTTP/1.1 server for the peers of the bench, on so little CPU that it is never what limits a figure.

Keep-alive, bodies by `Content-Length`, nothing else. `GET` tells the peer's counts as JSON.
"""

import asyncio
import json
import re
import signal
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Final, cast

import uvloop

__all__ = ["Peer", "reply", "serve"]

_END: Final = b"\r\n\r\n"
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED: Final = re.compile(rb"\r\ntransfer-encoding:", re.IGNORECASE)
_BACKLOG: Final = 4096


class Peer(ABC):
    """What answers requests. Counts what is on its way and what has come."""

    def __init__(self, delay_s: float = 0.0) -> None:
        """Answer after a time."""
        self.delay_s = delay_s
        self.requests = 0
        self.in_flight = 0

    @abstractmethod
    def take(self, head: bytes, body: bytes) -> bytes:
        """Read one request and build the whole reply."""

    def counts(self) -> Mapping[str, int]:
        """Return what has arrived so far."""
        return {"requests": self.requests, "in_flight": self.in_flight}


def reply(body: bytes, *, content_type: str = "application/json", status: str = "200 OK") -> bytes:
    """Make a whole reply."""
    return f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def serve(peer: Peer, port: int) -> None:
    """Serve on the loopback until SIGTERM."""
    uvloop.run(_serve(peer, port))


async def _serve(peer: Peer, port: int) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    await loop.create_server(lambda: _Connection(peer, loop), "127.0.0.1", port, backlog=_BACKLOG)
    await ended.wait()


class _Connection(asyncio.Protocol):
    """One connection; requests on it are answered in turn, as clients that do not pipeline send them."""

    def __init__(self, peer: Peer, loop: asyncio.AbstractEventLoop) -> None:
        self._peer = peer
        self._loop = loop
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        while (end := data.find(_END)) >= 0:
            head = data[: end + 2]
            length = _LENGTH.search(head)
            size = end + len(_END) + (int(length[1]) if length else 0)
            if len(data) < size:
                break
            self._request(head, data[end + len(_END) : size])
            data = data[size:]
        self._rest = data

    def _request(self, head: bytes, body: bytes) -> None:
        peer = self._peer
        if head.startswith(b"GET "):
            self._transport.write(reply(json.dumps(peer.counts()).encode()))
        elif _CHUNKED.search(head):
            self._transport.write(reply(b"", status="411 Length Required"))
            self._transport.close()
        else:
            peer.requests += 1
            answer = peer.take(head, body)
            if not peer.delay_s:
                self._transport.write(answer)
                return
            peer.in_flight += 1
            self._loop.call_later(peer.delay_s, self._answer, answer)

    def _answer(self, answer: bytes) -> None:
        self._peer.in_flight -= 1
        if not self._transport.is_closing():
            self._transport.write(answer)
