"""Tables of data beside the tests of a folder, in JSON."""

import json
import re
from pathlib import Path
from typing import Any


def read_table(test_file: str, name: str) -> Any:
    """Read data/NAME.json beside a file of tests."""
    return json.loads((Path(test_file).parent / "data" / f"{name}.json").read_text(encoding="utf-8"))


def expand(text: str) -> str:
    """Write out repeats: ``«x*9»`` is nine times x."""
    return re.sub(r"«(.*?)\*([0-9]+)»", lambda match: match[1] * int(match[2]), text, flags=re.DOTALL)


def as_bytes(text: str) -> bytes:
    """Encode a text of a table, in which a lone surrogate stands for a byte that is not UTF-8."""
    return expand(text).encode("utf-8", "surrogateescape")
