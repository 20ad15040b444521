"""LangChain and LangGraph through OpenInference."""

import harness
from langchain_scenarios import SCENARIOS
from openinference.instrumentation.langchain import LangChainInstrumentor

LangChainInstrumentor().instrument(tracer_provider=harness.provider)
harness.run(SCENARIOS)
