"""Spans and events are encoded by hand where they differ; any receiver reads what the verdict says, of any length."""

import math
import struct

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import SEVERITY_NUMBER_INFO
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from otel_parts import SCORED
from support.otlp import Span, read_logs, read_spans
from support.stages import make_verdict

from judges.core.verdict import Call, Score, Verdict
from worker.base.delivery import otlp_encoding as name
from worker.base.delivery.otlp_encoding import Attribute, VerdictEncoder, nanoseconds
from worker.base.delivery.otlp_receiver import RequestEncoder, record_fields, span_fields

PROVIDERS = {"lexical": "lexical", "gpt-6-luna": "openai"}
ENCODER = RequestEncoder({"service.name": "tracejudge", "service.version": "1.2"})
LOCAL, REMOTE = 0x100, 0x300
"""Flags of spans and of links: whether the parent, or the linked span, is known to be of another process."""
OF_VERDICTS = {
    name.EVALUATION_ID: "evaluation_id",
    name.TRACE_ID: "trace_id",
    name.OUTCOME: "outcome",
    name.SERVICE: "service",
    name.JUDGE: "judge",
    name.JUDGE_VERSION: "judge_version",
    name.JUDGE_MODEL: "judge_model",
    name.PROBABILITY: "probability",
    name.ENVIRONMENT: "environment",
    name.RESPONSE_ID: "response_id",
    name.COST_USD: "cost_usd",
    name.ERROR_TYPE: "reason",
}
OF_CALLS = {name.INPUT_TOKENS: "input_tokens", name.OUTPUT_TOKENS: "output_tokens", name.RESPONSE_ID: "response_id"}
"""Attributes that say what a field says. Names, times, parents and links are those of the golden file of spans."""


def said(item: Verdict | Call, fields: dict[str, str]) -> dict[str, object]:
    values = {key: getattr(item, field) for key, field in fields.items()}
    return {key: value for key, value in values.items() if value is not None}


def read(span: Span, fields: dict[str, str]) -> dict[str, object]:
    return {key: value for key, value in span.attributes.items() if key in fields}


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
    read_back, events = iter(read_spans(traces)), iter(read_logs(logs))
    for verdict in verdicts:

        def explanation(score: Score, of: Verdict = verdict) -> str | None:
            return (score.rationale or of.rationale or None) if explain else None

        span = next(read_back)
        assert (read(span, OF_VERDICTS), span.name) == (said(verdict, OF_VERDICTS), f"evaluate {verdict.judge}")
        for number, score in enumerate(verdict.scores):
            for key, text in (("label", score.label), ("explanation", explanation(score))):
                assert span.attributes.get(name.RESULT.format(number, key)) == text, key
        for call in verdict.calls:
            assert read(next(read_back), OF_CALLS) == said(call, OF_CALLS)
        scores_of = {score.metric: score for score in verdict.scores}
        for metric in scores_of or verdict.metrics:
            attributes, score = next(events).attributes, scores_of.get(metric)
            unscored = (None, None if verdict.reason else verdict.outcome)
            expected = unscored if score is None else (score.value, score.label)
            shown = (name.EVALUATION_SCORE_VALUE, name.EVALUATION_SCORE_LABEL)
            assert tuple(map(attributes.get, shown)) == expected
            rationale = None if score is None else explanation(score)
            assert attributes.get(name.EVALUATION_EXPLANATION) == rationale
    assert [*read_back, *events] == []
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
