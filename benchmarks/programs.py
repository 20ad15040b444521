"""The processes of the bench: started, looked at through `/proc` (so on Linux only), and ended whatever happens."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

__all__ = ["Program", "program", "until"]

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_END_TIMEOUT_S: Final = 15.0
_TAIL_BYTES: Final = 4000
_SESSION: Final = 3
"""Place of the session in `/proc/PID/stat` after the name, which may hold spaces."""
_UTIME: Final = 11
"""Place of `utime` there; `stime` follows."""


class Program:
    """One running process."""

    def __init__(self, name: str, process: "subprocess.Popen[bytes]") -> None:
        """Observe a process that was started."""
        self.name = name
        self.pid = process.pid
        self._process = process
        self._proc = Path(f"/proc/{process.pid}")

    def cpu_s(self) -> float:
        """Read the CPU seconds it has used, user and system, all threads; in steps of 10 ms."""
        return _cpu_s(_stat(self._proc))

    def session_cpu_s(self) -> float:
        """Read the same for it and all that it has started and that still run."""
        total = 0.0
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                fields = _stat(process)
                total += _cpu_s(fields) if fields[_SESSION] == str(self._process.pid) else 0.0
        return total

    def peak_mib(self) -> float:
        """Read the most memory it has held so far, in MiB."""
        (line,) = (line for line in (self._proc / "status").read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024

    def check(self) -> None:
        """Raise `RuntimeError` when it has ended."""
        if self._process.poll() is not None:
            raise RuntimeError(f"the {self.name} ended with status {self._process.returncode}")

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Hold it still until the block is left."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """End it in good order, and after 15 s by force; then whatever it has started."""
        try:
            self._process.terminate()
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@contextlib.contextmanager
def program(
    name: str, *arguments: str, python: Sequence[str] = (sys.executable,), **variables: str
) -> Iterator[Program]:
    """Run a Python program until the block is left; what it says is shown only after a failure.

    ``python`` is the command that interprets it, which may be of another environment. Settings of a worker in the
    environment of the bench do not reach it.
    """
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("TRACEJUDGE_")}
    with tempfile.TemporaryFile() as output:
        # A session of its own: Ctrl-C is for us, who end the programs in order, and its children go with it.
        process = subprocess.Popen(
            [*python, *arguments],
            stdout=output,
            stderr=output,
            env={**inherited, **variables},
            start_new_session=True,
        )
        running = Program(name, process)
        try:
            yield running
        except Exception:
            output.seek(max(0, output.seek(0, os.SEEK_END) - _TAIL_BYTES))
            sys.stderr.write(f"--- {name} said at last:\n{output.read().decode(errors='replace')}\n")
            raise
        finally:
            running.end()


def _stat(process: Path) -> Sequence[str]:
    return (process / "stat").read_text().rpartition(")")[2].split()


def _cpu_s(fields: Sequence[str]) -> float:
    return (int(fields[_UTIME]) + int(fields[_UTIME + 1])) / _TICKS_PER_S


def until(
    condition: Callable[[], bool], *programs: Program, what: str, timeout_s: float = 120.0, every_s: float = 0.02
) -> None:
    """Wait for a condition.

    Raises:
        TimeoutError: It did not come about in time; the text names `what`.
        RuntimeError: One of the programs has ended.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        for one in programs:
            one.check()
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s:g} s: {what}")
        time.sleep(every_s)
