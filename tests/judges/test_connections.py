"""Direct connections: replies in any pieces, what is refused, and when a connection is used again."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from judges.models.connections import BrokenReplyError, Connections, RawReply, ReplyParser
from judges.models.http import tls_context

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
CHUNKED = (
    b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\nA;name=value\r\n"a": [1,2]\r\n1\r\n}\r\n0\r\n\r\n'
)
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 422 Unprocessable\r\nRETRY-after: 3\r\ncontent-length: 0\r\n\r\n"
BROKEN = {
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "a length that is no number": b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
    "too long": b"HTTP/1.1 200 OK\r\ncontent-length: 101\r\n\r\n",
    "a chunk that is too long": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nFFFFFF\r\n",
    "an unknown encoding": b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n",
    "compressed": b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\n{}",
    "headers without an end": b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000,
}


def fed(data: bytes, size: int) -> tuple[RawReply | None, ReplyParser]:
    parser, reply = ReplyParser(100), None
    for place in range(0, len(data), size):
        assert reply is None
        reply = parser.feed(data[place : place + size])
    return reply, parser


def test_a_reply_may_come_in_any_pieces() -> None:
    for data, expected in (
        (PLAIN, RawReply(200, {"content-type": "application/json", "content-length": "2"}, b"{}")),
        (CHUNKED, RawReply(200, {"transfer-encoding": "chunked"}, b'{"a": [1,2]}')),
        (CONTINUED, RawReply(422, {"retry-after": "3", "content-length": "0"}, b"")),
    ):
        for size in (1, 7, len(data)):
            reply, parser = fed(data, size)
            assert reply == expected, (data, size)
            assert parser.keeps_open, (data, size)


def test_a_connection_is_not_used_again_where_the_end_of_a_reply_is_unsure() -> None:
    for data in (
        PLAIN + b"x",
        PLAIN.replace(b"Content-Type: application/json", b"Connection: CLOSE"),
        PLAIN.replace(b"Content-Type: application/json", b"Connection: close, te"),
        PLAIN.replace(b"HTTP/1.1", b"HTTP/1.0"),
        CHUNKED[:-2] + b"t: 1",
    ):
        reply, parser = fed(data, len(data))
        assert reply is not None
        assert not parser.keeps_open, data
    kept = PLAIN.replace(b"HTTP/1.1", b"HTTP/1.0").replace(b"Content-Type", b"Connection: Keep-Alive\r\nContent-Type")
    assert fed(kept, len(kept))[1].keeps_open


def test_a_reply_without_a_length_ends_with_the_connection() -> None:
    reply, parser = fed(b"HTTP/1.0 200 OK\r\n\r\n{}", 5)
    assert reply is None
    assert parser.end() == RawReply(200, {}, b"{}")
    for cut in (b"", PLAIN[:20], PLAIN[:-1], CHUNKED[:-3]):
        with pytest.raises(BrokenReplyError, match="ended before"):
            fed(cut, 50)[1].end()


def test_an_invalid_http_reply_is_refused() -> None:
    for name, data in BROKEN.items():
        with pytest.raises(BrokenReplyError):
            pytest.fail(f"{name}: {fed(data, len(data))}")


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def _posted(serve: Serve, *, timeout_s: float = 60.0, posts: int = 2) -> tuple[list[RawReply | str], int]:
    """Post some times, one after another; return the replies or names of errors, and the number of connections."""
    served: list[asyncio.Task[None] | None] = []

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.current_task())
        await serve(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async def run() -> list[RawReply | str]:
        server = await asyncio.start_server(count, "127.0.0.1", 0)
        url = f"http://user:p%40ss@127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/decisions?key=1"
        bounds = {"max_bytes": 100, "keepalive_s": 60.0, "connect_timeout_s": 60.0}
        client = Connections(url, {"x": "y"}, tls_context(url), guarded=True, **bounds)  # type: ignore[arg-type]
        rows: list[RawReply | str] = []
        try:
            for _ in range(posts):
                try:
                    rows.append(await client.post(b"abc", timeout_s))
                except OSError as error:
                    rows.append(type(error).__name__)
        finally:
            await client.aclose()
            server.close()
            await asyncio.gather(*filter(None, served))
        return rows

    return asyncio.run(run()), len(served)


async def _read(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/decisions?key=1 HTTP/1.1\r\nhost: 127.0.0.1:")
    assert b"\r\nauthorization: Basic dXNlcjpwQHNz\r\nx: y\r\ncontent-length: 3\r\n" in head
    return await reader.readexactly(3)


def test_requests_share_a_connection() -> None:
    async def twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            assert await _read(reader) == b"abc"
            writer.write(PLAIN)
        with contextlib.suppress(ConnectionError):
            await reader.read()

    replies, connections = _posted(twice)
    assert [reply.body for reply in replies if isinstance(reply, RawReply)] == [b"{}", b"{}"]
    assert connections == 1


def test_a_failure_ends_its_connection_alone() -> None:
    async def closes(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await _read(reader)

    async def hangs(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await _read(reader)
        with contextlib.suppress(ConnectionError):
            await reader.read()

    async def answers_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _read(reader)
        writer.write(PLAIN.replace(b"Content-Type: application/json", b"Connection: close"))

    assert _posted(closes) == (["BrokenReplyError"] * 2, 2)
    assert _posted(hangs, timeout_s=0.05) == (["TimeoutError"] * 2, 2)
    replies, connections = _posted(answers_once)
    assert [type(reply) for reply in replies] == [RawReply] * 2
    assert connections == 2
