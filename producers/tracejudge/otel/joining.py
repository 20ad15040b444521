"""From the spans of one OpenTelemetry trace to one trace of ours."""

from collections.abc import Iterable
from typing import Any

import msgspec

from tracejudge.dialects import Reading, Role
from tracejudge.dialects.values import clean
from tracejudge.model import JSONValue, Message, Usage
from tracejudge.otel.evidence import context_of, tool_calls_of
from tracejudge.otel.family import Family, Step
from tracejudge.otel.gathering import Gathered
from tracejudge.otel.steps import spans_of


def join(gathered: Gathered) -> dict[str, Any] | None:
    """Make the fields of a trace; None where no model was called and nothing was answered.

    Of several calls of a model the last one is judged. Where an agent or a chain around it says itself what it
    was asked and what it answered, that is taken, for it is what the user saw; where it says only one of the two,
    the other comes from the call. `span_id` is the span whose answer it is.
    """
    family = Family(gathered)
    call = family.answering()
    request = family.request(call)
    sources = [step for step in (request, call) if step is not None]
    if not sources:
        return None
    output, judged = _answer(sources)
    query = _query(sources)
    root = family.root
    fields = {
        "trace_id": judged.span.trace_id,
        "span_id": judged.span.span_id,
        "name": clean((root or judged).span.name) or None,
        "output": output or "",
        "input": query,
        "messages": _history(sources, query),
        "context": context_of(family, judged),
        "tool_calls": tool_calls_of(family),
        "spans": spans_of(family),
        "usage": _usage(family, request, call),
        "started_at": judged.span.started_at,
        "ended_at": judged.span.ended_at,
        "error": judged.reading.error or (None if output or root is None else root.reading.error),
        **_said_once(family, sources),
    }
    return {name: value for name, value in fields.items() if value not in (None, [])}


def _answer(sources: list[Step]) -> tuple[str | None, Step]:
    """Take the first text that was answered, else a structure; the call is judged when nothing was."""
    for step in sources:
        if step.reading.said.text is not None:
            return step.reading.said.text, step
    for step in sources:
        if step.reading.said.raw is not None:
            return _json(step.reading.said.raw), step
    return None, sources[-1]


def _query(sources: list[Step]) -> str | None:
    for step in sources:
        if step.reading.asked.query is not None:
            return step.reading.asked.query
    raw = next((step.reading.asked.raw for step in sources if step.reading.asked.raw is not None), None)
    return None if raw is None else _json(raw)


def _history(sources: list[Step], query: str | None) -> list[Message]:
    """Take what was said before the query: agents ask their model on, with the query among what came before."""
    history = next((step.reading.asked.history for step in sources if step.reading.asked.history), ())
    before: list[Message] = []
    for message in history:
        if message.role == "user" and message.content == query:
            break
        before.append(message)
    return before


def _usage(family: Family, request: Step | None, call: Step | None) -> Usage | None:
    """Count the tokens of the call, or of all calls within the request; a call within a call counts once."""
    if request is None:
        return None if call is None else call.reading.usage
    calls = [step for step in family.of_role(Role.LLM) if step.reading.usage is not None]
    ids = {step.span.span_id for step in calls}
    outer = [
        step.reading.usage
        for step in calls
        if family.is_within(step, request) and not any(one.span.span_id in ids for one in family.above(step))
    ]
    counted = [usage for usage in outer if usage is not None]
    if not counted:
        return request.reading.usage
    return Usage(sum(usage.input_tokens for usage in counted), sum(usage.output_tokens for usage in counted))


def _said_once(family: Family, sources: list[Step]) -> dict[str, str | None]:
    """Find what any span may say: the call first, then the request, then those around them, then all others."""
    nearest = [*reversed(sources), *(one for step in sources for one in family.above(step)), *family.steps]
    readings = [step.reading for step in nearest]
    own = [step.reading for step in reversed(sources)]
    return {
        "model": _first(own, "model"),
        "provider": _first(own, "provider"),
        "response_id": _first(own, "response_id"),
        "session_id": _first(readings, "session_id"),
        "user_id": _first(readings, "user_id"),
    }


def _first(readings: Iterable[Reading], name: str) -> str | None:
    return next((value for reading in readings if (value := getattr(reading, name)) is not None), None)


def _json(value: JSONValue) -> str:
    return msgspec.json.encode(value).decode()
