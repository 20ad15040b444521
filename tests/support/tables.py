"""Data beside the tests of a folder: tables in JSON, and golden files that hold whole texts."""

import difflib
import json
import os
import re
from pathlib import Path
from typing import Any, Final

import pytest


def read_table(test_file: str, name: str) -> Any:
    """Read data/NAME.json beside a file of tests."""
    return json.loads((Path(test_file).parent / "data" / f"{name}.json").read_text(encoding="utf-8"))


def expand(text: str) -> str:
    """Write out repeats: ``«x*9»`` is nine times x."""
    return re.sub(r"«(.*?)\*([0-9]+)»", lambda match: match[1] * int(match[2]), text, flags=re.DOTALL)


def as_bytes(text: str) -> bytes:
    """Encode a text of a table, in which a lone surrogate stands for a byte that is not UTF-8."""
    return expand(text).encode("utf-8", "surrogateescape")


# --- golden files ---
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
