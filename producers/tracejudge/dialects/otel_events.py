"""GenAI content that stands in the events of a span: some instrumentations wrote it there before attributes."""

from collections.abc import Iterator, Mapping
from typing import Final

from tracejudge.dialects import names
from tracejudge.dialects.spans import RawEvent, RawSpan
from tracejudge.dialects.values import decoded, mapping_of, structure_of

_MESSAGES: Final = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}


def with_events(span: RawSpan) -> Mapping[str, object]:
    """Give the attributes of a span, filled up with what its events hold of the conversation."""
    if not any(event.name.startswith("gen_ai.") for event in span.events):
        return span.attributes
    found = dict(span.attributes)
    for event in span.events:
        if event.name in {names.EVENT_DETAILS, names.EVENT_PROMPT, names.EVENT_COMPLETION}:
            found = {**event.attributes, **found}
    inputs, outputs = list(_inputs(span.events)), list(_outputs(span.events))
    if inputs:
        found.setdefault(names.INPUT_MESSAGES, inputs)
    if outputs:
        found.setdefault(names.OUTPUT_MESSAGES, outputs)
    return found


def _inputs(events: tuple[RawEvent, ...]) -> Iterator[object]:
    for event in events:
        if event.name in _MESSAGES:
            yield {"role": _MESSAGES[event.name], **_body(event)}


def _outputs(events: tuple[RawEvent, ...]) -> Iterator[object]:
    for event in events:
        if event.name == names.EVENT_CHOICE:
            body = _body(event)
            message = structure_of(body.get("message"))
            yield {"role": "assistant", **(mapping_of(message) or {**body, "content": body.get("content", message)})}


def _body(event: RawEvent) -> dict[str, object]:
    """Read the message of an event: its attributes, or the JSON that holds them all; each may be JSON again."""
    body = mapping_of(decoded(event.attributes.get(names.EVENT_CONTENT))) or event.attributes
    return {key: structure_of(value) for key, value in body.items()}
