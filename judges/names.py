"""What a judge, and a metric, may be called: the name stands in metrics, keys and files."""

import re
from typing import Final

__all__ = ["RULE", "is_name"]

RULE: Final = "at most 64 small letters, digits and '_', a letter first"
"""What ``is_name`` takes, in words."""
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")


def is_name(text: str) -> bool:
    """Tell whether a text will do as the name of a judge or a metric."""
    return _NAME.fullmatch(text) is not None
