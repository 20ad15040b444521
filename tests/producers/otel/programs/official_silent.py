"""OpenTelemetry's own instrumentation as it comes: without content."""

import os

from official import instrument, retrieve, run_tool

os.environ["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = "NO_CONTENT"
exports = True
__all__ = ["exports", "instrument", "retrieve", "run_tool"]
