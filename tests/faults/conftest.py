"""Fault experiments on real processes. Each has its own Redis, endpoint and OTLP receiver."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from experiment import Experiment
from redis_faults import server_of

from worker.base.embedded import EmbeddedRedis, ServerBinary


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder and raise their timeout: a dead worker is detected after 15 s at the earliest."""
    here = f"{Path(__file__).parent}/"
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.faults)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(1500))


@pytest.fixture
def experiment(
    request: pytest.FixtureRequest, tmp_path: Path, redis_binaries: tuple[ServerBinary, ...]
) -> Iterator[Experiment]:
    """An experiment with two judges and no worker yet.

    Its parameter is the version of Redis that `on_redis` selects, or `appendonly` for one that can be restarted.
    """
    kind = getattr(request, "param", None)
    redis = EmbeddedRedis(appendonly=True) if kind == "appendonly" else kind and server_of(kind, redis_binaries)
    with Experiment(tmp_path, redis=redis) as made:
        yield made
