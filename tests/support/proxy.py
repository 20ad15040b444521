"""A TCP proxy on the loopback with configurable network faults, for open and new connections."""

import asyncio
import contextlib
import random
import socket
import struct
import threading
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, Self, TypeVar

from support.processes import free_port

__all__ = ["HOLDS", "PASSES", "REFUSES", "Behaviour", "CommandProxy", "Proxy"]

T = TypeVar("T")
HOST: Final = "127.0.0.1"
WAIT_S: Final = 60.0
CHUNK_BYTES: Final = 64 * 1024
RESETS: Final = struct.pack("ii", 1, 0)  # closing then sends RST, which a waiting client notices at once


@dataclass(frozen=True)
class Behaviour:
    """Current behaviour of the network. Cuts end the connection with a reset.

    Attributes:
        refuses: New connections are refused, and open ones are reset.
        holds: Data are held back, and forwarded later if the connection still exists.
        delay_s: How much later each piece arrives.
        cut_after: How many bytes of requests a connection lets through before it is reset.
        reply_share: How much of a reply goes through before the connection is reset: 0.5 is half of it, 0 nothing,
            while the request was delivered.
        chance: The share of replies that are cut.
    """

    refuses: bool = False
    holds: bool = False
    delay_s: float = 0.0
    cut_after: int | None = None
    reply_share: float | None = None
    chance: float = 1.0


PASSES: Final = Behaviour()
REFUSES: Final = Behaviour(refuses=True)
HOLDS: Final = Behaviour(holds=True)


