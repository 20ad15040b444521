"""Short texts of a trace, fit to be sent: ids, names, times."""

import math
from datetime import UTC, datetime
from typing import Final

from judges.prompt import neutralise

__all__ = ["finite", "rounded", "short", "spoken_time"]

_MAX_CHARS: Final = 200


def short(text: str, max_chars: int = _MAX_CHARS) -> str:
    """Make a text visible, and cut it: where a whole list is shown, one value may not fill it."""
    shown = neutralise(text[: max_chars + 1])
    return shown if len(shown) <= max_chars else shown[: max_chars - 1] + "\u2026"


def finite(seconds: float | None) -> float | None:
    """Give a time that can be reckoned with; None for the others."""
    return seconds if seconds is not None and math.isfinite(seconds) else None


def rounded(seconds: float | None) -> float | None:
    """Cut a time to microseconds."""
    return None if seconds is None else round(seconds, 6)


def spoken_time(seconds: float | None) -> str | None:
    """Write a time since the epoch as a date; one that is in no calendar as a number."""
    if seconds is None:
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat()
    except (OverflowError, OSError, ValueError):
        return str(seconds)
