"""Google's Agent Development Kit with the spans of its earlier versions, which hold the content by default."""

import os

os.environ["ADK_TELEMETRY_SCHEMA_VERSION_OPT_IN"] = "1"
os.environ |= {"OTEL_SEMCONV_STABILITY_OPT_IN": "", "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": ""}

import with_google_adk  # noqa: F401
