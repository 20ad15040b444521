"""A span exporter that publishes the LLM calls recorded by OpenTelemetry's instrumentations."""

import atexit
import logging
import math
import os
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import get_tracer_provider

from tracejudge import api
from tracejudge.delivery.fork import NativeThread, Wakeup, native_lock, reentrant_lock, reset_in_children
from tracejudge.dialects import Dialects, RawSpan, builtin
from tracejudge.dialects.own_tables import VARIABLE, Source, TableError, dialects_with
from tracejudge.dialects.unread import unread, without_answer
from tracejudge.log import Once, log_guarded, report_internal_error
from tracejudge.otel.joining import SpanGroup, has_no_content, join
from tracejudge.otel.span_buffer import Limits, Loss, SpanBuffer, raw_span

_IDLE_S: Final = 60.0
_MAX_TOLD: Final = 500
_MAX_EXAMINED: Final = 100


def exit_handler(exporter: SpanExporter) -> Callable[[], None]:
    """Make an exit handler that flushes the provider and shuts the exporter down."""
    # Weak: the handler must not keep an exporter alive that its provider has dropped.
    reference = weakref.ref(exporter)

    def run() -> None:
        exporter = reference()
        if exporter is None:
            return
        try:
            provider = get_tracer_provider()
            if isinstance(provider, TracerProvider):
                provider.force_flush(2_000)
        except Exception as error:  # noqa: BLE001 - a fault of another exporter must not cost our spans
            report_internal_error(error)
        exporter.shutdown()

    return run


def dialects_from_environment() -> Dialects:
    """Return the dialects with the tables of the files that `TRACEJUDGE_DIALECTS` names, divided as a search path."""
    try:
        return dialects_with(filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)))
    except TableError as error:
        # Not raised: the host would lose its exporter.
        log_guarded(logging.WARNING, "%s is not used: %s", VARIABLE, error)
        return builtin()


