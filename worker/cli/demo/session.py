"""The demo's own machinery: an embedded Redis and a real worker process, and their end, however the demo ends."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple, Self

import msgspec

import tracejudge
from worker.cli.demo.signals import no_more_signals
from worker.embedded import EmbeddedRedis
from worker.keys import Keys
from worker.settings import Has, Rule, Settings, Where
from worker.store import Store

__all__ = ["DemoError", "Session", "WorkerProcess", "open_session", "rules"]

_VARIABLES: Final = "TRACEJUDGE_"
_START_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 8.0
_SDK_TIMEOUT_S: Final = 1.0
_LAST_LINES: Final = 8
# As for the embedded Redis: a line in its pipe means a good end, the end of the pipe that the demo was killed.
_WATCHER: Final = 'read -r line || { kill -9 "$1"; rm -rf -- "$2"; }'


class DemoError(Exception):
    """The demo cannot go on; the message says why, and quotes the worker's log where that tells more."""


class Session(NamedTuple):
    """What a demo runs on."""

    store: Store
    worker: "WorkerProcess"
    redis_version: str


class _Started(msgspec.Struct):
    """The line of the worker's log that tells where its metrics are."""

    event: str
    metrics: str = ""


def rules() -> tuple[Rule, ...]:
    """Give the default rules, and correctness for traces that bring what to expect."""
    # Two rules, for all fields in `has` must be there, and a trace brings either a response or facts.
    return (
        *Settings().rules,
        _correctness("expected_response"),
        _correctness("expected_facts"),
    )


def _correctness(field: Has) -> Rule:
    return Rule(name=f"demo, with {field}", judges=("correctness",), where=Where(has=(field,)))


@contextlib.contextmanager
def open_session() -> Iterator[Session]:
    """Start Redis and worker, point the SDK at them, and end it all in order.

    Raises:
        EmbeddedRedisError: Redis does not start.
        DemoError: The worker does not start.
    """
    with EmbeddedRedis() as redis, WorkerProcess(redis.url) as worker:
        store = Store(redis.url, Keys())
        # All that the user's environment could set is given: this SDK must agree with this worker only.
        tracejudge.init(
            service="tracejudge-demo",
            redis_url=redis.url,
            environment="demo",
            release="demo",
            prefix=store.keys.prefix,
            disabled=False,
        )
        try:
            yield Session(store, worker, redis.version)
        finally:
            no_more_signals()
            tracejudge.shutdown(_SDK_TIMEOUT_S)
            store.close()


class WorkerProcess:
    """A worker in a process, folder and session of its own, for as long as the `with` block lasts.

    Attributes:
        metrics_url: Its metrics page.
    """

    def __init__(self, redis_url: str) -> None:
        self.metrics_url = ""
        self._redis_url = redis_url
        self._folder = Path()
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        # An empty folder to run in: a tracejudge.toml of the user's must not configure the demo.
        self._folder = Path(tempfile.mkdtemp(prefix="tracejudge-demo-"))
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def check(self) -> None:
        """See that it runs.

        Raises:
            DemoError: It has ended; with the end of its log.
        """
        if self._process is not None and (status := self._process.poll()) is not None:
            raise DemoError(f"the worker ended early, with status {status}; its log ends:\n{self._last_lines()}")

    def stop(self) -> None:
        """End it in good order, after a while by force, and remove its folder."""
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_TIMEOUT_S)
            self._process.kill()
            self._process.wait()
        if self._watcher is not None:
            self._watcher.communicate(b"\n")
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self) -> None:
        command = [sys.executable, "-m", "worker.cli", "worker", "--metrics-port", "0"]
        with self._log.open("wb") as log:
            self._process = _spawn(command, log.fileno(), self._folder, _environment(os.environ, self._redis_url))
        arguments = ("watcher", str(self._process.pid), str(self._folder))
        self._watcher = subprocess.Popen(  # noqa: S603 - the script is ours
            ["/bin/sh", "-c", _WATCHER, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
        self._wait_until_started()

    @property
    def _log(self) -> Path:
        return self._folder / "worker.log"

    def _wait_until_started(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not (url := _metrics_url(self._log.read_bytes())):
            self.check()
            if time.monotonic() > deadline:
                raise DemoError(f"the worker did not start within {_START_TIMEOUT_S:g} s:\n{self._last_lines()}")
            time.sleep(0.05)
        self.metrics_url = url

    def _last_lines(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-_LAST_LINES:])


def _spawn(command: list[str], log: int, folder: Path, environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    # A session of its own: Ctrl-C is for us, who end the worker before its Redis.
    return subprocess.Popen(  # noqa: S603 - the command is ours
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, env=environment, start_new_session=True
    )


def _environment(inherited: Mapping[str, str], redis_url: str) -> dict[str, str]:
    """Take over the environment without what would configure another TraceJudge."""
    kept = {name: value for name, value in inherited.items() if not name.startswith(_VARIABLES)}
    own = {"REDIS_URL": redis_url, "LOG_LEVEL": "info", "RULES": msgspec.json.encode(rules()).decode()}
    return kept | {f"{_VARIABLES}{name}": value for name, value in own.items()}


def _metrics_url(log: bytes) -> str:
    for line in log.splitlines():
        with contextlib.suppress(msgspec.MsgspecError):
            started = msgspec.json.decode(line, type=_Started)
            if started.event == "worker started":
                return started.metrics
    return ""
