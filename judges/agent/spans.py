"""The steps of a trace, with unique ids, in order of their start, whatever an exporter left of them.

Roots are the spans without a parent, and those whose parent is not in the trace, as when the request came from another
service. The root is the first one without a parent, else the first of the others, else the first span at all, because
parents may form a circle. A trace without spans is one step.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from itertools import count, islice
from math import inf
from typing import Final

from msgspec import Struct, structs

from judges.agent.arguments import ToolError, page_token
from judges.core.prompt import neutralise
from tracejudge import Span, Trace


def short(text: str, max_chars: int = 200) -> str:
    """Make invisible characters of a text visible, and truncate it, so that one value cannot fill a list."""
    shown = neutralise(text[: max_chars + 1])
    return shown if len(shown) <= max_chars else shown[: max_chars - 1] + "\u2026"


def finite(seconds: float | None) -> float | None:
    """Return a time, or None if it is absent, infinite or NaN."""
    return seconds if seconds is not None and math.isfinite(seconds) else None


def rounded(seconds: float | None) -> float | None:
    """Round a time to microseconds."""
    return None if seconds is None else round(seconds, 6)


def spoken_time(seconds: float | None) -> str | None:
    """Format a time since the epoch as a date, or as a number if no calendar has it."""
    if seconds is None:
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat()
    except (OverflowError, OSError, ValueError):
        return str(seconds)


_RECORD_ID: Final = "trace"
_KIND_ATTRIBUTES: Final = ("openinference.span.kind", "mlflow.spanType", "gen_ai.operation.name", "traceloop.span.kind")
# OpenTelemetry's own kinds describe the transport of a span, not its role.
_TRANSPORT_KINDS: Final = frozenset({"", "internal", "client", "server", "producer", "consumer", "unspecified"})
_SAME_KINDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("chat", "chat_model", "completion", "generate_content", "text_completion"), "llm"),
    **dict.fromkeys(("create_agent", "invoke_agent"), "agent"),
    "execute_tool": "tool",
    "embeddings": "embedding",
    "retrieval": "retriever",
    "workflow": "chain",
}
_STATUSES: Final[Mapping[str, str]] = {"0": "unset", "1": "ok", "2": "error"}


class Step:
    """One span as the tools show it."""

    def __init__(self, step_id: str, span: Span, parent_id: str | None, *, is_root: bool) -> None:
        self.id = step_id  # The id by which tools find it; no other step has it.
        self.span = span
        self.parent_id = parent_id  # The id of its parent step, or the name of a parent that is not in the trace.
        self.is_root = is_root  # Whether its parent is absent from the trace.
        self.started_at = finite(span.started_at)
        self.ended_at = finite(span.ended_at)

    @cached_property
    def content(self) -> bytes:
        """The whole step as JSON."""
        return encoded(self, None)

    @cached_property
    def name(self) -> str:
        """The name, truncated."""
        return short(self.span.name)

    @cached_property
    def kind(self) -> str | None:
        """The role, in one spelling for all dialects; a transport kind if nothing else is known."""
        own = _spelled(self.span.kind).removeprefix("span_kind_").removeprefix("spankind.")
        attributes = self.span.attributes or {}
        kind = own if own not in _TRANSPORT_KINDS else ""
        kind = kind or next(filter(None, (_spelled(attributes.get(name)) for name in _KIND_ATTRIBUTES)), own)
        return short(_SAME_KINDS.get(kind, kind)) or None

    @cached_property
    def status(self) -> str | None:
        """The status, `ok`, `error` or `unset` in every dialect that has these."""
        status = _spelled(self.span.status).removeprefix("statuscode.").removeprefix("status_code_")
        return short(_STATUSES.get(status, status)) or None

    @property
    def inputs(self) -> object:
        """What went in; None if it is not recorded."""
        return _content(self.span.inputs, self.span.attributes or {}, _INPUT_ATTRIBUTES)[0]

    @property
    def outputs(self) -> object:
        """What came out; None if it is not recorded."""
        return _content(self.span.outputs, self.span.attributes or {}, _OUTPUT_ATTRIBUTES)[0]

    @property
    def duration_s(self) -> float | None:
        """The duration; None if a time is missing or the end is before the start."""
        if self.started_at is None or self.ended_at is None or self.ended_at < self.started_at:
            return None
        return self.ended_at - self.started_at


class Steps:
    """All steps in order of their start; those without a start come last, in their original order."""

    def __init__(self, trace: Trace) -> None:
        spans = sorted(trace.spans or (), key=lambda span: inf if (start := finite(span.started_at)) is None else start)
        ids = _Ids()
        named = [(ids.next(span.span_id), span) for span in spans]
        # Of spans that share an id, the first one is the parent of those that name it.
        step_ids = {span.span_id: step_id for step_id, span in reversed(named)}
        record = Span(
            span_id=_RECORD_ID,
            name=trace.name or _RECORD_ID,
            kind=_RECORD_ID,
            started_at=trace.started_at,
            ended_at=trace.ended_at,
            status="error" if trace.error else None,
            inputs=_fields(trace, ("messages", "input", "context")),
            outputs=_fields(trace, ("output", "tool_calls", "error")),
            attributes=_fields(trace, ("service", "environment", "release", "provider", "model", "usage", "tags")),
        )
        self.record: Final = Step(ids.next(_RECORD_ID), record, None, is_root=not spans)
        """The content of the trace outside of its spans."""
        self.are_recorded: Final = bool(spans)
        self._all = [_step(step_id, span, step_ids) for step_id, span in named] or [self.record]
        self._by_id = {step.id: step for step in (*self._all, self.record)}

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Step]:
        return iter(self._all)

    @cached_property
    def roots(self) -> Sequence[Step]:
        """The root, and after it all other steps without a parent in the trace."""
        roots = sorted((step for step in self._all if step.is_root), key=lambda step: step.parent_id is not None)
        return roots or self._all[:1]

    @cached_property
    def began_at(self) -> float | None:
        """The first start, in seconds since the epoch."""
        return min((step.started_at for step in self._all if step.started_at is not None), default=None)

    def since_start(self, time: float | None) -> float | None:
        """Return a time in seconds since the trace began."""
        return None if time is None or self.began_at is None else time - self.began_at

    def find(self, step_id: str) -> Step:
        """Find a step by its id, or raise ``ToolError``."""
        named = self._by_id.get(step_id) or self._by_id.get(short(step_id.strip()))
        if named is None:
            some = ", ".join(step.id for step in self._all[:5])
            raise ToolError(f"There is no span `{short(step_id, 50)}`. Spans are: {some}. list_spans gives all ids.")
        return named


class _Ids:
    """Makes unique ids: the span's own, with a number if an earlier span has the same."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._counts: dict[str, Iterator[int]] = {}

    def next(self, span_id: str) -> str:
        name = short(span_id) or "unnamed"
        unique = name
        while unique in self._taken:
            unique = f"{name}#{next(self._counts.setdefault(name, count(2)))}"
        self._taken.add(unique)
        return unique


