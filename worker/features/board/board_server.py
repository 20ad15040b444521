"""Serves the board: HTTP server and threads, started and stopped in order."""

import threading
from collections.abc import Callable, Mapping
from typing import Final, Self

import structlog

from worker.core.config.serving import Listen, Tls
from worker.core.config.settings import Settings, SettingsError
from worker.core.storage.client import make_stores
from worker.core.telemetry.health import Readiness
from worker.core.telemetry.http_server import HttpServer, WebServer
from worker.core.telemetry.service import HeartbeatThread, open_stores
from worker.features.board.access import Access, BoardMetrics
from worker.features.board.feature import BOARD
from worker.features.board.index import VerdictIndex
from worker.features.board.overview import OverviewThread
from worker.features.board.pages import Board

log = structlog.get_logger("tracejudge.board")
_THREAD_STOP_S: Final = 5.0
_GRACE_S: Final = 5


class BoardServer:
    """One board at ``url``; `run` serves until a signal, and as a context manager it serves in a thread."""

    def __init__(self, settings: Settings, environment: Mapping[str, str], config: str | None = None) -> None:
        """Open the ports; raises ``SettingsError``, with the configuration file ``config``, for what cannot be used."""
        board = BOARD.read(settings)
        access = Access(settings, environment)
        self._store = make_stores(settings.redis_url, settings.prefix, settings.partition_count)[0]
        open_stores(self._store.partitions, settings, config)
        index = VerdictIndex(self._store)
        overview = OverviewThread(self._store, index, settings)
        self._threads = (index, overview, HeartbeatThread("board", self._store, settings.config_hash))
        metrics = BoardMetrics(settings)
        metrics.indexed.set_function(lambda: float(index.query("SELECT count(*) FROM verdicts")[0][0]))
        self._readiness = Readiness()
        for thread in self._threads:
            self._readiness.watch(thread.name, thread.role, thread)
        self._pages = HttpServer.from_settings(settings, environment, metrics.registry, self._readiness)
        tls, listen = Tls.from_table(board, "board.tls_").context(), Listen.from_table(board, "board.")
        self._listener = listen.open(128)
        self.url = listen.url(self._listener, is_tls=tls is not None)
        app = Board(self._store, settings, access, index, overview).app(metrics)
        self._server = WebServer(app, self._readiness, tls, timeout_graceful_shutdown=_GRACE_S)
        if board.metrics_port is not None:
            try:
                page = self._pages.start(Listen("board.metrics_", settings.metrics_host, board.metrics_port))
            except SettingsError:
                self._listener.close()
                raise
            log.info("board started", metrics=page)
        self._thread = threading.Thread(target=self.run, name="tracejudge-board", daemon=True)

    def run(self, started: Callable[[], object] = lambda: None) -> None:
        """Serve until a signal or the end of the context; ``started`` is called once requests are answered."""
        self._server.started_hook = started
        for thread in self._threads:
            thread.start()
        try:
            self._server.run(sockets=[self._listener])
        finally:
            for thread in self._threads:
                thread.stop(_THREAD_STOP_S)
            self._pages.stop()
            for partition in self._store.partitions:
                partition.close()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(_GRACE_S + 2 * _THREAD_STOP_S)
