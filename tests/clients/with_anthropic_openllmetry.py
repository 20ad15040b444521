"""Anthropic's client under OpenLLMetry."""

from anthropic_scenarios import SCENARIOS
from harness import run
from opentelemetry.instrumentation.anthropic import AnthropicInstrumentor

AnthropicInstrumentor().instrument()
run(SCENARIOS)
