"""Connections of judge calls: replies in any pieces, reuse, proxies, certificates, and where an endpoint may be."""

import asyncio
import contextlib
import gzip
import json
import socket
import ssl
import time
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest
from judge_traces import in_loop, table
from model_client import REQUEST, WORDS, Certificate, Client, RawServer
from model_client import openai as client
from support.endpoint import ChatEndpoint
from support.processes import PATIENCE_S
from support.replies import answers, cuts, failing, gathering, slow, yes_no
from support.tables import expand

from judges.core.model import ModelError, ModelRejectedError, ModelSettings, ModelUnavailableError
from judges.models.credentials import ProxyRefusedError, is_guarded, proxy_for, tls_context
from judges.models.http import HttpEndpoint, Reply
from judges.models.registry import ModelSettingsError, build, check

TABLES = table("addresses")
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
CHUNKED = (
    b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\nA;name=value\r\n"a": [1,2]\r\n1\r\n}\r\n0\r\n\r\n'
)
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 422 Unprocessable\r\nRETRY-after: 3\r\ncontent-length: 0\r\n\r\n"
Serve = Callable[[StreamReader, StreamWriter], Awaitable[None]]
Pause = Callable[[], Awaitable[None]]
Tasks = list["asyncio.Task[None]"]


@contextlib.asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[tuple[int, Tasks]]:
    """Serve each connection in a task; provide the port, and the tasks, which have ended behind the block."""
    tasks: Tasks = []

    async def connect(reader: StreamReader, writer: StreamWriter) -> None:
        tasks.append(asyncio.current_task())
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await serve(reader, writer)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], tasks
    finally:
        server.close()
        await asyncio.gather(*tasks)


async def post_all(
    url: str, times: int, body: bytes = b"abc", proxy: str | None = None, pause: Pause | None = None, **fields: Any
) -> list[Reply | ModelError]:
    """Post some times, one after another, by one client; return replies or errors."""
    http = HttpEndpoint(url, {"x-api-key": "k3y"}, ModelSettings(**{"timeout_s": PATIENCE_S, **fields}), proxy)
    outcomes: list[Reply | ModelError] = []
    for _ in range(times):
        try:
            outcomes.append(await http.post(body))
        except ModelError as error:
            outcomes.append(error)
        if pause is not None:
            await pause()
    await http.aclose()
    return outcomes


def posted(serve: Serve, times: int = 1, *, pause: bool = False, **fields: Any) -> tuple[list[Reply | ModelError], int]:
    """Post some times; return the outcomes, and how many connections they took. `pause` lets the server act between."""

    async def run() -> tuple[list[Reply | ModelError], int]:
        async with serving(serve) as (port, tasks):
            url = f"http://user:p%40ss@127.0.0.1:{port}/v1/decisions?key=1"

            async def wait() -> None:
                await asyncio.gather(*tasks)

            return await post_all(url, times, pause=wait if pause else None, **fields), len(tasks)

    return in_loop(run())


async def read(reader: StreamReader) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/decisions?key=1 HTTP/1.1\r\nhost: 127.0.0.1:")
    for line in (b"authorization: Basic dXNlcjpwQHNz", b"x-api-key: k3y", b"content-length: 3"):
        assert b"\r\n%b\r\n" % line in head
    assert await reader.readexactly(3) == b"abc"


def replying(data: bytes, size: int = 1 << 30, *, times: int = 1, closes: bool = False) -> Serve:
    """Serve a reply in pieces so many times; or whole, and close the connection at once."""

    async def serve(reader: StreamReader, writer: StreamWriter) -> None:
        for _ in range(times):
            await read(reader)
            if closes:
                writer.write(data)
                return
            for place in range(0, len(data), size):
                writer.write(data[place : place + size])
                await writer.drain()
                await asyncio.sleep(0)
        await reader.read()

    return serve


