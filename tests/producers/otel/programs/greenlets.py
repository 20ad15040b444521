"""A service in gevent: requests are greenlets, and one of them must go on while the exporter waits."""

# ruff: noqa: E402 - gevent patches before anything else is imported
from gevent import monkey

monkey.patch_all()

import gevent
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

import tracejudge
from tracejudge.otel import TraceJudgeExporter

tracejudge.init()
exporter = TraceJudgeExporter(late_span_wait_s=0)
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
tracer = provider.get_tracer("shop")


CHAT = {"gen_ai.operation.name": "chat", "gen_ai.completion": "Yes."}


def ask(number: int) -> None:
    with tracer.start_as_current_span(f"request {number}"):
        gevent.sleep(0.001)
        with tracer.start_as_current_span("chat", attributes=CHAT):
            gevent.sleep(0.001)


gevent.joinall([gevent.spawn(ask, number) for number in range(20)], raise_error=True)
assert exporter.force_flush(60_000)
