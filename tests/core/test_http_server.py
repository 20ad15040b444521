"""The worker's HTTP server: its three pages, who may read them, and clients that are slow, huge or wrong."""

import base64
import gc
import gzip
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter
from structlog.testing import capture_logs
from support.processes import wait_until
from support.redis_kinds import Certificates
from support.scrape import scrape
from support.tables import as_bytes, read_table

from judges.core.model import ModelSettings
from judges.models.registry import ModelSettingsError, build
from worker.base.delivery.receiver_client import Destination, ReceiverClient
from worker.base.doctor.finding import cause_of
from worker.base.doctor.http_endpoints import endpoint
from worker.base.doctor.lint import lint
from worker.core.config.loading import load
from worker.core.config.serving import Listen, Tls
from worker.core.config.settings import Settings, SettingsError
from worker.core.telemetry import http_server, metrics
from worker.core.telemetry.health import Pulse, Readiness
from worker.core.telemetry.http_server import HttpAuth, HttpServer
from worker.core.telemetry.metrics import Metrics

TOKEN = "s3cret-t0ken"  # noqa: S105 - nobody's
CLOSED = HttpAuth("Bearer", TOKEN)
IN_VARIABLE = Settings(metrics_token_env="TOKEN")  # noqa: S106 - a name
MODEL = ModelSettings(base_url="https://127.0.0.1:1/v1", model="m")


class Served:
    """A server with one counter and one role, whose thread ends a turn whenever it is asked how it fares."""

    has_ended = False

    def __init__(
        self, access: HttpAuth | None = None, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
    ) -> None:
        registry = CollectorRegistry()
        Counter("verdicts", "Verdicts", registry=registry).inc(1, {"trace_id": "4bf92f35"})
        self.readiness = Readiness()
        self.readiness.watch("reader", "ingest", self)
        self._serving = HttpServer(registry, self.readiness, access or HttpAuth(), tls)
        self.metrics = self._serving.start(Listen("metrics_", host, 0))
        self.root = self.metrics.removesuffix("/metrics")
        self.port = urlsplit(self.root).port
        self.stop = self._serving.stop

    @property
    def pulse(self) -> Pulse:
        return Pulse(time.monotonic(), has_ended=self.has_ended)

    def get(self, path: str, **headers: str) -> httpx.Response:
        return httpx.get(f"{self.root}{path}", headers=headers, trust_env=False, timeout=60)

    def send(self, data: bytes) -> bytes:
        """Send bytes and read to the end of the connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as client:
            client.sendall(data)
            return b"".join(iter(lambda: client.recv(65536), b""))


Serve = Callable[..., Served]


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No client is cut off, or turned away, because the machine is busy with others."""
    for name in ("_HEAD_S", "_REPLY_S"):
        monkeypatch.setattr(http_server, name, 300.0)


@pytest.fixture
def serve(_patient: None) -> Iterator[Serve]:
    with ExitStack() as ends:

        def start(*arguments: object, **more: object) -> Served:
            served = Served(*arguments, **more)
            ends.callback(served.stop)
            return served

        yield start


def own_tls(certificates: Certificates) -> ssl.SSLContext | None:
    return Tls("metrics_tls_", str(certificates.server), str(certificates.server_key)).context()


