"""Spans and events are encoded by hand where they differ; any receiver reads what the verdict says, of any length."""

import hashlib
import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import SEVERITY_NUMBER_INFO
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from otel_parts import SCORED
from support.otlp import Link, Log, Span, Status, read_logs, read_spans
from support.stages import make_verdict

from judges.core.verdict import Call, Score, Verdict
from worker.base.delivery import otlp_encoding as name
from worker.base.delivery.otlp_encoding import Attribute, VerdictEncoder, nanoseconds
from worker.base.delivery.otlp_receiver import RequestEncoder, record_fields, span_fields

ORIGIN = {"service.name": "tracejudge", "service.version": "1.2"}
FROM_US = (ORIGIN, name.SCOPE, "", name.SCHEMA_URL)
PROVIDERS = {"lexical": "lexical", "gpt-6-luna": "openai"}
ENCODER = RequestEncoder(ORIGIN)
LOCAL, REMOTE = 0x100, 0x300
"""Flags of spans and of links: whether the parent, or the linked span, is known to be of another process."""


def present(**attributes: Any) -> dict[str, Any]:
    """Keep the attributes that have a value, under the names that the product's constants have."""
    return {getattr(name, constant): value for constant, value in attributes.items() if value is not None}


def span_id(seed: str) -> str:
    return hashlib.blake2b(seed.encode(), digest_size=8).hexdigest()


def judged_span(verdict: Verdict) -> list[Link]:
    """Return the span that was judged, where the trace bears ids of W3C form."""
    ids = Link(verdict.trace_id, verdict.span_id or "")
    forms = (name.W3C_TRACE_ID, name.W3C_SPAN_ID)
    return [ids] if all(form.fullmatch(value) for form, value in zip(forms, ids, strict=True)) else []


def expected_spans(verdict: Verdict, *, explain: bool) -> list[Span]:
    """Make the evaluation's span and, below it, the spans of its calls."""

    def span(*named: Any, seed: str, parent: str = "", failed: bool, at: Verdict | Call) -> Span:
        times = int(at.started_at * 1e9), int((at.started_at + at.duration_s) * 1e9)
        links = [] if parent else judged_span(verdict)
        status = Status("ERROR" if failed else "UNSET", "")
        return Span(verdict.evaluation_id, span_id(seed), parent, *named, links, status, *times, *FROM_US)

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
    named = (f"evaluate {verdict.judge}", "INTERNAL", attributes)
    spans = [span(*named, seed=verdict.evaluation_id, failed=verdict.outcome == "unscored", at=verdict)]
    for number, call in enumerate(verdict.calls):
        attributes = present(
            OPERATION_NAME="chat",
            PROVIDER_NAME=PROVIDERS.get(verdict.judge_model, "_OTHER"),
            REQUEST_MODEL=verdict.judge_model,
            INPUT_TOKENS=call.input_tokens,
            OUTPUT_TOKENS=call.output_tokens,
            RESPONSE_ID=call.response_id,
            RESPONSE_MODEL=call.response_model,
            FINISH_REASONS=[call.finish_reason] if call.finish_reason else None,
            ERROR_TYPE=None if call.status == "ok" else call.status,
        )
        ids = {"seed": f"{verdict.evaluation_id} call {number}", "parent": spans[0].span_id}
        named = (f"chat {verdict.judge_model}", "CLIENT", attributes)
        spans.append(span(*named, **ids, failed=call.status != "ok", at=call))
    return spans


def expected_events(verdict: Verdict, *, explain: bool) -> list[Log]:
    """Make one event per score, or per metric where there is none, in the context of the judged span."""
    scored, events = {score.metric: score for score in verdict.scores}, []
    (ids,) = judged_span(verdict) or [("", "")]
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
        ended = int((verdict.started_at + verdict.duration_s) * 1e9)
        events.append(Log(name.EVENT_EVALUATION_RESULT, *ids, attributes, None, "", ended, *FROM_US))
    return events


def exported_name(verdict: Verdict, metric: str) -> str:
    return metric if metric == verdict.judge else f"{verdict.judge}_{metric}"


texts = st.text(max_size=200) | st.sampled_from(["", "a", "r" * 20_000, "\x00\U0001f600" * 50])
perhaps = st.none() | texts
begins, lasts = st.floats(1, 4e9), st.floats(0, 4e9)
tokens = st.integers(-(2**63), 2**63 - 1)
scores = st.builds(Score, metric=texts, value=st.floats(0, 1), label=perhaps, rationale=perhaps)
calls = st.builds(Call, begins, lasts, st.just("ok") | texts, tokens, tokens, perhaps, perhaps, perhaps)
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
    started_at=begins,
    duration_s=lasts,
)


@hypothesis_settings(deadline=None)
@given(st.lists(any_verdict, min_size=1, max_size=3), st.booleans())
def test_any_verdict_is_read_as_it_is(verdicts: list[Verdict], explain: bool) -> None:  # noqa: FBT001 - from hypothesis
    verdicts = [SCORED, *verdicts]
    encoder = VerdictEncoder(PROVIDERS, **({"explain": Verdict.explanation} if explain else {}))
    encoded = [encoder.encode(verdict) for verdict in verdicts]
    traces = ENCODER.traces(span_fields([span for each in encoded for span in each.spans]))
    logs = ENCODER.logs(record_fields([event for each in encoded for event in each.events]))
    assert read_spans(traces) == [span for verdict in verdicts for span in expected_spans(verdict, explain=explain)]
    assert read_logs(logs) == [event for verdict in verdicts for event in expected_events(verdict, explain=explain)]
    spans, records = ExportTraceServiceRequest.FromString(traces), ExportLogsServiceRequest.FromString(logs)
    assert [spans.ByteSize(), records.ByteSize()] == [len(traces), len(logs)], "no field stands twice"
    for span in spans.resource_spans[0].scope_spans[0].spans:
        assert len({pair.key for pair in span.attributes}) == len(span.attributes), "no key stands twice"
        assert (span.flags, [link.flags for link in span.links]) == (LOCAL, [REMOTE] * len(span.links))
    for record in records.resource_logs[0].scope_logs[0].log_records:
        assert len({pair.key for pair in record.attributes}) == len(record.attributes), "no key stands twice"
        assert (record.observed_time_unix_nano, record.severity_number) == (record.time_unix_nano, SEVERITY_NUMBER_INFO)
        assert record.flags == bool(record.trace_id), "sampled"


@given(st.text(max_size=40_000))
def test_an_attribute_of_any_length_is_read_back(value: str) -> None:
    span = SpanMessage.FromString(Attribute(SpanMessage.ATTRIBUTES_FIELD_NUMBER, "key").text(value))
    assert [(pair.key, pair.value.string_value) for pair in span.attributes] == [("key", value)]


def test_numbers_and_times_that_have_no_place_are_refused() -> None:
    for value in (2**63, 2**64, -(2**64)):
        with pytest.raises(OverflowError):
            Attribute(SpanMessage.ATTRIBUTES_FIELD_NUMBER, "key").integer(value)
    for seconds in (-1.0, 1e30, math.inf, math.nan):
        with pytest.raises((OverflowError, ValueError, struct.error)):
            nanoseconds(seconds)