async def through_a_proxy(*urls: str) -> tuple[list[Reply | ModelError], list[bytes]]:
    """Post twice to each address; return the replies, and what the proxy was asked. It answers for `judge.invalid`."""
    heads: list[bytes] = []

    async def serve(reader: StreamReader, writer: StreamWriter) -> None:
        while True:
            heads.append(head := await reader.readuntil(b"\r\n\r\n"))
            if head.startswith(b"CONNECT "):
                return await tunnel(head, reader, writer)
            await reader.readexactly(2)
            writer.write(PLAIN)

    async def tunnel(head: bytes, reader: StreamReader, writer: StreamWriter) -> None:
        host, _, port = head.split()[1].decode().rpartition(":")
        further, away = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")

        async def pump(source: StreamReader, target: StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                while data := await source.read(65_536):
                    target.write(data)
            target.close()

        await asyncio.gather(pump(reader, away), pump(further, writer))

    async with serving(serve) as (port, _):
        proxy = f"http://me:s3cret@127.0.0.1:{port}"
        return [reply for url in urls for reply in await post_all(url, 2, b"{}", proxy)], heads


class TestHttp:
    def test_a_reply_may_come_in_any_pieces_and_requests_share_a_connection(self) -> None:
        for data, status, (name, value), body in (
            (PLAIN, 200, ("content-type", "application/json"), b"{}"),
            (CHUNKED, 200, ("transfer-encoding", "chunked"), b'{"a": [1,2]}'),
            (CONTINUED, 422, ("retry-after", "3"), b""),
        ):
            for size in (1, 7, len(data)):
                replies, connections = posted(replying(data, size, times=2), 2)
                assert [type(reply) for reply in replies] == [Reply, Reply], (data, size, replies)
                actual = {(reply.status, reply.headers[name], reply.body) for reply in replies}
                assert (actual, connections) == ({(status, value, body)}, 1), (data, size)
        assert posted(replying(b"HTTP/1.0 200 OK\r\n\r\n{}", closes=True)) == ([Reply(200, {}, b"{}")], 1)

    def test_a_connection_is_not_used_again_where_the_end_of_a_reply_is_unsure_or_it_closed(self) -> None:
        for data in (
            PLAIN + b"x",
            PLAIN.replace(b"Content-Type: application/json", b"Connection: CLOSE"),
            PLAIN.replace(b"Content-Type: application/json", b"Connection: close, te"),
            PLAIN.replace(b"HTTP/1.1", b"HTTP/1.0"),
        ):
            replies, connections = posted(replying(data), 2)
            assert ([type(reply) for reply in replies], connections) == ([Reply, Reply], 2), (data, replies)
        replies, connections = posted(replying(PLAIN, closes=True), 5, pause=True)
        assert (replies, connections) == ([replies[0]] * 5, 5)

    def test_an_invalid_http_reply_is_refused_and_a_failure_ends_its_connection_alone(self) -> None:
        for name, text in table("broken_http").items():
            (failure,), _ = posted(replying(expand(text).replace("WORDS", WORDS).encode(), closes=True))
            error = "longer than" if "without an end" in name else "(BrokenReplyError)"
            assert error in str(failure), (name, failure)
        for serve, timeout_s, failure in (
            (replying(b"", closes=True), PATIENCE_S, "BrokenReplyError"),
            (replying(b""), 0.5, "no answer within"),
        ):
            replies, connections = posted(serve, 2, timeout_s=timeout_s)
            assert connections == 2, failure
            assert all(failure in str(reply) for reply in replies), replies

    def test_a_proxy_leads_to_http_and_https(self, certificate: Certificate, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate.path))
        with RawServer(PLAIN, closes=False, tls=certificate.tls) as server:
            # The proxy resolves the name, which leads nowhere here.
            urls = (f"{server.base_url}/chat", "http://judge.invalid/v1/chat?a=b")
            replies, (tunnel, *plain) = asyncio.run(through_a_proxy(*urls))
            assert server.connections == 1
        assert [reply.body if isinstance(reply, Reply) else reply for reply in replies] == [b"{}"] * 4
        assert tunnel.startswith(b"CONNECT 127.0.0.1:")
        assert b"k3y" not in tunnel, "the key is for the endpoint"
        assert len(plain) == 2
        for head in plain:
            assert head.startswith(b"POST http://judge.invalid/v1/chat?a=b HTTP/1.1\r\nhost: judge.invalid\r\n")
        for head in (tunnel, *plain):
            assert b"\r\nproxy-authorization: Basic bWU6czNjcmV0\r\n" in head


COMPLETION = json.dumps({"choices": [{"message": {"content": "yes"}}]}).encode()


def packed(body: bytes, *, says_length: bool = True) -> bytes:
    """Write a reply as a server that compresses does."""
    small = gzip.compress(body)
    length = b"Content-Length: %d\r\n" % len(small) if says_length else b""
    return b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n" + length + b"\r\n" + small


