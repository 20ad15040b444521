"""The spans of unfinished traces, until the trace they belong to can be told.

A span belongs to its local root: the span above it that has no parent in this process. One OpenTelemetry trace
may have several of them here, a request that calls its own service for one; each makes a trace of its own.
"""

from collections import OrderedDict
from collections.abc import Iterator
from enum import StrEnum
from typing import Final

from msgspec import Struct

from tracejudge.dialects import RawSpan
from tracejudge.otel.spans import weight_bytes

_LINKS_PER_SPAN: Final = 8
_MAX_CLOSED: Final = 20_000
_OVERFLOW: Final = 2
"""Nothing is taken above this multiple of the bounds: the thread that joins is slower than what comes."""

Key = tuple[str, str]


class Loss(StrEnum):
    """Why a span is in no published trace. The list is closed."""

    LATE = "late"
    """It ended after its trace was published."""
    SURPLUS = "surplus"
    """Its trace has more spans than one may hold."""
    SHUTDOWN = "shutdown"
    """It ended after `shutdown`."""
    UNREADABLE = "unreadable"
    """It could not be read, or its trace could not be joined."""
    OVERFLOW = "overflow"
    """Spans ended faster than they could be joined."""


class Limits(Struct, frozen=True, kw_only=True):
    """What a gathering may hold."""

    late_span_wait_s: float
    max_open_traces: int
    max_spans: int
    max_bytes: int
    max_age_s: float


class Gathered(Struct, frozen=True):
    """The spans of one trace, in the order they ended; the root last, None when it never ended here."""

    root: RawSpan | None
    spans: tuple[RawSpan, ...]


class _Open:
    """What is known of one OpenTelemetry trace."""

    __slots__ = ("bytes", "first_s", "links", "spans")

    def __init__(self, now_s: float) -> None:
        self.first_s = now_s
        self.spans: dict[str, RawSpan] = {}
        self.links: dict[str, str | None] = {}
        """Parents by span, also of spans let go; None for a local root."""
        self.bytes = 0

    def add(self, span: RawSpan, weight: int) -> None:
        self.links[span.span_id] = None if span.is_local_root else span.parent_id
        self.spans[span.span_id] = span
        self.bytes += weight

    def remove(self, span_id: str) -> int:
        """Let a span go, and tell its weight."""
        weight = weight_bytes(self.spans.pop(span_id))
        self.bytes -= weight
        return weight

    def top_of(self, span_id: str) -> str:
        """Climb to the last span known above this one; a circle ends where it began."""
        passed = {span_id}
        while (parent := self.links.get(span_id)) is not None and parent not in passed and parent in self.links:
            passed.add(parent)
            span_id = parent
        return span_id


