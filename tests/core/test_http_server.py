"""The worker's HTTP server: its three pages, who may read them, and clients that are slow, huge or wrong."""

import gc
import gzip
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter
from structlog.testing import capture_logs
from support.processes import wait_until
from support.redis_kinds import make_certificates
from support.scrape import ACCEPT, scrape

from worker.core.config.serving import Listen, Tls
from worker.core.config.settings import Settings, SettingsError
from worker.core.telemetry import http_server, metrics
from worker.core.telemetry.health import Pulse, Readiness
from worker.core.telemetry.http_server import HttpAuth, HttpServer
from worker.core.telemetry.metrics import Metrics

TOKEN = "s3cret-t0ken"  # noqa: S105 - nobody's
CLOSED = HttpAuth("Bearer", TOKEN)


class Thread:
    """A thread that ends a turn whenever it is asked how it fares."""

    has_ended = False

    @property
    def pulse(self) -> Pulse:
        return Pulse(time.monotonic(), has_ended=self.has_ended)


class Served:
    """A server with one counter and one role."""

    def __init__(
        self, access: HttpAuth | None = None, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
    ) -> None:
        registry = CollectorRegistry()
        Counter("verdicts", "Verdicts", registry=registry).inc(1, {"trace_id": "4bf92f35"})
        self.thread, self.readiness = Thread(), Readiness()
        self.readiness.watch("reader", "ingest", self.thread)
        self._serving = HttpServer(registry, self.readiness, access or HttpAuth(), tls)
        self.metrics = self._serving.start(Listen("metrics_", host, 0))
        self.root = self.metrics.removesuffix("/metrics")
        self.port = urlsplit(self.root).port
        self.stop = self._serving.stop

    def get(self, path: str, **headers: str) -> httpx.Response:
        return httpx.get(f"{self.root}{path}", headers=headers, trust_env=False, timeout=60)

    def send(self, data: bytes) -> bytes:
        """Send bytes and read to the end of the connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as client:
            client.sendall(data)
            return b"".join(iter(lambda: client.recv(65536), b""))


Serve = Callable[..., Served]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No client is cut off, or turned away, because the machine is busy with others."""
    for name in ("_HEAD_S", "_REPLY_S"):
        monkeypatch.setattr(http_server, name, 300.0)


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as ends:

        def start(*arguments: object, **more: object) -> Served:
            served = Served(*arguments, **more)
            ends.callback(served.stop)
            return served

        yield start


# --- the pages ---
def test_metrics_are_openmetrics_with_exemplars_if_requested(serve: Serve) -> None:
    page = scrape(serve().port)
    assert page.value("verdicts_total") == 1
    assert [exemplar.labels for exemplar in page.exemplars("verdicts_total")] == [{"trace_id": "4bf92f35"}]


