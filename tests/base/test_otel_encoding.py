"""Spans and events are encoded by hand where they differ; they say the same as what the OpenTelemetry SDK encodes."""

import hashlib
import math
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from opentelemetry import trace as sdk
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from otel_parts import SCORED
from support.stages import make_verdict

from judges.core.verdict import Call, Score, Verdict
from worker.base.delivery import otlp_encoding as name
from worker.base.delivery.otlp_encoding import Attribute, VerdictEncoder, nanoseconds
from worker.base.delivery.otlp_receiver import RequestEncoder, record_fields, span_fields

ORIGIN = {"service.name": "tracejudge", "service.version": "1.2"}
PROVIDERS = {"lexical": "lexical", "gpt-6-luna": "openai"}
ENCODER = RequestEncoder(ORIGIN)
ITS_ORIGIN: dict[str, Any] = {
    "resource": Resource(ORIGIN, name.SCHEMA_URL),
    "instrumentation_scope": InstrumentationScope(name.SCOPE, schema_url=name.SCHEMA_URL),
}
SAMPLED = sdk.TraceFlags(sdk.TraceFlags.SAMPLED)
Attributes = dict[str, Any]


# --- the same by the SDK ---
def present(**attributes: Any) -> Attributes:
    """Keep the attributes that have a value, under the names that the product's constants have."""
    return {getattr(name, constant): value for constant, value in attributes.items() if value is not None}


def sdk_spans(verdict: Verdict, *, explain: bool) -> Iterator[ReadableSpan]:
    """Make the evaluation's span and, below it, the spans of its calls."""
    context, judged = sdk_context(verdict, verdict.evaluation_id), judged_span(verdict)
    yield ReadableSpan(
        name=f"evaluate {verdict.judge}",
        context=context,
        attributes=evaluation(verdict, explain=explain),
        links=[sdk.Link(judged)] if judged else [],
        kind=sdk.SpanKind.INTERNAL,
        status=sdk.Status(sdk.StatusCode.ERROR if verdict.outcome == "unscored" else sdk.StatusCode.UNSET),
        start_time=int(verdict.started_at * 1e9),
        end_time=int((verdict.started_at + verdict.duration_s) * 1e9),
        **ITS_ORIGIN,
    )
    for number, call in enumerate(verdict.calls):
        attributes = present(
            OPERATION_NAME="chat",
            PROVIDER_NAME=PROVIDERS.get(verdict.judge_model, "_OTHER"),
            REQUEST_MODEL=verdict.judge_model,
            INPUT_TOKENS=call.input_tokens,
            OUTPUT_TOKENS=call.output_tokens,
            RESPONSE_ID=call.response_id,
            RESPONSE_MODEL=call.response_model,
            FINISH_REASONS=(call.finish_reason,) if call.finish_reason else None,
            ERROR_TYPE=None if call.status == "ok" else call.status,
        )
        yield ReadableSpan(
            name=f"chat {verdict.judge_model}",
            context=sdk_context(verdict, f"{verdict.evaluation_id} call {number}"),
            parent=context,
            attributes=attributes,
            kind=sdk.SpanKind.CLIENT,
            status=sdk.Status(sdk.StatusCode.UNSET if call.status == "ok" else sdk.StatusCode.ERROR),
            start_time=int(call.started_at * 1e9),
            end_time=int((call.started_at + call.duration_s) * 1e9),
            **ITS_ORIGIN,
        )


