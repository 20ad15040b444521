"""The HTTP server of gateway and board, and on top of it the worker's pages `/metrics`, `/healthz`, `/readyz`.

uvicorn reads and writes HTTP. It bounds neither connections nor the time for a handshake, a head and a reply, so those
bounds are here. No page of the worker asks Redis or the broker; nothing of a request for one is logged or repeated.
"""

import asyncio
import base64
import gzip
import hmac
import logging
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from email.utils import formatdate
from functools import partial
from http import HTTPStatus
from types import FrameType
from typing import Any, Final, NamedTuple

import msgspec
import structlog
import uvicorn
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder, gzip_accepted
from uvicorn.protocols.http.h11_impl import H11Protocol

from worker.core.config.serving import Listen, Secret, Tls
from worker.core.config.settings import Settings
from worker.core.telemetry.health import Readiness

log = structlog.get_logger("tracejudge.http")
_HEAD_S: Final = 5.0  # Limit of the TLS handshake and the head of a request for a page together.
_REPLY_S: Final = 10.0
_MAX_CLIENTS: Final = 16
_IDLE_S: Final = 75
_PIECE_BYTES: Final = 64 * 1024
_SILENT: Final = logging.Logger("tracejudge.http", logging.CRITICAL + 1)  # noqa: LOG001 - of nobody else


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
    def from_settings(cls, settings: Settings, environment: Mapping[str, str]) -> "HttpAuth":
        """Read the credential that the settings name; raises ``SettingsError`` if absent or nothing for a header."""
        token = Secret.from_table(settings, "metrics_token_").token(environment)
        if token is not None:
            return cls("Bearer", token)
        if settings.metrics_user is None:
            return cls()
        password = Secret.from_table(settings, "metrics_password_").read(environment)
        return cls("Basic", password or "", settings.metrics_user)

    @property
    def challenge(self) -> str | None:
        """The value of `WWW-Authenticate`; None if the page is open."""
        more = ', charset="UTF-8"' if self.scheme == "Basic" else ""
        return self.scheme and f'{self.scheme} realm="tracejudge"{more}'

    def admits(self, authorization: str | None) -> bool:
        """Return whether a header opens the page."""
        if self.scheme is None:
            return True
        shown = Credential(authorization)
        return shown.shows(self._secret) and (shown.scheme, shown.user) == (self.scheme.lower(), self._user)


