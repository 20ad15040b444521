"""The completion hook of OpenTelemetry's GenAI instrumentations: each completion becomes a trace.

Select it with OTEL_INSTRUMENTATION_GENAI_COMPLETION_HOOK=tracejudge. It receives the content itself, so neither
sampling nor the capture of content needs to be on. It sees one completion and nothing around it: documents and tool
executions need the exporter. Use one of the two; with both, each call is published twice.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace
from opentelemetry.trace import Span

from tracejudge import api
from tracejudge.dialects import RawSpan, names
from tracejudge.dialects.values import mapping_of
from tracejudge.log import report_internal_error
from tracejudge.otel.joining import SpanGroup, join
from tracejudge.otel.span_buffer import ids_of, raw_span


class TraceJudgeCompletionHook:
    """Publishes one trace per completion. Never raises or blocks."""

    def on_completion(
        self,
        *,
        inputs: Sequence[object],
        outputs: Sequence[object],
        system_instruction: Sequence[object],
        tool_definitions: Sequence[object] | None = None,
        span: Span | None = None,
        log_record: object = None,
    ) -> None:
        """Publish input and output of a model with the ids of its span, or of the current one."""
        try:
            content = {
                names.INPUT_MESSAGES: inputs,
                names.OUTPUT_MESSAGES: outputs,
                names.SYSTEM_INSTRUCTIONS: system_instruction,
                names.TOOL_DEFINITIONS: tool_definitions,
            }
            fields = _trace_fields(_completed_span(span, log_record, content))
        except Exception as error:  # noqa: BLE001 - the host's call must go on
            report_internal_error(error)
            return
        if fields is not None:
            api.publish(**fields)


def _completed_span(span: Any, log_record: object, content: Mapping[str, object]) -> RawSpan:
    # The span has not ended yet, and has attributes only if it is sampled.
    raw = raw_span(span) if span is not None and span.is_recording() and hasattr(span, "attributes") else None
    if raw is None:
        ids = None if span is None else ids_of(span.get_span_context())
        raw = RawSpan(trace_id="", span_id="") if ids is None else RawSpan(trace_id=ids.trace_id, span_id=ids.span_id)
    logged = mapping_of(getattr(log_record, "attributes", None)) or {}
    filled = {key: value for key, value in content.items() if value}
    attributes = {names.OPERATION: "chat", **logged, **raw.attributes, **filled}
    return replace(raw, ended_at=time.time(), attributes=attributes)


def _trace_fields(span: RawSpan) -> dict[str, Any] | None:
    fields = join(SpanGroup(span, (span,)))
    # Without a span both ids are empty.
    return fields and {name: value for name, value in fields.items() if value and name != "spans"}
