"""Traces from OpenTelemetry instrumentations (extra `otel`): a span exporter and a completion hook.

provider.add_span_processor(BatchSpanProcessor(TraceJudgeExporter()))
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracejudge.otel.completion_hook import TraceJudgeCompletionHook
    from tracejudge.otel.exporter import TraceJudgeExporter

__all__ = ["TraceJudgeCompletionHook", "TraceJudgeExporter"]


def __getattr__(name: str) -> Any:
    # On demand: the gateway imports `joining` and has no OpenTelemetry SDK.
    if name == "TraceJudgeCompletionHook":
        from tracejudge.otel.completion_hook import TraceJudgeCompletionHook  # noqa: PLC0415

        return TraceJudgeCompletionHook
    if name == "TraceJudgeExporter":
        from tracejudge.otel.exporter import TraceJudgeExporter  # noqa: PLC0415

        return TraceJudgeExporter
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
