"""What the stages' tests run on: each of both Redis versions, and eyes on everything under the test's prefix."""

import os
from collections.abc import Iterator

import pytest
from stage_parts import Ground

from worker.export import outbox


@pytest.fixture
def ground(any_redis_url: str, prefix: str) -> Iterator[Ground]:
    with Ground(any_redis_url, prefix) as ground:
        yield ground


@pytest.fixture
def _short_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an exporter that finds nothing new go on at once with what it has claimed."""
    monkeypatch.setattr(outbox, "_BLOCK_MS", 1)


@pytest.fixture
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TRACEJUDGE_")]:
        monkeypatch.delenv(name)
