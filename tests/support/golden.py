"""Whole outputs as files beside the tests; UPDATE_GOLDEN=1 writes them, for review."""

import os
from pathlib import Path


def check_golden(test_file: str, name: str, text: str) -> None:
    """Compare a text with data/NAME beside a file of tests."""
    file = Path(test_file).parent / "data" / name
    if os.environ.get("UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8", newline="")
    expected = file.read_bytes().decode()
    assert text == expected, f"{file.name} differs; if it should: UPDATE_GOLDEN=1"
