"""A trace while it is open: its outermost step, the steps within, and which of them is current.

A step is one observed call or one `with` block. The first one opens a recording; what begins while that is current
becomes a span of it. When the first one ends, all of it is published as one trace.
"""

import itertools
import time
from contextvars import ContextVar
from os import getpid
from typing import Any

from tracejudge.api import _Current, publish
from tracejudge.assembly import trace_fields
from tracejudge.ids import SpanIds, current_span, fresh_id, fresh_trace_id
from tracejudge.readable import as_text, error_text, plain
from tracejudge.room import SPANS_CHARACTERS, Room
from tracejudge.swallowing import swallow

MAX_SPANS = 1_000
"""Most steps within one trace that become spans; a last span says how many more there were."""

_GOING_AWAY = frozenset({"CancelledError", "GeneratorExit"})  # by name: asyncio need not be in memory
_NEVER_A_TRACE = frozenset({"retriever", "tool"})
"""Steps of a trace that nobody opened here, as in a new thread: judged by themselves they would only mislead."""
_COPIED_FIELDS = ("input", "output")


class Recording:
    """What the steps of one trace share. Threads may add steps at the same time."""

    __slots__ = ("_numbers", "_open", "_pid", "_steps", "ids", "room")

    def __init__(self, ids: SpanIds) -> None:
        self.ids = ids
        self.room = Room(SPANS_CHARACTERS)
        # Counting by an iterator is one step in C: no lock that a fork or a finalizer could find held.
        self._numbers = itertools.count()
        self._steps: list[Step] = []
        self._open = True
        self._pid = getpid()

    @property
    def here(self) -> bool:
        """Whether it is still open, and of this process and not of the one it forked from."""
        return self._open and self._pid == getpid()

    def admit(self, step: "Step") -> bool:
        """Make a step a span of this trace; False when there are too many."""
        if next(self._numbers) >= MAX_SPANS:
            return False
        self._steps.append(step)
        return True

    def close(self) -> tuple[list["Step"], int]:
        """End it; gives its steps in the order they began, and how many more there were."""
        self._open = False
        steps, self._steps = self._steps, []
        return steps, max(0, next(self._numbers) - MAX_SPANS)


