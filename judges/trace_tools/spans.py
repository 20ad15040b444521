"""The steps of a trace, with ids of their own, in order, below one another; whatever an exporter left of them.

Roots are the spans without a parent, and those whose parent is not in the trace, as where the request came from
another service. The root is the first without a parent, else the first of the others, else the first span at all:
spans may stand in a circle. A trace without spans is one step by itself.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import count
from math import inf
from typing import Final

from judges.trace_tools.errors import ToolError
from judges.trace_tools.texts import finite, short
from tracejudge import Span, Trace

__all__ = ["Step", "Steps"]

_RECORD_ID: Final = "trace"
_INPUTS: Final = ("messages", "input", "context")
_OUTPUTS: Final = ("output", "tool_calls", "error")
_ATTRIBUTES: Final = ("service", "environment", "release", "provider", "model", "usage", "tags")
_KIND_ATTRIBUTES: Final = (
    "openinference.span.kind",
    "mlflow.spanType",
    "gen_ai.operation.name",
    "traceloop.span.kind",
)
_TRANSPORT_KINDS: Final = frozenset({"", "internal", "client", "server", "producer", "consumer", "unspecified"})
"""OpenTelemetry's own kinds: they say how a span was called, not what it is."""
_SAME_KINDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("chat", "chat_model", "completion", "generate_content", "text_completion"), "llm"),
    **dict.fromkeys(("create_agent", "invoke_agent"), "agent"),
    "execute_tool": "tool",
    "embeddings": "embedding",
    "retrieval": "retriever",
    "workflow": "chain",
}
_STATUSES: Final[Mapping[str, str]] = {"0": "unset", "1": "ok", "2": "error"}
_NAMED_IDS: Final = 5


class Step:
    """One span as the tools show it.

    Attributes:
        id: What it is asked for by; no other step has it.
        span: What it holds.
        parent_id: The id of the step above it, or the name of a parent that is not in the trace.
        is_root: Whether nothing of the trace stands above it.
    """

    def __init__(self, step_id: str, span: Span, parent_id: str | None, *, is_root: bool) -> None:
        self.id = step_id
        self.span = span
        self.parent_id = parent_id
        self.is_root = is_root
        self.started_at = finite(span.started_at)
        self.ended_at = finite(span.ended_at)

    @cached_property
    def name(self) -> str:
        """Its name, short."""
        return short(self.span.name)

    @cached_property
    def kind(self) -> str | None:
        """What it is, in one spelling for all dialects; a transport kind where nothing else is known."""
        own = _spelled(self.span.kind).removeprefix("span_kind_").removeprefix("spankind.")
        attributes = self.span.attributes or {}
        found = own if own not in _TRANSPORT_KINDS else ""
        found = found or next(filter(None, (_spelled(attributes.get(name)) for name in _KIND_ATTRIBUTES)), own)
        return short(_SAME_KINDS.get(found, found)) or None

    @cached_property
    def status(self) -> str | None:
        """How it ended, `ok`, `error` or `unset` where that is what it says."""
        said = _spelled(self.span.status).removeprefix("statuscode.").removeprefix("status_code_")
        return short(_STATUSES.get(said, said)) or None

    @property
    def duration_s(self) -> float | None:
        """How long it took; None where a time is missing or the end is before the start."""
        if self.started_at is None or self.ended_at is None or self.ended_at < self.started_at:
            return None
        return self.ended_at - self.started_at


class Steps:
    """All steps in the order they began; those without a start stand last, as they came."""

    def __init__(self, trace: Trace) -> None:
        given = sorted(trace.spans or (), key=_start)
        ids = _Ids()
        named = [(ids.next(span.span_id), span) for span in given]
        # Of spans that share an id, the first one is meant by whoever names it as a parent.
        known = {span.span_id: step_id for step_id, span in reversed(named)}
        self.record: Final = Step(ids.next(_RECORD_ID), _record(trace), None, is_root=not given)
        """What the trace holds by itself."""
        self.are_recorded: Final = bool(given)
        self._all = [_step(step_id, span, known) for step_id, span in named] or [self.record]
        self._by_id = {step.id: step for step in (*self._all, self.record)}

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Step]:
        return iter(self._all)

    @cached_property
    def roots(self) -> Sequence[Step]:
        """The root and, behind it, what else nothing stands above."""
        roots = sorted((step for step in self._all if step.is_root), key=lambda step: step.parent_id is not None)
        return roots or self._all[:1]

    @cached_property
    def began_at(self) -> float | None:
        """When the trace began, in seconds since the epoch."""
        return min((step.started_at for step in self._all if step.started_at is not None), default=None)

    def since_start(self, time: float | None) -> float | None:
        """Give a time in seconds since the trace began."""
        return None if time is None or self.began_at is None else time - self.began_at

    def find(self, step_id: str) -> Step:
        """Find a step by its id.

        Raises:
            ToolError: There is none.
        """
        found = self._by_id.get(step_id) or self._by_id.get(short(step_id.strip()))
        if found is None:
            some = ", ".join(step.id for step in self._all[:_NAMED_IDS])
            raise ToolError(f"There is no span `{short(step_id, 50)}`. Spans are: {some}. list_spans gives all ids.")
        return found


class _Ids:
    """Gives each span an id of its own: the one it has, where nobody had it before."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._counts: dict[str, Iterator[int]] = {}

    def next(self, wanted: str) -> str:
        name = short(wanted) or "unnamed"
        found = name
        while found in self._taken:
            found = f"{name}#{next(self._counts.setdefault(name, count(2)))}"
        self._taken.add(found)
        return found


def _step(step_id: str, span: Span, known: Mapping[str, str]) -> Step:
    parent_id = span.parent_id or None
    if parent_id is None or parent_id == span.span_id:
        return Step(step_id, span, None, is_root=True)
    return Step(step_id, span, known.get(parent_id, short(parent_id)), is_root=parent_id not in known)


def _record(trace: Trace) -> Span:
    return Span(
        span_id=_RECORD_ID,
        name=trace.name or _RECORD_ID,
        kind=_RECORD_ID,
        started_at=trace.started_at,
        ended_at=trace.ended_at,
        status="error" if trace.error else None,
        inputs=_fields(trace, _INPUTS),
        outputs=_fields(trace, _OUTPUTS),
        attributes=_fields(trace, _ATTRIBUTES),
    )


def _fields(trace: Trace, names: Iterable[str]) -> dict[str, object]:
    return {name: value for name in names if (value := getattr(trace, name)) is not None}


def _start(span: Span) -> float:
    started_at = finite(span.started_at)
    return inf if started_at is None else started_at


def _spelled(said: object) -> str:
    # MLflow's exporter writes attributes as JSON, so that the kind comes in quotation marks.
    return said.strip(' "').lower() if isinstance(said, str) else ""
