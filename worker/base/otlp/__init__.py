"""Export of verdicts as OpenTelemetry spans and events."""
