"""Ids in W3C form: of the current OpenTelemetry span when there is one, else random."""

import random
import sys
from typing import NamedTuple

from tracejudge.swallowing import swallow

# Own and seeded by the system: a host that seeds the global generator must not get the same ids again. Drawing
# from it costs a tenth of asking the system each time, and is one step in C, so threads need no lock.
_random = random.Random()  # noqa: S311 - ids must be distinct, not secret


class SpanIds(NamedTuple):
    """A span within its trace, in lower-case hex."""

    trace_id: str
    span_id: str


def fresh_id() -> str:
    """Draw 16 hex digits: a publication, a producer."""
    return f"{_random.getrandbits(64):016x}"


def fresh_span() -> SpanIds:
    """Draw the ids of a span nobody recorded, in a trace of its own."""
    digits = f"{_random.getrandbits(192):048x}"
    return SpanIds(digits[:32], digits[32:])


def current_span() -> SpanIds | None:
    """Read the ids of the current OpenTelemetry span, None when there is none.

    OpenTelemetry is never imported for it: a host without it in memory has no current span.
    """
    opentelemetry = sys.modules.get("opentelemetry.trace")
    if opentelemetry is None:
        return None
    try:
        context = opentelemetry.get_current_span().get_span_context()
        if not context.is_valid:
            return None
        return SpanIds(f"{context.trace_id:032x}", f"{context.span_id:016x}")
    except Exception as error:  # noqa: BLE001 - another thread may be in the midst of importing it
        swallow(error)
        return None
