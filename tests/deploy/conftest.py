"""promtool, the real one: Debian's package `prometheus` has it."""

import os
import shutil
from pathlib import Path

import pytest

from deploy.rules.rule_files import FOLDER as RULES


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Raise the timeout of the tests of this folder: promtool takes a minute for the watcher's scenes."""
    here = f"{Path(__file__).parent}/"
    for item in items:
        if str(item.path).startswith(here) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def promtool() -> str:
    """Skip at home without it, fail in CI: there its absence would hide that no rule was tested."""
    path = shutil.which("promtool", path=f"{os.environ.get('PATH', '')}:/usr/bin")
    if path:
        return path
    if os.environ.get("CI") == "true":
        pytest.fail("no promtool: install the package prometheus")
    pytest.skip("no promtool")


@pytest.fixture(scope="session")
def rules() -> Path:
    """The committed files."""
    return RULES
