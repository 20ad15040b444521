"""Child programs of a test, which always end with it, and waiting for conditions."""

import contextlib
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import NoReturn, Self, TypeVar

import pytest

from support.warm import Forked, can_fork
from worker.base.embedded import is_free

__all__ = ["PATIENCE_S", "Program", "bounded_s", "cpu_s", "free_port", "missing", "wait_until"]

T = TypeVar("T")
SHOWN_CHARACTERS = 4000
# Only a busy machine needs this long; a wait ends with its condition.
PATIENCE_S = 60.0
_LOOP_S = 0.0005  # CPU time of the loop in `slowness` where the figures of the design were measured


def bounded_s(promised_s: float) -> float:
    """Bound a measured time: as promised at full length (TRACEJUDGE_FAULTS_SCALE=1), else three times that.

    The suite runs several processes on two cores that may be busy with other work; a fault takes far longer than this.
    """
    return promised_s if float(Fraction(os.environ.get("TRACEJUDGE_FAULTS_SCALE", "1/40"))) >= 1 else 3 * promised_s


def cpu_s(pid: int) -> float:
    """Return how much CPU time a process has used. It does not grow while other work on the machine delays it."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def slowness() -> float:
    """Return how many times slower this machine is at this moment than the one the design was measured on, at least 1.

    Clocks of shared machines change by a factor of two within seconds: a bound of CPU time is multiplied by this.
    """
    began = time.thread_time()
    for _ in range(20_000):
        pass
    return max(1.0, (time.thread_time() - began) / _LOOP_S)


def wait_until(predicate: Callable[[], T], timeout_s: float = PATIENCE_S, what: str = "the condition") -> T:
    """Evaluate a predicate until it is true, and return its value; fail with `what` and the last value at the timeout.

    It is evaluated once more at the timeout: a process that was suspended meanwhile has evaluated it only once.
    """
    first = began = time.monotonic()
    is_over = False
    while not (answer := predicate()):
        if is_over:
            raise AssertionError(f"waited {timeout_s:g} s in vain for {what}; last answer: {answer!r}")
        began = _pause(first, began)
        is_over = began > first + timeout_s
    return answer


def _pause(first: float, began: float) -> float:
    """Sleep before the next look, for a part of the time since the first, and return the time after it.

    What costs something, like a scrape or thousands of entries, takes a tenth of the time at most: others need the CPU.
    """
    now = time.monotonic()
    time.sleep(min(0.3, max(0.01, 9 * (now - began), 0.03 * (now - first))))
    return time.monotonic()


def missing(what: str) -> NoReturn:
    """Skip the test, but fail it in CI, where a skip would hide that nothing was tested."""
    if os.environ.get("CI") == "true":
        pytest.fail(what)
    pytest.skip(what)


class Program:
    """`python *arguments` as a child, e.g. `Program("-m", "worker.cli", "worker", folder=tmp_path)`.

    Its environment is that of the tests without `TRACEJUDGE_*`, plus `env`. It runs in `folder`, which also holds the
    files of its output; `stderr` is an open file that replaces one of them. At the end of the block it is killed with
    its process group. Programs of ours are forked where that makes no difference, see `support.warm`.
    """

    def __init__(
        self, *arguments: str | Path, folder: Path, env: Mapping[str, str] | None = None, stderr: int | None = None
    ) -> None:
        self.command = [sys.executable, *map(str, arguments)]
        self._folder = folder
        self._stderr = stderr
        self._env = _clean_environment() | dict(env or {})
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self._files: tuple[Path, Path] | None = None

    def __enter__(self) -> Self:
        name = f"program-{time.monotonic_ns()}"
        self._files = (self._folder / f"{name}.out", self._folder / f"{name}.err")
        with self._files[0].open("wb") as out, self._files[1].open("wb") as err:
            errors = err.fileno() if self._stderr is None else self._stderr
            if can_fork(self.command[1:], self._env):
                module, *arguments = self.command[2 if self.command[1] == "-m" else 1 :]
                files = {"out": out.fileno(), "err": errors}
                self._process = Forked(module, arguments, **files, env=self._env, folder=self._folder)
                return self
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                env=self._env,
                cwd=self._folder,
                start_new_session=True,  # a group of its own, so that its children can be ended with it
            )
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def stdout(self) -> str:
        return self._files[0].read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return self._files[1].read_text(errors="replace")

    @property
    def output(self) -> str:
        """Standard output, then standard error."""
        return self.stdout + self.stderr

    def wait_for(self, pattern: str, timeout_s: float = PATIENCE_S) -> re.Match[str]:
        """Wait until a regular expression is found in the output; `^` and `$` stand for its lines."""
        expression = re.compile(pattern, re.MULTILINE)
        first = began = time.monotonic()
        while True:
            ended = not self.running  # read before the output, so that the last output is complete
            if match := expression.search(self.output):
                return match
            if ended or began > first + timeout_s:
                raise AssertionError(f"{pattern!r} is not in the output: {self._state()}")
            began = _pause(first, began)

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait for its end, and return the exit status, negative for a signal."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"did not end within {timeout_s:g} s: {self._state()}") from None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the program alone, not to its children."""
        self._process.send_signal(number)

    def terminate(self, timeout_s: float = PATIENCE_S) -> int:
        """Send SIGTERM and wait for the end."""
        self.signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def kill(self) -> None:
        """Send SIGKILL and wait for the end; its children live on until the block is left."""
        self.signal(signal.SIGKILL)
        self._process.wait()

    def _state(self) -> str:
        status = "still running" if self.running else f"exit status {self._process.returncode}"
        return f"{' '.join(self.command[1:])} ({status}), which said:\n{self.output[-SHOWN_CHARACTERS:]}"


