"""A short script that answers once and ends, without a flush or a shutdown of its own.

    python ending.py first|last|automatic

says whether `tracejudge.init` comes before the provider, after it, or never: then OTEL_TRACES_EXPORTER does it.
"""

import sys

from opentelemetry import trace
from opentelemetry.sdk._configuration import _OTelSDKConfigurator
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import tracejudge
from tracejudge.otel import TraceJudgeExporter, exporter

# A busy machine takes longer to load Redis, and to end, than a process has for that.
tracejudge.init.__kwdefaults__["exit_timeout_s"] = 60
exporter._END_TIMEOUT_S = 60
exporter._TIMEOUT_MS = 60_000


def ask(name: str) -> None:
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.completion": "Yes."}
    trace.get_tracer("shop").start_span(name, attributes=attributes).end()


order = sys.argv[1]
if order == "automatic":
    _OTelSDKConfigurator().configure()
else:
    if order == "first":
        tracejudge.init()
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(TraceJudgeExporter(), schedule_delay_millis=50))
    trace.set_tracer_provider(provider)
if order == "last":
    tracejudge.init()
    ask("first")
    provider.force_flush()  # as the processor does by itself in time
ask("last")
