"""A real HTTP server on the loopback, in a thread and an event loop of its own."""

import asyncio
import resource
import threading
from concurrent.futures import Future
from typing import Self

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from support.processes import free_port

HOST = "127.0.0.1"
START_TIMEOUT_S = 60.0
QUIET_TURNS = 10
MAX_BODY_BYTES = 64 * 1024 * 1024
WANTED_FILES = 8192  # 500 connections take a thousand descriptors when client and server are one process


class LoopbackServer:
    """Serves `routes()` while it is open. `port=0` chooses a free port; a fixed port can be closed and opened again.

    An exception of a handler is answered with 500 and raised again by `close`, so that a test sees its own mistakes.
    """

    def __init__(self, *, port: int = 0) -> None:
        self.port = port
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Event | None = None
        self._failures: list[Exception] = []

    def routes(self) -> list[web.RouteDef]:
        raise NotImplementedError

    @property
    def root_url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def start(self) -> Self:
        _allow_many_files()
        started: Future[int] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(started)), name=type(self).__name__, daemon=True
        )
        self._thread.start()
        try:
            self.port = started.result(START_TIMEOUT_S)
        except BaseException:
            self._thread.join(START_TIMEOUT_S)
            self._thread = None
            raise
        return self

    def close(self) -> None:
        """End at once, with requests in flight; `start` starts it again on the same port."""
        if self._thread is None:
            return
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(START_TIMEOUT_S)
        if self._thread.is_alive():
            raise RuntimeError(f"{type(self).__name__} did not end within {START_TIMEOUT_S:g} s")
        self._thread = None
        if self._failures:
            raise self._failures.pop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.close()

    async def _serve(self, started: Future[int]) -> None:
        self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._keep_failures()])
        app.add_routes(self.routes())
        # Handlers end with their client, so a call in flight always has a waiting client.
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.01)
        await runner.setup()
        try:
            # Not a port chosen by the kernel: while the server is down, it could be assigned to another connection.
            site = web.TCPSite(runner, HOST, self.port or free_port(), backlog=1024)
            await site.start()
        except OSError as error:
            started.set_exception(error)
        else:
            started.set_result(runner.addresses[0][1])
            await self._closing.wait()
            await _accept_no_more(site)
        finally:
            server = runner.server
            await runner.cleanup()
            if server is not None:
                await _end_late_ones(server)

    def _keep_failures(self) -> Middleware:
        @web.middleware
        async def keep(request: web.Request, handler: Handler) -> web.StreamResponse:
            try:
                return await handler(request)
            except (web.HTTPException, ConnectionError):
                raise
            except Exception as error:
                self._failures.append(error)
                raise

        return keep


async def _accept_no_more(site: web.TCPSite) -> None:
    """Stop accepting connections, and finish those that were accepted, before the server closes.

    asyncio loses the socket of a later connection, and the garbage collector warns about it in a later test.
    """
    for listening in site._server.sockets:
        asyncio.get_running_loop().remove_reader(listening.fileno())
    for _ in range(QUIET_TURNS):
        await asyncio.sleep(0)


async def _end_late_ones(server: web.Server) -> None:
    """Close connections that cleanup missed, or whose client does not read."""
    quiet = 0
    while quiet < QUIET_TURNS:
        for connection in server.connections:
            if connection.transport is not None:
                connection.transport.abort()
        await server.shutdown(0)
        await asyncio.sleep(0)
        quiet = 0 if server.connections or len(asyncio.all_tasks()) > 1 else quiet + 1


def _allow_many_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = WANTED_FILES if hard == resource.RLIM_INFINITY else min(WANTED_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