class TraceJudgeExporter(SpanExporter):
    """Publishes the LLM calls among the spans it receives, with retrieved documents and tool calls.

    Works with the SDK's batch processor and its simple one; `tracejudge.init` configures the destination. Threads that
    end spans only store them; a thread of the exporter joins and publishes them. Nothing raises or blocks after the
    construction. Memory is bounded: traces over `max_open_traces` or `max_bytes` are published early. At exit the
    global provider is flushed and everything is published before TraceJudge's own exit, except in a process that calls
    `init` last and ends within the processor's first delay.
    """

    _is_open: bool

    def __init__(
        self,
        *,
        late_span_wait_s: float = 2.0,
        max_open_traces: int = 5_000,
        max_spans: int = 512,
        max_bytes: int = 64 * 1024 * 1024,
        max_age_s: float = 600.0,
        dialects: Sequence[Source] | Source | None = None,
    ) -> None:
        """Set the bounds.

        Args:
            late_span_wait_s: Wait for late spans after the root of a trace has ended.
            max_open_traces: Most traces held.
            max_spans: Most spans held of one trace, the last ones of a longer one.
            max_bytes: Most bytes of all spans held, estimated.
            max_age_s: Longest wait for a root that does not end; then the spans are published without it.
            dialects: Tables of further dialects, as mappings or paths of JSON files, or one; else the files that
                `TRACEJUDGE_DIALECTS` names.

        Raises:
            ValueError: A bound is not above 0, the wait is below 0, or a table cannot be used.
        """
        if not late_span_wait_s >= 0 or not min(max_open_traces, max_spans, max_bytes, max_age_s) > 0:
            raise ValueError("TraceJudgeExporter: late_span_wait_s must be 0 or more, every bound above 0")
        self._limits = Limits(
            late_span_wait_s=late_span_wait_s,
            max_open_traces=max_open_traces,
            max_spans=max_spans,
            max_bytes=max_bytes,
            max_age_s=max_age_s,
        )
        self._dialects = dialects_from_environment() if dialects is None else dialects_with(dialects)
        self._exit_handler = exit_handler(self)
        self._run_first_at_exit()
        self.reset_after_fork()
        reset_in_children(self)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Store ended spans. Always returns success: losses are counted here, and a retry would not help."""
        if self._pid != os.getpid():
            self.reset_after_fork()
        for span in spans:
            try:
                self._put(span)
            except Exception as error:  # noqa: BLE001 - one malformed span must not cost the others
                report_internal_error(error)
                self._lose(Loss.UNREADABLE)
        return SpanExportResult.SUCCESS

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Publish and deliver every trace whose root has ended, without waiting for late spans.

        The SDK's processors do not pass a flush on to their exporter: flush the provider first, then this.

        Returns:
            Whether Redis confirmed what was published.
        """
        deadline_s = time.monotonic() + timeout_millis / 1000
        if not self._publish_taken(self._spans.take_complete, timeout_millis / 1000):
            return False
        return api.flush(max(deadline_s - time.monotonic(), 0.0))

    def shutdown(self) -> None:
        """Publish everything, including unfinished traces, and stop the thread. A second call does nothing."""
        with self._lock:
            was_open, self._is_open = self._is_open, False
        self._wakeup.open()
        if not was_open:
            return
        atexit.unregister(self._exit_handler)
        if not self._publish_taken(self._spans.take_all, 2.0):
            self._lose(Loss.SHUTDOWN, self._spans.held_spans)
        self._report()

    def losses(self) -> dict[str, int]:
        """Return the spans of this process that are in no published trace, by reason."""
        with self._lock:
            return {loss.value: count for loss, count in self._spans.losses.items()}

    def reset_after_fork(self) -> None:
        """Set up the state of one process; the spans held at a fork belong to the parent."""
        self._pid = os.getpid()
        # The interpreter's own lock, under gevent too: the thread is a real one. Reentrant, because a signal handler
        # or a finalizer may end a span while its own thread holds the lock.
        self._lock = reentrant_lock()
        self._working = native_lock()
        self._spans = SpanBuffer(self._limits)
        self._wakeup = Wakeup()
        self._thread: NativeThread | None = None
        self._is_open = True
        self._reported = 0
        self._minute = Once(time.monotonic)
        self._told = Once(time.monotonic, period_s=math.inf, most=_MAX_TOLD)
        self._examined: Counter[str] = Counter()  # Spans by instrumentation.

    def _run_first_at_exit(self) -> None:
        atexit.unregister(self._exit_handler)
        atexit.register(self._exit_handler)

    def _put(self, span: ReadableSpan) -> None:
        raw = raw_span(span)
        if raw is None:
            self._lose(Loss.UNREADABLE)
            return
        with self._lock:
            if not self._is_open:
                self._lose(Loss.SHUTDOWN)
                return
            wakes = self._spans.add(raw, time.monotonic())
            if self._thread is None:
                self._run_first_at_exit()
                self._thread = NativeThread(self._run, name="tracejudge-otel")
                try:
                    self._thread.start()
                except RuntimeError as error:
                    # The system has no more threads, or the interpreter ends. The next span tries again, and
                    # `shutdown` works without the thread.
                    self._thread = None
                    report_internal_error(error)
        if wakes:
            self._wakeup.open()

    def _lose(self, loss: Loss, count: int = 1) -> None:
        with self._lock:
            self._spans.losses[loss] += count

    def _run(self) -> None:
        while self._is_open:
            with self._lock:
                due_s = self._spans.next_due_s()
            rest_s = _IDLE_S if due_s is None else due_s - time.monotonic()
            self._wakeup.wait(min(rest_s, _IDLE_S))
            try:
                if self._is_open:
                    self._publish_taken(lambda: self._spans.take_due(time.monotonic()))
                    self._publish_taken(self._spans.take_excess)
                    self._report()
            except Exception as error:  # noqa: BLE001 - a fault, as of a log handler of the host, must not stop the thread
                report_internal_error(error)

    def _publish_taken(self, take: Callable[[], Iterable[SpanGroup]], timeout_s: float = -1) -> bool:
        """Join and publish the traces taken; False if another thread is still doing so after the timeout."""
        if not self._working.acquire(timeout=timeout_s):
            return False
        try:
            taken = iter(take())
            while True:
                # The lock for each trace anew: threads that end spans must not wait for many traces.
                with self._lock:
                    group = next(taken, None)
                if group is None:
                    return True
                try:
                    fields = join(group, self._dialects)
                    self._tell(group, fields)
                except Exception as error:  # noqa: BLE001 - one malformed trace must not cost the others
                    report_internal_error(error)
                    self._lose(Loss.UNREADABLE, len(group.spans))
                    continue
                if fields is not None:
                    api.publish(**fields)
        finally:
            self._working.release()

    def _tell(self, group: SpanGroup, fields: Mapping[str, object] | None) -> None:
        """Log, once for each instrumentation, that its spans are no trace, or that they hold no content."""
        scopes = frozenset(span.scope for span in group.spans)
        if fields is None:
            self._lose(Loss.NO_MODEL_CALL, len(group.spans))
            kinds, fault = unread(filter(self._is_new, group.spans), self._dialects), "are no traces"
        elif fields.get("output") or fields.get("error") or not self._minute.take(scopes):
            return
        else:
            has_content, fault = not has_no_content(fields), "have no answer"
            kinds = without_answer(group.spans, self._dialects, has_content=has_content)
        for kind in kinds:
            if (kind.names or kind.setting) and self._told.take((kind.scope, fault)):
                level = logging.WARNING if kind.setting or kind.is_like_call else logging.INFO
                log_guarded(level, "OpenTelemetry spans of %r %s: %s", kind.scope, fault, kind.words)

    def _is_new(self, span: RawSpan) -> bool:
        # Most services send spans that call no model: the first ones tell what their instrumentation writes.
        examined, scope = self._examined, span.scope or ""
        if examined[scope] >= _MAX_EXAMINED or (len(examined) >= _MAX_TOLD and scope not in examined):
            return False
        examined[scope] += 1
        return True

    def _report(self) -> None:
        with self._lock:  # the thread and `shutdown` may be here at the same time
            # Most services send spans that call no model.
            losses = {
                reason: count for reason, count in self.losses().items() if count and reason != Loss.NO_MODEL_CALL
            }
            lost = sum(losses.values())
            is_more, self._reported = lost > self._reported, lost
        if is_more and self._minute.take("losses"):
            counts = ", ".join(f"{reason} {count}" for reason, count in losses.items())
            log_guarded(logging.WARNING, "OpenTelemetry spans left out since the start, by reason: %s", counts)