class BoundedProtocol(H11Protocol):
    """One connection: a head must be complete within its time, and so must the reply where the server bounds it."""

    def __init__(self, server: "WebServer", deadline: asyncio.Timeout, *, is_refused: bool) -> None:
        super().__init__(config=server.config, server_state=server.server_state, app_state={})
        self.closed = asyncio.Event()
        self._server = server
        self._deadline = deadline
        self._is_refused = is_refused
        self._in_head = server.reply_s is not None
        if server.reply_s is not None:
            # There are as many lines of the library as a client likes.
            self.logger = _SILENT

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, or refuse a connection over the bound."""
        super().connection_made(transport)
        if self._is_refused:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE)
        elif not self._in_head:
            self._expect(_IDLE_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """Free the place."""
        super().connection_lost(exc)
        self.closed.set()

    def data_received(self, data: bytes) -> None:
        """Start the time of a head with its first byte, and end it when the head is complete."""
        if self._is_refused:
            return
        before = self.cycle
        if not self._in_head and (before is None or before.response_complete):
            self._in_head = True
            self._expect(self._server.head_s)
        super().data_received(data)
        if self.cycle is not before:
            self._in_head = False
            self._expect(self._server.reply_s)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - the library's signature
        """Refuse a request that is none, or whose head is too long; the library calls this while it handles that."""
        self._refuse(HTTPStatus(getattr(sys.exc_info()[1], "error_status_hint", HTTPStatus.BAD_REQUEST)))

    def _expect(self, seconds: float | None) -> None:
        self._deadline.reschedule(None if seconds is None else self.loop.time() + seconds)

    def _refuse(self, status: HTTPStatus) -> None:
        self.transport.write(_refusal(status))
        self.transport.close()


def _refusal(status: HTTPStatus) -> bytes:
    more = "Retry-After: 5\r\n" if status is HTTPStatus.SERVICE_UNAVAILABLE else ""
    # With its length the answer is whole before the reset that follows a request nobody reads.
    head = f"HTTP/1.1 {status} {status.phrase}\r\nServer: tracejudge\r\nConnection: close\r\nContent-Length: 0\r\n"
    return f"{head}{more}\r\n".encode()


class WebServer(uvicorn.Server):
    """Ends with exit code 0 on a signal, and is not ready from then on; a second signal ends open requests.

    Clients have at most ``most`` connections, TLS handshakes included. With ``reply_s`` each is for one request, and
    the oldest is aborted for the next; without, a connection may stay idle, and those over the bound are refused.
    """

    started_hook: Callable[[], object] | None = None  # Called once requests are answered and signals end the server.

    def __init__(
        self,
        app: Any,
        readiness: Readiness,
        tls: ssl.SSLContext | None,
        *,
        most: int = 1_000,
        head_s: float = 10.0,
        reply_s: float | None = None,
        **options: Any,
    ) -> None:
        """Make a server; ``options`` of ``uvicorn.Config`` add to those that all servers have."""
        config = uvicorn.Config(
            app,
            http=H11Protocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_IDLE_S,
            h11_max_incomplete_event_size=16 * 1024,
            **options,
        )
        config.load()
        super().__init__(config)
        self.head_s, self.reply_s = head_s, reply_s
        self._most = most
        self._tls = tls
        self._readiness = readiness
        self._connections: dict[asyncio.Task[None], socket.socket] = {}

    @property
    def open_connections(self) -> int:
        """How many connections are open, but for those being refused."""
        return min(len(self._connections), self._most)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then report it: signals are handled by now, so the server can be stopped after the report."""
        # Log only the type, because the library's report of an error may quote what a client sent.
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: log.error("request failed", error=type(context.get("exception")).__name__)
        )
        self.servers = []
        self._accepting = [asyncio.create_task(self._accept(listener)) for listener in sockets or ()]
        self.started = True
        if self.started_hook is not None:
            self.started_hook()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept nothing more, and answer what has begun."""
        for accepting in self._accepting:
            accepting.cancel()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the library's signature
        """Stop. The library's own method raises the signal again at the end, which would be the exit code."""
        self._readiness.begin_stop()
        self.force_exit, self.should_exit = self.should_exit, True

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        listener.settimeout(0)
        while True:
            await asyncio.sleep(0)  # the next client may be there already, and others wait for their turn
            try:
                # Not `loop.create_server`: TLS handshakes under way would be neither counted nor aborted.
                client, _ = await loop.sock_accept(listener)
            except OSError:
                await asyncio.sleep(1.0)  # no file descriptor is left
                continue
            while self.reply_s is not None and len(self._connections) >= self._most:
                oldest = next(iter(self._connections))
                oldest.cancel()
                await asyncio.wait([oldest])
            is_refused = len(self._connections) >= self._most
            if is_refused and self._tls is None:
                # Refuse at once, because there may be many, and all that the others need costs three times as much.
                with client, suppress(OSError):
                    client.send(_refusal(HTTPStatus.SERVICE_UNAVAILABLE))
                continue
            task = loop.create_task(self._connection(client, is_refused=is_refused))
            self._connections[task] = client
            # The callback closes it, because a task that is cancelled before its first step closes nothing.
            task.add_done_callback(lambda task: self._connections.pop(task).close())

    async def _connection(self, client: socket.socket, *, is_refused: bool) -> None:
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(self.head_s) as deadline:
                transport, connection = await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: BoundedProtocol(self, deadline, is_refused=is_refused), client, ssl=self._tls
                )
                try:
                    await connection.closed.wait()
                finally:
                    # Not `close`, which waits until the client has read everything.
                    transport.abort()


class _Reply(NamedTuple):
    status: HTTPStatus
    body: bytes | str
    headers: Mapping[str, str] = {}