def test_metrics_come_in_the_form_and_compression_that_is_asked_for(serve: Serve) -> None:
    served = serve()
    page = scrape(served.port)
    assert page.value("verdicts_total") == 1
    assert [exemplar.labels for exemplar in page.exemplars("verdicts_total")] == [{"trace_id": "4bf92f35"}]
    reply = served.get("/metrics?x=1", accept="*/*")
    assert (reply.status_code, reply.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert "verdicts_total 1.0" in reply.text
    request = b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept-Encoding: %s\r\n\r\n"
    head, _, body = served.send(request % b"gzip").partition(b"\r\n\r\n")
    assert b"Content-Encoding: gzip" in head
    assert b"verdicts_total 1.0" in gzip.decompress(body)
    assert b"verdicts_total 1.0" in served.send(request % b"identity")


def test_a_page_of_many_services_leaves_the_interpreter_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU of the rendering thread from one pause to the next: a busy machine lengthens the pauses, not the slices."""
    rendered, slices = Metrics(Settings(max_services=300)), list[float]()
    for number in range(300):
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
    assert page.text.count('tracejudge_score_age_seconds_count{service="service ') == 300
    assert len(slices) > 2 * 6_000 / 250, "a few hundred samples at most between two pauses"
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


def test_healthz_and_readyz_tell_of_a_thread_that_died_and_others_are_refused(serve: Serve) -> None:
    served = serve()
    replies = [served.get("/healthz"), served.get("/readyz")]
    served.has_ended = True
    replies += [served.get("/healthz"), served.get("/readyz")]
    assert [(reply.status_code, reply.text) for reply in replies] == [
        (200, "alive\n"),
        (200, "ingest ready, progress 0.0 s ago\n"),
        (503, "threads ended: reader\n"),
        (503, "ingest stalled, progress 0.0 s ago: reader: its thread has ended\n"),
    ]
    role = {"role": "ingest", "ready": False, "state": "stalled", "seconds": 0.0, "why": "reader: its thread has ended"}
    assert served.get("/readyz", accept="application/json").json() == {"roles": [role]}
    served.readiness.begin_stop()
    assert served.get("/healthz").status_code == 200, "it stops, as it was asked to"
    assert served.get("/").status_code == served.get("/metrics/x").status_code == 404
    assert served.send(b"POST /metrics HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 405 ")
    head, _, body = served.send(b"HEAD /healthz HTTP/1.1\r\nHost: x\r\n\r\n").partition(b"\r\n\r\n")
    assert (head.split(b"\r\n")[0], body) == (b"HTTP/1.1 200 OK", b"")
    assert b"Content-Length: 6" in head


def test_requests_leave_no_line_and_an_open_page_on_every_address_is_warned_of(
    serve: Serve, capfd: pytest.CaptureFixture[str]
) -> None:
    """That probes need no token is tested with a worker in `test_readiness.py`."""
    with capture_logs() as lines:
        served = serve(CLOSED)
        refused = served.get("/metrics")
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, 'Bearer realm="tracejudge"')
        assert "verdicts" not in refused.text
        served.get(f"/{TOKEN}", authorization=TOKEN)
        for text in (f"{TOKEN} {TOKEN} {TOKEN}\r\n\r\n", f"GET / HTTP/1.1\r\n{TOKEN}\r\n\r\n"):
            served.send(text.encode())
    assert (lines, TOKEN in "".join(capfd.readouterr())) == ([], False), "no line holds anything of a request"
    every = "0.0.0.0"  # noqa: S104 - what is warned of
    for host, access, warned in ((every, HttpAuth(), True), (every, CLOSED, False), ("127.0.0.1", HttpAuth(), False)):
        with capture_logs() as lines:
            serve(access, host=host)
        assert [(line["log_level"], line["host"]) for line in lines] == ([("warning", host)] if warned else [])


def test_tls_holds_for_all_pages(serve: Serve, certificates: Certificates) -> None:
    served = serve(tls=own_tls(certificates))
    assert served.root.startswith("https://")
    context, old = (ssl.create_default_context(cafile=str(certificates.authority)) for _ in range(2))
    old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2
    for verify in (context, old):
        with httpx.Client(verify=verify, trust_env=False, timeout=60) as client:
            for path in ("/metrics", "/healthz", "/readyz"):
                assert client.get(f"{served.root}{path}").status_code == 200
            assert b"HTTP/" not in served.send(b"GET /healthz HTTP/1.1\r\n\r\n"), "not a word without TLS"
            assert client.get(f"{served.root}/healthz").status_code == 200


def test_a_request_that_is_none_is_answered_without_its_words(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_REPLY_S", 1.0)  # a body that never comes is waited for
    served = serve()
    with capture_logs() as lines:
        for name, (sent, status) in read_table(__file__, "requests").items():
            reply = served.send(as_bytes(sent))
            assert re.match(rb"HTTP/[0-9.]+ (\d+) ", reply)[1] == b"%d" % status, name
            assert b"x: y" not in reply, name
            assert b"Python" not in reply, f"{name}: nor with what it runs on"
            assert served.get("/healthz").status_code == 200, name
    assert lines == []


def test_a_client_that_says_nothing_drips_or_never_reads_is_cut_off(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time is that of the whole head: each byte began it anew once."""
    monkeypatch.setattr(http_server, "_HEAD_S", 0.5)
    served = serve()
    with capture_logs() as lines:
        assert served.send(b"GET /healthz HTT") == served.send(b"") == b""
    assert lines == []
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", served.port), timeout=0.05) as client, suppress(ConnectionError):
        while time.monotonic() - began < 40:
            client.sendall(b"x")
            with suppress(TimeoutError):
                if client.recv(1) == b"":
                    break
    assert time.monotonic() - began < 20, "half a second is promised, and not one anew with each byte"
    # So is one that never reads a page that is larger than the buffers of both sockets.
    monkeypatch.setattr(http_server, "_REPLY_S", 0.5)
    served = serve()
    counter = Counter("filler", "Filler", ["label"], registry=served._serving._registry)
    for number in range(500):
        counter.labels(f"{number:020000}").inc()
    connections = served._serving._connections
    with socket.create_connection(("127.0.0.1", served.port)) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_until(lambda: connections, what="the connection to be accepted")
        wait_until(lambda: not connections, what="the client to be cut off")
    assert served.get("/healthz").status_code == 200


def test_more_clients_than_connections_make_room_for_a_probe(serve: Serve, certificates: Certificates) -> None:
    """Clients in the middle of a TLS handshake count as well."""
    context = ssl.create_default_context(cafile=str(certificates.authority))
    for tls in (None, own_tls(certificates)):
        served = serve(tls=tls)
        connections, health = served._serving._connections, f"{served.root}/healthz"
        with ExitStack() as idle:
            for _ in range(3 * http_server._MAX_CLIENTS):
                idle.enter_context(socket.create_connection(("127.0.0.1", served.port)))
            for _ in range(5):
                assert httpx.get(health, verify=context, trust_env=False, timeout=60).status_code == 200
            assert len(connections) <= http_server._MAX_CLIENTS
        wait_until(lambda connections=connections: not connections, what="the clients to be gone")


def test_a_port_that_is_taken_is_an_error_of_the_start(serve: Serve) -> None:
    served = serve()
    for host, port, message in (
        ("127.0.0.1", served.port, r"metrics_port: 127.* used \(Address already in use\); set another"),
        ("192.0.2.1", 0, r"cannot be used .*; set another metrics_host$"),
    ):
        with pytest.raises(SettingsError, match=message):
            HttpServer(CollectorRegistry(), Readiness(), HttpAuth()).start(Listen("metrics_", host, port))
    try:
        served = serve(host="::1")
    except OSError:
        pytest.skip("no IPv6 here")
    assert served.root.startswith("http://[::1]:")
    assert served.get("/healthz").status_code == 200


def test_a_token_or_user_and_password_open_the_page_and_nothing_else_does(tmp_path: Path) -> None:
    def basic(user: str, password: str) -> str:
        return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"

    (tmp_path / "password").write_text("pä:ss wörd\n", encoding="utf-8")
    by_password = Settings(metrics_user="prometheus", metrics_password_file=str(tmp_path / "password"))
    right, wrong = basic("prometheus", "pä:ss wörd"), basic("other", "pä:ss wörd")
    tokens = ("", "Bearer other", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", f"Basic {TOKEN}", TOKEN)
    refused = (
        None,
        *tokens,
        wrong,
        basic("prometheus", "other"),
        "Basic prometheus",
        "Bearer s3cr\xe9t",
        "Bearer \u20ac",
    )
    for settings, challenge, admitted in (
        (Settings(), None, (*refused, right)),
        (IN_VARIABLE, 'Bearer realm="tracejudge"', (f"Bearer {TOKEN}", f"bEARER  {TOKEN} ")),
        (by_password, 'Basic realm="tracejudge", charset="UTF-8"', (right,)),
    ):
        access = HttpAuth.from_settings(settings, {"TOKEN": TOKEN})
        assert (access.challenge, TOKEN in f"{access!r} {access}") == (challenge, False)
        for header in {*refused, *admitted}:
            assert access.admits(header) is (header in admitted), (challenge, header)
    in_variable = Settings(metrics_user="u", metrics_password_env="PASS")  # noqa: S106 - a name
    absent, folder = (Settings(metrics_token_file=path) for path in ("absent", "."))
    for settings, token, message in (
        (IN_VARIABLE, "", "metrics_token_env: the variable TOKEN is empty"),
        (IN_VARIABLE, " ", "metrics_token_env: the variable TOKEN is empty"),
        (absent, "", "metrics_token_file: absent cannot be read (No such file"),
        (folder, "", "metrics_token_file: . cannot be read (Is a directory)"),
        (in_variable, "", "metrics_password_env: the variable PASS is empty"),
        (IN_VARIABLE, f"{TOKEN} more", "metrics_token: must be ASCII characters without blanks"),
    ):
        with pytest.raises(SettingsError) as caught:
            HttpAuth.from_settings(settings, {"TOKEN": token})
        assert str(caught.value).startswith(message)
        assert TOKEN not in str(caught.value)


def test_certificate_and_key_are_read_before_anything_starts(tmp_path: Path, certificates: Certificates) -> None:
    assert Tls.from_table(Settings(), "metrics_tls_").context() is None
    cert, key, other = certificates.server, certificates.server_key, certificates.client_key
    settings = Settings(metrics_tls_cert=str(cert), metrics_tls_key=str(key))
    assert Tls.from_table(settings, "metrics_tls_").context() is not None
    for wrong_cert, wrong_key, message in (
        (cert, other, "certificate and key cannot be used (KEY_VALUES_MISMATCH)"),
        (key, key, "certificate and key cannot be used"),
        (cert, cert, "certificate and key cannot be used"),
        (tmp_path / "absent", key, "certificate or key cannot be read (No such file or directory)"),
        (cert, tmp_path / "absent", "certificate or key cannot be read (No such file or directory)"),
    ):
        with pytest.raises(SettingsError, match=r"^gateway.tls_cert: ") as refused:
            Tls("gateway.tls_", str(wrong_cert), str(wrong_key)).context()
        named = [str(path) in str(refused.value) for path in (wrong_cert, wrong_key)]
        assert (message in str(refused.value), *named) == (True, True, True)


def test_a_file_for_tls_that_cannot_be_used_stops_the_start(
    tmp_path: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether settings or a variable name it, and with its path."""

    def address(key: str, url: str, path: str) -> object:
        return load({f"TRACEJUDGE_{key}": f"{url}{path}"}, None, needs_rules=False)

    def receiver(path: str) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", path)
        ReceiverClient(Destination("https://127.0.0.1:1", "receivers.x", "a receiver")).close()

    def model(path: str) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", path)
        build(MODEL, {})

    def plain(path: str) -> object:
        return load({"SSL_CERT_FILE": path}, None, {"redis_url": "rediss://host"}, needs_rules=False)

    urls = (
        *(
            ("REDIS_URL", "rediss://:secret@host/0", option)
            for option in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
        ),
        *(("BROKER_URL", "amqps://u:secret@host/0", option) for option in ("ssl_ca_certs", "keyfile")),
        ("BROKER_URL", "rediss://u:secret@host/0", "ssl_ca_certs"),
        ("REDIS_URL", "REDISS://h", "ssl_ca_certs"),
    )
    uses: list[tuple[str, Callable[[str], object]]] = [
        *((option, partial(address, key, f"{url}?{option}=")) for key, url, option in urls),
        ("SSL_CERT_FILE", plain),
        ("base_url: the variable SSL_CERT_FILE", model),
        ("SSL_CERT_FILE", receiver),
    ]
    files = {"empty": "", "text": "no PEM", "cut": certificates.server.read_text()[:400]}
    for file, content in files.items():
        (tmp_path / file).write_text(content)
    for name, use in uses:
        for path in ("/nowhere/ca.pem", *(str(tmp_path / file) for file in files), str(tmp_path)):
            with pytest.raises((SettingsError, ModelSettingsError)) as caught:
                use(path)
            assert f"{name}: the file {path} cannot be used (" in str(caught.value)
            assert "secret" not in str(caught.value)
        use(str(certificates.server_key if "key" in name.lower() else certificates.server))


def test_lint_and_doctor_name_files_for_tls_that_stop_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(__file__).parent / "data" / "linted.toml"
    variables = {"SSL_CERT_FILE": "/nowhere/h"}
    findings = lint(variables, str(path))
    assert {(finding.key or finding.place, finding.line) for finding in findings} == {
        ("redis_url", 1), ("broker_url", 2), ("metrics_tls_cert", 3), ("metrics_tls_key", 4),
        ("receivers.x.ca_file", 11), ("receivers.x.client_cert", 12), ("receivers.x.client_key", 13),
        ("SSL_CERT_FILE", None),
    }  # fmt: skip
    assert {(finding.code, finding.fix) for finding in findings} == {("TJ001", "name a readable PEM file")}
    assert all("cannot be used (No such file" in finding.what and "secret" not in finding.what for finding in findings)
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/ca.pem")
    assert "/nowhere/ca.pem" in endpoint("m", MODEL, {})[0].what
    missing = FileNotFoundError(2, "No such file or directory")
    for address, what in (("unix:///run/redis.sock", "no socket at"), ("rediss://host", "no certificate file for")):
        assert cause_of(missing, address, "Redis").what == f"there is {what} {address}"
    # Files that nothing uses are no matter.
    build(ModelSettings(base_url="http://127.0.0.1:1/v1", model="m"), {})
    load({"SSL_CERT_FILE": "/nowhere/ca.pem"}, None, needs_rules=False)
    assert not [finding for finding in lint({"SSL_CERT_FILE": "/nowhere/ca.pem"}) if finding.severity == "error"]
