"""Programs of ours that are forked from a process which has imported them; that saves most of the CPU of a start.

Each behaves as one that began with `python -m MODULE`, or with `python -c CODE` where the code changes our command and
runs it: session, environment, folder, output and end are its own.
Run as a program, this file is the process that is forked.
"""

import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import NoReturn

__all__ = ["Forked", "can_fork"]

_OURS = "worker.cli"
_MODULES = (_OURS, "celery")
_RUN_OURS = (f"from {_OURS} import main", "from celery.__main__ import main")
_AT_START = (
    *("worker.celery", "celery.bin.celery", "celery.bin.worker", "celery.concurrency.thread", "celery.apps.worker"),
    *("celery.app.amqp", "celery.app.control", "celery.app.events", "celery.app.log", "celery.fixups.django"),
    *("celery.loaders.app", "celery.worker.autoscale", "celery.worker.components", "billiard.pool", "kombu.pidbox"),
    *("celery.worker.consumer.delayed_delivery", "kombu.matcher", "kombu.transport.redis", "packaging.version"),
    *("httpx", "uvicorn.lifespan.off", "uvloop", "judges.models.lexical"),
)
"""What a worker imports while it starts."""
_WHOLE = ("judges.catalog", "judges.features", "worker.base", "worker.core", "worker.features")
_STATUS = struct.Struct("i")


class Forked:
    """A forked program, as `subprocess.Popen` shows one."""

    def __init__(
        self, module: str, arguments: Sequence[str], *, out: int, err: int, env: Mapping[str, str], folder: Path
    ) -> None:
        self.returncode: int | None = None
        self._ended, status = os.pipe()
        request = os.memfd_create("request")
        os.write(request, json.dumps([[module, *arguments], dict(env), str(folder)]).encode())
        self.pid = _Template.of_this_process().fork(request, out, err, status)
        os.close(request)
        os.close(status)

    def poll(self) -> int | None:
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("forked", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], timeout)[0]:
            self.returncode = os.waitstatus_to_exitcode(*_STATUS.unpack(os.read(self._ended, _STATUS.size)))
            os.close(self._ended)
        return self.returncode


def can_fork(command: Sequence[str], env: Mapping[str, str]) -> bool:
    """Return whether a command may be forked: all of its environment but ours may be read by a library at its import.

    At full length programs start as users start them.
    """
    if command[0] == "-c":
        is_ours = any(line in command[1] for line in _RUN_OURS)
    else:
        is_ours = command[0] == "-m" and command[1] in _MODULES
    if not is_ours or "TRACEJUDGE_FAULTS_SCALE" in os.environ:
        return False
    return _imported(env) == _Template.of_this_process().env


def _imported(env: Mapping[str, str]) -> dict[str, str]:
    # Addresses of proxies are read by clients when they are made.
    ours = ("TRACEJUDGE_", "PYTEST_", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy")
    return {name: value for name, value in env.items() if not name.startswith(ours)}


class _Template:
    """The process that is forked; it ends when this one does."""

    def __init__(self) -> None:
        self.env = _imported(os.environ) | {"PYTHONUNBUFFERED": "1"}
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=self.env,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()

    @staticmethod
    @cache
    def of_this_process() -> "_Template":
        return _Template()

    def fork(self, *files: int) -> int:
        socket.send_fds(self._socket, [b"fork"], files)
        return int(self._socket.recv(32))


def _serve(control: socket.socket) -> list[str]:
    """Fork at each request; return in the child, with its module and arguments."""
    woken, wakes = os.pipe2(os.O_NONBLOCK)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes)
    running: dict[int, int] = {}
    while True:
        readable, _, _ = select.select([control, woken], [], [])
        if woken in readable:
            os.read(woken, 4096)
            _report_ends(running)
        if control in readable:
            _, files, _, _ = socket.recv_fds(control, 32, 4)
            if not files:
                os._exit(0)
            begun, begins = os.pipe()
            pid = os.fork()
            if pid == 0:
                return _begin(files, begins)
            os.close(begins)
            os.read(begun, 1)
            for file in (begun, *files[:3]):
                os.close(file)
            running[pid] = files[3]
            control.send(str(pid).encode())


def _report_ends(running: dict[int, int]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        file = running.pop(pid)
        os.write(file, _STATUS.pack(status))
        os.close(file)


def _begin(files: Sequence[int], begins: int) -> list[str]:
    request, out, err, _ = files
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    arguments, env, folder = json.loads(os.pread(request, os.fstat(request).st_size, 0))
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.write(begins, b"1")
    os.closerange(3, 256)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    os.chdir(folder)
    sys.path.insert(0, folder)
    return list(arguments)


def _main() -> NoReturn:
    control = socket.socket(fileno=int(sys.argv[1]))
    del sys.path[0]
    importlib.import_module(_OURS)
    features = importlib.import_module("worker.core.features").installed()
    commands = (row.module for feature in features for row in feature.commands.values())
    packages = (importlib.import_module(name) for name in _WHOLE)
    parts = (part.name for each in packages for part in pkgutil.walk_packages(each.__path__, f"{each.__name__}."))
    for name in (*_AT_START, *commands, *parts):
        importlib.import_module(name)
    _cache_entry_points()
    del sys.modules[_OURS]  # it is run as the main module
    gc.collect()
    gc.freeze()
    sys.argv = _serve(control)
    control.detach()
    if sys.argv[0] == "-c":
        exec(sys.argv.pop(1), {"__name__": "__main__"})  # noqa: S102 - code of a test
        sys.exit()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    sys.exit()


def _cache_entry_points() -> None:
    """Read the entry points of each installed distribution once: a start reads those of all three times."""
    read = metadata.Distribution.entry_points.fget
    cached = cache(lambda path: read(metadata.PathDistribution(path)))
    metadata.PathDistribution.entry_points = property(lambda self: cached(self._path))
    metadata.entry_points()


if __name__ == "__main__":
    _main()
