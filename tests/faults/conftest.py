"""Fault experiments on real processes. Each has its own Redis, endpoint and OTLP receiver."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from experiment import Experiment


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder and raise their timeout: a dead worker is detected after 15 s at the earliest."""
    here = f"{Path(__file__).parent}/"
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.faults)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(1500))


@pytest.fixture
def experiment(tmp_path: Path) -> Iterator[Experiment]:
    """An experiment with two judges, one judge model whose endpoint takes 50 ms, and no worker yet."""
    with Experiment(tmp_path) as made:
        yield made
