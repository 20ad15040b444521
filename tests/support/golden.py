"""Whole texts as files beside the tests; UPDATE_GOLDEN=1 writes them, for review."""

import difflib
import os
from pathlib import Path
from typing import Final

import pytest

UPDATES: Final = os.environ.get("UPDATE_GOLDEN") == "1"


def check_golden(path: Path, actual: str) -> None:
    """Compare a text with a file, byte for byte."""
    if UPDATES:
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(actual.encode())
    expected = path.read_bytes().decode() if path.exists() else ""
    if actual != expected:
        names = (f"{path.parent.name}/{path.name}", "now")
        diff = difflib.unified_diff(expected.split("\n"), actual.split("\n"), *names, lineterm="")
        pytest.fail("\n".join(("the text has changed; if it should have: UPDATE_GOLDEN=1", *diff)), pytrace=False)