def _step(step_id: str, span: Span, step_ids: Mapping[str, str]) -> Step:
    parent_id = span.parent_id or None
    if parent_id is None or parent_id == span.span_id:
        return Step(step_id, span, None, is_root=True)
    return Step(step_id, span, step_ids.get(parent_id, short(parent_id)), is_root=parent_id not in step_ids)


def _fields(trace: Trace, names: Iterable[str]) -> dict[str, object]:
    return {name: value for name in names if (value := getattr(trace, name)) is not None}


def _spelled(value: object) -> str:
    # MLflow's exporter encodes attributes as JSON, so the kind is in quotation marks.
    return value.strip(' "').lower() if isinstance(value, str) else ""


_INPUT_ATTRIBUTES: Final = (
    "input.value", "mlflow.spanInputs", "gen_ai.input.messages", "gen_ai.prompt", "gen_ai.tool.call.arguments",
    "traceloop.entity.input",
)  # fmt: skip
_OUTPUT_ATTRIBUTES: Final = (
    "output.value", "mlflow.spanOutputs", "gen_ai.output.messages", "gen_ai.completion", "gen_ai.tool.call.result",
    "traceloop.entity.output",
)  # fmt: skip
_LEADING_BITS: Final = 0b1100_0000
_CONTINUES: Final = 0b1000_0000  # The value of these two bits in every byte of a character but its first.
_AT_ONCE_CHARS: Final = 200_000


def page(content: bytes, offset: int, max_bytes: int) -> dict[str, object]:
    """Show a piece of whole characters, from an offset in bytes or from the next character after it."""
    start = boundary(content, offset)
    end = boundary(content, min(start + max_bytes, len(content)), step=-1)
    size = len(content)
    return {"content": content[start:end].decode(), "content_size_bytes": size, "page_token": page_token(end, size)}


def as_json(value: object) -> str:
    """Encode as JSON with invisible characters made visible; what has no JSON raises as ``json.dumps`` does."""

    def encodable(part: object) -> object:
        if isinstance(part, Struct):
            return {name: inner for name, inner in structs.asdict(part).items() if inner is not None}
        return str(part)

    # Not msgspec, which would fail for a whole trace because of one value.
    written = json.dumps(value, ensure_ascii=False, default=encodable)
    # In pieces, because no other thread runs during one call: a text of 4 MB would block all of them for 50 ms.
    return "".join(
        neutralise(written[start : start + _AT_ONCE_CHARS]) for start in range(0, len(written), _AT_ONCE_CHARS)
    )


