"""A Pydantic AI agent with a tool and a typed result, which exports its spans to the gateway."""

import sys

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from pydantic import BaseModel
from pydantic_ai import Agent

provider = TracerProvider()
# Without a gateway, after `tracejudge.init(service="support-bot")`: `tracejudge.otel.TraceJudgeExporter()`.
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)
Agent.instrument_all()


class Stay(BaseModel):
    """Where a parcel is, and for how long."""

    city: str
    days: int


agent = Agent("openai-chat:gpt-6-luna", name="support", instructions="Be brief.", output_type=Stay)


@agent.tool_plain
def track(number: int) -> str:
    """Find a parcel by its number."""
    return f"Parcel {number} is in Bern."


result = agent.run_sync(sys.argv[1], conversation_id="session-1", metadata={"user_id": "user-1"})
print(result.output)
provider.shutdown()
