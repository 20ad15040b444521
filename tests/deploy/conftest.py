"""promtool, the real one: Debian's package `prometheus` has it."""

from pathlib import Path

import pytest
from alertmanager_run import find_program


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Raise the timeout of the tests of this folder: promtool takes a minute for the watcher's scenes."""
    here = f"{Path(__file__).parent}/"
    for item in items:
        if str(item.path).startswith(here) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def promtool() -> str:
    return find_program("promtool")
