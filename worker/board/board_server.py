"""Serves the board: HTTP server and threads, started and stopped in order."""

import socket
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Final, Self

import structlog
import uvicorn

from worker.board.access import Access
from worker.board.index import VerdictIndex
from worker.board.overview import OverviewThread
from worker.board.pages import Board
from worker.config.serving import Listen, Tls
from worker.config.settings import Settings, SettingsError
from worker.storage.client import make_stores
from worker.storage.keys import Keys
from worker.telemetry.health import Readiness
from worker.telemetry.http_server import HttpAuth, HttpServer
from worker.telemetry.metrics import BoardMetrics

log = structlog.get_logger("tracejudge.board")
_THREAD_STOP_S: Final = 5.0
_GRACE_S: Final = 5
_BACKLOG: Final = 128


class BoardServer:
    """One board; `run` serves until a signal, and as a context manager it serves in a thread.

    Attributes:
        url: The address of the board.
    """

    def __init__(self, settings: Settings, environment: Mapping[str, str]) -> None:
        """Open the ports.

        Raises:
            SettingsError: The token, the address or the certificate cannot be used.
        """
        board = settings.board
        access = Access(settings, environment)
        self._store = make_stores(settings.redis_urls, Keys(settings.prefix))[0]
        index = VerdictIndex(self._store)
        overview = OverviewThread(self._store, index)
        self._threads = (index, overview)
        metrics = BoardMetrics(settings)
        metrics.indexed.set_function(lambda: float(index.query("SELECT count(*) FROM verdicts")[0][0]))
        self._readiness = Readiness()
        for thread in self._threads:
            self._readiness.watch(thread.name, thread.role, thread)
        auth, tls = HttpAuth.of(settings, environment), Tls.of(settings, "metrics_tls_").context()
        self._pages = HttpServer(metrics.registry, self._readiness, auth, tls)
        is_tls = Tls.of(board, "board.tls_").context() is not None
        listen = Listen.of(board, "board.")
        self._listener = listen.open(_BACKLOG)
        self.url = listen.url(self._listener, is_tls=is_tls)
        config = uvicorn.Config(
            Board(self._store, settings, access, index, overview).app(metrics),
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_GRACE_S,
            ssl_certfile=board.tls_cert,
            ssl_keyfile=board.tls_key,
        )
        config.load()
        self._server = _Server(config, self._readiness)
        if board.metrics_port is not None:
            try:
                page = self._pages.start(Listen("board.metrics_", settings.metrics_host, board.metrics_port))
            except SettingsError:
                self._listener.close()
                raise
            log.info("board started", metrics=page)
        self._thread = threading.Thread(target=self.run, name="tracejudge-board", daemon=True)

    def run(self, started: Callable[[], object] = lambda: None) -> None:
        """Serve until SIGTERM or SIGINT, or the end of the context.

        Args:
            started: Called once requests are answered and signals end the board.
        """
        self._server.started_hook = started
        for thread in self._threads:
            thread.start()
        try:
            self._server.run(sockets=[self._listener])
        finally:
            for thread in self._threads:
                thread.stop(_THREAD_STOP_S)
            self._pages.stop()
            for one in self._store.shards:
                one.close()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(_GRACE_S + 2 * _THREAD_STOP_S)


class _Server(uvicorn.Server):
    """Ends with exit code 0 on a signal; a second one ends open requests."""

    started_hook: Callable[[], object]

    def __init__(self, config: uvicorn.Config, readiness: Readiness) -> None:
        super().__init__(config)
        self._readiness = readiness

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then report it: signals are handled by now, so whoever waits for the address can stop the board."""
        await super().startup(sockets)
        self.started_hook()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the library's signature
        """Stop. The library's own method raises the signal again at the end."""
        self._readiness.begin_stop()
        self.force_exit, self.should_exit = self.should_exit, True
