"""Google's client through OpenInference."""

from google_scenarios import SCENARIOS
from harness import provider, run
from openinference.instrumentation.google_genai import GoogleGenAIInstrumentor

GoogleGenAIInstrumentor().instrument(tracer_provider=provider)
run(SCENARIOS)
