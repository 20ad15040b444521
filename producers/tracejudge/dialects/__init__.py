"""The dialects in which instrumentations write spans of LLM applications, read into one form.

Nothing here imports OpenTelemetry, and nothing raises because of the contents of a span.
"""

from tracejudge.dialects import genai, names, openinference, openllmetry
from tracejudge.dialects.reading import RawEvent, RawSpan, Reading, Role, common, merged

__all__ = ["RawEvent", "RawSpan", "Reading", "Role", "read"]


def read(span: RawSpan) -> Reading:
    """Read a span in all dialects at once: some instrumentations write several on one span.

    A part written in several is taken from the GenAI conventions first, then OpenInference, then OpenLLMetry.
    """
    if span.scope == names.OWN_SCOPE or not names.OWN_ATTRIBUTES.isdisjoint(span.attributes):
        return Reading(role=Role.JUDGE)
    # Most spans of a service are requests and queries, without any attribute or event of a dialect.
    keys = (*span.attributes, *(event.name for event in span.events))
    if not any(key.startswith(names.PREFIXES) for key in keys):
        return common(span)
    inference = openinference.read(span)
    # The kind and the tool call of OpenInference come first: its converters to GenAI lose distinctions between kinds,
    # and write the description of a tool's parameters as its arguments.
    first = Reading(role=inference.role, tool=inference.tool)
    last = Reading(role=genai.fallback_role(span))
    return merged((first, genai.read(span), inference, openllmetry.read(span), common(span), last))
