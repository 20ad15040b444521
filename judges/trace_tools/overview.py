"""The outside of a trace and of its steps: what tells a reader where to look."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from judges.trace_tools.arguments import page_token
from judges.trace_tools.content import as_json
from judges.trace_tools.spans import Step, Steps
from judges.trace_tools.texts import finite, rounded, short, spoken_time
from tracejudge import Trace

__all__ = ["info", "listed", "others"]

_NAMES: Final = (
    "trace_id",
    "id",
    "span_id",
    "response_id",
    "session_id",
    "service",
    "environment",
    "release",
    "name",
    "provider",
    "model",
)
_MAX_ERROR_CHARS: Final = 500
_MAX_NAMES: Final = 30
_MAX_NAME_CHARS: Final = 80
_MAX_LIST_BYTES: Final = 100_000
_NO_SPANS: Final = (
    "This trace has no recorded spans. It is one step by itself, which get_root_span shows: what went in, what came "
    "out, documents and tool calls."
)


def info(trace: Trace, steps: Steps) -> dict[str, object]:
    """Describe a trace without its texts."""
    root = steps.roots[0]
    began_at = _first_known(finite(trace.started_at), steps.began_at)
    ended_at = _first_known(finite(trace.ended_at), max((step.ended_at or 0.0 for step in steps), default=0.0) or None)
    took_s = None if began_at is None or ended_at is None or ended_at < began_at else ended_at - began_at
    described: dict[str, object] = {
        **{name: short(value) for name in _NAMES if (value := getattr(trace, name)) is not None},
        "status": "error" if trace.error else root.status,
        "error": short(trace.error, _MAX_ERROR_CHARS) if trace.error else None,
        "started_at": spoken_time(began_at),
        "ended_at": spoken_time(ended_at),
        "duration_s": rounded(took_s),
        "usage": _usage(trace),
        "spans": len(steps) if steps.are_recorded else 0,
        "failed_spans": sum(step.status == "error" for step in steps) if steps.are_recorded else 0,
        "root_span_id": root.id,
        "id_of_trace_itself": steps.record.id,
    }
    return described if steps.are_recorded else described | {"note": _NO_SPANS}


def listed(steps: Steps, offset: int, max_results: int) -> dict[str, object]:
    """List steps from a place on, as many as are asked for and fit into one answer."""
    rows = list(_fitting(_row(steps, step) for step in islice(steps, offset, offset + max_results)))
    found: dict[str, object] = {
        "spans": rows,
        "number_of_spans": len(steps),
        "page_token": page_token(offset + len(rows), len(steps)),
    }
    return found if steps.are_recorded else found | {"note": _NO_SPANS}


def _row(steps: Steps, step: Step) -> dict[str, object]:
    names = step.span.attributes or {}
    row: dict[str, object] = {
        "id": step.id,
        "name": step.name,
        "kind": step.kind,
        "start_s": rounded(steps.since_start(step.started_at)),
        "end_s": rounded(steps.since_start(step.ended_at)),
        "duration_s": rounded(step.duration_s),
        "parent_id": step.parent_id,
        "status": step.status,
        "is_root": step.is_root or step is steps.roots[0],
        "attributes": [short(name, _MAX_NAME_CHARS) for name in islice(names, _MAX_NAMES)],
    }
    return row if len(names) <= _MAX_NAMES else row | {"attributes_left_out": len(names) - _MAX_NAMES}


def _fitting(rows: Iterator[Mapping[str, object]]) -> Iterator[Mapping[str, object]]:
    """Yield rows up to the bound of a list; one is always given, so that a reader gets on."""
    left = _MAX_LIST_BYTES
    for number, row in enumerate(rows):
        left -= len(as_json(row).encode())
        if left < 0 and number:
            return
        yield row


def _usage(trace: Trace) -> Mapping[str, int] | None:
    usage = trace.usage
    return None if usage is None else {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}


def _first_known(*times: float | None) -> float | None:
    return next((time for time in times if time is not None), None)


def others(roots: Sequence[Step]) -> list[str]:
    """Name the roots beside the one that is shown."""
    return [step.id for step in roots[1 : 1 + _MAX_NAMES]]
