"""OpenInference's instrumentation, which writes the GenAI conventions on the same spans as well."""

import os

os.environ["OPENINFERENCE_ENABLE_GENAI_SEMCONV"] = "true"

from arize import exports, instrument, retrieve, run_tool

__all__ = ["exports", "instrument", "retrieve", "run_tool"]
