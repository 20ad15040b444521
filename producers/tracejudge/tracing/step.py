"""Open traces: the outermost step, the steps within it, and the step that is current in each context.

A step is one observed call or one `with` block. The first one opens a recording; steps that begin while it is current
become its spans. When the first one ends, the whole is published as one trace.
"""

import itertools
import time
from contextvars import ContextVar
from enum import Enum
from os import getpid
from typing import Any

from tracejudge.api import _Current, publish, warn_without_init
from tracejudge.content.encode import is_a, snapshot, without_traceback
from tracejudge.content.field_names import field_of
from tracejudge.content.truncate import SPANS_CHARACTERS, Budget
from tracejudge.dialects.values import truncation_mark
from tracejudge.ids import MAX_NAME_CHARS, SpanIds, current_span, fresh_id, fresh_trace_id, plain_text, trace_id_text
from tracejudge.log import attributes_of, bases_of, class_name, report_or_raise
from tracejudge.model import Span, ToolCall, Usage

MAX_SPANS = 1_000  # Most spans of one trace; a last span says how many more there were.
# Kinds that are never published as a trace of their own: outside of their trace, as in a new thread, a verdict on
# them would mislead.
_SPAN_ONLY_KINDS = frozenset({"retriever", "tool"})
_COPIED_FIELDS = ("input", "output")
_ASKED_FIELDS = frozenset({"input", "messages", "session_id", "user_id"})


class ModelCalls:
    """The calls of wrapped clients within a trace, from any threads: the first one asks, the last one answers."""

    __slots__ = ("_asked", "_last", "_tools", "_usages")

    def __init__(self) -> None:
        self._asked: dict[str, Any] = {}
        self._last: dict[str, Any] = {}
        self._tools: dict[str, ToolCall] = {}
        self._usages: list[Usage] = []

    def add(self, fields: dict[str, Any], tools: dict[str, ToolCall]) -> None:
        """Add the fields of a call, and its calls of tools by their ids: an agent repeats them, then with results."""
        for name in _ASKED_FIELDS & fields.keys():
            self._asked.setdefault(name, fields[name])
        self._last.update({name: value for name, value in fields.items() if name not in _ASKED_FIELDS})
        self._tools.update(tools)
        if (usage := fields.get("usage")) is not None:
            self._usages.append(usage)

    def fields(self) -> dict[str, Any]:
        """Return the fields of the trace that the calls fill."""
        fields = {**self._last, **self._asked}
        if self._tools:
            fields["tool_calls"] = list(self._tools.values())
        if self._usages:
            tokens = [(usage.input_tokens, usage.output_tokens) for usage in self._usages]
            fields["usage"] = Usage(*map(sum, zip(*tokens, strict=True)))
        return fields


class Recording:
    """The state that all steps of one trace share. Threads may add steps at the same time."""

    __slots__ = ("_numbers", "_open", "_pid", "_steps", "budget", "ids", "model_calls")

    def __init__(self, ids: SpanIds) -> None:
        self.ids = ids
        self.model_calls = ModelCalls()
        self.budget = Budget(SPANS_CHARACTERS)
        # Counting by an iterator is one step in C: no lock that a fork or a finalizer could find held.
        self._numbers = itertools.count()
        self._steps: list[Step] = []
        self._open = True
        self._pid = getpid()

    @property
    def is_open_here(self) -> bool:
        """Whether it is open and belongs to this process, not to the one that forked."""
        return self._open and self._pid == getpid()

    def add_span(self, step: "Step") -> bool:
        """Add a step as a span; False if there are too many."""
        if next(self._numbers) >= MAX_SPANS:
            return False
        self._steps.append(step)
        return True

    def close(self) -> tuple[list["Step"], int]:
        """Close it, and return its steps in the order they began and the number of steps left out."""
        self._open = False
        steps, self._steps = self._steps, []
        return steps, max(0, next(self._numbers) - MAX_SPANS)


