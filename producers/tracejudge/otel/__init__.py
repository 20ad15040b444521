"""Traces from OpenTelemetry instrumentations (extra `otel`): a span exporter and a completion hook.

provider.add_span_processor(BatchSpanProcessor(TraceJudgeExporter()))
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracejudge.otel.completion_hook import TraceJudgeCompletionHook
    from tracejudge.otel.exporter import TraceJudgeExporter

__all__ = ["TraceJudgeCompletionHook", "TraceJudgeExporter"]


def __getattr__(name: str) -> Any:
    # On demand: the gateway imports `joining` and has no OpenTelemetry SDK.
    modules = {"TraceJudgeCompletionHook": "completion_hook", "TraceJudgeExporter": "exporter"}
    if name in modules:
        return getattr(import_module(f"tracejudge.otel.{modules[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
