"""The `Retry-After` header, as the clients of model endpoints and of OTLP receivers both read it."""

import email.utils
import math
import time
from collections.abc import Mapping
from typing import Final

_MAX_RETRY_AFTER_S: Final = 3600.0


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Read `Retry-After`, in seconds or as a date, as 0 to 3600 s; None where it is absent or neither."""
    value = headers.get("retry-after", "")
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, TypeError, ArithmeticError, LookupError, OSError):
            # Years and zones out of range raise more than ValueError.
            return None
    return None if math.isnan(seconds) else min(_MAX_RETRY_AFTER_S, max(0.0, seconds))
