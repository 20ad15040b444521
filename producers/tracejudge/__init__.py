"""Publish traces of LLM calls to TraceJudge: fire and forget.

    import tracejudge

    tracejudge.init(service="support-bot")
    trace_id = tracejudge.publish(input="Where is my parcel?", output="On its way.")
    tracejudge.feedback(trace_id, score=1)

    @tracejudge.observe
    def answer(question: str) -> str: ...

    with tracejudge.trace(name="answer", input=question) as t:
        t.output = reply

After `init` nothing raises into the host and nothing blocks; memory is bounded, and every loss is counted.
"""

import typing

from tracejudge.api import feedback, flush, init, publish, shutdown
from tracejudge.log import ConfigurationError
from tracejudge.model import (
    Document,
    Feedback,
    LateFeedback,
    Message,
    ProducerReport,
    Span,
    Tool,
    ToolCall,
    Trace,
    Usage,
)
from tracejudge.tracing.observe import OpenTrace, current, observe, trace

if typing.TYPE_CHECKING:
    from tracejudge.wrap import wrap_anthropic, wrap_openai

__all__ = [
    "ConfigurationError",
    "Document",
    "Feedback",
    "LateFeedback",
    "Message",
    "OpenTrace",
    "ProducerReport",
    "Span",
    "Tool",
    "ToolCall",
    "Trace",
    "Usage",
    "current",
    "feedback",
    "flush",
    "init",
    "observe",
    "publish",
    "shutdown",
    "trace",
    "wrap_anthropic",
    "wrap_openai",
]


def __getattr__(name: str) -> object:
    # The readers of these functions are loaded by their first use: the import of the package must stay fast.
    if name in {"wrap_anthropic", "wrap_openai"}:
        from tracejudge import wrap  # noqa: PLC0415

        function: object = getattr(wrap, name)
        return function
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
