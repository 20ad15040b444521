"""The worker's HTTP server: `/metrics`, `/healthz`, `/readyz`. No page asks Redis or the broker.

Slow and hostile clients cost a bounded number of threads, each for seconds; when all are taken, the client that is the
longest at it makes room for the next. Nothing of a request is logged.
"""

import gzip
import io
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, Final, NamedTuple, cast

import msgspec
import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder, gzip_accepted

from worker.access import Access
from worker.readiness import Readiness, RoleState
from worker.wire import HeadTooLongError, Wire

__all__ = ["LOOPBACK", "Serving"]

log = structlog.get_logger("tracejudge.serving")

_MAX_CLIENTS: Final = 16
_ROOM_S: Final = 1.0
_POLL_S: Final = 0.1
_TEXT: Final = "text/plain; charset=utf-8"
LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


class _Page(NamedTuple):
    status: HTTPStatus
    content_type: str
    body: bytes
    headers: Mapping[str, str] = {}


class Serving:
    """The pages of one worker."""

    def __init__(
        self, registry: CollectorRegistry, readiness: Readiness, access: Access, tls: ssl.SSLContext | None = None
    ) -> None:
        """Prepare; ``start`` listens.

        Args:
            access: Who may read the metrics; the probes are open to all.
            tls: Certificate and key; holds for all pages.
        """
        self._registry = registry
        self._readiness = readiness
        self._access = access
        self._tls = tls
        self._server: _Server | None = None
        self._pages: Mapping[str, Callable[[Mapping[str, str]], _Page]] = {
            "/metrics": self._metrics,
            "/healthz": self._healthz,
            "/readyz": self._readyz,
        }

    def start(self, host: str, port: int) -> str:
        """Listen, and return the address of the metrics page; port 0 takes any free one.

        Raises:
            OSError: The address cannot be used.
        """
        family, *_, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        self._server = _Server(family, where, self._page, self._tls)
        threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="tracejudge-serving", daemon=True
        ).start()
        if self._access.scheme is None and host not in LOOPBACK:
            mend = "set metrics_token_env, or metrics_user with metrics_password_env"
            log.warning("anyone who reaches this address may read the metrics", host=host, mend=mend)
        shown = f"[{host}]" if ":" in host else host
        return f"{'https' if self._tls else 'http'}://{shown}:{self._server.server_address[1]}/metrics"

    def stop(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _page(self, path: str, headers: Mapping[str, str]) -> _Page:
        make = self._pages.get(path.partition("?")[0])
        if make is None:
            return _Page(HTTPStatus.NOT_FOUND, _TEXT, b"there are /metrics, /healthz and /readyz\n")
        return make(headers)

    def _metrics(self, headers: Mapping[str, str]) -> _Page:
        if not self._access.admits(headers.get("Authorization")):
            asked = {"WWW-Authenticate": self._access.challenge or ""}
            return _Page(HTTPStatus.UNAUTHORIZED, _TEXT, b"show the credential of this page\n", asked)
        encode, content_type = _encoder(headers.get("Accept", ""))
        body = encode(self._registry)
        if gzip_accepted(headers.get("Accept-Encoding", "")):
            return _Page(HTTPStatus.OK, content_type, gzip.compress(body, 6), {"Content-Encoding": "gzip"})
        return _Page(HTTPStatus.OK, content_type, body)

    def _healthz(self, _: Mapping[str, str]) -> _Page:
        dead = self._readiness.dead()
        if dead:
            return _Page(HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, f"has ended: {', '.join(dead)}\n".encode())
        return _Page(HTTPStatus.OK, _TEXT, b"alive\n")

    def _readyz(self, headers: Mapping[str, str]) -> _Page:
        roles = self._readiness.roles()
        status = HTTPStatus.OK if all(role.ready for role in roles) else HTTPStatus.SERVICE_UNAVAILABLE
        if "application/json" in headers.get("Accept", ""):
            said = [{**role._asdict(), "seconds": round(role.seconds, 1)} for role in roles]
            return _Page(status, "application/json", msgspec.json.encode({"roles": said}))
        return _Page(status, _TEXT, "".join(map(_line, roles)).encode())


def _encoder(accept: str) -> tuple[Callable[[CollectorRegistry], bytes], str]:
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):
        # A version that is no number.
        return choose_encoder("")


def _line(role: RoleState) -> str:
    why = f": {role.why}" if role.why else ""
    return f"{role.role} {role.state}, progress {role.seconds:.1f} s ago{why}\n"


class _Server(ThreadingHTTPServer):
    """Gives each client a thread, as long as there are threads; then the oldest client has to go."""

    request_queue_size = 64

    def __init__(
        self,
        family: socket.AddressFamily,
        where: Any,
        page: Callable[[str, Mapping[str, str]], _Page],
        tls: ssl.SSLContext | None,
    ) -> None:
        self.address_family = family
        self.page = page
        self._tls = tls
        self._room = threading.Semaphore(_MAX_CLIENTS)
        self._lock = threading.Lock()
        self._clients: dict[int, Wire] = {}
        super().__init__(where, _Handler)

    def server_bind(self) -> None:
        # Not HTTPServer's: it looks up our name, which can take seconds.
        TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self._cut_oldest()
            if not self._room.acquire(timeout=_ROOM_S):
                self.shutdown_request(request)
                return
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        wire = Wire(request)
        with self._lock:
            self._clients[id(wire)] = wire
        try:
            if self._tls is not None:
                wire.secure(self._tls)
            _Handler(cast("Any", wire), client_address, self)
        finally:
            with self._lock:
                del self._clients[id(wire)]
            wire.close()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the library's signature
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            # Only the type: a traceback would show what the client sent.
            log.error("request failed", error=type(error).__name__)

    def _cut_oldest(self) -> None:
        with self._lock:
            oldest = next(iter(self._clients.values()), None)
        if oldest is not None:
            oldest.cut()


class _Handler(BaseHTTPRequestHandler):
    """Answers one request, read to its end before anything looks at it, and sent when it is complete."""

    server: _Server
    request: Any
    """A ``Wire``, which the library takes for a socket and hands on."""
    wfile: io.BytesIO
    default_request_version = "HTTP/1.0"
    # What replies look at, also where there is no request to read.
    request_version, requestline, command = "HTTP/1.0", "", ""

    def setup(self) -> None:
        self.wfile = io.BytesIO()

    def handle(self) -> None:
        try:
            self.rfile = io.BytesIO(self.request.head())
        except HeadTooLongError:
            self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        else:
            self.handle_one_request()

    def finish(self) -> None:
        self.request.reply(self.wfile.getvalue())

    def do_GET(self) -> None:
        self._send(self.server.page(self.path, self.headers))  # type: ignore[arg-type]

    def do_HEAD(self) -> None:
        self.do_GET()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Say the status alone: the library's page quotes the request."""
        status = HTTPStatus(code)
        self._send(_Page(status, _TEXT, f"{status.phrase}\n".encode()))

    def version_string(self) -> str:
        """Name the program, and not what it runs on."""
        return "tracejudge"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's signature
        """Log nothing."""

    def _send(self, page: _Page) -> None:
        self.send_response(page.status)
        for name, value in page.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page.body)