def _clean_environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TRACEJUDGE_")}
    return kept | {"PYTHONUNBUFFERED": "1"}


# --- ports ---
PORTS = range(10_000, 19_600)
"""Below the ports of outgoing connections and of embedded Redis servers."""
PROCESSES = 8


def own_part(ports: range) -> range:
    """Return the part of a range for this test process, one of up to eight in a run."""
    place = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % PROCESSES
    share = len(ports) // PROCESSES
    return ports[place * share : (place + 1) * share]


def _rotation(ports: range) -> "itertools.cycle[int]":
    # Start at a random place: another run of the suite may be active.
    begin = random.randrange(len(ports))
    return itertools.cycle([*ports[begin:], *ports[:begin]])


_ports = _rotation(own_part(PORTS))


def free_port() -> int:
    """Return a port without listener that was not among the last thousand returned."""
    for port in itertools.islice(_ports, len(PORTS)):
        if is_free(port):
            return port
    raise AssertionError("no free port: end what listens on those of this process")


# --- signals ---
STOPPED = """
import json, os, signal, sys, worker
import worker.core.config.loading as loading, worker.core.config.reading as reading

def kill(*_, **__):
    os.kill(own, number)

loading.load = reading.load_without_judges = kill
import tracejudge_worker, worker.celery, worker.cli, worker.core.features
worker.core.features.installed()
codes, commands = [], json.loads(sys.argv[1])
for (command, is_first), number in ((each, number) for each in commands for number in (signal.SIGINT, signal.SIGTERM)):
    if child := os.fork():
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        continue
    os.dup2(2, 1)
    os.getpid, own, sys.argv = (lambda: 1) if is_first else os.getpid, os.getpid(), command.split()
    if sys.argv[0] == "celery":
        del sys.modules["worker"]
        import worker
        kill()
    tracejudge_worker.main()
    sys.exit()
print(json.dumps(codes))
"""
"""Forks once for each command and signal; the command gets the signal when it reads its configuration."""


def stopped_at_start(*commands: tuple[str, bool]) -> list[tuple[int, int]]:
    """Return the exit codes of each command after SIGINT, and after SIGTERM.

    Each comes with whether it is the first process of a container.
    """
    run = [sys.executable, "-c", STOPPED, json.dumps(commands)]
    codes = json.loads(subprocess.run(run, check=True, capture_output=True).stdout)
    return list(zip(codes[::2], codes[1::2], strict=True))
