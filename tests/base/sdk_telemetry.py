"""Spans and events of a verdict made by the OpenTelemetry SDK and encoded by its encoder: what ours are measured by."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from judges.core.verdict import Call, Score, Verdict
from judges.requests.redaction import Redaction
from worker.base.delivery import otlp_encoding as name

_NS: Final = 1_000_000_000
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_SCOPE: Final = InstrumentationScope(name.SCOPE, schema_url=name.SCHEMA_URL)

Attributes = dict[str, "str | bool | int | float | tuple[str, ...]"]


class SdkTelemetry(NamedTuple):
    """Makes requests, as `worker.base.delivery.otlp_encoding` and `worker.base.delivery.otlp_receiver` do."""

    resource: Resource
    providers: Mapping[str, str]
    explanations: bool
    redaction: Redaction | None = None

    def traces(self, *verdicts: Verdict) -> ExportTraceServiceRequest:
        return encode_spans([span for verdict in verdicts for span in self.spans(verdict)])

    def logs(self, *verdicts: Verdict) -> ExportLogsServiceRequest:
        return encode_logs([event for verdict in verdicts for event in self.events(verdict)])

    def spans(self, verdict: Verdict) -> Iterator[ReadableSpan]:
        """Make the evaluation's span and, below it, the spans of its calls."""
        context = _context(verdict.evaluation_id, verdict.evaluation_id)
        judged = judged_span(verdict)
        yield ReadableSpan(
            name=f"evaluate {verdict.judge}",
            context=context,
            resource=self.resource,
            attributes=self._evaluation(verdict),
            links=[Link(judged)] if judged else [],
            kind=SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR if verdict.outcome == "unscored" else StatusCode.UNSET),
            start_time=_ns(verdict.started_at),
            end_time=_ns(verdict.started_at + verdict.duration_s),
            instrumentation_scope=_SCOPE,
        )
        for number, call in enumerate(verdict.calls):
            yield self._call(verdict, number, call, context)

    def events(self, verdict: Verdict) -> Iterator[ReadableLogRecord]:
        """Make one event per score, or per metric where there is none, in the context of the judged span."""
        judged = judged_span(verdict)
        parent = set_span_in_context(NonRecordingSpan(judged), Context()) if judged else Context()
        scored = {score.metric: score for score in verdict.scores}
        ended = _ns(verdict.started_at + verdict.duration_s)
        for metric in scored or verdict.metrics:
            record = LogRecord(
                timestamp=ended,
                observed_timestamp=ended,
                context=parent,
                severity_number=SeverityNumber.INFO,
                attributes=self._result(verdict, metric, scored.get(metric)),
                event_name=name.EVENT_EVALUATION_RESULT,
            )
            yield ReadableLogRecord(record, self.resource, _SCOPE)

    def _evaluation(self, verdict: Verdict) -> Attributes:
        attributes: Attributes = {
            name.SPAN_KIND: name.EVALUATOR,
            name.EVALUATION_ID: verdict.evaluation_id,
            name.TRACE_ID: verdict.trace_id,
            name.ORIGIN: verdict.origin,
            name.OUTCOME: verdict.outcome,
            name.SERVICE: verdict.service,
            name.JUDGE: verdict.judge,
            name.JUDGE_VERSION: verdict.judge_version,
            name.JUDGE_MODEL: verdict.judge_model,
            name.PROBABILITY: verdict.probability,
        }
        optional = {
            name.ENVIRONMENT: verdict.environment,
            name.RESPONSE_ID: verdict.response_id,
            name.COST_USD: verdict.cost_usd,
            name.ERROR_TYPE: verdict.reason,
        }
        attributes.update({key: value for key, value in optional.items() if value is not None})
        for number, score in enumerate(verdict.scores):
            for key, value in self._annotation(verdict, score).items():
                attributes[name.RESULT.format(number, key)] = value
        return attributes

    def _annotation(self, verdict: Verdict, score: Score) -> Attributes:
        annotation: Attributes = {
            "name": exported_name(verdict.judge, score.metric),
            "score": score.value,
            "annotator_kind": "CODE" if self.providers.get(verdict.judge_model) == "lexical" else "LLM",
            "identifier": f"{verdict.judge}@{verdict.judge_version[:8]}/{verdict.judge_model}",
        }
        if score.label is not None:
            annotation["label"] = score.label
        if explanation := self._explanation(verdict, score):
            annotation["explanation"] = explanation
        return annotation

    def _result(self, verdict: Verdict, metric: str, score: Score | None) -> Attributes:
        attributes: Attributes = {name.EVALUATION_NAME: exported_name(verdict.judge, metric)}
        if verdict.response_id is not None:
            attributes[name.RESPONSE_ID] = verdict.response_id
        if score is not None:
            attributes[name.EVALUATION_SCORE_VALUE] = score.value
            if score.label is not None:
                attributes[name.EVALUATION_SCORE_LABEL] = score.label
            if explanation := self._explanation(verdict, score):
                attributes[name.EVALUATION_EXPLANATION] = explanation
        elif verdict.reason is not None:
            attributes[name.ERROR_TYPE] = verdict.reason
        else:
            attributes[name.EVALUATION_SCORE_LABEL] = verdict.outcome
        return attributes

    def _explanation(self, verdict: Verdict, score: Score) -> str | None:
        explanation = (score.rationale or verdict.rationale) if self.explanations else None
        return self.redaction.text(explanation) if explanation and self.redaction else explanation

    def _call(self, verdict: Verdict, number: int, call: Call, parent: SpanContext) -> ReadableSpan:
        attributes: Attributes = {
            name.OPERATION_NAME: "chat",
            name.PROVIDER_NAME: self.providers.get(verdict.judge_model, "_OTHER"),
            name.REQUEST_MODEL: verdict.judge_model,
            name.INPUT_TOKENS: call.input_tokens,
            name.OUTPUT_TOKENS: call.output_tokens,
        }
        optional = {
            name.RESPONSE_ID: call.response_id,
            name.RESPONSE_MODEL: call.response_model,
            name.FINISH_REASONS: (call.finish_reason,) if call.finish_reason else None,
            name.ERROR_TYPE: None if call.status == "ok" else call.status,
        }
        attributes.update({key: value for key, value in optional.items() if value is not None})
        return ReadableSpan(
            name=f"chat {verdict.judge_model}",
            context=_context(verdict.evaluation_id, f"{verdict.evaluation_id} call {number}"),
            parent=parent,
            resource=self.resource,
            attributes=attributes,
            kind=SpanKind.CLIENT,
            status=Status(StatusCode.UNSET if call.status == "ok" else StatusCode.ERROR),
            start_time=_ns(call.started_at),
            end_time=_ns(call.started_at + call.duration_s),
            instrumentation_scope=_SCOPE,
        )


def exported_name(judge: str, metric: str) -> str:
    """Name a metric for the outside: the judge's name where the metric bears it, else both."""
    return judge if metric == judge else f"{judge}_{metric}"


def judged_span(verdict: Verdict) -> SpanContext | None:
    """Find the span that was judged; None when the trace does not bear ids of W3C form."""
    trace_id, span_id = verdict.trace_id, verdict.span_id or ""
    if name.W3C_TRACE_ID.fullmatch(trace_id) is None or name.W3C_SPAN_ID.fullmatch(span_id) is None:
        return None
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=_SAMPLED)


def _context(evaluation_id: str, seed: str) -> SpanContext:
    """Derive ids that are the same at every export; an all-zero id, which is invalid, is left to chance."""
    span_id = int.from_bytes(hashlib.blake2b(seed.encode(), digest_size=8).digest(), "big")
    return SpanContext(int(evaluation_id, 16), span_id, is_remote=False, trace_flags=_SAMPLED)


def _ns(seconds: float) -> int:
    return int(seconds * _NS)
