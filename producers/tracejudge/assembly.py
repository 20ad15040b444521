"""From the steps of a trace that ended to the fields that are published."""

from typing import TYPE_CHECKING, Any

from tracejudge.api import _Current
from tracejudge.ids import fresh_id
from tracejudge.model import Span, Trace
from tracejudge.readable import as_text, error_text, is_a, plain, text_of
from tracejudge.retrieved import retrieved_documents
from tracejudge.room import cut_mark

if TYPE_CHECKING:
    from tracejudge.recording import Step

_TRACE_FIELDS = frozenset(Trace.__struct_fields__)
_SPAN_FIELDS = frozenset({"name", "input", "output", "error", "started_at", "ended_at"})


def trace_fields(outermost: "Step", steps: list["Step"], left_out: int) -> dict[str, Any]:
    """Give the fields of the trace: what its outermost step was given, then what was found out."""
    fields = {name: value for name, value in outermost.fields.items() if value is not None}
    if not fields.keys() <= _TRACE_FIELDS:
        _tag_others(fields)
    fields["output"] = text_of(fields.get("output"))
    if "input" in fields:
        fields["input"] = text_of(fields["input"])
    if (error := _error_of(outermost)) is not None:
        fields["error"] = error
    if steps:
        fields.setdefault("spans", _spans(outermost, steps, left_out))
        if documents := retrieved_documents(steps):
            fields.setdefault("context", documents)
    fields.setdefault("trace_id", outermost.ids.trace_id)
    fields.setdefault("span_id", outermost.ids.span_id)
    fields.setdefault("started_at", outermost.started_at)
    fields.setdefault("ended_at", outermost.ended_at)
    return fields


def _tag_others(fields: dict[str, Any]) -> None:
    """Make tags of what a trace has no field for: it then need not be lost for a name."""
    others = {name: fields.pop(name) for name in list(fields) if name not in _TRACE_FIELDS}
    # Tags are labels that the host chose. What merely has another name may be content, and stays at home with it.
    tags = {name: as_text(value) for name, value in others.items()} if _content_travels() else {}
    own: Any = fields.get("tags")
    fields["tags"] = {**tags, **own} if is_a(own, dict) else tags


def _content_travels() -> bool:
    client = _Current.client
    return client is None or client.settings.content


def _spans(outermost: "Step", steps: list["Step"], left_out: int) -> list[Span]:
    spans = [_span(step) for step in steps]
    if left_out:
        spans.append(Span(fresh_id(), cut_mark(left_out, "spans"), parent_id=outermost.ids.span_id))
    return spans


def _span(step: "Step") -> Span:
    fields = step.fields
    error = _error_of(step)
    attributes = {name: plain(value, step.room()) for name, value in fields.items() if name not in _SPAN_FIELDS}
    if error:
        attributes["error"] = error
    return Span(
        span_id=step.ids.span_id,
        name=as_text(fields.get("name")) or "block",
        parent_id=step.parent.ids.span_id if step.parent is not None else None,
        kind=step.kind,
        started_at=fields.get("started_at", step.started_at),
        ended_at=fields.get("ended_at", step.ended_at),
        status=_status(step, error),
        inputs=fields.get("input"),
        outputs=fields.get("output"),
        attributes=attributes or None,
    )


def _status(step: "Step", error: str | None) -> str:
    if step.ended_at is None:
        return "unfinished"  # a task or thread that goes on after the trace ended
    return "error" if error else "ok"


def _error_of(step: "Step") -> str | None:
    given = step.fields.get("error")
    if given is None:
        return step.failure
    return error_text(given) if is_a(given, BaseException) else as_text(given)