class HttpServer(WebServer):
    """The pages of one worker."""

    def __init__(
        self, registry: CollectorRegistry, readiness: Readiness, access: HttpAuth, tls: ssl.SSLContext | None = None
    ) -> None:
        """Make a server, which ``start`` starts. ``access`` protects the metrics only, ``tls`` the probes as well."""
        super().__init__(self._serve_page, readiness, tls, most=_MAX_CLIENTS, head_s=_HEAD_S, reply_s=_REPLY_S)
        self._registry = registry
        self._access = access
        self._rendered: dict[tuple[bool, bool], asyncio.Task[bytes]] = {}
        self._stopping = asyncio.Event()
        self._stop: Callable[[], object] = bool
        self._thread: threading.Thread | None = None

    @classmethod
    def from_settings(
        cls, settings: Settings, environment: Mapping[str, str], registry: CollectorRegistry, readiness: Readiness
    ) -> "HttpServer":
        """Prepare the pages with credential and certificate of the settings, or raise ``SettingsError``."""
        tls = Tls.from_table(settings, "metrics_tls_").context()
        return cls(registry, readiness, HttpAuth.from_settings(settings, environment), tls)

    def start(self, listen: Listen) -> str:
        """Listen, and return the address of the metrics page; raises ``SettingsError`` if it cannot be used."""
        listener = listen.open(backlog=64)
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

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until the stop; the runner then cancels all tasks."""
        await self.startup(sockets)
        await self._stopping.wait()

    def _run(self, runner: asyncio.Runner, listener: socket.socket) -> None:
        with listener, runner:
            runner.run(self.serve([listener]))

    async def _serve_page(self, scope: Any, _: object, send: Callable[[dict[str, Any]], Any]) -> None:
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        page = {"/metrics": self._metrics, "/healthz": self._healthz, "/readyz": self._readyz}.get(scope["path"])
        if scope["http_version"] not in {"1.0", "1.1"} or not scope["path"].startswith("/"):
            reply = _Reply(HTTPStatus.BAD_REQUEST, "Bad Request\n")
        elif scope["method"] not in {"GET", "HEAD"}:
            reply = _Reply(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD\n", {"Allow": "GET, HEAD"})
        elif page is None:
            reply = _Reply(HTTPStatus.NOT_FOUND, "there are /metrics, /healthz and /readyz\n")
        else:
            try:
                reply = await page(headers)
            except Exception as error:  # noqa: BLE001 - only the type: the text may quote a request
                log.error("request failed", error=type(error).__name__)  # noqa: TRY400
                reply = _Reply(HTTPStatus.INTERNAL_SERVER_ERROR, "Internal Server Error\n")
        body = reply.body.encode() if isinstance(reply.body, str) else reply.body
        own = {"Content-Type": "text/plain; charset=utf-8", "Content-Length": str(len(body)), "connection": "close"}
        own |= {"Cache-Control": "no-store", "Server": "tracejudge", "Date": formatdate(usegmt=True), **reply.headers}
        pairs = [(name.encode(), value.encode()) for name, value in own.items()]
        await send({"type": "http.response.start", "status": reply.status, "headers": pairs})
        for start in range(0, len(body) or 1, _PIECE_BYTES):
            end = start + _PIECE_BYTES
            await send({"type": "http.response.body", "body": body[start:end], "more_body": end < len(body)})

    async def _metrics(self, headers: Mapping[str, str]) -> _Reply:
        if not self._access.admits(headers.get("authorization")):
            asked = "send the credential of this page\n"
            return _Reply(HTTPStatus.UNAUTHORIZED, asked, {"WWW-Authenticate": self._access.challenge or ""})
        try:
            encode, content_type = choose_encoder(headers.get("accept", ""))
        except (TypeError, ValueError):  # a version that is not a number
            encode, content_type = choose_encoder("")
        is_gzip = gzip_accepted(headers.get("accept-encoding", ""))
        # In a thread, as probes are answered meanwhile. Clients that come meanwhile get the page that is being made.
        form = content_type.startswith("application/openmetrics"), is_gzip
        if form not in self._rendered:
            self._rendered[form] = asyncio.create_task(asyncio.to_thread(self._render, encode, is_gzip=is_gzip))
            self._rendered[form].add_done_callback(lambda _: self._rendered.pop(form))
        more = {"Content-Encoding": "gzip"} if is_gzip else {}
        return _Reply(HTTPStatus.OK, await self._rendered[form], {"Content-Type": content_type, **more})

    def _render(self, encode: Callable[..., bytes], *, is_gzip: bool) -> bytes:
        page = encode(self._registry)
        # Level 1 takes a third of the time of level 6, for a page an eighth larger; the interpreter is free meanwhile.
        return gzip.compress(page, 1) if is_gzip else page

    async def _healthz(self, _: Mapping[str, str]) -> _Reply:
        ended = ", ".join(self._readiness.ended_threads())
        status = HTTPStatus.SERVICE_UNAVAILABLE if ended else HTTPStatus.OK
        return _Reply(status, f"threads ended: {ended}\n" if ended else "alive\n")

    async def _readyz(self, headers: Mapping[str, str]) -> _Reply:
        roles = self._readiness.roles()
        status = HTTPStatus.OK if all(role.ready for role in roles) else HTTPStatus.SERVICE_UNAVAILABLE
        if "application/json" in headers.get("accept", ""):
            states = [{**role._asdict(), "seconds": round(role.seconds, 1)} for role in roles]
            return _Reply(status, msgspec.json.encode({"roles": states}), {"Content-Type": "application/json"})
        lines = [
            f"{role.role} {role.state}, progress {role.seconds:.1f} s ago{role.why and f': {role.why}'}\n"
            for role in roles
        ]
        return _Reply(status, "".join(lines))
