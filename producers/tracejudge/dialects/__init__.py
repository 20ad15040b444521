"""The dialects in which instrumentations write spans of LLM applications, read into one form.

Nothing here imports OpenTelemetry, and nothing raises because of the contents of a span.
"""

from functools import lru_cache
from typing import Final

from tracejudge.dialects import genai, names, openinference, openllmetry
from tracejudge.dialects.reading import RawEvent, RawSpan, Reading, Role, common, merged
from tracejudge.dialects.table import tables

__all__ = ["RawEvent", "RawSpan", "Reading", "Role", "is_content", "read"]

_PREFIXES: Final = (*names.PREFIXES, *(prefix for table in tables() for prefix in table.prefixes))
_CONTENT: Final = (*names.CONTENT_PREFIXES, *(prefix for table in tables() for prefix in table.content))


@lru_cache(4_096)
def is_content(key: str) -> bool:
    """Return whether an attribute holds content that is published elsewhere in the trace."""
    return key == names.PROMPT or key.startswith(_CONTENT)


def read(span: RawSpan) -> Reading:
    """Read a span in all dialects at once: some instrumentations write several on one span.

    A part written in several is taken from tables first, then the GenAI conventions, OpenInference, and OpenLLMetry.
    """
    if span.scope == names.OWN_SCOPE or not names.OWN_ATTRIBUTES.isdisjoint(span.attributes):
        return Reading(role=Role.JUDGE)
    # Most spans of a service are requests and queries, without any attribute or event of a dialect.
    keys = (*span.attributes, *(event.name for event in span.events))
    if not any(key.startswith(_PREFIXES) for key in keys):
        return common(span)
    of_tables = [table.read(span) for table in tables()]
    inference = openinference.read(span)
    # The kind and the tool call of OpenInference come first: its converters to GenAI lose distinctions between kinds,
    # and write the description of a tool's parameters as its arguments.
    first = Reading(role=inference.role, tool=inference.tool)
    last = Reading(role=genai.fallback_role(span))
    return merged((first, *of_tables, genai.read(span), inference, openllmetry.read(span), common(span), last))
