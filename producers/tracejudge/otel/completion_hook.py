"""The hook of OpenTelemetry's GenAI instrumentations: each completion becomes a trace, whatever spans may hold.

Chosen by OTEL_INSTRUMENTATION_GENAI_COMPLETION_HOOK=tracejudge. It is given the content itself, so neither
sampling nor the capture of content needs to be on. It sees one completion and nothing around it: documents and
tools carried out are for the exporter. Use one of the two, or each call is published twice.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.trace import Span

from tracejudge import api
from tracejudge.dialects import RawSpan, Reading, Role, names, read
from tracejudge.dialects.reading import Call
from tracejudge.dialects.values import mapping_of
from tracejudge.model import Message, ToolCall
from tracejudge.otel.spans import ids_of, raw_span
from tracejudge.swallowing import swallow


class TraceJudgeCompletionHook:
    """Publishes one trace per completion. Nothing here raises or blocks."""

    def on_completion(
        self,
        *,
        inputs: Sequence[object],
        outputs: Sequence[object],
        system_instruction: Sequence[object],
        tool_definitions: Sequence[object] | None = None,  # noqa: ARG002 - the protocol's; offered tools are no calls
        span: Span | None = None,
        log_record: object = None,
    ) -> None:
        """Publish what a model was asked and answered, with the ids of its span, else of the current one."""
        try:
            content = {
                names.INPUT_MESSAGES: inputs,
                names.OUTPUT_MESSAGES: outputs,
                names.SYSTEM_INSTRUCTIONS: system_instruction,
            }
            fields = _fields(_completed(span, log_record, content))
        except Exception as error:  # noqa: BLE001 - the host's call must go on
            swallow(error)
            return
        if fields is not None:
            api.publish(**fields)


def _completed(span: Span | None, log_record: object, content: Mapping[str, object]) -> RawSpan:
    """Make a span of what the hook is given: it has not ended yet, and holds attributes only when it is sampled."""
    raw = _raw(span)
    said = mapping_of(getattr(log_record, "attributes", None)) or {}
    given = {key: value for key, value in content.items() if value}
    return RawSpan(
        trace_id=raw.trace_id,
        span_id=raw.span_id,
        name=raw.name,
        started_at=raw.started_at,
        ended_at=time.time(),
        status=raw.status,
        description=raw.description,
        attributes={names.OPERATION: "chat", **said, **raw.attributes, **given},
        events=raw.events,
        scope=raw.scope,
    )


def _raw(span: Any) -> RawSpan:
    found = raw_span(span) if span is not None and span.is_recording() and hasattr(span, "attributes") else None
    if found is not None:
        return found
    ids = None if span is None else ids_of(span.get_span_context())
    return RawSpan(trace_id="", span_id="") if ids is None else RawSpan(trace_id=ids.trace_id, span_id=ids.span_id)


def _fields(span: RawSpan) -> dict[str, Any] | None:
    reading = read(span)
    if reading.role is Role.JUDGE:
        return None
    fields = {
        "trace_id": span.trace_id or None,
        "span_id": span.span_id or None,
        "name": span.name or None,
        "started_at": span.started_at,
        "ended_at": span.ended_at,
        "output": reading.said.text or "",
        "input": reading.asked.query,
        "messages": list[Message](reading.asked.history),
        "tool_calls": _tool_calls(reading),
        "model": reading.model,
        "provider": reading.provider,
        "response_id": reading.response_id,
        "session_id": reading.session_id,
        "user_id": reading.user_id,
        "usage": reading.usage,
        "error": reading.error,
    }
    return {name: value for name, value in fields.items() if value not in (None, [])}


def _tool_calls(reading: Reading) -> list[ToolCall]:
    results = {answer.id: answer.result for answer in reading.asked.answers}
    calls: tuple[Call, ...] = (*reading.asked.calls, *reading.said.calls)
    return [ToolCall(call.name, call.arguments, results.get(call.id)) for call in calls]
