"""A service that forks while its exporter holds a span and another thread holds its lock.

Prints how many spans each holds: the child before and after a request of its own, the parent in the end.
"""

import os
import threading

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

import tracejudge
from tracejudge.otel import TraceJudgeExporter

tracejudge.init(disabled=True)
exporter = TraceJudgeExporter(late_span_wait_s=600)
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
tracer = provider.get_tracer("shop")


def ask() -> None:
    tracer.start_span("chat", attributes={"gen_ai.operation.name": "chat", "gen_ai.completion": "Yes."}).end()


def hold(held: threading.Event, enough: threading.Event) -> None:
    # In the order of the exporter itself: the other way round the two could wait for each other.
    with exporter._working, exporter._lock:
        held.set()
        enough.wait()


def in_the_child() -> None:
    before = exporter._spans.held_spans
    ask()
    os.write(1, f"child {before} {exporter._spans.held_spans}\n".encode())
    exporter.shutdown()
    os._exit(0)


def main() -> None:
    held, enough = threading.Event(), threading.Event()
    ask()
    holder = threading.Thread(target=hold, args=(held, enough))
    holder.start()
    held.wait()
    child = os.fork()
    if child == 0:
        in_the_child()
    _, status = os.waitpid(child, 0)
    enough.set()
    holder.join()
    os.write(1, f"parent {status} {exporter._spans.held_spans}\n".encode())


main()
