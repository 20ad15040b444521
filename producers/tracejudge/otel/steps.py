"""The steps of a trace as they are published: for the judges that look at the whole of it."""

from collections.abc import Mapping
from typing import Final

from tracejudge.dialects import Reading, Role, names
from tracejudge.dialects.values import clean, plain
from tracejudge.model import Document, JSONValue, Span
from tracejudge.otel.family import Family, Step

_MAX_ATTRIBUTES: Final = 128


def spans_of(family: Family) -> list[Span]:
    """Write all steps in the order they began.

    Inputs and outputs hold what was understood; of a step that failed before it gave anything, its error. Of a model's
    conversation that is only the query: its history is said once, in the trace. The attributes stay as they came, but
    for those that hold the same content again.
    """
    steps = sorted(family.steps, key=lambda step: step.span.started_at or 0.0)
    return [_span(step) for step in steps]


def _span(step: Step) -> Span:
    span, reading = step.span, step.reading
    return Span(
        span_id=span.span_id,
        name=clean(span.name),
        parent_id=span.parent_id,
        kind=span.kind if reading.role is None else reading.role.value,
        started_at=span.started_at,
        ended_at=span.ended_at,
        status=span.status,
        inputs=_inputs(reading),
        outputs=_outputs(reading),
        attributes=_attributes(span.attributes) or None,
    )


def _inputs(reading: Reading) -> JSONValue:
    if reading.tool is not None:
        return reading.tool.arguments
    return reading.asked.raw if reading.asked.query is None else reading.asked.query


def _outputs(reading: Reading) -> JSONValue:
    if reading.tool is not None:
        return reading.error if reading.tool.result is None else reading.tool.result
    if reading.role in {Role.RETRIEVER, Role.RERANKER}:
        return [_document(document) for document in reading.documents] or reading.error
    if reading.said.text is not None:
        return reading.said.text
    if reading.said.calls:
        return [{"name": call.name, "arguments": call.arguments} for call in reading.said.calls]
    return reading.error if reading.said.raw is None else reading.said.raw


def _document(document: Document) -> dict[str, JSONValue]:
    parts = {"text": document.text, "id": document.id, "score": document.score}
    return {name: value for name, value in parts.items() if value is not None}


def _attributes(attributes: Mapping[str, object]) -> dict[str, JSONValue]:
    kept = [key for key in attributes if not names.is_content(key)][:_MAX_ATTRIBUTES]
    return {clean(key): value for key in kept if (value := plain(attributes[key])) is not None}
