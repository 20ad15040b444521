"""Publish traces of LLM calls to TraceJudge: fire and forget.

    import tracejudge

    tracejudge.init(service="support-bot")
    trace_id = tracejudge.publish(input="Where is my parcel?", output="On its way.")
    tracejudge.feedback(trace_id, score=1)

After `init` nothing raises into the host and nothing blocks; memory is bounded, and every loss is counted.
"""

from tracejudge.api import feedback, flush, init, publish, shutdown
from tracejudge.errors import ConfigurationError
from tracejudge.model import Document, Feedback, LateFeedback, Message, ProducerReport, Span, ToolCall, Trace, Usage

__all__ = [
    "ConfigurationError",
    "Document",
    "Feedback",
    "LateFeedback",
    "Message",
    "ProducerReport",
    "Span",
    "ToolCall",
    "Trace",
    "Usage",
    "feedback",
    "flush",
    "init",
    "publish",
    "shutdown",
]
