"""Commands of ours as children: each in a session of its own, with its log in a file, ended in order or by force."""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn, Self

from judges.core.faults import ReportedError
from worker.base.embedded import start_watcher

_START_TIMEOUT_S: Final = 60.0
_SHOWN_LINES: Final = 8
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ChildError(ReportedError, RuntimeError):
    """A child ended by itself or did not start in time; the message has the end of its log."""


class Child:
    """`tracejudge NAME ARGUMENTS` for the duration of the `with` block; it ends with this process, however that dies.

    Ctrl-C reaches this process only, which ends its children in order.

    Args:
        folder: Where it runs.
        is_ready: Called with the child until it is true; the block begins then.
        stop_s: How long it may take to end.
        temporary: A folder that is removed if this process is killed.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        is_ready: "Callable[[Child], bool]",
        *,
        log: Path,
        stop_s: float,
        temporary: Path | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self._arguments = (sys.executable, "-m", "worker.cli", name, *arguments)
        self._folder = folder
        self._environment = environment
        self._is_ready = is_ready
        self._stop_s = stop_s
        self._temporary = temporary
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            with self.log.open("wb") as log:
                self._process = subprocess.Popen(  # noqa: S603 - the command is ours
                    self._arguments,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self._folder,
                    env=self._environment,
                    start_new_session=True,
                )
            self._watcher = start_watcher(self._process.pid, self._temporary)
            self._wait()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def check(self) -> None:
        """Raise `ChildError` if it has ended."""
        if self._process is not None and (code := self._process.poll()) is not None:
            raise ChildError(f"the {self.name} ended early, with status {code}{self._ending()}")

    def _wait(self) -> None:
        start_by_s = time.monotonic() + _START_TIMEOUT_S
        while not self._is_ready(self):
            self.check()
            if time.monotonic() > start_by_s:
                raise ChildError(f"the {self.name} did not start within {_START_TIMEOUT_S:g} s{self._ending()}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Terminate it, and kill it after a timeout."""
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(self._stop_s)
            self._process.kill()
            self._process.wait()
        if self._watcher is not None:
            self._watcher.communicate(b"\n")
        self._process = self._watcher = None

    def _ending(self) -> str:
        return "; its log ends:\n" + "\n".join(self.log.read_text(errors="replace").splitlines()[-_SHOWN_LINES:])


@contextlib.contextmanager
def ending_on_signals(status: int | None = None) -> Iterator[None]:
    """End the block on the first signal by SystemExit, with a status or else that of shells: 130 for Ctrl-C."""

    def end(number: int, _: FrameType | None) -> NoReturn:
        ignore_signals()
        # Not KeyboardInterrupt, which click turns into "Aborted!" and exit code 1.
        raise SystemExit(128 + number if status is None else status)

    former = [(number, signal.signal(number, end)) for number in _SIGNALS]
    try:
        yield
    finally:
        for number, handler in former:
            signal.signal(number, handler)


def ignore_signals() -> None:
    """Ignore the signals from now on, because ending the children takes seconds and must not stop half-way."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
