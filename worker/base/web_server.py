"""The HTTP server of gateway and board: uvicorn, ended by signals. Its package comes with their extras."""

import socket
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn

from worker.core.telemetry.health import Readiness


class WebServer(uvicorn.Server):
    """Ends with exit code 0 on a signal, and is not ready from then on; a second signal ends open requests."""

    started_hook: Callable[[], object] = bool  # Called once requests are answered and signals end the server.

    def __init__(self, app: Any, readiness: Readiness, cert: str | None, key: str | None, **options: Any) -> None:
        """Make a server; ``options`` of ``uvicorn.Config`` add to those that all servers have."""
        config = uvicorn.Config(
            app,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ssl_certfile=cert,
            ssl_keyfile=key,
            **options,
        )
        config.load()
        super().__init__(config)
        self._readiness = readiness

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then report it: signals are handled by now, so the server can be stopped after the report."""
        await super().startup(sockets)
        self.started_hook()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the library's signature
        """Stop. The library's own method raises the signal again at the end, which would be the exit code."""
        self._readiness.begin_stop()
        self.force_exit, self.should_exit = self.should_exit, True
