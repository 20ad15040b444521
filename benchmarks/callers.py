"""One caller of one library in a process of its own: what a call costs the calling thread.

    python -m benchmarks.callers LIBRARY burst|paced URL CALLS
    python -m benchmarks.callers ours cpu|instructions URL CALLS

Prints the microseconds of p50, p99 and p99.9, or those of CPU in all threads until what was published is delivered;
with `instructions`, valgrind runs this and counts meanwhile. A process of its own, as the threads of one library would
disturb the next, and as OpenTelemetry in memory changes what `publish` does.
"""

import contextlib
import gc
import json
import logging
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from benchmarks.traces import fields

_PACE_S: Final = 0.001
_SLOW_TIMEOUT_S: Final = 1.0
_DELIVERED_AT_ONCE: Final = 5_000  # fit into the buffer
_FEW: Final = 3  # so slow that even the first is worth its time


@contextlib.contextmanager
def nothing(_: str) -> Iterator[Callable[[], object]]:
    """Copy the fields and be done: the least that any call costs here, be it paced or not."""
    given = fields()
    yield lambda: dict(**given)


@contextlib.contextmanager
def ours(url: str) -> Iterator[Callable[[], object]]:
    """`tracejudge.publish`."""
    import tracejudge  # noqa: PLC0415 - each process loads its own library only

    given = fields()
    tracejudge.init(service="bench", redis_url=url, prefix="bench", exit_timeout_s=0.1)
    yield lambda: tracejudge.publish(**given)


@contextlib.contextmanager
def ours_in_span(url: str) -> Iterator[Callable[[], object]]:
    """`tracejudge.publish` within a span of OpenTelemetry."""
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415

    with ours(url) as call, TracerProvider().get_tracer("bench").start_as_current_span("request"):
        yield call


@contextlib.contextmanager
def opentelemetry(url: str) -> Iterator[Callable[[], object]]:
    """A span with the same content as attributes, through the batch processor to a collector over HTTP."""
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans  # noqa: PLC0415
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult  # noqa: PLC0415

    class Exporter(SpanExporter):
        """Encodes as the SDK's own does and posts."""

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            data = encode_spans(spans).SerializeToString()
            try:
                urllib.request.urlopen(url, data, timeout=5).close()  # noqa: S310 - a loopback address
            except OSError:
                return SpanExportResult.FAILURE
            return SpanExportResult.SUCCESS

    given = fields()
    usage: Any = given.pop("usage")
    attributes: Any = given | {f"usage.{name}": count for name, count in usage.items()}
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(Exporter()))
    tracer = provider.get_tracer("bench")
    yield lambda: tracer.start_span("chat", attributes=attributes).end()


@contextlib.contextmanager
def xadd(url: str) -> Iterator[Callable[[], object]]:
    """One bare `XADD` of the encoded trace, without retries."""
    import redis  # noqa: PLC0415
    from redis.backoff import NoBackoff  # noqa: PLC0415
    from redis.retry import Retry  # noqa: PLC0415

    payload = json.dumps(fields())
    client = redis.Redis.from_url(url, socket_timeout=_SLOW_TIMEOUT_S, retry=Retry(NoBackoff(), 0))
    yield lambda: client.xadd("bench:bare", {"v": "1", "t": payload}, maxlen=10_000)


@contextlib.contextmanager
def send_task(url: str) -> Iterator[Callable[[], object]]:
    """One Celery `send_task` of the encoded trace, without retries."""
    from celery import Celery  # noqa: PLC0415

    app = Celery("bench", broker=url)
    app.conf.broker_transport_options = {
        "socket_timeout": _SLOW_TIMEOUT_S,
        "socket_connect_timeout": _SLOW_TIMEOUT_S,
        "retry_on_timeout": False,
        "max_retries": 1,
        "interval_start": 0,
    }
    payload = json.dumps(fields())
    yield lambda: app.send_task("bench.nobody", args=[payload], ignore_result=True, retry=False, queue="bench")


def measure(call: Callable[[], object], calls: int, *, paced: bool) -> list[float]:
    """Time single calls, one a millisecond or without a pause; the clock's own cost, some 0.1 us, is in the figures."""
    if calls > _FEW:
        with contextlib.suppress(Exception):
            call()
        time.sleep(0.5)  # until the library's thread is up
    gc.collect()
    taken, failed = [], 0
    due = time.perf_counter()
    for _ in range(calls):
        if paced:
            due += _PACE_S
            time.sleep(max(due - time.perf_counter(), 0))
        start = time.perf_counter_ns()
        try:
            call()
        except Exception:  # noqa: BLE001 - what a failed call costs is the question
            failed += 1
        taken.append(time.perf_counter_ns() - start)
    if failed not in {0, calls}:
        raise RuntimeError(f"{failed} of {calls} calls failed: neither up nor down")
    taken.sort()
    return [taken[min(calls - 1, int(calls * share))] / 1000 for share in (0.5, 0.99, 0.999)]


def measure_cpu(call: Callable[[], object], calls: int, *, instructions: bool) -> float:
    """Measure microseconds of CPU a publication, user and system, of the calling thread and of the one that sends."""
    import tracejudge  # noqa: PLC0415

    def publish(count: int) -> None:
        for first in range(0, count, _DELIVERED_AT_ONCE):
            for _ in range(min(_DELIVERED_AT_ONCE, count - first)):
                call()
            if not tracejudge.flush(120):
                raise RuntimeError("not delivered within two minutes")

    def order(*words: str) -> None:
        if instructions:
            subprocess.run(["vgdb", f"--pid={os.getpid()}", *words], check=True, capture_output=True)  # noqa: S607

    publish(_DELIVERED_AT_ONCE)
    order("instrumentation", "on")
    begin = time.process_time()
    publish(calls)
    used = time.process_time() - begin
    order("instrumentation", "off")
    order("dump")
    return 1e6 * used / calls


CALLERS: Final = {
    "nothing": nothing,
    "ours": ours,
    "ours_in_span": ours_in_span,
    "opentelemetry": opentelemetry,
    "xadd": xadd,
    "send_task": send_task,
}


def main() -> None:
    """Measure what the command line names."""
    logging.disable()
    library, mode, url, calls = sys.argv[1:]
    with CALLERS[library](url) as call:
        if mode in {"cpu", "instructions"}:
            print(measure_cpu(call, int(calls), instructions=mode == "instructions"), flush=True)
        else:
            print(json.dumps(measure(call, int(calls), paced=mode == "paced")), flush=True)
        if library.startswith("ours"):
            import tracejudge  # noqa: PLC0415

            tracejudge.shutdown(0.1)


if __name__ == "__main__":
    main()
