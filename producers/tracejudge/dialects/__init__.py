"""The dialects in which spans of LLM applications are written, read into one form.

Nothing here imports OpenTelemetry, and nothing raises for what a span holds: an exporter hands over whatever it is
given.
"""

from tracejudge.dialects import names, openinference, openllmetry, otel
from tracejudge.dialects.common import common
from tracejudge.dialects.reading import Reading, Role, merged
from tracejudge.dialects.spans import RawEvent, RawSpan

__all__ = ["RawEvent", "RawSpan", "Reading", "Role", "read"]


def read(span: RawSpan) -> Reading:
    """Read a span in all dialects at once: some instrumentations write several on one span.

    A part that several of them hold is taken from the GenAI conventions first, then from OpenInference, then from
    OpenLLMetry. Only the kind of the span and the call of a tool are OpenInference's to say: converting them
    loses what it tells apart, and takes the description of a tool's parameters for its arguments.
    """
    if _is_ours(span):
        return Reading(role=Role.JUDGE)
    if not _speaks(span):
        return common(span)
    inference = openinference.read(span)
    first = Reading(role=inference.role, tool=inference.tool)
    return merged((first, otel.read(span), inference, openllmetry.read(span), common(span)))


def _is_ours(span: RawSpan) -> bool:
    return span.scope == names.OWN_SCOPE or not names.OWN_ATTRIBUTES.isdisjoint(span.attributes)


def _speaks(span: RawSpan) -> bool:
    """Tell whether any dialect can be in a span: most of a service's are requests and queries."""
    return any(key.startswith(names.PREFIXES) for key in span.attributes) or any(
        event.name.startswith(names.PREFIXES) for event in span.events
    )