class Step:
    """One observed call or block. Before `init` it never begins, and all that is done to it is for nothing.

    Its `fields` are what it was given, and what was found out about fields it was not given.
    """

    __slots__ = (
        "_ids",
        "_inside",
        "_outer",
        "ended_at",
        "failure",
        "fields",
        "kept",
        "kind",
        "parent",
        "recording",
        "started_at",
    )

    def __init__(self, fields: dict[str, Any], kind: str | None = None) -> None:
        self.fields = fields
        self.kind = kind
        self.kept = False
        self.recording: Recording | None = None
        self.parent: Step | None = None
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.failure: str | None = None
        self._ids: SpanIds | None = None
        self._outer: Step | None = None
        self._inside: Step | None = None  # stands for itself, which would be a circle for the garbage collector

    @classmethod
    def nowhere(cls) -> "Step":
        """Give a step outside of any trace: feedback for a random id would be feedback for nothing."""
        step = cls({})
        step._ids = SpanIds("", "")
        return step

    @property
    def ids(self) -> SpanIds:
        """The id of the trace, and of this step in it."""
        if self._ids is None:
            self._ids = _outermost_ids(self.fields.get("trace_id"))
        return self._ids

    @property
    def trace_id(self) -> str:
        """The id of the trace as it stands now; the outermost step may still be given another."""
        return self.ids.trace_id if self.recording is None else self.recording.ids.trace_id

    def begin(self) -> None:
        """Become part of the trace that is current here, or open one; only once, and only after `init`."""
        if self.started_at is not None or _Current.client is None:
            return
        self.started_at = time.time()
        self.parent = current_step()
        if self.parent is None or self.parent.recording is None:
            self.recording = Recording(self.ids)
            self.kept = True
        else:
            self.recording = self.parent.recording
            self._ids = SpanIds(self.recording.ids.trace_id, fresh_id())
            self.kept = self.recording.admit(self)
        for name in _COPIED_FIELDS:
            if self.fields.get(name) is not None:
                self.set(name, self.fields[name])

    def set(self, name: str, value: object) -> None:
        """Set a field; input and output are copied as they are now."""
        if name == "trace_id" and self.parent is None and type(value) is str and value:
            self._rename(value)
        copied = self.recording is not None and name in _COPIED_FIELDS
        self.fields[name] = plain(value, self.room()) if copied else value

    def _rename(self, trace_id: str) -> None:
        self._ids = SpanIds(trace_id, self.ids.span_id)
        if self.recording is not None:
            self.recording.ids = self._ids

    def lacks(self, name: str) -> bool:
        """Whether a value that is found out for a field would be kept."""
        return self.kept and self.fields.get(name) is None

    def room(self) -> Room:
        """Make room for one value; that of a span is part of the room all spans share."""
        return Room() if self.recording is None or self.parent is None else Room(whole=self.recording.room)

    def end(self, error: BaseException | None = None) -> None:
        """Note that it ended, and by which exception. The outermost step is published."""
        if self.recording is None or self.ended_at is not None:
            return
        self.ended_at = time.time()
        if error is not None and not _is_no_failure(error):
            self.failure = error_text(error)
        if self.parent is None and self.recording.here:
            _publish(self, self.recording)

    def enter(self) -> None:
        """Be current in this context from here on."""
        if self.recording is not None:
            self._outer = current_step()
            _current.set(self)

    def leave(self) -> None:
        """Give the context back.

        Not by a token, which raises in another context than its own: a block in an asynchronous generator is left
        wherever that is closed. There, and where blocks are left in another order than entered, nothing changes.
        """
        if self.recording is not None and _is_within(_current.get(), self):
            _current.set(self._outer)

    def resume(self) -> "Step | None":
        """Be current for the next part of a generator; gives what is current for its consumer."""
        outer = _current.get()
        _current.set(self._inside or self)
        return outer

    def pause(self, outer: "Step | None") -> None:
        """Give the context to the consumer of a generator until the next part."""
        inside = _current.get()
        self._inside = None if inside is self else inside
        _current.set(outer)


def current_step() -> Step | None:
    """Find the step this code runs in; None when its trace is published already, or another process's."""
    step = _current.get()
    return step if step is not None and step.recording is not None and step.recording.here else None


def kind_text(kind: object) -> str | None:
    """Give a step's kind as a text, whatever the host called it."""
    return as_text(kind) or None


_current: ContextVar[Step | None] = ContextVar("tracejudge_step", default=None)


def _is_no_failure(error: BaseException) -> bool:
    """Tell whether somebody only went away: a client that disconnected, a consumer that had enough, a script's end."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return not kinds.isdisjoint(_GOING_AWAY) or (isinstance(error, SystemExit) and error.code in {None, 0})


def _publish(step: Step, recording: Recording) -> None:
    steps, left_out = recording.close()
    if step.kind in _NEVER_A_TRACE:
        return
    try:
        fields = trace_fields(step, steps, left_out)
    except Exception as error:  # noqa: BLE001 - what was set may fail in any way; without an output it counts as invalid
        swallow(error)
        fields = {"trace_id": recording.ids.trace_id}
    publish(**fields)


def _is_within(step: Step | None, outer: Step) -> bool:
    while step is not None and step is not outer:
        step = step.parent
    return step is not None


def _outermost_ids(given: object) -> SpanIds:
    """Take the ids of the current OpenTelemetry span, unless another trace was named."""
    span = current_span()
    if type(given) is str and given and (span is None or given != span.trace_id):
        return SpanIds(given, fresh_id())
    return span or SpanIds(fresh_trace_id(), fresh_id())
