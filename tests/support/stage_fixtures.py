"""What the stages' tests run on: each of both Redis versions, and eyes on everything under the test's prefix."""

import os
from collections.abc import Iterator

import pytest

from judges.agent import tool_use
from support.judging_parts import Desks
from support.leases_parts import BEGIN_S, TTL_S, add
from support.processes import PATIENCE_S
from support.stage_parts import Ground
from worker.core.export import consumer as outbox
from worker.core.queue.leases import Leases


@pytest.fixture
def ground(any_redis_url: str, prefix: str) -> Iterator[Ground]:
    with Ground(any_redis_url, prefix) as ground:
        yield ground


@pytest.fixture
def desk(ground: Ground) -> Iterator[Desks]:
    """Sets up workers whose models follow a script."""
    with Desks(ground) as desks:
        yield desks


@pytest.fixture
def leases(ground: Ground) -> Leases:
    return Leases(ground.store, tries_ttl_s=TTL_S)


@pytest.fixture
def batch_id(ground: Ground) -> str:
    return add(ground)


@pytest.fixture
def batch_ids(ground: Ground) -> list[str]:
    """Three batches, the oldest first."""
    return [add(ground, made_at_s=BEGIN_S + number) for number in range(3)]


@pytest.fixture
def _patience_with_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengthen the time limit of tools: a machine may pause for seconds."""
    monkeypatch.setattr(tool_use, "_MAX_TOOL_S", PATIENCE_S)


@pytest.fixture
def _short_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make an exporter that finds nothing new continue at once with what it has claimed."""
    monkeypatch.setattr(outbox, "_BLOCK_MS", 1)


@pytest.fixture
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TRACEJUDGE_")]:
        monkeypatch.delenv(name)
