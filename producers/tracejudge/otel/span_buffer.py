"""Buffer of the spans of unfinished traces, and their grouping by local root.

A span belongs to its local root: the span above it without a parent in this process. One OpenTelemetry trace may have
several of them here, as when a request calls its own service; each becomes a trace of its own.
"""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from typing import Final

from msgspec import Struct
from msgspec.structs import replace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext, StatusCode

from tracejudge.delivery.buffer import estimate_bytes
from tracejudge.dialects import RawEvent, RawSpan
from tracejudge.ids import SpanIds
from tracejudge.model import TextEnum
from tracejudge.otel.joining import SpanGroup

_NANOSECONDS: Final = 1e9
_STATUS: Final = {StatusCode.OK: "ok", StatusCode.ERROR: "error"}


def ids_of(context: SpanContext | None) -> SpanIds | None:
    """Return the ids of a span context; None if they are invalid."""
    if context is None or not context.is_valid:
        return None
    return SpanIds(f"{context.trace_id:032x}", f"{context.span_id:016x}")


def raw_span(span: ReadableSpan) -> RawSpan | None:
    """Copy a span; None if its ids are invalid."""
    ids = ids_of(span.context)
    if ids is None:
        return None
    parent = span.parent
    scope = span.instrumentation_scope
    return RawSpan(
        trace_id=ids.trace_id,
        span_id=ids.span_id,
        name=span.name,
        parent_id=None if parent is None else f"{parent.span_id:016x}",
        is_local_root=parent is None or parent.is_remote,
        kind=span.kind.name.lower(),
        started_at=None if span.start_time is None else span.start_time / _NANOSECONDS,
        ended_at=None if span.end_time is None else span.end_time / _NANOSECONDS,
        status=_STATUS.get(span.status.status_code),
        description=span.status.description,
        attributes=dict(span.attributes or {}),
        events=tuple(RawEvent(event.name, dict(event.attributes or {})) for event in span.events[:512]),
        scope=None if scope is None else scope.name,
    )


def span_bytes(span: RawSpan) -> int:
    """Estimate the memory of a span."""
    # The span itself, its ids and times take about 800 bytes.
    return 800 + estimate_bytes([span.attributes, *(event.attributes for event in span.events)])


_MAX_CLOSED: Final = 20_000
_OVERFLOW: Final = 2  # Spans are refused above this multiple of the bounds: they end faster than the thread joins them.
Key = tuple[str, str]


class Loss(TextEnum):
    """Reasons why a span is in no published trace. The list is closed."""

    LATE = "late"  # It ended after its trace was published.
    SURPLUS = "surplus"  # Its trace has more than `max_spans` spans.
    SHUTDOWN = "shutdown"  # It ended after `shutdown`.
    UNREADABLE = "unreadable"  # It could not be read, or its trace could not be joined.
    OVERFLOW = "overflow"  # Spans ended faster than they could be joined.
    NO_MODEL_CALL = "no_model_call"  # Its trace has no call of a model that a dialect reads.


class Limits(Struct, frozen=True, kw_only=True):
    """Bounds of a buffer."""

    late_span_wait_s: float
    max_open_traces: int
    max_spans: int
    max_bytes: int
    max_age_s: float


class _Open:
    __slots__ = ("first_s", "links", "spans")

    def __init__(self, now_s: float) -> None:
        self.first_s = now_s
        self.spans: dict[str, RawSpan] = {}
        self.links: dict[str, str | None] = {}  # Parents by span, including removed spans; None for a local root.

    def top_of(self, span_id: str) -> str:
        """Return the topmost known span above this one."""
        passed = {span_id}  # parents may form a circle
        while (parent := self.links.get(span_id)) is not None and parent not in passed and parent in self.links:
            passed.add(parent)
            span_id = parent
        return span_id


