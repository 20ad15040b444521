"""What one look has found: a part, whether it serves, what is wrong and the mend."""

from typing import Literal

from msgspec import Struct

__all__ = ["Finding", "broken", "ok", "warning"]


class Finding(Struct, frozen=True):
    """One part and how it fares.

    Attributes:
        what: What is wrong; of a part that serves what there is to know.
        mend: What to do; empty where nothing is to be done.
    """

    name: str
    result: Literal["ok", "warning", "broken"]
    what: str = ""
    mend: str = ""


def ok(name: str, what: str = "") -> Finding:
    """Say that a part serves."""
    return Finding(name, "ok", what)


def warning(name: str, what: str, mend: str) -> Finding:
    """Say that a part serves, and not as it should."""
    return Finding(name, "warning", what, mend)


def broken(name: str, what: str, mend: str) -> Finding:
    """Say that a part does not serve."""
    return Finding(name, "broken", what, mend)
