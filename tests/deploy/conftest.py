"""promtool, the real one: Debian's package `prometheus` has it."""

import os
import shutil
from pathlib import Path

import pytest

from deploy.generators.write import RULES


@pytest.fixture(scope="session")
def promtool() -> str:
    """Skip at home without it, fail in CI: there its absence would hide that no rule was tested."""
    found = shutil.which("promtool", path=f"{os.environ.get('PATH', '')}:/usr/bin")
    if found:
        return found
    if os.environ.get("CI") == "true":
        pytest.fail("no promtool: install the package prometheus")
    pytest.skip("no promtool")


@pytest.fixture(scope="session")
def rules() -> Path:
    """The committed files."""
    return RULES