class SpanBuffer:
    """Open traces within bounds. Guarded by the exporter's lock; times are seconds of one clock."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._open: OrderedDict[str, _Open] = OrderedDict()
        # Traces whose root has ended and their due times, which are in order because the wait is the same for all.
        self._due: OrderedDict[Key, float] = OrderedDict()
        self._closed: OrderedDict[Key, None] = OrderedDict()
        self.held_bytes = 0  # estimated
        self.losses: dict[Loss, int] = dict.fromkeys(Loss, 0)

    @property
    def held_spans(self) -> int:
        """Spans in the buffer."""
        return sum(len(trace.spans) for trace in self._open.values())

    @property
    def usage(self) -> float:
        """Used share of the bounds; above 1 `take_excess` is due."""
        return max(len(self._open) / self._limits.max_open_traces, self.held_bytes / self._limits.max_bytes)

    def add(self, span: RawSpan, now_s: float) -> bool:
        """Add a span that has ended, or count its loss; return whether a trace is now due before `next_due_s`."""
        key = (span.trace_id, span.span_id)
        parent = None if span.is_local_root else (span.trace_id, span.parent_id or "")
        if key in self._closed or parent in self._closed:
            self._close(key)
            self.losses[Loss.LATE] += 1
            return False
        if self.usage > _OVERFLOW:
            self.losses[Loss.OVERFLOW] += 1
            return True
        trace = self._open.get(span.trace_id)
        if trace is None:
            trace = self._open[span.trace_id] = _Open(now_s)
        if span.is_local_root and span.parent_id in trace.links and not span.is_request:
            # logfire writes the answer of a stream with a remote parent, which is a span of this process.
            span = replace(span, is_local_root=False)
        if self._make_room(trace, span):
            trace.links[span.span_id] = None if span.is_local_root else span.parent_id
            trace.spans[span.span_id] = span
            self.held_bytes += span_bytes(span)
        if span.is_local_root:
            self._due[key] = now_s + self._limits.late_span_wait_s
        return self.usage > 1 or (span.is_local_root and len(self._due) == 1)

    def next_due_s(self) -> float | None:
        """Return when `take_due` has a trace; None if the buffer is empty."""
        times = [*islice(self._due.values(), 1)]
        if self._open:
            times.append(self._oldest().first_s + self._limits.max_age_s)
        return min(times, default=None)

    def take_due(self, now_s: float) -> Iterator[SpanGroup]:
        """Remove and yield the traces whose root has ended and whose wait is over, and those that are too old."""
        while self._due and next(iter(self._due.values())) <= now_s:
            yield self._take_rooted()
        while self._open and self._oldest().first_s + self._limits.max_age_s <= now_s:
            yield from self._take_oldest()

    def take_complete(self) -> Iterator[SpanGroup]:
        """Remove and yield every trace whose root has ended, without the wait."""
        while self._due:
            yield self._take_rooted()

    def take_all(self) -> Iterator[SpanGroup]:
        """Remove and yield every trace."""
        yield from self.take_complete()
        while self._open:
            yield from self._take_oldest()

    def take_excess(self) -> Iterator[SpanGroup]:
        """Remove and yield traces, complete ones first, until the rest is within bounds."""
        while self.usage > 1 and self._open:
            if self._due:
                yield self._take_rooted()
            else:
                yield from self._take_oldest()

    def _make_room(self, trace: _Open, span: RawSpan) -> bool:
        if span.span_id in trace.spans:
            self._remove(trace, span.span_id)  # exported twice: the later one counts
        # Links of removed spans are kept as well.
        if len(trace.links) >= self._limits.max_spans * 8 and not span.is_local_root:
            self.losses[Loss.SURPLUS] += 1
            return False
        if len(trace.spans) >= self._limits.max_spans:
            # The last spans of a long trace are kept, because they include the answer.
            oldest = next((span for span in trace.spans.values() if not span.is_local_root), span)
            self.losses[Loss.SURPLUS] += 1
            if oldest is span:
                return False
            self._remove(trace, oldest.span_id)
        return True

    def _remove(self, trace: _Open, span_id: str) -> None:
        self.held_bytes -= span_bytes(trace.spans.pop(span_id))

    def _take_rooted(self) -> SpanGroup:
        (trace_id, root_id), _ = self._due.popitem(last=False)
        trace = self._open.get(trace_id)
        if trace is None:  # taken before, because of its age
            return SpanGroup(None, ())
        members = [span for span in trace.spans.values() if trace.top_of(span.span_id) == root_id]
        group = self._taken(trace_id, trace, members)
        for span_id in [name for name in trace.links if trace.top_of(name) == root_id]:
            self._close((trace_id, span_id))
            del trace.links[span_id]
        if not trace.spans:
            del self._open[trace_id]
        return group

    def _oldest(self) -> _Open:
        return next(iter(self._open.values()))

    def _take_oldest(self) -> list[SpanGroup]:
        # One group for each topmost span; groups below a trace that was taken before are late.
        trace_id, trace = self._open.popitem(last=False)
        groups: dict[str, list[RawSpan]] = {}
        for span in trace.spans.values():
            groups.setdefault(trace.top_of(span.span_id), []).append(span)
        taken: list[SpanGroup] = []
        for top_id, members in groups.items():
            group = self._taken(trace_id, trace, members)
            if (trace_id, trace.links.get(top_id) or "") in self._closed:
                self.losses[Loss.LATE] += len(members)
            else:
                taken.append(group)
        return taken

    def _taken(self, trace_id: str, trace: _Open, members: list[RawSpan]) -> SpanGroup:
        for span in members:
            self._remove(trace, span.span_id)
            if span.is_local_root:
                self._due.pop((trace_id, span.span_id), None)
        return SpanGroup(next((span for span in members if span.is_local_root), None), tuple(members))

    def _close(self, key: Key) -> None:
        self._closed[key] = None
        if len(self._closed) > _MAX_CLOSED:
            self._closed.popitem(last=False)