class Proxy:
    """Forwards a port of its own to another on this machine while it is open.

    Attributes:
        cut: Connections that it has ended so far.
        target_port: Where new connections lead.
    """

    def __init__(self, target_port: int, *, seed: int = 0) -> None:
        self.port = free_port()
        self.cut = 0
        self.target_port = target_port
        self._random = random.Random(seed)
        self._behaviour = PASSES
        self._ways: set[StreamWriter] = set()

    def __enter__(self) -> Self:
        started: Future[None] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(started)), name="proxy", daemon=True)
        self._thread.start()
        started.result(WAIT_S)
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._ends.set)
        self._thread.join(WAIT_S)

    @property
    def behaviour(self) -> Behaviour:
        return self._behaviour

    @behaviour.setter
    def behaviour(self, behaviour: Behaviour) -> None:
        """Change the network, and return after the change."""
        self._wait(self._change(behaviour))

    @contextlib.contextmanager
    def network(self, behaviour: Behaviour) -> Iterator[None]:
        """Break the network inside the block."""
        self.behaviour = behaviour
        try:
            yield
        finally:
            self.behaviour = PASSES

    def _wait(self, change: Awaitable[T]) -> T:
        return asyncio.run_coroutine_threadsafe(change, self._loop).result(WAIT_S)

    async def _serve(self, started: "Future[None]") -> None:
        self._loop, self._ends, self._changed = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        try:
            await self._listen()
        except OSError as error:
            started.set_exception(error)
            return
        started.set_result(None)
        await self._ends.wait()
        await self._close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._connected, HOST, self.port, backlog=1024)

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._reset_all()

    async def _change(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        if behaviour.refuses:
            await self._close()
        elif self._server is None:
            await self._listen()
        self._changed.set()
        self._changed = asyncio.Event()

    async def _reset_all(self) -> None:
        for writer in tuple(self._ways):
            self._reset(writer)

    def _connected(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._ways.add(writer)
        if self._behaviour.refuses:  # accepted just before the listener was closed
            self._reset(writer)
            return
        task = self._loop.create_task(self._lead(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _lead(self, reader: StreamReader, client: StreamWriter) -> None:
        """Forward one connection in both directions until one end or the network closes it."""
        server: StreamWriter | None = None
        try:
            await self._while_held()
            back, server = await asyncio.open_connection(HOST, self.target_port)
            ways = [
                self._loop.create_task(each) for each in (self._requests(reader, server), self._replies(back, client))
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except OSError:
            pass
        finally:
            self._ways.discard(client)
            for writer in filter(None, (client, server)):
                _abort(writer)

    async def _requests(self, reader: StreamReader, writer: StreamWriter) -> None:
        passed = 0
        while data := await reader.read(CHUNK_BYTES):
            await self._on_its_way()
            most = self._behaviour.cut_after
            if most is not None and passed + len(data) > most:
                writer.write(data[: max(0, most - passed)])
                await writer.drain()
                self.cut += 1
                return
            passed += len(data)
            writer.write(data)
            await writer.drain()

    async def _replies(self, reader: StreamReader, writer: StreamWriter) -> None:
        while data := await reader.read(CHUNK_BYTES):
            await self._on_its_way()
            share = self._behaviour.reply_share
            if share is not None and self._random.random() < self._behaviour.chance:
                writer.write(data[: int(len(data) * share)])
                # Send what was written before the reset discards the rest.
                await asyncio.sleep(0.005)
                self.cut += 1
                return
            writer.write(data)
            await writer.drain()

    async def _on_its_way(self) -> None:
        await self._while_held()
        if self._behaviour.delay_s:
            await asyncio.sleep(self._behaviour.delay_s)

    async def _while_held(self) -> None:
        while self._behaviour.holds:
            await self._changed.wait()

    def _reset(self, writer: StreamWriter) -> None:
        self._ways.discard(writer)
        self.cut += 1
        _abort(writer)


def _abort(writer: StreamWriter) -> None:
    transport = writer.transport
    raw = transport.get_extra_info("socket")
    if raw is not None and raw.fileno() >= 0:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESETS)
    transport.abort()


class CommandProxy:
    """Forwards commands to a Redis one by one, and cuts the connection at the n-th; then nobody reaches that Redis.

    Attributes:
        commands: The commands so far, scripts by their names. What a driver sends by itself is left out.
        cut: The command at which the connection was cut; None as long as it has not come to that.
    """

    _OF_DRIVERS: Final = frozenset({"HELLO", "CLIENT", "SELECT", "AUTH", "PING", "SCRIPT"})

    def __init__(
        self, target_port: int, scripts: Mapping[str, str], *, at: int | None = None, is_executed: bool = False
    ) -> None:
        """Cut at the command of number ``at``, from 1; ``is_executed`` after Redis has executed it, else before."""
        self.commands: list[str] = []
        self.cut: str | None = None
        self._target_port, self._scripts, self._at, self._is_executed = target_port, scripts, at, is_executed
        self._lock = threading.Lock()
        self._listener = socket.create_server((HOST, 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = [self._listener]
        self._ended: dict[socket.socket, threading.Event] = {}

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="command-proxy", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def _close(self) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection((HOST, self._target_port))
                self._sockets += (client, server)
                self._ended[server] = threading.Event()
                for way in (self._requests, self._replies):
                    threading.Thread(target=way, args=(client, server), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError):
            reader = client.makefile("rb")
            while line := reader.readline():
                raw, words = [line], list[bytes]()
                for _ in range(int(line[1:])):
                    raw.append(reader.readline())
                    raw.append(reader.read(int(raw[-1][1:]) + 2))
                    words.append(raw[-1][:-2])
                name = words[0].decode().upper()
                with self._lock:
                    if self.cut is not None:
                        return
                    if name not in self._OF_DRIVERS:
                        self.commands.append(self._scripts.get(words[1].decode(), name) if name == "EVALSHA" else name)
                        if len(self.commands) == self._at:
                            self.cut = self.commands[-1]
                            if self._is_executed:
                                server.sendall(b"".join(raw))
                                server.shutdown(socket.SHUT_WR)
                                self._ended[server].wait(WAIT_S)
                            self._close()
                            return
                server.sendall(b"".join(raw))

    def _replies(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(CHUNK_BYTES):
                if self.cut is None:
                    client.sendall(data)
        # With nothing more to come Redis has executed all that it received.
        self._ended[server].set()
