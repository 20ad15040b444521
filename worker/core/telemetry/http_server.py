"""The worker's HTTP server: `/metrics`, `/healthz`, `/readyz`. No page asks Redis or the broker.

aiohttp serves the pages in a thread with an event loop of its own. Slow and hostile clients cost a bounded number of
connections, each for seconds; when all are taken, the oldest one is aborted for the next. Nothing of a request is
logged or repeated in a reply.
"""

import asyncio
import base64
import gzip
import hmac
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import msgspec
import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder, gzip_accepted

from worker.core.config.serving import Listen, Secret, Tls
from worker.core.config.settings import Settings
from worker.core.telemetry.health import Readiness

log = structlog.get_logger("tracejudge.http")
_HEAD_S: Final = 5.0
"""Limit of the TLS handshake and the head of the request together."""
_REPLY_S: Final = 10.0
_MAX_HEAD_BYTES: Final = 16 * 1024
_MAX_CLIENTS: Final = 16
_TEXT: Final = "text/plain; charset=utf-8"
_REALM: Final = 'realm="tracejudge"'


class Credential:
    """The credential of a header `Authorization`: bearer token, or name and password. Its repr does not show it."""

    def __init__(self, authorization: str | None) -> None:
        scheme, _, text = (authorization or "").strip().partition(" ")
        self.scheme = scheme.lower()
        self.user = ""
        if self.scheme == "basic":
            try:
                self.user, _, text = base64.b64decode(text, validate=True).decode().partition(":")
            except ValueError:
                text = ""
        # A header may hold any bytes, decoded with surrogates.
        self._secret = text.strip().encode("utf-8", "replace")

    def shows(self, secret: str) -> bool:
        """Return whether it is a secret, in a time that does not depend on how much of it is right."""
        return hmac.compare_digest(self._secret, secret.strip().encode())


class HttpAuth:
    """The credential of the page, if it has one. Its repr does not show it."""

    def __init__(self, scheme: str | None = None, secret: str = "", user: str = "") -> None:
        """Require a credential of the scheme ``Bearer`` or ``Basic``; without a scheme the page is open."""
        self.scheme = scheme
        self._secret = secret
        self._user = user

    @classmethod
    def of(cls, settings: Settings, environment: Mapping[str, str]) -> "HttpAuth":
        """Read the credential from the variable or file that the settings name.

        Raises:
            SettingsError: It is absent, or an HTTP header cannot hold it.
        """
        token = Secret.of(settings, "metrics_token_").token(environment)
        if token is not None:
            return cls("Bearer", token)
        if settings.metrics_user is None:
            return cls()
        password = Secret.of(settings, "metrics_password_").read(environment)
        return cls("Basic", password or "", settings.metrics_user)

    @property
    def challenge(self) -> str | None:
        """The value of `WWW-Authenticate`; None if the page is open."""
        if self.scheme is None:
            return None
        return f'{self.scheme} {_REALM}, charset="UTF-8"' if self.scheme == "Basic" else f"{self.scheme} {_REALM}"

    def admits(self, authorization: str | None) -> bool:
        """Return whether a header opens the page."""
        if self.scheme is None:
            return True
        shown = Credential(authorization)
        return shown.shows(self._secret) and (shown.scheme, shown.user) == (self.scheme.lower(), self._user)


def _reply(status: int, body: bytes | str, content_type: str = _TEXT, **headers: str) -> web.Response:
    # The server's own name instead of the versions of Python and aiohttp, which help an attacker.
    always = {"Content-Type": content_type, "Cache-Control": "no-store", "Server": "tracejudge"}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    reply = web.Response(status=status, body=body, headers=always | named)
    reply.force_close()
    return reply


