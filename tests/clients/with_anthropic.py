"""Anthropic's client through OpenInference."""

from anthropic_scenarios import SCENARIOS
from harness import provider, run
from openinference.instrumentation.anthropic import AnthropicInstrumentor

AnthropicInstrumentor().instrument(tracer_provider=provider)
run(SCENARIOS)
