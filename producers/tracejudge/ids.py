"""Ids in W3C form: those of the current OpenTelemetry span if there is one, else random."""

import random
import sys
from typing import NamedTuple

from tracejudge.log import report_or_raise

# A generator of its own, seeded by the system: a host that seeds the global generator must not get the same ids
# again. Drawing from it costs a tenth of asking the system each time, and is one step in C, so threads need no lock.
_random = random.Random()  # noqa: S311 - ids must be distinct, not secret
draw = _random.getrandbits

OPENTELEMETRY = "opentelemetry.trace"
"""The module that knows the current span. Never imported here: a host that has not loaded it has no span."""


class SpanIds(NamedTuple):
    """Trace id and span id in lower-case hex."""

    trace_id: str
    span_id: str


def fresh_id() -> str:
    """Draw 16 hex digits: the id of a publication, a span or a producer."""
    return draw(64).to_bytes(8, "big").hex()


def fresh_trace_id() -> str:
    """Draw 32 hex digits: the id of a trace."""
    return draw(128).to_bytes(16, "big").hex()


def reseed() -> None:
    """Seed the generator again: a forked child would draw the same ids as its parent and siblings."""
    _random.seed()


def current_span() -> SpanIds | None:
    """Return the ids of the current OpenTelemetry span, or None."""
    opentelemetry = sys.modules.get(OPENTELEMETRY)
    if opentelemetry is None:
        return None
    try:
        span = opentelemetry.get_current_span()
        if span is opentelemetry.INVALID_SPAN:  # first, as it is the cheapest check
            return None
        context = span.get_span_context()
        if not context.is_valid:
            return None
        return SpanIds(f"{context.trace_id:032x}", f"{context.span_id:016x}")
    except BaseException as error:  # noqa: BLE001 - another thread may be in the middle of importing it
        report_or_raise(error)
        return None