class Step:
    """One observed call or block, with the fields given and found. Before `init` it never begins and has no effect."""

    __slots__ = (
        *("_ids", "_inside", "_outer", "ended_at", "failure", "fields", "is_recorded", "kind", "parent", "recording"),
        "started_at",
    )

    def __init__(self, fields: dict[str, Any], kind: str | None = None) -> None:
        self.fields = fields
        self.kind = kind
        self.is_recorded = False
        self.recording: Recording | None = None
        self.parent: Step | None = None
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.failure: BaseException | str | None = None
        self._ids: SpanIds | None = None
        self._outer: Step | None = None
        self._inside: Step | None = None  # None for the step itself, which would be a reference cycle

    @classmethod
    def detached(cls) -> "Step":
        """Make a step outside of any trace, with empty ids: feedback for a random id would be lost silently."""
        step = cls({})
        step._ids = SpanIds("", "")
        return step

    @property
    def ids(self) -> SpanIds:
        """The ids of the trace and of this step."""
        if self._ids is None:
            # Those of the current OpenTelemetry span, unless another trace was named.
            trace_id, span = trace_id_text(self.fields.get("trace_id")), current_span()
            if trace_id and (span is None or trace_id != span.trace_id):
                self._ids = SpanIds(trace_id, fresh_id())
            else:
                self._ids = span or SpanIds(fresh_trace_id(), fresh_id())
        return self._ids

    @property
    def trace_id(self) -> str:
        """The current id of the trace; the outermost step may still change it."""
        return self.ids.trace_id if self.recording is None else self.recording.ids.trace_id

    def begin(self) -> None:
        """Join the current trace, or open one; only once, and only after `init`."""
        if _Current.client is None:
            warn_without_init("trace")
            return
        if self.started_at is not None:
            return
        self.started_at = time.time()
        self.parent = current_step()
        if self.parent is None or self.parent.recording is None:
            self.recording = Recording(self.ids)
            self.is_recorded = True
        else:
            self.recording = self.parent.recording
            self._ids = SpanIds(self.recording.ids.trace_id, fresh_id())
            self.is_recorded = self.recording.add_span(self)
        for name in _COPIED_FIELDS:
            if self.fields.get(name) is not None:
                self.set(name, self.fields[name])

    def set(self, name: str, value: object) -> None:
        """Set a field; input and output are copied at once."""
        if name == "trace_id" and self.parent is None and (trace_id := trace_id_text(value)):
            self._ids = SpanIds(trace_id, self.ids.span_id)
            if self.recording is not None:
                self.recording.ids = self._ids
        if self.recording is not None and name in _COPIED_FIELDS:
            value = snapshot(value, self.budget())
        self.fields[name] = value

    def needs(self, name: str) -> bool:
        """Return whether a value found for a field would be kept."""
        return self.is_recorded and self.fields.get(name) is None

    def budget(self) -> Budget:
        """Make the budget of one value; spans of a trace share a budget as well."""
        return Budget() if self.recording is None or self.parent is None else Budget(whole=self.recording.budget)

    def end(self, error: BaseException | None = None) -> None:
        """Record the end and the exception, if any. The end of the outermost step publishes the trace."""
        if self.recording is None or self.ended_at is not None:
            return
        self.ended_at = time.time()
        if error is not None and not is_no_failure(error):
            self.failure = without_traceback(error)
        if self.parent is None and self.recording.is_open_here:
            steps, left_out = self.recording.close()
            if self.kind in _SPAN_ONLY_KINDS:
                return
            try:
                fields = trace_fields(self, steps, left_out)
            except BaseException as fault:  # noqa: BLE001 - values of the host may fail in any way
                report_or_raise(fault)
                fields = {"trace_id": self.recording.ids.trace_id}  # without an output it is counted as invalid
            publish(**fields)

    def enter(self) -> "Step":
        """Become the current step of this context."""
        if self.recording is not None:
            self._outer = current_step()
            _current.set(self)
        return self

    def leave(self) -> None:
        """Restore the step that was current before `enter`."""
        # Not by a token, which raises in another context than its own: a block in an asynchronous generator is left
        # wherever that is closed. There, and if blocks are not left in reverse order, nothing changes.
        step = _current.get()
        while step is not None and step is not self:
            step = step.parent
        if self.recording is not None and step is self:
            _current.set(self._outer)

    def resume(self) -> "Step | None":
        """Become current for the next part of a generator, and return the step of its consumer."""
        outer = _current.get()
        _current.set(self._inside or self)
        return outer

    def pause(self, outer: "Step | None") -> None:
        """Restore the step of the consumer until the next part of the generator."""
        inside = _current.get()
        self._inside = None if inside is self else inside
        _current.set(outer)


_current: ContextVar[Step | None] = ContextVar("tracejudge_step", default=None)


def current_step() -> Step | None:
    """Return the current step; None if its trace is published or belongs to another process."""
    step = _current.get()
    return step if step is not None and step.recording is not None and step.recording.is_open_here else None


