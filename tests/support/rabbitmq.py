"""A real RabbitMQ server of a test: its own node, ports, data and logs, run as the current user."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import Final, Self

from support.processes import free_port, missing, wait_until

__all__ = ["RabbitMq"]

_START_S: Final = 120.0
_PROGRAMS: Final = "/usr/lib/rabbitmq/bin"
"""Debian's programs on PATH require a user of their own; these are the programs that they call."""


class RabbitMq:
    """One RabbitMQ server during the block; `kill` and `start` simulate a crash and a restart."""

    def __init__(self, folder: Path) -> None:
        """Prepare; without RabbitMQ the test is skipped, and fails in CI."""
        self._server = shutil.which("rabbitmq-server", path=f"{_PROGRAMS}:{os.environ.get('PATH', '')}")
        self._epmd = shutil.which("epmd")
        if self._server is None or self._epmd is None:
            missing("no rabbitmq-server: install the package rabbitmq-server")
        self.port = free_port()
        self._epmd_port = free_port()
        self._folder = folder / f"rabbitmq-{self.port}"
        self._folder.mkdir()
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def __enter__(self) -> Self:
        try:
            self._processes.append(self._run([self._epmd, "-port", str(self._epmd_port)], "epmd"))
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        for process in self._processes:
            process.kill()
            process.wait()

    def start(self) -> None:
        """Start the server with its earlier data."""
        self._processes.append(self._run([self._server], "server"))
        wait_until(self._listens, _START_S, "RabbitMQ to listen")

    def kill(self) -> None:
        """Kill the server, as in a crash."""
        if len(self._processes) > 1:
            server = self._processes.pop()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
            server.wait()

    def _run(self, command: list[str], name: str) -> "subprocess.Popen[bytes]":
        own = {
            "HOME": str(self._folder),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"tracejudge-{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(self._folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self._folder / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self._folder / "plugins"),
            "RABBITMQ_CONF_ENV_FILE": str(self._folder / "none"),
            "RABBITMQ_CONFIG_FILE": str(self._folder / "none"),
        }
        with (self._folder / f"{name}.out").open("ab") as out:
            return subprocess.Popen(command, env={**os.environ, **own}, stdout=out, stderr=out, start_new_session=True)

    def _listens(self) -> bool:
        assert self._processes[-1].poll() is None, (self._folder / "server.out").read_text(errors="replace")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1) as there:
            there.settimeout(2)
            there.sendall(b"AMQP\x00\x00\x09\x01")
            return bool(there.recv(1))
        return False
