"""Runs the gateway: the handlers of requests, HTTP server, threads and pages, started and stopped in order."""

import asyncio
import contextlib
import gc
import resource
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from queue import SimpleQueue
from typing import Any, Final

import msgspec
import structlog
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from worker.base.dialects import load_dialects
from worker.base.input.unusable import UnusableInput
from worker.core.config.serving import Listen, Tls
from worker.core.config.settings import Settings, SettingsError
from worker.core.storage.client import StoreError, StoreFullError, make_stores
from worker.core.telemetry.health import Readiness
from worker.core.telemetry.http_server import HttpServer, WebServer
from worker.core.telemetry.service import HeartbeatThread, open_stores
from worker.features.gateway.admission import (
    Access,
    Bodies,
    Client,
    Form,
    GatewayMetrics,
    Instrumentations,
    Losses,
    RefusedError,
    form_of,
    full,
    status_reply,
)
from worker.features.gateway.feature import GATEWAY
from worker.features.gateway.gathering import Gatherers, Joiner
from worker.features.gateway.intake import Encoder, Intake, read_intake, sdk_settings
from worker.features.gateway.otlp import Request as OtlpRequest
from worker.features.gateway.otlp import read_request, reply_content
from worker.features.gateway.publishing import Capacity, Publisher

_ANSWER_S: Final = 10.0  # How long a request waits for Redis; then the client sends it again.
_LARGE_BYTES: Final = 128 * 1024
"""Larger bodies are read beside the event loop, and only two at once, so that others have threads left."""
_LATE: Final = "Redis does not answer; send this again later"
_BUSY: Final = "the gateway is busy; send fewer items at once, or this again later"
_OTLP_FORMS: Final = (Form.PROTOBUF, Form.JSON)
Handler = Callable[[Request, Client, Form], Awaitable[Response]]
log = structlog.get_logger("tracejudge.gateway")
_BACKLOG: Final = 1_024


class _DaemonPool(Executor):
    """Threads for work on requests; unlike those of ``ThreadPoolExecutor`` they delay no end of the process."""

    def __init__(self, threads: int) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        for _ in range(threads):
            threading.Thread(target=self._run, name="tracejudge-gateway", daemon=True).start()

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Future[Any]:
        """Queue a call, and return its future."""
        future: Future[Any] = Future()
        self._calls.put((future, partial(function, *arguments, **keywords)))
        return future

    def _run(self) -> None:
        while True:
            future, function = self._calls.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:  # noqa: BLE001 - raised where the future is awaited
                    future.set_exception(error)
            # The next call may come late, and what this one refers to may be large.
            del future, function


