"""Traces from OpenTelemetry instrumentations (extra `otel`): a span exporter and a completion hook.

provider.add_span_processor(BatchSpanProcessor(TraceJudgeExporter()))
"""

from tracejudge.otel.completion_hook import TraceJudgeCompletionHook
from tracejudge.otel.exporter import TraceJudgeExporter

__all__ = ["TraceJudgeCompletionHook", "TraceJudgeExporter"]
