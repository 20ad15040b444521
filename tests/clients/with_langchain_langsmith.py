"""LangChain and LangGraph by LangSmith, with spans instead of its own export."""

import os

os.environ |= {"LANGSMITH_TRACING": "true", "LANGSMITH_OTEL_ENABLED": "true", "LANGSMITH_OTEL_ONLY": "true"}
os.environ["LANGSMITH_API_KEY"] = "none"

import harness
from langchain_core.tracers.langchain import get_client, wait_for_all_tracers
from langchain_scenarios import SCENARIOS

harness.run(SCENARIOS, lambda: (wait_for_all_tracers(), get_client().flush(), harness.provider.force_flush()))
