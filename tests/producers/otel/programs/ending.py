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
from tracejudge.otel import exporter as exiting

# A busy machine takes longer to load Redis, and to end, than a process has for that.
tracejudge.init.__kwdefaults__["exit_timeout_s"] = 60
exporter._END_TIMEOUT_S = 60
exiting._TIMEOUT_MS = 60_000


CHAT = {"gen_ai.operation.name": "chat", "gen_ai.completion": "Yes."}


def set_up() -> None:
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(TraceJudgeExporter(), schedule_delay_millis=50))
    trace.set_tracer_provider(provider)


def ask(name: str) -> None:
    with trace.get_tracer("shop").start_as_current_span(name, attributes=CHAT):
        pass


order = sys.argv[1]
if order == "automatic":
    _OTelSDKConfigurator().configure()
elif order == "first":
    tracejudge.init()
    set_up()
else:
    set_up()
    tracejudge.init()
    ask("first")
    trace.get_tracer_provider().force_flush()  # type: ignore[attr-defined] - as the processor does by itself in time
ask("last")