class TestClient:
    def test_errors_name_the_address_without_login_and_query(self, endpoint: ChatEndpoint) -> None:
        whole, address = f"{endpoint.base_url}?key=k3y", f"{endpoint.base_url}/chat/completions"
        endpoint.behaviour = failing(404, "no such path")
        assert str(client(whole).fails()).startswith(f"HTTP 404 from {address}; check base_url and model")
        endpoint.behaviour = cuts(0, WORDS)
        assert str(client(whole).fails()).startswith(f"no connection to {address} (")
        assert HttpEndpoint("http://user:s3cret@host:1/v1?key=k3y", {}, ModelSettings()).address == "http://host:1/v1"

    def test_a_packed_reply_is_read_up_to_a_size(self) -> None:
        for says_length in (True, False):
            with RawServer(packed(COMPLETION, says_length=says_length)) as server:
                assert client(server.base_url).ask().text == "yes"
        with RawServer(packed(b" " * (16 << 20))) as server:
            failure = client(server.base_url).fails()
        assert (type(failure), str(failure)) == (ModelUnavailableError, "the reply is longer than 4194304 bytes")

    def test_no_cookies_are_kept(self, endpoint: ChatEndpoint) -> None:
        """What one request brought back is none of the next one's business."""

        async def ask_twice() -> None:
            # By name: a jar may take no cookies from addresses, and would pass here.
            model = client(f"http://localhost:{endpoint.port}/v1").model
            for _ in range(2):
                await model.complete(REQUEST)
            await model.aclose()

        endpoint.behaviour = answers("yes", headers={"Set-Cookie": "who=me"})
        asyncio.run(ask_twice())
        assert [call.headers.get("cookie") for call in endpoint.calls] == [None, None]

    def test_certificates_must_be_vouched_for(self, certificate: Certificate, monkeypatch: pytest.MonkeyPatch) -> None:
        for urls, loaded in (
            (("http://judge/v1", None), False),
            (("https://judge/v1", None), True),
            (("http://judge/v1", "https://proxy"), True),
        ):
            context = tls_context(*urls)
            assert context.verify_mode is ssl.CERT_REQUIRED, urls
            assert bool(context.cert_store_stats()["x509_ca"]) is loaded, urls
        with RawServer(packed(COMPLETION), tls=certificate.tls) as server:
            failure = client(server.base_url).fails()
            error = f"no connection to {server.base_url}/chat/completions (SSLCertVerificationError)"
            assert (type(failure), str(failure)) == (ModelUnavailableError, error)
            monkeypatch.setenv("SSL_CERT_FILE", str(certificate.path))
            assert client(server.base_url).ask().text == "yes"

    def test_proxies_that_refuse_the_connection_stop_the_model_as_an_endpoint_does(self) -> None:
        for status, kind in ((407, ModelRejectedError), (403, ModelRejectedError), (502, ModelUnavailableError)):
            with RawServer(b"HTTP/1.1 %d Refused\r\nContent-Length: 0\r\n\r\n" % status) as proxy:
                for scheme in ("http", "https"):
                    settings = ModelSettings(base_url=f"{scheme}://judge.example/v1", model="m")
                    failure = Client(build(settings, {}, proxy.base_url.removesuffix("/v1"))).fails()
                    assert type(failure) is kind, (status, scheme)
                    assert kind is ModelUnavailableError or failure.status == status, (status, scheme)

    def test_the_proxy_is_the_settings_or_the_environment_s(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "REQUEST_METHOD"):
            monkeypatch.delenv(name, raising=False)
            monkeypatch.delenv(name.lower(), raising=False)
        assert proxy_for("https://a.example/v1", None) is None
        monkeypatch.setenv("HTTPS_PROXY", "http://p:1")
        monkeypatch.setenv("HTTP_PROXY", "q:2")
        monkeypatch.setenv("NO_PROXY", "localhost,.inside.example,b.example:8443")
        expected = TABLES["proxied"]
        assert {url: proxy_for(url, None) for url in expected} == expected
        assert {proxy_for(url, "http://r:3") for url in expected} == {"http://r:3"}
        assert {proxy_for(url, "none") for url in expected} == {None}
        monkeypatch.delenv("HTTPS_PROXY")
        monkeypatch.setenv("ALL_PROXY", "socks5://user:password@s:4")
        with pytest.raises(ProxyRefusedError, match="set proxy to one that is") as caught:
            proxy_for("https://a.example/v1", None)
        assert "password" not in str(caught.value)

    def test_an_address_without_a_proxy_has_none_whatever_the_provider(self, monkeypatch: pytest.MonkeyPatch) -> None:
        refuses = b"HTTP/1.1 %d No\r\nContent-Length: 0\r\n\r\n"
        with RawServer(refuses % 404) as server, RawServer(refuses % 407) as proxy:
            for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
                monkeypatch.setenv(name, proxy.base_url.removesuffix("/v1"))
                monkeypatch.delenv(name.lower(), raising=False)
            monkeypatch.setenv("NO_PROXY", "127.0.0.1")
            for provider in ("openai", "anthropic"):
                settings = ModelSettings(provider=provider, base_url=server.base_url, model="m")
                failure = Client(build(settings, {}, None)).fails()
                assert (type(failure), failure.status) == (ModelRejectedError, 404), provider

    @pytest.mark.slow("hundreds of connections")
    def test_300_requests_are_under_way_together_and_no_more_than_allowed(self, endpoint: ChatEndpoint) -> None:
        """One of three tries is enough: what is measured is the client, not what else the machine does."""
        endpoint.behaviour = gathering(3, yes_no(delay_s=0.02))
        assert len(client(endpoint.base_url, max_in_flight=3).ask_often(10)) == 10
        assert endpoint.max_in_flight == 3
        model, tried = client(endpoint.base_url, max_in_flight=300, timeout_s=100.0), []
        for each_s in (0.5, 2.0, 8.0):
            endpoint.forget()
            endpoint.behaviour = slow(each_s)
            began = time.monotonic()
            assert len(model.ask_often(300)) == 300
            tried.append((endpoint.max_in_flight, (time.monotonic() - began) / each_s))
            if tried[-1][0] == 300 and tried[-1][1] < 3:
                return
        pytest.fail(f"so many at a time, which took so many times as long as one: {tried}")


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """Resolve a name to the next list of addresses at each look-up; return the list of look-ups."""

    def lead_to(*found: list[str]) -> list[int]:
        order, looked_up = iter(found), list[int]()

        def look_up(_: str, port: int, *__: object, **___: object) -> list[tuple[object, ...]]:
            looked_up.append(port)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in next(order)]

        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        return looked_up

    return lead_to


