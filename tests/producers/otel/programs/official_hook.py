"""OpenTelemetry's own instrumentation with our completion hook, no content on spans and no exporter."""

import os

os.environ["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = "NO_CONTENT"
os.environ["OTEL_INSTRUMENTATION_GENAI_COMPLETION_HOOK"] = "tracejudge"

from official import instrument, retrieve, run_tool

os.environ["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = "NO_CONTENT"
exports = False
__all__ = ["exports", "instrument", "retrieve", "run_tool"]
