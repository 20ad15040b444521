"""A span exporter: what OpenTelemetry's instrumentations record becomes traces to judge."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from tracejudge import api
from tracejudge.complaints import Complaints
from tracejudge.forking import renewed_in_children
from tracejudge.native import NativeThread, native_lock, reentrant_lock
from tracejudge.otel.exiting import AtExit
from tracejudge.otel.gathering import Gathered, Gathering, Limits, Loss
from tracejudge.otel.joining import join
from tracejudge.otel.spans import raw_span
from tracejudge.swallowing import swallow
from tracejudge.wakeup import Wakeup

_FLUSH_TIMEOUT_MS: Final = 30_000
_IDLE_S: Final = 60.0
_END_TIMEOUT_S: Final = 2.0


class TraceJudgeExporter(SpanExporter):
    """Publishes the LLM calls among the spans it is given, with what was retrieved and which tools were called.

    For the SDK's batch processor or its simple one; `tracejudge.init` says where traces go. The threads that end
    spans only put them down; a thread of our own joins and publishes them. Nothing raises or blocks after the
    construction. Memory is bounded: what is over `max_open_traces` or `max_bytes` is published before its time.
    At exit the global provider is flushed and everything published, before TraceJudge's own exit: only a process
    that calls `init` last and ends within the processor's first delay loses that.
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
    ) -> None:
        """Set the bounds.

        Args:
            late_span_wait_s: How long after the end of its root a trace waits for spans that end later.
            max_open_traces: Most traces held.
            max_spans: Most spans held of one trace; of a longer one the last.
            max_bytes: Most bytes all spans held may take, estimated.
            max_age_s: How long spans wait for a root that does not end, before they are published without it.

        Raises:
            ValueError: A bound is not above 0, or the wait is below it.
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
        self._at_exit = AtExit(self)
        self.renew()
        renewed_in_children(self)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Put ended spans down. Always a success: what is lost here is counted, and nobody could send it again."""
        if self._pid != os.getpid():
            self.renew()
        for span in spans:
            try:
                self._put(span)
            except Exception as error:  # noqa: BLE001 - one strange span must not cost the others
                swallow(error)
                self._lose(Loss.UNREADABLE)
        return SpanExportResult.SUCCESS

    def force_flush(self, timeout_millis: int = _FLUSH_TIMEOUT_MS) -> bool:
        """Publish every trace whose root has ended, without waiting for late spans, and deliver it.

        The SDK's processors do not pass a flush on to their exporter: flush the provider first, then this.

        Returns:
            True when Redis has what was published.
        """
        deadline_s = time.monotonic() + timeout_millis / 1000
        if not self._work(self._gathering.take_complete, timeout_millis / 1000):
            return False
        return api.flush(max(deadline_s - time.monotonic(), 0.0))

    def shutdown(self) -> None:
        """Publish everything, unfinished traces as they stand, and end the thread. A second call does nothing."""
        with self._lock:
            was_open, self._is_open = self._is_open, False
        self._wakeup.open()
        if not was_open:
            return
        self._at_exit.cancel()
        if not self._work(self._gathering.take_all, _END_TIMEOUT_S):
            self._lose(Loss.SHUTDOWN, self._gathering.held_spans)
        self._report()

    def losses(self) -> dict[str, int]:
        """Count the spans that are in no published trace, by reason, since the start of this process."""
        with self._lock:
            return {loss.value: count for loss, count in self._gathering.losses.items()}

    def renew(self) -> None:
        """Set up what one process has: a forked child begins with nothing, as the spans held are its parent's."""
        self._pid = os.getpid()
        # The interpreter's own, also where gevent has replaced them: the thread is a real one. Reentrant, because a
        # signal handler or a finalizer may end a span while this very thread is inside.
        self._lock = reentrant_lock()
        self._working = native_lock()
        self._gathering = Gathering(self._limits)
        self._wakeup = Wakeup()
        self._thread: NativeThread | None = None
        self._is_open = True
        self._reported = 0
        self._complaints = Complaints(time.monotonic)

    def _put(self, span: ReadableSpan) -> None:
        raw = raw_span(span)
        if raw is None:
            self._lose(Loss.UNREADABLE)
            return
        with self._lock:
            if not self._is_open:
                self._lose(Loss.SHUTDOWN)
                return
            wakes = self._gathering.add(raw, time.monotonic())
            self._start()
        if wakes:
            self._wakeup.open()

    def _lose(self, loss: Loss, count: int = 1) -> None:
        with self._lock:
            self._gathering.losses[loss] += count

    def _start(self) -> None:
        """Start the thread when there is none. The lock is held."""
        if self._thread is not None:
            return
        self._at_exit.put_first()
        self._thread = NativeThread(self._run, name="tracejudge-otel")
        try:
            self._thread.start()
        except RuntimeError as error:
            # No thread to be had, now or while the interpreter ends; the next span tries again, shutdown goes without.
            self._thread = None
            swallow(error)

    def _run(self) -> None:
        while self._is_open:
            with self._lock:
                due_s = self._gathering.next_due_s()
            rest_s = _IDLE_S if due_s is None else due_s - time.monotonic()
            self._wakeup.wait(min(rest_s, _IDLE_S))
            try:
                if self._is_open:
                    self._work(self._take_ripe)
                    self._report()
            except Exception as error:  # noqa: BLE001 - as of a log handler of the host: the next traces must go on
                swallow(error)

    def _take_ripe(self) -> Iterator[Gathered]:
        yield from self._gathering.take_due(time.monotonic())
        yield from self._gathering.take_excess()

    def _work(self, take: Callable[[], Iterable[Gathered]], timeout_s: float = -1) -> bool:
        """Join and publish what is taken; False when another thread is at it and does not come to an end."""
        if not self._working.acquire(timeout=timeout_s):
            return False
        try:
            taken = iter(take())
            while (gathered := self._next(taken)) is not None:
                self._publish(gathered)
        finally:
            self._working.release()
        return True

    def _next(self, taken: Iterator[Gathered]) -> Gathered | None:
        # The lock for each trace anew: who ends a span must not wait for many to be sorted out.
        with self._lock:
            return next(taken, None)

    def _publish(self, gathered: Gathered) -> None:
        try:
            fields = join(gathered)
        except Exception as error:  # noqa: BLE001 - a trace that cannot be read must not cost the others
            swallow(error)
            self._lose(Loss.UNREADABLE, len(gathered.spans))
            return
        if fields is not None:
            api.publish(**fields)

    def _report(self) -> None:
        with self._lock:  # the thread and `shutdown` may come here at the same time
            losses = {reason: count for reason, count in self.losses().items() if count}
            lost = sum(losses.values())
            is_more, self._reported = lost > self._reported, lost
        if is_more:
            counts = ", ".join(f"{reason} {count}" for reason, count in losses.items())
            self._complaints.warn("OpenTelemetry spans left out since the start, by reason: %s", counts)