def boundary(content: bytes, place: int, step: int = 1) -> int:
    """Find the next place, or with ``step=-1`` the last one before, where a character of UTF-8 begins; else the end."""
    while place < len(content) and content[place] & _LEADING_BITS == _CONTINUES:
        place += step
    return place


def encoded(step: Step, names: Sequence[str] | None) -> bytes:
    """Encode a step, with all attributes or those that are named."""
    span, attributes = step.span, step.span.attributes or {}
    inputs, input_name = _content(span.inputs, attributes, _INPUT_ATTRIBUTES)
    outputs, output_name = _content(span.outputs, attributes, _OUTPUT_ATTRIBUTES)
    # Attributes shown as inputs and outputs are not repeated.
    requested: Iterable[str] = (name for name in attributes if name not in {input_name, output_name})
    shown = requested if names is None else (name for name in names if name in attributes)
    described = {
        "id": step.id,
        "name": span.name,
        "kind": step.kind,
        "parent_id": step.parent_id,
        "is_root": step.is_root,
        "status": step.status,
        "started_at": spoken_time(step.started_at),
        "ended_at": spoken_time(step.ended_at),
        "duration_s": rounded(step.duration_s),
        "inputs": inputs,
        "outputs": outputs,
        "attributes": {name: attributes[name] for name in shown},
    }
    try:
        return as_json(described).encode()
    except (ValueError, TypeError, RecursionError):
        return as_json(_showable(described)).encode()


def _content(own: object, attributes: Mapping[str, object], names: Iterable[str]) -> tuple[object, str | None]:
    """Return a span's own value, else that of the first attribute present, with the attribute's name."""
    if own is not None:
        return own, None
    name = next((name for name in names if attributes.get(name) is not None), None)
    return (None, None) if name is None else (attributes[name], name)


def _showable(value: Mapping[str, object]) -> dict[str, object]:
    shown: dict[str, object] = {}
    for key, part in value.items():
        if key == "attributes" and isinstance(part, Mapping):
            shown[str(key)] = _showable(part)
            continue
        shown[str(key)] = part
        try:
            as_json(part)
        except (ValueError, TypeError, RecursionError):
            shown[str(key)] = "[cannot be shown as JSON]"
    return shown


_NAMES: Final = (
    "trace_id", "id", "span_id", "response_id", "session_id", "service", "environment", "release", "name", "provider",
    "model",
)  # fmt: skip
MAX_NAMES: Final = 30
_NO_SPANS: Final = (
    "This trace has no recorded spans. It is one step by itself, which get_root_span shows: what went in, what came "
    "out, documents and tool calls."
)


def info(trace: Trace, steps: Steps) -> dict[str, object]:
    """Describe a trace without its texts."""
    root, usage = steps.roots[0], trace.usage
    began_at = _first_known(finite(trace.started_at), steps.began_at)
    ended_at = _first_known(finite(trace.ended_at), max((step.ended_at or 0.0 for step in steps), default=0.0) or None)
    took_s = None if began_at is None or ended_at is None or ended_at < began_at else ended_at - began_at
    described: dict[str, object] = {
        **{name: short(value) for name in _NAMES if (value := getattr(trace, name)) is not None},
        "status": "error" if trace.error else root.status,
        "error": short(trace.error, 500) if trace.error else None,
        "started_at": spoken_time(began_at),
        "ended_at": spoken_time(ended_at),
        "duration_s": rounded(took_s),
        "usage": None if usage is None else {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens},
        "spans": len(steps) if steps.are_recorded else 0,
        "failed_spans": sum(step.status == "error" for step in steps) if steps.are_recorded else 0,
        "root_span_id": root.id,
        "id_of_trace_itself": steps.record.id,
    }
    return described if steps.are_recorded else described | {"note": _NO_SPANS}


def listed(steps: Steps, offset: int, max_results: int) -> dict[str, object]:
    """List steps from a place on, as many as are requested and fit into one answer."""
    rows: list[Mapping[str, object]] = []
    left_bytes = 100_000
    for step in islice(steps, offset, offset + max_results):
        row = _row(steps, step)
        left_bytes -= len(as_json(row).encode())
        # The first row is always returned, so that a reader makes progress.
        if left_bytes < 0 and rows:
            break
        rows.append(row)
    listing: dict[str, object] = {
        "spans": rows,
        "number_of_spans": len(steps),
        "page_token": page_token(offset + len(rows), len(steps)),
    }
    return listing if steps.are_recorded else listing | {"note": _NO_SPANS}


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
        "attributes": [short(name, 80) for name in islice(names, MAX_NAMES)],
    }
    return row if len(names) <= MAX_NAMES else row | {"attributes_left_out": len(names) - MAX_NAMES}


def _first_known(*times: float | None) -> float | None:
    return next((time for time in times if time is not None), None)