def evaluation(verdict: Verdict, *, explain: bool) -> Attributes:
    attributes = present(
        SPAN_KIND=name.EVALUATOR,
        EVALUATION_ID=verdict.evaluation_id,
        TRACE_ID=verdict.trace_id,
        ORIGIN=verdict.origin,
        OUTCOME=verdict.outcome,
        SERVICE=verdict.service,
        JUDGE=verdict.judge,
        JUDGE_VERSION=verdict.judge_version,
        JUDGE_MODEL=verdict.judge_model,
        PROBABILITY=verdict.probability,
        ENVIRONMENT=verdict.environment,
        RESPONSE_ID=verdict.response_id,
        COST_USD=verdict.cost_usd,
        ERROR_TYPE=verdict.reason,
    )
    for number, score in enumerate(verdict.scores):
        annotation = {
            "name": exported_name(verdict, score.metric),
            "score": score.value,
            "annotator_kind": "CODE" if PROVIDERS.get(verdict.judge_model) == "lexical" else "LLM",
            "identifier": f"{verdict.judge}@{verdict.judge_version[:8]}/{verdict.judge_model}",
            "label": score.label,
            "explanation": (score.rationale or verdict.rationale or None) if explain else None,
        }
        attributes |= {name.RESULT.format(number, key): value for key, value in annotation.items() if value is not None}
    return attributes


def sdk_events(verdict: Verdict, *, explain: bool) -> Iterator[ReadableLogRecord]:
    """Make one event per score, or per metric where there is none, in the context of the judged span."""
    judged = judged_span(verdict)
    parent = sdk.set_span_in_context(sdk.NonRecordingSpan(judged), Context()) if judged else Context()
    scored = {score.metric: score for score in verdict.scores}
    ended = int((verdict.started_at + verdict.duration_s) * 1e9)
    for metric in scored or verdict.metrics:
        attributes = present(EVALUATION_NAME=exported_name(verdict, metric), RESPONSE_ID=verdict.response_id)
        if (score := scored.get(metric)) is not None:
            rationale = (score.rationale or verdict.rationale or None) if explain else None
            attributes |= present(EVALUATION_SCORE_VALUE=score.value, EVALUATION_SCORE_LABEL=score.label)
            attributes |= present(EVALUATION_EXPLANATION=rationale)
        elif verdict.reason is not None:
            attributes |= present(ERROR_TYPE=verdict.reason)
        else:
            attributes |= present(EVALUATION_SCORE_LABEL=verdict.outcome)
        record = LogRecord(
            timestamp=ended,
            observed_timestamp=ended,
            context=parent,
            severity_number=SeverityNumber.INFO,
            attributes=attributes,
            event_name=name.EVENT_EVALUATION_RESULT,
        )
        yield ReadableLogRecord(record, *ITS_ORIGIN.values())


def exported_name(verdict: Verdict, metric: str) -> str:
    return metric if metric == verdict.judge else f"{verdict.judge}_{metric}"


def judged_span(verdict: Verdict) -> sdk.SpanContext | None:
    """Find the span that was judged; None when the trace does not bear ids of W3C form."""
    trace_id, span_id = verdict.trace_id, verdict.span_id or ""
    if name.W3C_TRACE_ID.fullmatch(trace_id) is None or name.W3C_SPAN_ID.fullmatch(span_id) is None:
        return None
    return sdk.SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=SAMPLED)


def sdk_context(verdict: Verdict, seed: str) -> sdk.SpanContext:
    """Derive ids that are the same at every export."""
    span_id = int.from_bytes(hashlib.blake2b(seed.encode(), digest_size=8).digest(), "big")
    return sdk.SpanContext(int(verdict.evaluation_id, 16), span_id, is_remote=False, trace_flags=SAMPLED)


# --- the comparison ---
def requests(*verdicts: Verdict, explain: bool = False) -> tuple[Message, Message]:
    """Encode spans and events as the exporter does."""
    encoder = VerdictEncoder(PROVIDERS, **({"explain": Verdict.explanation} if explain else {}))
    encoded = [encoder.encode(verdict) for verdict in verdicts]
    traces = ENCODER.traces(span_fields([span for each in encoded for span in each.spans]))
    logs = ENCODER.logs(record_fields([event for each in encoded for event in each.events]))
    return ExportTraceServiceRequest.FromString(traces), ExportLogsServiceRequest.FromString(logs)