class Gathering:
    """Open traces within bounds. Whoever calls holds the exporter's lock; times are seconds of one clock."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._open: OrderedDict[str, _Open] = OrderedDict()
        # Traces whose root has ended, by the time they are due: the wait is the same for all, so in order.
        self._due: OrderedDict[Key, float] = OrderedDict()
        self._closed: OrderedDict[Key, None] = OrderedDict()
        self._bytes = 0
        self.losses: dict[Loss, int] = dict.fromkeys(Loss, 0)

    @property
    def open_traces(self) -> int:
        """OpenTelemetry traces of which spans are held."""
        return len(self._open)

    @property
    def held_spans(self) -> int:
        """Spans held in all."""
        return sum(len(trace.spans) for trace in self._open.values())

    @property
    def held_bytes(self) -> int:
        """Estimated memory of the spans held."""
        return self._bytes

    @property
    def is_over(self) -> bool:
        """Whether more is held than may be: `take_excess` is due."""
        return self._share > 1

    @property
    def _share(self) -> float:
        """How much is held of what may be."""
        return max(len(self._open) / self._limits.max_open_traces, self._bytes / self._limits.max_bytes)

    def add(self, span: RawSpan, now_s: float) -> bool:
        """Take a span that has ended, or count why not.

        Returns:
            Whether the next trace is due earlier than was said before.
        """
        key = (span.trace_id, span.span_id)
        if self._is_late(span, key):
            self._close(key)
            self.losses[Loss.LATE] += 1
            return False
        if self._share > _OVERFLOW:
            self.losses[Loss.OVERFLOW] += 1
            return True
        trace = self._open.get(span.trace_id)
        if trace is None:
            trace = self._open[span.trace_id] = _Open(now_s)
        if self._has_room(trace, span):
            weight = weight_bytes(span)
            trace.add(span, weight)
            self._bytes += weight
        if span.is_local_root:
            self._due[key] = now_s + self._limits.late_span_wait_s
        return self.is_over or (span.is_local_root and len(self._due) == 1)

    def next_due_s(self) -> float | None:
        """Tell when `take_due` will have something; None when nothing is held."""
        due_s = next(iter(self._due.values()), None)
        times = [] if due_s is None else [due_s]
        if self._open:
            times.append(self._oldest().first_s + self._limits.max_age_s)
        return min(times, default=None)

    def take_due(self, now_s: float) -> Iterator[Gathered]:
        """Take the traces whose time has come: the root has ended and the wait is over, or they are too old."""
        while self._due and next(iter(self._due.values())) <= now_s:
            yield self._take_rooted()
        while self._open and self._oldest().first_s + self._limits.max_age_s <= now_s:
            yield from self._take_oldest()

    def take_complete(self) -> Iterator[Gathered]:
        """Take every trace whose root has ended, without the wait."""
        while self._due:
            yield self._take_rooted()

    def take_all(self) -> Iterator[Gathered]:
        """Take everything."""
        yield from self.take_complete()
        while self._open:
            yield from self._take_oldest()

    def take_excess(self) -> Iterator[Gathered]:
        """Take traces before their time until what is held is within bounds: complete ones first."""
        while self.is_over and self._open:
            if self._due:
                yield self._take_rooted()
            else:
                yield from self._take_oldest()

    def _is_late(self, span: RawSpan, key: Key) -> bool:
        """Tell whether a span, or the one above it, is in a trace that was taken."""
        above = None if span.is_local_root else (span.trace_id, span.parent_id or "")
        return key in self._closed or above in self._closed

    def _has_room(self, trace: _Open, span: RawSpan) -> bool:
        """Make room for a span in its trace: of a long one the end is kept, for the answer stands there."""
        if span.span_id in trace.spans:
            self._bytes -= trace.remove(span.span_id)  # exported twice: the later one counts
        if len(trace.links) >= self._limits.max_spans * _LINKS_PER_SPAN and not span.is_local_root:
            self.losses[Loss.SURPLUS] += 1
            return False
        if len(trace.spans) >= self._limits.max_spans:
            oldest = next((one for one in trace.spans.values() if not one.is_local_root), span)
            self.losses[Loss.SURPLUS] += 1
            if oldest is span:
                return False
            self._bytes -= trace.remove(oldest.span_id)
        return True

    def _take_rooted(self) -> Gathered:
        (trace_id, root_id), _ = self._due.popitem(last=False)
        trace = self._open.get(trace_id)
        if trace is None:  # taken for its age before
            return Gathered(None, ())
        members = [span for span in trace.spans.values() if trace.top_of(span.span_id) == root_id]
        gathered = self._taken(trace_id, trace, members)
        for span_id in [one for one in trace.links if trace.top_of(one) == root_id]:
            self._close((trace_id, span_id))
            del trace.links[span_id]
        if not trace.spans:
            del self._open[trace_id]
        return gathered

    def _oldest(self) -> _Open:
        return next(iter(self._open.values()))

    def _take_oldest(self) -> list[Gathered]:
        """Take what is left of the oldest trace, one for each span that tops others; what was late is counted."""
        trace_id, trace = self._open.popitem(last=False)
        groups: dict[str, list[RawSpan]] = {}
        for span in trace.spans.values():
            groups.setdefault(trace.top_of(span.span_id), []).append(span)
        taken: list[Gathered] = []
        for top_id, members in groups.items():
            gathered = self._taken(trace_id, trace, members)
            if (trace_id, trace.links.get(top_id) or "") in self._closed:
                self.losses[Loss.LATE] += len(members)
            else:
                taken.append(gathered)
        return taken

    def _taken(self, trace_id: str, trace: _Open, members: list[RawSpan]) -> Gathered:
        for span in members:
            self._bytes -= trace.remove(span.span_id)
            if span.is_local_root:
                self._due.pop((trace_id, span.span_id), None)
        return Gathered(next((span for span in members if span.is_local_root), None), tuple(members))

    def _close(self, key: Key) -> None:
        self._closed[key] = None
        if len(self._closed) > _MAX_CLOSED:
            self._closed.popitem(last=False)
