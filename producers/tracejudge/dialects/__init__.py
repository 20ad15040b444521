"""The dialects in which instrumentations write spans of LLM applications, read into one form.

Nothing here imports OpenTelemetry, and nothing raises because of the contents of a span.
"""

from tracejudge.dialects.engine import Dialects, builtin
from tracejudge.dialects.names import RawEvent, RawSpan, Reading, Role

__all__ = ["Dialects", "RawEvent", "RawSpan", "Reading", "Role", "builtin", "read"]


def read(span: RawSpan) -> Reading:
    """Read a span by the tables of this package."""
    return builtin().read(span)
