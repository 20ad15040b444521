"""Spans and events are encoded by hand where they differ; they say the same as what the OpenTelemetry SDK encodes."""

import math
import struct
from typing import Any

import msgspec
import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.resources import Resource
from otel_parts import BEGAN_S, SCORED
from sdk_telemetry import SdkTelemetry
from support.cases import each_case
from support.stage_parts import make_verdict

from judges.core.verdict import Call, Score, Verdict
from worker.base.delivery.otlp_encoding import SCHEMA_URL, Attribute, VerdictEncoder, nanoseconds
from worker.base.delivery.otlp_receiver import RequestEncoder, record_fields, span_fields

ORIGIN = {"service.name": "tracejudge", "service.version": "1.2"}
PROVIDERS = {"lexical": "lexical", "gpt-6-luna": "openai"}
ENCODER = RequestEncoder(ORIGIN)


def encoder(*, explanations: bool = False, **settings: Any) -> VerdictEncoder:
    return VerdictEncoder(PROVIDERS, **({"explain": Verdict.explanation} if explanations else {}), **settings)


def traces(*verdicts: Verdict, **settings: Any) -> ExportTraceServiceRequest:
    telemetry = encoder(**settings)
    request = ENCODER.traces(span_fields([span for verdict in verdicts for span in telemetry.encode(verdict).spans]))
    return ExportTraceServiceRequest.FromString(request)


def logs(*verdicts: Verdict, **settings: Any) -> ExportLogsServiceRequest:
    telemetry = encoder(**settings)
    request = ENCODER.logs(record_fields([event for verdict in verdicts for event in telemetry.encode(verdict).events]))
    return ExportLogsServiceRequest.FromString(request)


def sdk(*, explanations: bool = False) -> SdkTelemetry:
    return SdkTelemetry(Resource(ORIGIN, SCHEMA_URL), PROVIDERS, explanations)


def in_order(request: Message) -> Message:
    """Sort the attributes of all spans or events: their order means nothing."""
    for resource in getattr(request, "resource_spans", None) or request.resource_logs:
        for scope in getattr(resource, "scope_spans", None) or resource.scope_logs:
            for item in getattr(scope, "spans", None) or scope.log_records:
                item.attributes.sort(key=lambda pair: pair.key)
    return request


def assert_same(*verdicts: Verdict, explanations: bool = False) -> None:
    expected = sdk(explanations=explanations)
    assert in_order(traces(*verdicts, explanations=explanations)) == in_order(expected.traces(*verdicts))
    if expected.logs(*verdicts).resource_logs:
        # None at all are no request.
        assert in_order(logs(*verdicts, explanations=explanations)) == in_order(expected.logs(*verdicts))


CALL = Call(BEGAN_S, 0.25, "ok", 100, 20, "chatcmpl-2", "gpt-6-luna-2025", "stop")
VERDICTS: dict[str, Verdict] = {
    "scored": SCORED,
    "abstained": make_verdict(1),
    "unscored": make_verdict(2, outcome="unscored", reason="refusal"),
    "unscored, several metrics": make_verdict(2, outcome="unscored", reason="refusal", metrics=("a", "b")),
    "several scores": make_verdict(3, outcome="scored", metrics=("a", "b"), scores=(Score("a", 0.5), Score("b", 1.0))),
    "a metric twice": make_verdict(3, outcome="scored", scores=(Score("a", 0.5), Score("a", 1.0, label="yes"))),
    "no judged span": make_verdict(4, trace_id="order 66", response_id="chatcmpl-1"),
    "no span id": make_verdict(4, span_id=None),
    "nothing in texts": make_verdict(5, service="", environment="", response_id="", judge_model=""),
    "other characters": make_verdict(6, service="Läden", response_id="\U0001f600" * 50, environment="\x00"),
    "long texts": make_verdict(7, trace_id="t" * 128, response_id="r" * 20_000, service="s" * 300),
    "bare call": make_verdict(8, calls=(Call(BEGAN_S, 0.0, "timeout"),)),
    "large numbers": make_verdict(9, calls=(msgspec.structs.replace(CALL, input_tokens=2**62, output_tokens=-1),)),
    "many calls": make_verdict(10, calls=(CALL,) * 20, judge_model="gpt-6-luna"),
    "small ids": make_verdict(0, trace_id="0" * 31 + "1", span_id="0" * 15 + "1"),
}