class _Connection(web.RequestHandler):
    """One request and its reply, both before ``deadline``: aiohttp bounds neither by itself."""

    def __init__(self, server: web.Server, deadline: asyncio.Timeout) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), access_log=None)  # type: ignore[arg-type]
        self.deadline = deadline
        self.closed = asyncio.Event()
        self._head_bytes = 0

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        if self._head_bytes > _MAX_HEAD_BYTES and self.transport is not None:
            # aiohttp bounds lines, not the head; a client of this server has no body to send behind it.
            self.transport.write(b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\n\r\n")
            self.force_close()
        else:
            super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self.closed.set()

    def handle_error(
        self,
        request: web.BaseRequest,  # noqa: ARG002 - the library's signature
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002
    ) -> web.StreamResponse:
        """Reply with the status alone: the library's page and log line quote the request."""
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            self.log_exception(exc_info=exc)
        return _reply(status, f"{HTTPStatus(status).phrase}\n")

    def log_exception(self, *_: Any, exc_info: Any = None, **__: Any) -> None:
        log.error("request failed", error=type(exc_info).__name__)


class HttpServer:
    """The pages of one worker."""

    def __init__(
        self, registry: CollectorRegistry, readiness: Readiness, access: HttpAuth, tls: ssl.SSLContext | None = None
    ) -> None:
        """Make a server, which ``start`` starts. ``access`` protects the metrics only, ``tls`` the probes as well."""
        self._registry = registry
        self._readiness = readiness
        self._access = access
        self._tls = tls
        self._connections: dict[asyncio.Task[None], socket.socket] = {}
        self._stopping = asyncio.Event()
        self._stop: Callable[[], object] = bool
        self._thread: threading.Thread | None = None

    @classmethod
    def of(
        cls, settings: Settings, environment: Mapping[str, str], registry: CollectorRegistry, readiness: Readiness
    ) -> "HttpServer":
        """Prepare the pages of a process with the credential and the certificate that the settings name.

        Raises:
            SettingsError: One of them cannot be used.
        """
        tls = Tls.of(settings, "metrics_tls_").context()
        return cls(registry, readiness, HttpAuth.of(settings, environment), tls)

    def start(self, listen: Listen) -> str:
        """Listen, and return the address of the metrics page.

        Raises:
            SettingsError: The address cannot be used.
        """
        # Bound here, so that the caller gets the error.
        listener = listen.open(backlog=64)
        listener.settimeout(0)
        runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._stop = partial(runner.get_loop().call_soon_threadsafe, self._stopping.set)
        self._thread = threading.Thread(target=self._run, args=(runner, listener), name="tracejudge-http", daemon=True)
        self._thread.start()
        if self._access.scheme is None and not listen.is_local:
            fix = "set metrics_token_env, or metrics_user with metrics_password_env"
            log.warning("metrics readable without credentials", host=listen.host, fix=fix)
        return f"{listen.url(listener, is_tls=self._tls is not None)}/metrics"

    def stop(self) -> None:
        """Close the listener and every connection."""
        if self._thread is not None:
            with suppress(RuntimeError):  # the loop is closed already
                self._stop()
            self._thread.join(2.0)

    def _run(self, runner: asyncio.Runner, listener: socket.socket) -> None:
        with listener, runner:
            # Only the type: the library's report of an error may quote what a client sent.
            runner.get_loop().set_exception_handler(
                lambda _, context: log.error("request failed", error=type(context.get("exception")).__name__)
            )
            runner.run(self._serve(listener))

    async def _serve(self, listener: socket.socket) -> None:
        """Serve until the stop; the runner then cancels all tasks."""
        accepting = asyncio.create_task(self._accept(listener))
        await self._stopping.wait()
        accepting.cancel()

    async def _accept(self, listener: socket.socket) -> None:
        """Accept connections; while as many are open as may be, abort the oldest."""
        loop = asyncio.get_running_loop()
        server = web.Server(self._page)
        while True:
            try:
                # Not `loop.create_server`: TLS handshakes under way would be neither counted nor aborted.
                client, _ = await loop.sock_accept(listener)
            except OSError:
                await asyncio.sleep(1.0)  # no file descriptor is left
                continue
            while len(self._connections) >= _MAX_CLIENTS:
                oldest = next(iter(self._connections))
                oldest.cancel()
                await asyncio.wait([oldest])
            task = loop.create_task(self._connection(server, client))
            self._connections[task] = client
            # Closed here: a task cancelled before its first step closes nothing.
            task.add_done_callback(lambda task: self._connections.pop(task).close())

    async def _connection(self, server: web.Server, client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(_HEAD_S) as deadline:
                transport, connection = await loop.connect_accepted_socket(
                    lambda: _Connection(server, deadline), client, ssl=self._tls
                )
                try:
                    await connection.closed.wait()
                finally:
                    # Not `close`, which waits until the client has read everything.
                    transport.abort()

    async def _page(self, request: web.BaseRequest) -> web.StreamResponse:
        deadline: asyncio.Timeout = request.protocol.deadline  # type: ignore[attr-defined]
        deadline.reschedule(asyncio.get_running_loop().time() + _REPLY_S)
        if request.method not in {"GET", "HEAD"}:
            return _reply(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD\n", Allow="GET, HEAD")
        match request.path:
            case "/metrics":
                # In a thread: a page of many series takes a second, in which probes must be answered.
                return await asyncio.to_thread(self._metrics, request)
            case "/healthz":
                dead = self._readiness.dead()
                if dead:
                    return _reply(HTTPStatus.SERVICE_UNAVAILABLE, f"threads ended: {', '.join(dead)}\n")
                return _reply(HTTPStatus.OK, "alive\n")
            case "/readyz":
                return self._readyz(request)
            case _:
                return _reply(HTTPStatus.NOT_FOUND, "there are /metrics, /healthz and /readyz\n")

    def _metrics(self, request: web.BaseRequest) -> web.Response:
        if not self._access.admits(request.headers.get("Authorization")):
            asked = "send the credential of this page\n"
            return _reply(HTTPStatus.UNAUTHORIZED, asked, WWW_Authenticate=self._access.challenge or "")
        try:
            encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        except (TypeError, ValueError):  # a version that is not a number
            encode, content_type = choose_encoder("")
        page = encode(self._registry)
        if gzip_accepted(request.headers.get("Accept-Encoding", "")):
            return _reply(HTTPStatus.OK, gzip.compress(page, 6), content_type, Content_Encoding="gzip")
        return _reply(HTTPStatus.OK, page, content_type)

    def _readyz(self, request: web.BaseRequest) -> web.Response:
        roles = self._readiness.roles()
        status = HTTPStatus.OK if all(role.ready for role in roles) else HTTPStatus.SERVICE_UNAVAILABLE
        if "application/json" in request.headers.get("Accept", ""):
            states = [{**role._asdict(), "seconds": round(role.seconds, 1)} for role in roles]
            return _reply(status, msgspec.json.encode({"roles": states}), "application/json")
        lines = [
            f"{role.role} {role.state}, progress {role.seconds:.1f} s ago{role.why and f': {role.why}'}\n"
            for role in roles
        ]
        return _reply(status, "".join(lines))
