"""Runs the gateway: HTTP server, threads and pages, started and stopped in order."""

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

from worker.base.dialects import load_dialects
from worker.base.input.unusable import UnusableInput
from worker.core.config.serving import Listen, Tls
from worker.core.config.settings import Settings, SettingsError
from worker.core.storage.client import make_stores
from worker.core.telemetry.health import Readiness
from worker.core.telemetry.http_server import HttpServer, WebServer
from worker.core.telemetry.service import HeartbeatThread, open_stores
from worker.features.gateway.admission import Access, Bodies, GatewayMetrics, Losses
from worker.features.gateway.app import Gateway
from worker.features.gateway.feature import GATEWAY
from worker.features.gateway.gathering import Gatherers, Joiner
from worker.features.gateway.instrumentations import Instrumentations
from worker.features.gateway.intake import Encoder, sdk_settings
from worker.features.gateway.publishing import Capacity, Publisher

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