def post(endpoint: ChatEndpoint, times: int = 1, host: str = "judge.example", **fields: bool) -> list[int | ModelError]:
    """Return the status of each reply, or its error."""
    url = f"http://{host}:{endpoint.port}{endpoint.path}"
    outcomes = in_loop(post_all(url, times, b'{"messages": []}', max_in_flight=1, **fields))
    return [each.status if isinstance(each, Reply) else each for each in outcomes]


class TestGuardedAddresses:
    def test_guarded_addresses_are_known_in_any_notation_and_stop_the_start_unless_allowed(self) -> None:
        assert [host for host in TABLES["guarded"] if not is_guarded(host)] == []
        assert [host for host in TABLES["free"] if is_guarded(host)] == []
        for host in ("169.254.169.254", "[fe80::1]", "0.0.0.0", "metadata.google.internal"):  # noqa: S104
            settings = ModelSettings(base_url=f"http://u:s3cret@{host}:80/v1", model="m")
            with pytest.raises(ModelSettingsError) as caught:
                check(settings)
            assert str(caught.value) == (
                "base_url: is a link-local, metadata or unspecified address, where no judge model belongs; if this one"
                " does, set allow_link_local = true"
            )
            build(msgspec.structs.replace(settings, allow_link_local=True), {})

    def test_a_name_that_leads_there_is_refused(self, endpoint: ChatEndpoint, names: Callable[..., list[int]]) -> None:
        for found in (["169.254.169.254"], ["127.0.0.1", "fe80::1"]):
            names(found)
            (error,) = post(endpoint)
            assert (type(error), error.reason) == (ModelRejectedError, "judge_rejected"), found
            assert "link-local, metadata or unspecified address" in str(error)
            assert not any(word in str(error) for word in (*found, "judge.example", WORDS)), found
        assert endpoint.calls == ()
        names(["127.0.0.1", "169.254.169.254"])
        assert post(endpoint, allow_link_local=True) == [200]

    def test_a_name_is_looked_up_again(
        self, endpoint: ChatEndpoint, names: Callable[..., list[int]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        looked_up = names(["127.0.0.1"])
        assert post(endpoint, 3) == [200, 200, 200]
        assert len(looked_up) == 1, "a connection that is kept costs no further look-up"
        names(["127.0.0.9"], ["127.0.0.1"])
        outage, status = post(endpoint, 2)
        assert (type(outage), status) == (ModelUnavailableError, 200)
        endpoint.forget()
        monkeypatch.setattr("judges.models.http._RESOLVE_EVERY_S", 0.0)  # else a test would take as long
        looked_up = names(["127.0.0.1"], ["127.0.0.1", "127.0.0.2"], ["169.254.169.254"])
        *good, refused = post(endpoint, 3)
        assert (good, type(refused), len(looked_up), len(endpoint.calls)) == ([200, 200], ModelRejectedError, 3, 2)

    def test_a_dead_address_is_passed_over(
        self, endpoint: ChatEndpoint, names: Callable[..., list[int]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        looked_up = names(["127.0.0.9", "127.0.0.1"])  # nothing listens at the first
        assert post(endpoint, 3) == [200, 200, 200]
        assert len(looked_up) == 1
        names(["127.0.0.9", "127.0.0.8", "127.0.0.1"])
        assert post(endpoint) == [200]
        names(["127.0.0.9", "127.0.0.8"])
        assert [type(error) for error in post(endpoint)] == [ModelUnavailableError]

        def find_nothing(*_: object, **__: object) -> None:
            raise socket.gaierror(socket.EAI_NONAME, "there is no such name")

        monkeypatch.setattr(socket, "getaddrinfo", find_nothing)
        assert [type(error) for error in post(endpoint)] == [ModelUnavailableError]
