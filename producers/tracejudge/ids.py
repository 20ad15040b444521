"""Ids in W3C form: of the current OpenTelemetry span when there is one, else random."""

import random
import sys
from typing import NamedTuple

from tracejudge.swallowing import swallow

# Own and seeded by the system: a host that seeds the global generator must not get the same ids again. Drawing
# from it costs a tenth of asking the system each time, and is one step in C, so threads need no lock.
_random = random.Random()  # noqa: S311 - ids must be distinct, not secret
draw = _random.getrandbits

OPENTELEMETRY = "opentelemetry.trace"
"""The module that knows the current span. Never imported here: a host without it in memory has none."""


class SpanIds(NamedTuple):
    """A span within its trace, in lower-case hex."""

    trace_id: str
    span_id: str


def fresh_id() -> str:
    """Draw 16 hex digits: a publication, a span, a producer."""
    return draw(64).to_bytes(8, "big").hex()


def fresh_trace_id() -> str:
    """Draw 32 hex digits: a trace nobody else knows of."""
    return draw(128).to_bytes(16, "big").hex()


def reseed() -> None:
    """Begin anew: a forked child would draw what its parent and its siblings draw."""
    _random.seed()


def current_span() -> SpanIds | None:
    """Read the ids of the current OpenTelemetry span, None when there is none."""
    opentelemetry = sys.modules.get(OPENTELEMETRY)
    if opentelemetry is None:
        return None
    try:
        span = opentelemetry.get_current_span()
        if span is opentelemetry.INVALID_SPAN:  # said first, as it is the quickest to see
            return None
        context = span.get_span_context()
        if not context.is_valid:
            return None
        return SpanIds(f"{context.trace_id:032x}", f"{context.span_id:016x}")
    except Exception as error:  # noqa: BLE001 - another thread may be in the midst of importing it
        swallow(error)
        return None
