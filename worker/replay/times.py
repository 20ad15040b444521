"""Points in time as a user writes them, and as the ids of a stream's entries tell them."""

import datetime as dt
import re
from typing import Final

__all__ = ["id_at", "in_words", "milliseconds", "moment"]

_SECONDS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION: Final = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*([smhd]?)")


def moment(text: str, now_s: float) -> float:
    """Read `90`, `15m`, `24h` or `7d` as so long before now, anything else as a time of ISO 8601.

    A time without a zone is in UTC, as the times that `replay` prints.

    Args:
        now_s: The present, in seconds since the epoch.

    Returns:
        Seconds since the epoch.

    Raises:
        ValueError: It is neither; the text says what to write.
    """
    duration = _DURATION.fullmatch(text.strip().lower())
    if duration is not None:
        return now_s - float(duration[1]) * _SECONDS[duration[2]]
    try:
        time = dt.datetime.fromisoformat(text.strip())
        return (time if time.tzinfo else time.replace(tzinfo=dt.UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise ValueError("write 90, 15m or 24h, or a time as 2026-05-01T12:00:00Z") from error


def id_at(time_s: float) -> str:
    """Give the part of an entry's id that tells its time; as a bound of a range it takes in the whole millisecond."""
    return str(max(0, int(time_s * 1000)))


def milliseconds(entry_id: str) -> int:
    """Read from an entry's id when it was written, in milliseconds since the epoch."""
    return int(entry_id.split("-", 1)[0])


def in_words(entry_id: str) -> str:
    """Write when an entry was written, so that `moment` reads it again."""
    time = dt.datetime.fromtimestamp(milliseconds(entry_id) // 1000, dt.UTC)
    return f"{time:%Y-%m-%dT%H:%M:%SZ}"
