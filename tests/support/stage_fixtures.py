"""What the stages' tests run on: each of both Redis versions, and eyes on everything under the test's prefix."""

import os
from collections.abc import Callable, Iterator

import pytest

from judges.agent import loop
from support.judging_parts import Workers
from support.partition_parts import three_partitions
from support.processes import PATIENCE_S
from support.stage_parts import Keyspace
from worker.core.export import consumer as outbox
from worker.core.queue.leases import Leases


@pytest.fixture
def keyspace(any_redis_url: str, prefix: str) -> Iterator[Keyspace]:
    with Keyspace(any_redis_url, prefix) as keyspace:
        yield keyspace


@pytest.fixture
def new_worker(keyspace: Keyspace) -> Iterator[Workers]:
    """Makes workers whose models follow a script."""
    with Workers(keyspace) as new_workers:
        yield new_workers


@pytest.fixture
def keyspaces(redis_url: str, prefix: str) -> Iterator[list[Keyspace]]:
    """Three partitions of one installation, on one server."""
    with three_partitions(redis_url, prefix) as keyspaces:
        yield keyspaces


@pytest.fixture
def fresh_keyspaces(any_redis_url: str, prefix: str) -> Iterator[Callable[[], Keyspace]]:
    """Make a keyspace that is cleared for each example of hypothesis, which keeps a test's fixtures."""
    with Keyspace(any_redis_url, prefix) as keyspace:

        def fresh() -> Keyspace:
            for key in keyspace.client.scan_iter(match=f"{prefix}:*", count=1000):
                keyspace.client.delete(key)
            return keyspace

        yield fresh


@pytest.fixture
def leases(keyspace: Keyspace) -> Leases:
    return Leases(keyspace.store, tries_ttl_s=7200)


@pytest.fixture
def _patience_with_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengthen the time limit of tools: a machine may pause for seconds."""
    monkeypatch.setattr(loop, "_MAX_TOOL_S", PATIENCE_S)


@pytest.fixture
def _short_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make an exporter that finds nothing new continue at once with what it has claimed."""
    monkeypatch.setattr(outbox, "_BLOCK_MS", 1)


@pytest.fixture
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TRACEJUDGE_")]:
        monkeypatch.delenv(name)
