"""OpenAI's client under OpenLLMetry."""

from harness import run
from openai_scenarios import SCENARIOS
from opentelemetry.instrumentation.openai import OpenAIInstrumentor

OpenAIInstrumentor().instrument()
run(SCENARIOS)