@each_case("verdict", VERDICTS.values(), ids=VERDICTS.keys())
def test_the_encoding_equals_that_of_the_sdk(verdict: Verdict) -> None:
    assert_same(verdict)


@each_case("rationale", [None, "", "of the score"])
def test_explanations_too(rationale: str | None) -> None:
    scores = (Score("a", 1.0, rationale=rationale, label="yes"), Score("b", 0.0))
    verdict = make_verdict(1, outcome="scored", metrics=("a", "b"), scores=scores, rationale="of the verdict" * 50)
    assert_same(verdict, explanations=True)
    assert_same(verdict)


def test_many_verdicts_are_one_request_in_their_order() -> None:
    assert_same(*VERDICTS.values())


def test_no_key_stands_twice_on_a_span_or_an_event() -> None:
    request, events = traces(*VERDICTS.values()), logs(*VERDICTS.values())
    items = [*request.resource_spans[0].scope_spans[0].spans, *events.resource_logs[0].scope_logs[0].log_records]
    keys = [[pair.key for pair in item.attributes] for item in items]
    assert [len(each) for each in keys] == [len(set(each)) for each in keys]


names = st.text(max_size=200)
times = st.floats(0, 4e9)
tokens = st.integers(-(2**63), 2**63 - 1)
scores = st.builds(Score, metric=names, value=st.floats(0, 1), label=st.none() | names, rationale=st.none() | names)
calls = st.builds(
    Call,
    started_at=times,
    duration_s=times,
    status=st.just("ok") | names,
    input_tokens=tokens,
    output_tokens=tokens,
    response_id=st.none() | names,
    response_model=st.none() | names,
    finish_reason=st.none() | names,
)


@hypothesis_settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.builds(
            make_verdict,
            number=st.integers(0, 2**128 - 2),
            outcome=st.sampled_from(["scored", "abstained", "unscored"]),
            reason=st.none() | st.just("refusal"),
            judge=names,
            judge_version=names,
            judge_model=names | st.sampled_from(sorted(PROVIDERS)),
            service=names,
            environment=st.none() | names,
            trace_id=names | st.just("ab" * 16),
            span_id=st.none() | names | st.just("cd" * 8),
            response_id=st.none() | names,
            rationale=st.none() | names,
            probability=st.floats(0, 1),
            cost_usd=st.none() | st.floats(allow_nan=False),
            metrics=st.lists(names, max_size=3).map(tuple),
            scores=st.lists(scores, max_size=3).map(tuple),
            calls=st.lists(calls, max_size=3).map(tuple),
            started_at=times,
            duration_s=times,
        ),
        min_size=1,
        max_size=3,
    ),
    st.booleans(),
)
def test_any_verdict_is_encoded_as_the_sdk_encodes_it(verdicts: list[Verdict], explanations: bool) -> None:  # noqa: FBT001 - from hypothesis
    assert_same(*verdicts, explanations=explanations)


# --- the wire ---


@given(st.text(max_size=40_000))
def test_an_attribute_of_any_length_is_read_back(value: str) -> None:
    span = Span.FromString(Attribute(Span.ATTRIBUTES_FIELD_NUMBER, "key").text(value))
    assert [(pair.key, pair.value.string_value) for pair in span.attributes] == [("key", value)]


@each_case("value", [2**63, 2**64, -(2**64)])
def test_a_number_that_has_no_place_is_refused(value: int) -> None:
    with pytest.raises(OverflowError):
        Attribute(Span.ATTRIBUTES_FIELD_NUMBER, "key").integer(value)


@each_case("seconds", [-1.0, 1e30, math.inf, math.nan])
def test_a_time_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises((OverflowError, ValueError, struct.error)):
        nanoseconds(seconds)
