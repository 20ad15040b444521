"""LangChain and LangGraph through OpenLLMetry."""

import harness
from langchain_scenarios import SCENARIOS
from opentelemetry.instrumentation.langchain import LangchainInstrumentor

LangchainInstrumentor().instrument(tracer_provider=harness.provider)
harness.run(SCENARIOS)
