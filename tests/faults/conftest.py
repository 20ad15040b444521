"""Fault experiments on real processes. Each has its own Redis, endpoint and OTLP receiver."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from experiment import Experiment
from redis_faults import server_of

from worker.base.embedded import ServerBinary


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
    """An experiment with two judges and no worker yet, on the version of Redis that `on_redis` selects."""
    version = getattr(request, "param", None)
    with Experiment(tmp_path, redis=server_of(version, redis_binaries) if version else None) as made:
        yield made