class GatewayServer:
    """One gateway process."""

    def __init__(self, settings: Settings, environment: Mapping[str, str], config: str | None = None) -> None:
        """Build everything, or raise ``SettingsError``; ``config`` is the configuration file, for errors."""
        self._settings = settings
        self._metrics = GatewayMetrics(settings)
        access = Access.from_settings(settings, environment)
        sdk = sdk_settings(settings)
        self._stores = make_stores(settings.redis_url, settings.prefix, settings.partition_count)
        open_stores(self._stores, settings, config)
        capacity = Capacity(settings, self._stores)
        publisher = Publisher(sdk, capacity, self._metrics)
        gatherer = Gatherers(self._stores, GATEWAY.read(settings))
        self._losses = Losses(UnusableInput(self._stores[0]), self._metrics)
        # Stopped from the last to the first: the joiner needs the publisher.
        dialects = load_dialects(config)
        joiner = Joiner(gatherer.each, Encoder(sdk), publisher, self._losses, dialects=dialects)
        heartbeat = HeartbeatThread("gateway", self._stores[0], settings.config_hash)
        self._threads = [publisher, capacity, joiner, heartbeat]
        self._readiness = Readiness()
        for thread in self._threads:
            self._readiness.watch(thread.name, "intake", thread)
        self._pages = HttpServer.from_settings(settings, environment, self._metrics.registry, self._readiness)
        self._executor = _DaemonPool(4)
        bodies = Bodies(GATEWAY.read(settings).max_body_bytes)
        own = threading.local()

        def encoder() -> Encoder:
            # An encoder keeps the cause of its last refusal, so each thread has its own.
            if not hasattr(own, "encoder"):
                own.encoder = Encoder(sdk)
            of_thread: Encoder = own.encoder
            return of_thread

        self._gateway = Gateway(
            access=access,
            bodies=bodies,
            encoder=encoder,
            publisher=publisher,
            gatherer=gatherer,
            executor=self._executor,
            metrics=self._metrics,
            losses=self._losses,
            instrumentations=Instrumentations(dialects),
        )
        self._metrics.gathered_bytes.set_function(lambda: gatherer.held_bytes)
        self._metrics.body_bytes.set_function(lambda: bodies.held_bytes)

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT; raises ``SettingsError`` if an address or certificate cannot be used."""
        gateway = GATEWAY.read(self._settings)
        # The soft limit of open files has room for a hundred more than the connections, as far as the hard one allows.
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        files = gateway.max_connections + 100
        most = files if hard == resource.RLIM_INFINITY else min(files, hard)
        if soft != resource.RLIM_INFINITY and soft < most:
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        listen, tls = Listen.from_table(gateway, "gateway."), Tls.from_table(gateway, "gateway.tls_").context()
        listener = listen.open(_BACKLOG)
        server = WebServer(
            self._gateway.app(gateway.cors_origins),
            self._readiness,
            tls,
            most=gateway.max_connections,
            date_header=False,
            timeout_graceful_shutdown=int(self._settings.grace_s),
        )
        self._metrics.connections.set_function(lambda: server.open_connections)
        try:
            page = self._pages.start(Listen("gateway.metrics_", self._settings.metrics_host, gateway.metrics_port))
        except SettingsError:
            listener.close()
            raise
        # Spans are short-lived and hold no cycles: with the default thresholds the collector takes a sixth of the time.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        for thread in self._threads:
            thread.start()
        intake = listen.url(listener, is_tls=tls is not None)
        server.started_hook = partial(log.info, "gateway started", intake=intake, metrics=page)
        try:
            server.run(sockets=[listener])
        finally:
            self._stop()

    def _stop(self) -> None:
        """Stop in the order of the data: uvicorn has answered every request, so nothing new comes to the threads."""
        self._readiness.begin_stop()
        for thread in reversed(self._threads):
            thread.stop(5.0)
        self._losses.write(at_end=True)
        self._pages.stop()
        for store in self._stores:
            store.close()
        log.info("gateway stopped")


@dataclass(frozen=True)
class Gateway:
    """The handlers of one process and what they share."""

    access: Access
    bodies: Bodies
    encoder: Callable[[], Encoder]
    publisher: Publisher
    gatherer: Gatherers
    executor: Executor
    metrics: GatewayMetrics
    losses: Losses
    instrumentations: Instrumentations
    large: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(2))

    def app(self, cors_origins: Sequence[str]) -> Starlette:
        """Build the application."""
        allowed = ["Authorization", "Content-Type", "Content-Encoding", "Idempotency-Key"]
        cors = Middleware(CORSMiddleware, allow_origins=cors_origins, allow_methods=["POST"], allow_headers=allowed)
        app = Starlette(
            routes=[
                self._route("/v1/traces", partial(self._otlp, is_log=False), _OTLP_FORMS),
                self._route("/v1/logs", partial(self._otlp, is_log=True), _OTLP_FORMS),
                self._route("/v1/tracejudge", self._plain, (Form.JSON, Form.LINES)),
            ],
            middleware=[cors] if cors_origins else [],
            exception_handlers=dict.fromkeys((404, 405, 500), self._failed),
        )
        # A redirect goes to the host that the client names, before it has shown its token.
        app.router.redirect_slashes = False
        return app

    def _route(self, path: str, handler: Handler, accepted: Sequence[Form]) -> Route:
        """Route a path to a handler, which is called for admitted clients only."""

        async def endpoint(request: Request) -> Response:
            try:
                client = self.access.client(request.headers.get("authorization"))
                if client is None:
                    message = "send a token of this gateway, as Authorization: Bearer TOKEN"
                    raise RefusedError(HTTPStatus.UNAUTHORIZED, "unauthorized", message)  # noqa: TRY301
                form = form_of(request, accepted)
                self.publisher.check()
                reply = await handler(request, client, form)
            except RefusedError as error:
                self.losses.refuse(error, path)
                reply = status_reply(error.status, str(error), _reply_form(request, accepted[0]), error.retry_s)
                # The rest of the body is not read.
                if error.status in {HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.REQUEST_TIMEOUT}:
                    reply.headers["Connection"] = "close"
            self.metrics.requests.labels(path, str(reply.status_code)).inc()
            return reply

        return Route(path, endpoint, methods=["POST"])

    async def _otlp(self, request: Request, client: Client, form: Form, *, is_log: bool) -> Response:
        body = await self.bodies.read(request)
        try:
            size = body.size_bytes
            read = partial(
                read_request,
                body.take(),
                form,
                is_log=is_log,
                service=client.service,
                told=self.instrumentations,
                by=client.name,
            )
            items: OtlpRequest = read() if size <= _LARGE_BYTES else await self._work(read, size)
            self._admit_rate(client, items.count + items.ignored)
            if items.traces:
                adding = self.executor.submit(self.gatherer.add, items)
                await self._answered(adding, _ANSWER_S, _LATE)
        finally:
            body.release()
        too_large = items.dropped.get("trace_too_large")
        self.metrics.items.labels("log" if is_log else "span").inc(items.count - (too_large.count if too_large else 0))
        self.losses.drop(items.dropped.values(), client.name)
        return Response(reply_content(form, items, is_log=is_log), media_type=form.value)

    async def _plain(self, request: Request, client: Client, form: Form) -> Response:
        key = request.headers.get("idempotency-key")
        body = await self.bodies.read(request)
        try:
            intake: Intake = await self._work(
                lambda: read_intake(
                    body.take(),
                    form,
                    self.encoder(),
                    service=client.service,
                    repeat_key=key and f"{client.name}\0{key[:200]}",
                    now_s=time.time(),
                ),
                body.size_bytes,
            )
            self._admit_rate(client, len(intake.entries) + len(intake.rejected))
            written = self.publisher.submit(intake.entries)
            await self._answered(written, _ANSWER_S, _LATE)
        finally:
            body.release()
        self.metrics.items.labels("json").inc(len(intake.entries))
        self.losses.drop(intake.losses, client.name)
        for left_out, count in intake.left_out.items():
            self.metrics.left_out.labels(left_out.field).inc(count)
        status = HTTPStatus.OK if intake.entries or not intake.rejected else HTTPStatus.BAD_REQUEST
        return Response(msgspec.json.encode(intake.reply()), status, media_type=Form.JSON.value)

    def _admit_rate(self, client: Client, items: int) -> None:
        wait_s = client.wait_s(items)
        if wait_s:
            message = f"the token {client.name} is over its rate; send this again later"
            raise RefusedError(HTTPStatus.TOO_MANY_REQUESTS, "rate", message, wait_s)

    async def _work(self, function: Callable[[], Any], size_bytes: int) -> Any:
        async with self.large if size_bytes > _LARGE_BYTES else contextlib.nullcontext():
            return await self._answered(self.executor.submit(function), 30.0, _BUSY)

    async def _answered(self, running: "Future[Any]", most_s: float, late: str) -> Any:
        """Wait for a thread, but not for longer than a client waits; ``late`` is the cause of a longer wait."""
        try:
            async with asyncio.timeout(most_s):
                return await asyncio.wrap_future(running)
        except StoreFullError:
            raise full("Redis is full; send this again later") from None
        except (TimeoutError, StoreError) as error:
            message = _LATE if isinstance(error, StoreError) else late
            raise RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", message, 1) from None
        finally:
            # Its error refers to this frame and to the body: a cycle would keep both in memory for long.
            del running

    async def _failed(self, request: Request, error: Exception) -> Response:
        status = HTTPStatus(getattr(error, "status_code", HTTPStatus.INTERNAL_SERVER_ERROR))
        message = "POST to /v1/traces, /v1/logs or /v1/tracejudge"
        if status is HTTPStatus.INTERNAL_SERVER_ERROR:
            # Only the type: the text of an unexpected error may quote a request.
            log.error("request failed", error=type(error).__name__)
            message = "internal error"
        self.metrics.requests.labels("other", str(status.value)).inc()
        return status_reply(status, message, _reply_form(request))


def _reply_form(request: Request, usual: Form = Form.JSON) -> Form:
    """Return the encoding of an error: that of the request, or that which is usual on its path."""
    media = request.headers.get("content-type", "")
    return Form.JSON if "json" in media else Form.PROTOBUF if "protobuf" in media else usual
