"""Runs the gateway: HTTP server, threads and pages, started and stopped in order."""

import asyncio
import contextlib
import gc
import resource
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from typing import Any, Final

import structlog
from uvicorn.protocols.http.h11_impl import H11Protocol

from worker.base.input.unusable import UnusableInput
from worker.base.web_server import WebServer
from worker.core.config.serving import Listen, Tls
from worker.core.config.settings import Settings
from worker.core.storage.client import make_stores
from worker.core.telemetry.health import Readiness
from worker.core.telemetry.http_server import HttpServer
from worker.core.telemetry.service import open_stores
from worker.features.gateway.admission import Access, Bodies, GatewayMetrics, Losses
from worker.features.gateway.app import Gateway
from worker.features.gateway.feature import GATEWAY
from worker.features.gateway.gathering import Gatherers, Joiner
from worker.features.gateway.intake import Encoder, sdk_settings
from worker.features.gateway.publishing import Capacity, Publisher

log = structlog.get_logger("tracejudge.gateway")
_HEAD_S: Final = 10.0
_KEEP_ALIVE_S: Final = 75
_TOO_MANY: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
)
_BACKLOG: Final = 1_024


class _Connections:
    """The shared state of all connections of one process."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.open = 0


class BoundedProtocol(H11Protocol):
    """Bounds what uvicorn leaves open: the number of connections, and the time in which a head must arrive.

    A connection may stay idle for as long as uvicorn's keep-alive; once a request begins, its head has ten seconds.
    """

    shared: _Connections
    _timer: asyncio.TimerHandle | None = None
    _timer_is_head = False
    _is_counted = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection unless as many are open as may be."""
        super().connection_made(transport)
        if self.shared.open >= self.shared.most:
            # With its length the answer is whole before the reset that follows a request nobody reads.
            transport.write(_TOO_MANY)
            transport.close()
            return
        self._is_counted = True
        self.shared.open += 1
        self._expect(_KEEP_ALIVE_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """Free the place."""
        self._stop_timer()
        if self._is_counted:
            self._is_counted = False
            self.shared.open -= 1
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Start the time of a head with its first byte, and stop it when the head is complete."""
        if not self._is_counted:
            return
        was_idle = self.cycle is None or self.cycle.response_complete
        super().data_received(data)
        is_idle = self.cycle is None or self.cycle.response_complete
        if not is_idle:
            self._stop_timer()
        elif was_idle and (self._timer is None or not self._timer_is_head):
            self._expect(_HEAD_S, head=True)

    def on_response_complete(self) -> None:
        """Leave the idle connection to uvicorn's keep-alive."""
        self._stop_timer()
        super().on_response_complete()

    def _expect(self, seconds: float, *, head: bool = False) -> None:
        self._stop_timer()
        self._timer_is_head = head
        self._timer = self.loop.call_later(seconds, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


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
        """Build everything; ``config`` is the configuration file, for errors.

        Raises:
            SettingsError: A token, certificate or address cannot be used, or Redis has other partitions.
        """
        self._settings = settings
        self._metrics = GatewayMetrics(settings)
        access = Access.of(settings, environment)
        sdk = sdk_settings(settings)
        self._stores = make_stores(settings.redis_url, settings.prefix, settings.partition_count)
        open_stores(self._stores, settings, config)
        capacity = Capacity(settings, self._stores)
        publisher = Publisher(sdk, capacity, self._metrics)
        gatherer = Gatherers(self._stores, GATEWAY.of(settings))
        self._losses = Losses(UnusableInput(self._stores[0]), self._metrics)
        # Stopped from the last to the first: the joiner needs the publisher.
        self._threads = [publisher, capacity, Joiner(gatherer.each, Encoder(sdk), publisher, self._losses)]
        self._readiness = Readiness()
        for thread in self._threads:
            self._readiness.watch(thread.name, "intake", thread)
        self._pages = HttpServer.of(settings, environment, self._metrics.registry, self._readiness)
        self._executor = _DaemonPool(4)
        bodies = Bodies(GATEWAY.of(settings).max_body_bytes)
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
        )
        self._connections = _Connections(GATEWAY.of(settings).max_connections)
        self._metrics.gathered_bytes.set_function(lambda: gatherer.held_bytes)
        self._metrics.body_bytes.set_function(lambda: bodies.held_bytes)
        self._metrics.connections.set_function(lambda: self._connections.open)

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT; raises ``SettingsError`` if an address or certificate cannot be used."""
        gateway = GATEWAY.of(self._settings)
        # The soft limit of open files has room for a hundred more than the connections, as far as the hard one allows.
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        files = gateway.max_connections + 100
        most = files if hard == resource.RLIM_INFINITY else min(files, hard)
        if soft != resource.RLIM_INFINITY and soft < most:
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        listen, tls = Listen.of(gateway, "gateway."), Tls.of(gateway, "gateway.tls_").context()
        listener = listen.open(_BACKLOG)
        server = WebServer(
            self._gateway.app(gateway.cors_origins),
            self._readiness,
            gateway.tls_cert,
            gateway.tls_key,
            http=type("Protocol", (BoundedProtocol,), {"shared": self._connections}),
            date_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=int(self._settings.grace_s),
            h11_max_incomplete_event_size=16 * 1024,
        )
        page = self._pages.start(Listen("gateway.metrics_", self._settings.metrics_host, gateway.metrics_port))
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
