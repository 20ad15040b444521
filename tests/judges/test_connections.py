"""Connections of judge calls: replies in any pieces, what is refused, when a connection is used again, and proxies."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import cast

import pytest
from raw_server import Certificate, RawServer
from support.processes import PATIENCE_S

from judges.core.model import ModelError, ModelSettings
from judges.models.http import HttpEndpoint, Reply

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
CHUNKED = (
    b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\nA;name=value\r\n"a": [1,2]\r\n1\r\n}\r\n0\r\n\r\n'
)
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 422 Unprocessable\r\nRETRY-after: 3\r\ncontent-length: 0\r\n\r\n"
BROKEN = {
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "another protocol": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n",
    "a length that is no number": b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
    "a method of compression that was not offered": PLAIN.replace(b"Content-Type", b"Content-Encoding: br\r\nx"),
    "no gzip": PLAIN.replace(b"Content-Type", b"Content-Encoding: gzip\r\nx"),
    "cut off": CHUNKED[:-5],
    "headers without an end": b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 1_500_000,
    "trailers without an end": CHUNKED[:-2] + b"x: y\r\n" * 1_500_000,
}
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Served:
    """Replies or texts of errors, and how many connections they took."""

    replies: list[Reply | str] = field(default_factory=list)
    connections: int = 0


def posted(serve: Serve, *, timeout_s: float = PATIENCE_S, posts: int = 1, pause: bool = False) -> Served:
    """Post some times, one after another; `pause` lets the server act after each."""
    served = Served()
    tasks: list[asyncio.Task[None]] = []

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.connections += 1
        tasks.append(cast("asyncio.Task[None]", asyncio.current_task()))
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await serve(reader, writer)
            await writer.drain()
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(count, "127.0.0.1", 0)
        url = f"http://user:p%40ss@127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/decisions?key=1"
        http = HttpEndpoint(url, {"x": "y"}, ModelSettings(timeout_s=timeout_s))
        try:
            for _ in range(posts):
                try:
                    served.replies.append(await http.post(b"abc"))
                except ModelError as error:
                    served.replies.append(str(error))
                if pause:
                    await asyncio.gather(*tasks)
        finally:
            await http.aclose()
            server.close()
            await asyncio.gather(*tasks)

    asyncio.run(run())
    return served


async def read(reader: asyncio.StreamReader) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/decisions?key=1 HTTP/1.1\r\nhost: 127.0.0.1:")
    for line in (b"authorization: Basic dXNlcjpwQHNz", b"x: y", b"content-length: 3"):
        assert b"\r\n%b\r\n" % line in head
    assert await reader.readexactly(3) == b"abc"


def replying(data: bytes, size: int, *, times: int = 1) -> Serve:
    """Serve a reply in pieces."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(times):
            await read(reader)
            for place in range(0, len(data), size):
                writer.write(data[place : place + size])
                await writer.drain()
                await asyncio.sleep(0)
        await reader.read()

    return serve


def test_a_reply_may_come_in_any_pieces_and_requests_share_a_connection() -> None:
    for data, status, header, body in (
        (PLAIN, 200, ("content-type", "application/json"), b"{}"),
        (CHUNKED, 200, ("transfer-encoding", "chunked"), b'{"a": [1,2]}'),
        (CONTINUED, 422, ("retry-after", "3"), b""),
    ):
        for size in (1, 7, len(data)):
            served = posted(replying(data, size, times=2), posts=2)
            for reply in served.replies:
                assert isinstance(reply, Reply), (data, size, reply)
                assert (reply.status, reply.headers[header[0]], reply.body) == (status, header[1], body), (data, size)
            assert served.connections == 1, (data, size)


def test_a_connection_is_not_used_again_where_the_end_of_a_reply_is_unsure() -> None:
    for data in (
        PLAIN + b"x",
        PLAIN.replace(b"Content-Type: application/json", b"Connection: CLOSE"),
        PLAIN.replace(b"Content-Type: application/json", b"Connection: close, te"),
        PLAIN.replace(b"HTTP/1.1", b"HTTP/1.0"),
    ):
        served = posted(replying(data, len(data)), posts=2)
        assert [type(reply) for reply in served.replies] == [Reply, Reply], (data, served)
        assert served.connections == 2, data


def test_a_reply_without_a_length_ends_with_the_connection() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read(reader)
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n{}")

    assert posted(serve).replies == [Reply(200, {}, b"{}")]


def test_an_invalid_http_reply_is_refused() -> None:
    for name, data in BROKEN.items():

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes = data) -> None:
            await read(reader)
            writer.write(data)

        (failure,) = posted(serve).replies
        is_endless = "without an end" in name
        assert ("longer than" if is_endless else "(BrokenReplyError)") in failure, (name, failure)


def test_a_connection_that_closed_is_not_used_again() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read(reader)
        writer.write(PLAIN)

    served = posted(serve, posts=5, pause=True)
    assert (served.replies, served.connections) == ([served.replies[0]] * 5, 5)


def test_a_failure_ends_its_connection_alone() -> None:
    async def closes(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await read(reader)

    async def hangs(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await read(reader)
        await reader.read()

    for serve, timeout_s, failure in ((closes, PATIENCE_S, "BrokenReplyError"), (hangs, 0.05, "no answer within")):
        served = posted(serve, timeout_s=timeout_s, posts=2)
        assert served.connections == 2, serve
        assert all(failure in str(reply) for reply in served.replies), (serve, served)


async def through_a_proxy(*urls: str) -> tuple[list[Reply], list[bytes]]:
    """Post twice to each address; return the replies, and what the proxy was asked. It answers for `judge.invalid`."""
    heads: list[bytes] = []
    tasks: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(cast("asyncio.Task[None]", asyncio.current_task()))
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                heads.append(head := await reader.readuntil(b"\r\n\r\n"))
                if head.startswith(b"CONNECT "):
                    await tunnel(head, reader, writer)
                    break
                await reader.readexactly(2)
                writer.write(PLAIN)
        writer.close()

    async def tunnel(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = head.split()[1].decode().rpartition(":")
        further, away = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")

        async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                while data := await source.read(65_536):
                    target.write(data)
            target.close()

        await asyncio.gather(pump(reader, away), pump(further, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    proxy = f"http://me:s3cret@127.0.0.1:{server.sockets[0].getsockname()[1]}"
    replies: list[Reply] = []
    try:
        for url in urls:
            http = HttpEndpoint(url, {"x-api-key": "k3y"}, ModelSettings(timeout_s=PATIENCE_S), proxy)
            replies += [await http.post(b"{}") for _ in range(2)]
            await http.aclose()
    finally:
        server.close()
        await asyncio.gather(*tasks)
    return replies, heads


def test_a_proxy_leads_to_http_and_https(certificate: Certificate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.path))
    with RawServer(PLAIN, closes=False, tls=certificate.tls) as server:
        # The proxy resolves the name, which leads nowhere here.
        urls = (f"{server.base_url}/chat", "http://judge.invalid/v1/chat?a=b")
        replies, (tunnel, *plain) = asyncio.run(through_a_proxy(*urls))
        assert server.connections == 1
    assert [reply.body for reply in replies] == [b"{}"] * 4
    assert tunnel.startswith(b"CONNECT 127.0.0.1:")
    assert b"k3y" not in tunnel, "the key is for the endpoint"
    assert len(plain) == 2
    for head in plain:
        assert head.startswith(b"POST http://judge.invalid/v1/chat?a=b HTTP/1.1\r\nhost: judge.invalid\r\n")
    for head in (tunnel, *plain):
        assert b"\r\nproxy-authorization: Basic bWU6czNjcmV0\r\n" in head