KINDS = frozenset(
    {*("llm", "agent", "chain", "retriever", "retrieval", "reranker", "tool", "embedding", "guardrail", "evaluator")}
    | {"workflow", "task", "parser", "prompt", "generation", "model", "function", "span", "step", "event"}
)
"""Usual kinds of steps; any other may be given, unless it looks like one of these misspelt."""


def meant_kind(kind: object) -> str | None:
    """Return the usual kind that a kind seems to misspell, or None."""
    if type(kind) is not str or len(kind) > MAX_NAME_CHARS or kind.casefold() in KINDS:
        return None
    # Here, because `import tracejudge` need not pay for it.
    import difflib  # noqa: PLC0415

    return next(iter(difflib.get_close_matches(kind.casefold(), KINDS, n=1, cutoff=0.8)), None)


def kind_text(kind: Any) -> str | None:
    """Return the kind or name of a step as text, whatever the host passed, without code of it."""
    name: Any = attributes_of(kind).get("_value_", kind) if is_a(kind, Enum) else kind
    text = "" if name is None else plain_text(name) if is_a(name, str) else f"<{class_name(type(name))}>"
    return text[:MAX_NAME_CHARS] or None


_exit_code = SystemExit.__dict__["code"].__get__


def is_no_failure(error: BaseException) -> bool:
    """Return whether an exception is a cancellation or an exit with success."""
    # By type first: an exit code may be any object, without a hash or a truth.
    code = _exit_code(error) if is_a(error, SystemExit) else 1
    exits_well = (type(code) is int or code is None) and not code
    # By name: asyncio need not be loaded.
    return exits_well or not {"CancelledError", "GeneratorExit"}.isdisjoint(map(class_name, bases_of(type(error))))


def trace_fields(outermost: Step, steps: list[Step], left_out: int) -> dict[str, Any]:
    """Return the fields of the trace: those given to the outermost step, then those found."""
    fields = {name: value for name, value in outermost.fields.items() if value is not None}
    if outermost.recording is not None:
        named = {field_of(name) for name in fields}
        filled = outermost.recording.model_calls.fields()
        fields |= {name: value for name, value in filled.items() if name not in named}
    if not any(field_of(name) == "output" for name in fields):
        fields["output"] = ""
    if (error := _error_of(outermost)) is not None:
        fields["error"] = error
    if steps:
        spans = [_span(step) for step in steps]
        if left_out:
            spans.append(Span(fresh_id(), truncation_mark(left_out, "spans"), parent_id=outermost.ids.span_id))
        fields.setdefault("spans", spans)
        if (outputs := retrieved_outputs(steps)) and not any(field_of(name) == "context" for name in fields):
            fields["context"] = outputs
    fields.setdefault("trace_id", outermost.ids.trace_id)
    fields.setdefault("span_id", outermost.ids.span_id)
    fields.setdefault("started_at", outermost.started_at)
    fields.setdefault("ended_at", outermost.ended_at)
    return fields


def _span(step: Step) -> Span:
    fields = step.fields
    error = _error_of(step)
    attributes = {
        name: snapshot(value, step.budget())
        for name, value in fields.items()
        if name not in {"name", "input", "output", "error", "started_at", "ended_at"} and value is not None
    }
    has_failed = error is not None and not ((type(error) is str or type(error) is bool) and not error)
    status = "error" if has_failed else "ok"
    if has_failed:
        attributes["error"] = error
    return Span(
        span_id=step.ids.span_id,
        name=kind_text(fields.get("name")) or "block",
        parent_id=step.parent.ids.span_id if step.parent is not None else None,
        kind=step.kind,
        started_at=fields.get("started_at", step.started_at),
        ended_at=fields.get("ended_at", step.ended_at),
        # A task or thread may continue after the trace has ended.
        status="unfinished" if step.ended_at is None else status,
        inputs=fields.get("input"),
        outputs=fields.get("output"),
        attributes=attributes or None,
    )


def _error_of(step: Step) -> object:
    error = step.fields.get("error")
    return step.failure if error is None else without_traceback(error) if is_a(error, BaseException) else error


def retrieved_outputs(steps: list[Step]) -> list[object]:
    """Return the outputs of all retrievers in the order they began; of nested retrievers, only the outer one's."""
    outputs: list[object] = []
    for step in filter(_retrieves, steps):
        above = step.parent
        # The outermost step is the trace itself and no retriever.
        while above is not None and not (above.parent is not None and _retrieves(above)):
            above = above.parent
        if above is None:
            outputs.append(step.fields.get("output"))
    return [output for output in outputs if output is not None]


def _retrieves(step: Step) -> bool:
    return step.kind is not None and step.kind.casefold() in {"retriever", "retrieval"}