def in_order(request: Message) -> Message:
    """Sort the attributes of all spans or events: their order means nothing."""
    for resource in getattr(request, "resource_spans", None) or request.resource_logs:
        for scope in getattr(resource, "scope_spans", None) or resource.scope_logs:
            for item in getattr(scope, "spans", None) or scope.log_records:
                item.attributes.sort(key=lambda pair: pair.key)
    return request


def differences(*verdicts: Verdict, explain: bool = False) -> list[tuple[Message, Message]]:
    traces, logs = requests(*verdicts, explain=explain)
    sdk_traces = encode_spans([span for verdict in verdicts for span in sdk_spans(verdict, explain=explain)])
    sdk_logs = encode_logs([event for verdict in verdicts for event in sdk_events(verdict, explain=explain)])
    pairs = [(traces, sdk_traces), *([(logs, sdk_logs)] if sdk_logs.resource_logs else [])]  # none are no request
    return [(ours, theirs) for ours, theirs in pairs if in_order(ours) != in_order(theirs)]


texts = st.text(max_size=200) | st.sampled_from(["", "a", "r" * 20_000, "\x00\U0001f600" * 50])
perhaps = st.none() | texts
times = st.floats(0, 4e9)
tokens = st.integers(-(2**63), 2**63 - 1)
scores = st.builds(Score, metric=texts, value=st.floats(0, 1), label=perhaps, rationale=perhaps)
calls = st.builds(Call, times, times, st.just("ok") | texts, tokens, tokens, perhaps, perhaps, perhaps)
any_verdict = st.builds(
    make_verdict,
    number=st.integers(0, 2**128 - 2),
    outcome=st.sampled_from(["scored", "abstained", "unscored"]),
    reason=st.none() | st.just("refusal"),
    judge=texts,
    judge_version=texts,
    judge_model=texts | st.sampled_from(sorted(PROVIDERS)),
    service=texts,
    environment=perhaps,
    trace_id=texts | st.sampled_from(["ab" * 16, "0" * 31 + "1"]),
    span_id=perhaps | st.sampled_from(["cd" * 8, "0" * 15 + "1"]),
    response_id=perhaps,
    rationale=perhaps,
    probability=st.floats(0, 1),
    cost_usd=st.none() | st.floats(allow_nan=False),
    metrics=st.lists(texts, max_size=3).map(tuple),
    scores=st.lists(scores, max_size=3).map(tuple),
    calls=(st.lists(calls, max_size=3) | calls.map(lambda call: [call] * 20)).map(tuple),
    started_at=times,
    duration_s=times,
)


@hypothesis_settings(deadline=None, max_examples=150)
@given(st.lists(any_verdict, min_size=1, max_size=3), st.booleans())
def test_any_verdict_is_encoded_as_the_sdk_encodes_it(verdicts: list[Verdict], explain: bool) -> None:  # noqa: FBT001 - from hypothesis
    assert differences(SCORED, *verdicts, explain=explain) == []
    for request in requests(SCORED, *verdicts, explain=explain):
        for resource in getattr(request, "resource_spans", None) or request.resource_logs:
            (scope,) = getattr(resource, "scope_spans", None) or resource.scope_logs
            for item in getattr(scope, "spans", None) or scope.log_records:
                keys = [pair.key for pair in item.attributes]
                assert len(keys) == len(set(keys)), "no key stands twice"


@given(st.text(max_size=40_000))
def test_an_attribute_of_any_length_is_read_back(value: str) -> None:
    span = Span.FromString(Attribute(Span.ATTRIBUTES_FIELD_NUMBER, "key").text(value))
    assert [(pair.key, pair.value.string_value) for pair in span.attributes] == [("key", value)]


def test_numbers_and_times_that_have_no_place_are_refused() -> None:
    for value in (2**63, 2**64, -(2**64)):
        with pytest.raises(OverflowError):
            Attribute(Span.ATTRIBUTES_FIELD_NUMBER, "key").integer(value)
    for seconds in (-1.0, 1e30, math.inf, math.nan):
        with pytest.raises((OverflowError, ValueError, struct.error)):
            nanoseconds(seconds)