def test_metrics_are_plain_text_without_an_accept_header(serve: Serve) -> None:
    reply = serve().get("/metrics?x=1", accept="*/*")
    assert (reply.status_code, reply.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert "verdicts_total 1.0" in reply.text


def test_metrics_are_compressed_only_where_that_is_read(serve: Serve) -> None:
    served = serve()
    request = b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept-Encoding: %s\r\n\r\n"
    head, _, body = served.send(request % b"gzip").partition(b"\r\n\r\n")
    assert b"Content-Encoding: gzip" in head
    assert b"verdicts_total 1.0" in gzip.decompress(body)
    assert b"verdicts_total 1.0" in served.send(request % b"identity")


def test_a_page_of_many_services_leaves_the_interpreter_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU of the rendering thread from one pause to the next: a busy machine lengthens the pauses, not the slices."""
    rendered, slices = Metrics(Settings(max_services=1_000)), list[float]()
    for number in range(1_000):
        rendered.touch_service(f"service {number}")
        rendered.score_age.labels(f"service {number}").observe(1)

    def pause(seconds: float) -> None:
        slices.append(time.thread_time())
        time.sleep(seconds)
        slices.append(time.thread_time())

    monkeypatch.setattr(metrics, "time", SimpleNamespace(sleep=pause))
    server = HttpServer(rendered.registry, Readiness(), HttpAuth())
    gc.collect()
    gc.disable()  # a collection of all that the tests hold would count as a slice
    try:
        page = httpx.get(server.start(Listen("metrics_", "127.0.0.1", 0)), trust_env=False, timeout=60)
    finally:
        gc.enable()
        server.stop()
    assert page.text.count('tracejudge_score_age_seconds_count{service="service ') == 1_000
    assert len(slices) > 2 * 20_000 / 250, "a few hundred samples at most between two pauses"
    assert max(end - start for start, end in zip(slices[1::2], slices[2::2], strict=False)) < 0.02


def test_scrapers_that_ask_together_get_one_rendering(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    rendering, asked, renderings = threading.Event(), threading.Barrier(9), list[bool]()
    served = serve()

    def collect() -> Iterator[object]:
        renderings.append(True)
        rendering.wait(60)
        return iter(())

    def scrape_page() -> int:
        asked.wait(60)
        return served.get("/metrics").status_code

    monkeypatch.setattr(served._serving._registry, "collect", collect)
    with ThreadPoolExecutor(8) as pool:
        replies = [pool.submit(scrape_page) for _ in range(8)]
        asked.wait(60)
        wait_until(lambda: len(served._serving._connections) == 8, what="the scrapers")
        wait_until(lambda: renderings, what="the rendering")
        assert served.get("/healthz").status_code == 200, "probes are answered meanwhile"
        rendering.set()
        assert {reply.result(60) for reply in replies} == {200}
    assert len(renderings) < 8


def test_healthz_tells_of_a_thread_that_died(serve: Serve) -> None:
    served = serve()
    assert (served.get("/healthz").status_code, served.get("/healthz").text) == (200, "alive\n")
    served.thread.has_ended = True
    assert (served.get("/healthz").status_code, served.get("/healthz").text) == (503, "threads ended: reader\n")
    served.readiness.begin_stop()
    assert served.get("/healthz").status_code == 200, "it stops, as it was asked to"


def test_readyz_is_a_line_for_each_role_or_json(serve: Serve) -> None:
    served = serve()
    reply = served.get("/readyz")
    assert (reply.status_code, reply.text) == (200, "ingest ready, progress 0.0 s ago\n")
    served.thread.has_ended = True
    reply = served.get("/readyz")
    assert (reply.status_code, reply.text) == (
        503,
        "ingest stalled, progress 0.0 s ago: reader: its thread has ended\n",
    )
    role = {"role": "ingest", "ready": False, "state": "stalled", "seconds": 0.0, "why": "reader: its thread has ended"}
    assert served.get("/readyz", accept="application/json").json() == {"roles": [role]}


def test_other_paths_and_methods_are_refused(serve: Serve) -> None:
    served = serve()
    assert served.get("/").status_code == served.get("/metrics/x").status_code == 404
    assert served.send(b"POST /metrics HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 405 ")
    head, _, body = served.send(b"HEAD /healthz HTTP/1.1\r\nHost: x\r\n\r\n").partition(b"\r\n\r\n")
    assert (head.split(b"\r\n")[0], body) == (b"HTTP/1.1 200 OK", b"")
    assert b"Content-Length: 6" in head


# --- who may read ---
def test_only_the_metrics_require_a_token(serve: Serve) -> None:
    served = serve(CLOSED)
    refused = served.get("/metrics")
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, 'Bearer realm="tracejudge"')
    assert "verdicts" not in refused.text
    assert served.get("/metrics", authorization="Bearer other").status_code == 401
    assert served.get("/metrics", authorization=f"Bearer {TOKEN}", accept=ACCEPT).status_code == 200
    assert served.get("/healthz").status_code == served.get("/readyz").status_code == 200


def test_tls_holds_for_all_pages(serve: Serve, tmp_path: Path) -> None:
    files = make_certificates(tmp_path)
    settings = Settings(metrics_tls_cert=str(files.server), metrics_tls_key=str(files.server_key))
    served = serve(tls=Tls.from_table(settings, "metrics_tls_").context())
    assert served.root.startswith("https://")
    context = ssl.create_default_context(cafile=str(files.authority))
    with httpx.Client(verify=context, trust_env=False, timeout=60) as client:
        for path in ("/metrics", "/healthz", "/readyz"):
            assert client.get(f"{served.root}{path}").status_code == 200
        assert b"HTTP/" not in served.send(b"GET /healthz HTTP/1.1\r\n\r\n"), "not a word without TLS"
        assert client.get(f"{served.root}/healthz").status_code == 200
    old = ssl.create_default_context(cafile=str(files.authority))
    old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2
    with httpx.Client(verify=old, trust_env=False, timeout=60) as client:
        assert client.get(f"{served.root}/healthz").status_code == 200


@pytest.mark.parametrize(
    ("host", "access", "warned"),
    [("0.0.0.0", HttpAuth(), True), ("0.0.0.0", CLOSED, False), ("127.0.0.1", HttpAuth(), False)],  # noqa: S104
    ids=["open to all", "closed", "loopback"],
)
def test_a_page_without_a_token_on_a_public_address_is_logged(
    serve: Serve, host: str, access: HttpAuth, *, warned: bool
) -> None:
    with capture_logs() as lines:
        serve(access, host=host)
    assert [(line["log_level"], line["host"]) for line in lines] == ([("warning", host)] if warned else [])


def test_no_log_line_holds_anything_of_a_request(serve: Serve, capfd: pytest.CaptureFixture[str]) -> None:
    with capture_logs() as lines:
        served = serve(CLOSED)
        served.get("/metrics", authorization=f"Bearer {TOKEN}")
        served.get(f"/{TOKEN}", authorization=TOKEN)
        served.send(f"{TOKEN} {TOKEN} {TOKEN}\r\n\r\n".encode())
        served.send(f"GET / HTTP/1.1\r\n{TOKEN}\r\n\r\n".encode())
    assert lines == []
    assert TOKEN not in "".join(capfd.readouterr())


# --- clients that are slow, huge or wrong ---
WRONG = {
    "no HTTP": (b"\x16\x03\x01\x00\xff\r\n\r\n", 400),
    "empty lines": (b"\r\n\r\n", 400),
    "another version": (b"GET / HTTP/9.9\r\n\r\n", 400),
    "a head without end": (b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 3410, 431),
    "a line without end": (b"GET /" + b"a" * 20475, 431),
    "too many headers": (b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 200 + b"\r\n", 400),
    "a line too long": (b"GET /" + b"a" * 10000 + b" HTTP/1.1\r\n\r\n", 400),
    "the first version": (b"GET /healthz\r\n\r\n", 400),
    "no host": (b"GET /healthz HTTP/1.1\r\n\r\n", 400),
    "a bracket for a path": (b"GET http://[ HTTP/1.0\r\n\r\n", 400),
    "a body without end": (b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\n", 200),
    "a version of text in words": (b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: text/plain;version=x\r\n\r\n", 200),
    "a version of metrics in words": (
        b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: application/openmetrics-text;version=1.x\r\n\r\n",
        200,
    ),
}


@pytest.mark.parametrize(("sent", "status"), WRONG.values(), ids=WRONG.keys())
def test_a_request_that_is_none_is_answered_without_its_words(
    serve: Serve, sent: bytes, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "_REPLY_S", 1.0)  # a body that never comes is waited for
    served = serve()
    with capture_logs() as lines:
        reply = served.send(sent)
    assert re.match(rb"HTTP/[0-9.]+ (\d+) ", reply)[1] == b"%d" % status
    assert b"x: y" not in reply
    assert b"Python" not in reply, "nor with what it runs on"
    assert lines == []
    assert served.get("/healthz").status_code == 200


@pytest.mark.parametrize("sent", [b"GET /healthz HTT", b""], ids=["half a line", "no byte"])
def test_a_client_that_says_nothing_is_cut_off(serve: Serve, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(http_server, "_HEAD_S", 0.2)
    with capture_logs() as lines:
        assert serve().send(sent) == b""
    assert lines == []


def test_a_client_that_never_reads_is_cut_off(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is larger than what the buffers of both sockets hold."""
    monkeypatch.setattr(http_server, "_REPLY_S", 0.5)
    served = serve()
    counter = Counter("filler", "Filler", ["label"], registry=served._serving._registry)
    for number in range(20_000):
        counter.labels(f"{number:0500}").inc()
    connections = served._serving._connections
    with socket.create_connection(("127.0.0.1", served.port)) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_until(lambda: connections, what="the connection to be accepted")
        wait_until(lambda: not connections, what="the client to be cut off")
    assert served.get("/healthz").status_code == 200


def test_a_client_that_drips_is_cut_off_all_the_same(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is that of the whole head: each byte began it anew once."""
    monkeypatch.setattr(http_server, "_HEAD_S", 0.5)
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", serve().port), timeout=0.05) as client, suppress(ConnectionError):
        while time.monotonic() - began < 40:
            client.sendall(b"x")
            with suppress(TimeoutError):
                if client.recv(1) == b"":
                    break
    assert time.monotonic() - began < 20, "half a second is promised, and not one anew with each byte"


@pytest.mark.parametrize("is_secure", [False, True], ids=["plain", "TLS"])
def test_more_clients_than_connections_make_room_for_a_probe(serve: Serve, tmp_path: Path, *, is_secure: bool) -> None:
    """Clients in the middle of a TLS handshake count as well."""
    files = make_certificates(tmp_path)
    settings = Settings(metrics_tls_cert=str(files.server), metrics_tls_key=str(files.server_key))
    served = serve(tls=Tls.from_table(settings, "metrics_tls_").context() if is_secure else None)
    context = ssl.create_default_context(cafile=str(files.authority))
    connections = served._serving._connections
    with ExitStack() as idle:
        for _ in range(3 * http_server._MAX_CLIENTS):
            idle.enter_context(socket.create_connection(("127.0.0.1", served.port)))
        for _ in range(5):
            assert httpx.get(f"{served.root}/healthz", verify=context, trust_env=False, timeout=60).status_code == 200
        assert len(connections) <= http_server._MAX_CLIENTS
    wait_until(lambda: not connections, what="the clients to be gone")


def test_a_port_that_is_taken_is_an_error_of_the_start(serve: Serve) -> None:
    served = serve()
    with pytest.raises(SettingsError, match=r"metrics_port: 127.* used \(Address already in use\); set another"):
        HttpServer(CollectorRegistry(), Readiness(), HttpAuth()).start(Listen("metrics_", "127.0.0.1", served.port))
    with pytest.raises(SettingsError, match=r"cannot be used .*; set another metrics_host$"):
        HttpServer(CollectorRegistry(), Readiness(), HttpAuth()).start(Listen("metrics_", "192.0.2.1", 0))


def test_an_address_of_version_six_is_served(serve: Serve) -> None:
    try:
        served = serve(host="::1")
    except OSError:
        pytest.skip("no IPv6 here")
    assert served.root.startswith("http://[::1]:")
    assert json.loads(served.get("/readyz", accept="application/json").text)["roles"]
