"""Encodes a verdict as OTLP: the evaluation's span, one span per call of the judge model, one event per score.

All ids are derived from the evaluation id, so a verdict that is sent twice gives the same spans. No text of a trace is
exported; rationales, which may quote one, only when the settings say so, and redacted as `[redact]` says.

Protobuf is written by hand for speed. Fields that many verdicts share are encoded by protobuf once and cached; those
of one verdict are appended as bytes. The tests read the result back, attribute by attribute.
"""

import hashlib
import struct
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from operator import attrgetter
from typing import Final, NamedTuple

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import SEVERITY_NUMBER_INFO, LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span, SpanFlags, Status

from judges.core.verdict import W3C_SPAN_ID, W3C_TRACE_ID, Call, Score, Verdict
from judges.registry import exported_name
from worker.base.delivery.receiver_delivery import BY_CODE

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.41.1"
SCOPE: Final = "tracejudge"
EVENT_EVALUATION_RESULT: Final = "gen_ai.evaluation.result"
EVALUATION_NAME: Final = "gen_ai.evaluation.name"
EVALUATION_SCORE_VALUE: Final = "gen_ai.evaluation.score.value"
EVALUATION_SCORE_LABEL: Final = "gen_ai.evaluation.score.label"
EVALUATION_EXPLANATION: Final = "gen_ai.evaluation.explanation"
OPERATION_NAME: Final = "gen_ai.operation.name"
PROVIDER_NAME: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_ID: Final = "gen_ai.response.id"
RESPONSE_MODEL: Final = "gen_ai.response.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
ERROR_TYPE: Final = "error.type"
SPAN_KIND: Final = "openinference.span.kind"
EVALUATOR: Final = "EVALUATOR"
RESULT: Final = "evaluations.{}.evaluation.{}"
EVALUATION_ID: Final = "tracejudge.evaluation.id"
TRACE_ID: Final = "tracejudge.trace_id"
ORIGIN: Final = "tracejudge.origin"
OUTCOME: Final = "tracejudge.outcome"
SERVICE: Final = "tracejudge.service"
ENVIRONMENT: Final = "tracejudge.environment"
JUDGE: Final = "tracejudge.judge.name"
JUDGE_VERSION: Final = "tracejudge.judge.version"
JUDGE_MODEL: Final = "tracejudge.judge.model"
PROBABILITY: Final = "tracejudge.sampling.probability"
COST_USD: Final = "tracejudge.cost_usd"

_VARINT: Final = 0
_FIXED64: Final = 1
_DELIMITED: Final = 2
_INT64_MIN: Final = -(2**63)
_UNSIGNED: Final = 2**64 - 1
_NS: Final = 1_000_000_000
_pack_double: Final = struct.Struct("<d").pack
_pack_fixed64: Final = struct.Struct("<Q").pack


# Most numbers are lengths of fields, which repeat.
@lru_cache(maxsize=8192)
def _varint(number: int) -> bytes:
    """Encode a non-negative number, seven bits a byte."""
    varint = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - the seven bits
        varint.append(number & 0x7F | 0x80)
        number >>= 7
    varint.append(number)
    return bytes(varint)


def _tag(field: int, kind: int) -> bytes:
    return _varint(field << 3 | kind)


def delimited_prefix(field: int, size: int) -> bytes:
    """Encode tag and length of a field of ``size`` bytes."""
    return _tag(field, _DELIMITED) + _varint(size)


def encode_field(field: int, payload: bytes) -> bytes:
    """Encode a string or message field."""
    return delimited_prefix(field, len(payload)) + payload


def encode_repeated(field: int, payloads: Iterable[bytes]) -> bytes:
    """Encode a repeated field."""
    tag = _tag(field, _DELIMITED)
    return b"".join([part for payload in payloads for part in (tag, _varint(len(payload)), payload)])


def nanoseconds(seconds: float) -> bytes:
    """Encode a time in eight bytes; ``OverflowError``, ``ValueError`` or ``struct.error`` if it does not fit."""
    return _pack_fixed64(int(seconds * _NS))


class Attribute:
    """The encoded key of an attribute, in one kind of message; each method appends a value."""

    def __init__(self, field: int, key: str) -> None:
        """Encode the key once; ``field`` is the number of the message's field of attributes."""
        self._tag = _tag(field, _DELIMITED)
        self._key = encode_field(KeyValue.KEY_FIELD_NUMBER, key.encode()) + _tag(
            KeyValue.VALUE_FIELD_NUMBER, _DELIMITED
        )
        # The length of a float is always the same, so everything before its eight bytes is encoded here.
        self._double = self._pair(_tag(AnyValue.DOUBLE_VALUE_FIELD_NUMBER, _FIXED64) + bytes(8))[:-8]

    def text(self, value: str) -> bytes:
        """Encode a string value."""
        raw = value.encode()
        return self._pair(_TEXT + _varint(len(raw)) + raw)

    def double(self, value: float) -> bytes:
        """Encode a float value."""
        return self._double + _pack_double(value)

    def integer(self, value: int) -> bytes:
        """Encode an integer value; ``OverflowError`` if it does not fit into 64 bits."""
        if not _INT64_MIN <= value < -_INT64_MIN:
            raise OverflowError("integer attribute exceeds 64 bits")
        # Protobuf writes a negative integer as 64-bit two's complement.
        return self._pair(_INTEGER + _varint(value & _UNSIGNED))

    def _pair(self, value: bytes) -> bytes:
        pair = self._key + _varint(len(value)) + value
        return self._tag + _varint(len(pair)) + pair


_TEXT: Final = _tag(AnyValue.STRING_VALUE_FIELD_NUMBER, _DELIMITED)
_INTEGER: Final = _tag(AnyValue.INT_VALUE_FIELD_NUMBER, _VARINT)
# The cache is bounded, because origins, labels and finish reasons come from services, judges and endpoints.
_CACHE_SIZE: Final = 4096
# The SDK sets this flag on every span; without it receivers cannot tell a local parent from a remote one.
_LOCAL: Final = SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
_VERSION_DIGITS: Final = 8
# Fields of one verdict alone, which the cached part leaves out.
_OWN: Final = ("score", "explanation")
Value = str | float | tuple[str, ...]


class _EvaluationKey(NamedTuple):
    """The fields of a verdict on which the cached part of its span depends."""

    judge: str
    judge_version: str
    judge_model: str
    origin: str
    outcome: str
    reason: str | None
    service: str
    probability: float


_evaluation_fields: Final = attrgetter(*_EvaluationKey._fields)


class _ScoreKey(NamedTuple):
    """The fields on which the cached part of a score depends. ``number`` is the score's place in its verdict."""

    number: int
    judge: str
    judge_version: str
    judge_model: str
    metric: str
    label: str | None


class _EncodedScore(NamedTuple):
    """The cached part of one score on an evaluation's span, and the keys of its own values."""

    shared: bytes
    score: Attribute
    explanation: Attribute


class _SharedParts:
    """Caches of encoded parts that many verdicts share."""

    def __init__(self, providers: Mapping[str, str], models: Mapping[str, str]) -> None:
        """Prepare empty caches; arguments as of ``VerdictEncoder``."""
        self._providers = providers
        self._models = models
        self.evaluation = lru_cache(_CACHE_SIZE)(_evaluation)
        self.annotation = lru_cache(_CACHE_SIZE)(self._annotation)
        self.call = lru_cache(_CACHE_SIZE)(self._call)
        self.event = lru_cache(_CACHE_SIZE)(_event)

    def _annotation(self, scoring: _ScoreKey) -> _EncodedScore:
        number, judge, judge_version, judge_model, metric, label = scoring
        attributes: dict[str, Value | None] = {
            "name": exported_name(judge, metric),
            "label": label,
            "annotator_kind": "CODE" if self._providers.get(judge_model) in BY_CODE else "LLM",
            "identifier": f"{judge}@{judge_version[:_VERSION_DIGITS]}/{judge_model}",
        }
        named = {RESULT.format(number, key): value for key, value in attributes.items()}
        own = [Attribute(Span.ATTRIBUTES_FIELD_NUMBER, RESULT.format(number, key)) for key in _OWN]
        return _EncodedScore(Span(attributes=key_values(named)).SerializeToString(), *own)

    def _call(self, judge_model: str, status: str, finish_reason: str | None) -> bytes:
        model = self._models.get(judge_model, judge_model)
        attributes: dict[str, Value | None] = {
            OPERATION_NAME: "chat",
            PROVIDER_NAME: self._providers.get(judge_model, "_OTHER"),
            REQUEST_MODEL: model,
            FINISH_REASONS: (finish_reason,) if finish_reason else None,
            ERROR_TYPE: None if status == "ok" else status,
        }
        kind = Span.SpanKind.SPAN_KIND_CLIENT
        return _span(f"chat {model}", kind, attributes, failed=status != "ok")


def _evaluation(evaluating: _EvaluationKey) -> bytes:
    attributes: dict[str, Value | None] = {
        SPAN_KIND: EVALUATOR,
        ORIGIN: evaluating.origin,
        OUTCOME: evaluating.outcome,
        SERVICE: evaluating.service,
        JUDGE: evaluating.judge,
        JUDGE_VERSION: evaluating.judge_version,
        JUDGE_MODEL: evaluating.judge_model,
        PROBABILITY: evaluating.probability,
        ERROR_TYPE: evaluating.reason,
    }
    kind = Span.SpanKind.SPAN_KIND_INTERNAL
    return _span(f"evaluate {evaluating.judge}", kind, attributes, failed=evaluating.outcome == "unscored")


def _event(judge: str, metric: str, label: str | None, error_type: str | None) -> bytes:
    attributes: dict[str, Value | None] = {
        EVALUATION_NAME: exported_name(judge, metric),
        EVALUATION_SCORE_LABEL: label,
        ERROR_TYPE: error_type,
    }
    return LogRecord(
        severity_number=SEVERITY_NUMBER_INFO,
        event_name=EVENT_EVALUATION_RESULT,
        body=AnyValue(),
        attributes=key_values(attributes),
    ).SerializeToString()


def _span(title: str, kind: Span.SpanKind.ValueType, attributes: Mapping[str, Value | None], *, failed: bool) -> bytes:
    code = Status.StatusCode.STATUS_CODE_ERROR if failed else Status.StatusCode.STATUS_CODE_UNSET
    return Span(
        name=title, kind=kind, flags=_LOCAL, status=Status(code=code), attributes=key_values(attributes)
    ).SerializeToString()


def key_values(attributes: Mapping[str, Value | None]) -> list[KeyValue]:
    """Convert attributes to protobuf, leaving out None."""
    return [KeyValue(key=key, value=_any(value)) for key, value in attributes.items() if value is not None]


def _any(value: Value) -> AnyValue:
    if isinstance(value, str):
        return AnyValue(string_value=value)
    if isinstance(value, tuple):
        return AnyValue(array_value=ArrayValue(values=[AnyValue(string_value=text) for text in value]))
    return AnyValue(double_value=value)


_TRACE_ID_BYTES: Final = 16
_SPAN_ID_BYTES: Final = 8
_SPAN_TRACE: Final = delimited_prefix(Span.TRACE_ID_FIELD_NUMBER, _TRACE_ID_BYTES)
_SPAN_SPAN: Final = delimited_prefix(Span.SPAN_ID_FIELD_NUMBER, _SPAN_ID_BYTES)
_SPAN_PARENT: Final = delimited_prefix(Span.PARENT_SPAN_ID_FIELD_NUMBER, _SPAN_ID_BYTES)
_SPAN_START: Final = _tag(Span.START_TIME_UNIX_NANO_FIELD_NUMBER, _FIXED64)
_SPAN_END: Final = _tag(Span.END_TIME_UNIX_NANO_FIELD_NUMBER, _FIXED64)
_LINK_TRACE: Final = delimited_prefix(Span.Link.TRACE_ID_FIELD_NUMBER, _TRACE_ID_BYTES)
_LINK_SPAN: Final = delimited_prefix(Span.Link.SPAN_ID_FIELD_NUMBER, _SPAN_ID_BYTES)
_LINK_REMOTE: Final = Span.Link(
    flags=SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK | SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK
).SerializeToString()
_EVENT_TIME: Final = _tag(LogRecord.TIME_UNIX_NANO_FIELD_NUMBER, _FIXED64)
_EVENT_OBSERVED: Final = _tag(LogRecord.OBSERVED_TIME_UNIX_NANO_FIELD_NUMBER, _FIXED64)
_EVENT_TRACE: Final = delimited_prefix(LogRecord.TRACE_ID_FIELD_NUMBER, _TRACE_ID_BYTES)
_EVENT_SPAN: Final = delimited_prefix(LogRecord.SPAN_ID_FIELD_NUMBER, _SPAN_ID_BYTES)
_EVENT_SAMPLED: Final = LogRecord(flags=1).SerializeToString()
_EVALUATION_ID: Final = Attribute(Span.ATTRIBUTES_FIELD_NUMBER, EVALUATION_ID)
_TRACE_ID: Final = Attribute(Span.ATTRIBUTES_FIELD_NUMBER, TRACE_ID)
_ENVIRONMENT: Final = Attribute(Span.ATTRIBUTES_FIELD_NUMBER, ENVIRONMENT)
_RESPONSE_MODEL: Final = Attribute(Span.ATTRIBUTES_FIELD_NUMBER, RESPONSE_MODEL)
_COST_USD: Final = Attribute(Span.ATTRIBUTES_FIELD_NUMBER, COST_USD)
_RESPONSE_ID: Final = Attribute(Span.ATTRIBUTES_FIELD_NUMBER, RESPONSE_ID)
_INPUT_TOKENS: Final = Attribute(Span.ATTRIBUTES_FIELD_NUMBER, INPUT_TOKENS)
_OUTPUT_TOKENS: Final = Attribute(Span.ATTRIBUTES_FIELD_NUMBER, OUTPUT_TOKENS)
_EVENT_RESPONSE_ID: Final = Attribute(LogRecord.ATTRIBUTES_FIELD_NUMBER, RESPONSE_ID)
_EVENT_SCORE: Final = Attribute(LogRecord.ATTRIBUTES_FIELD_NUMBER, EVALUATION_SCORE_VALUE)
_EVENT_EXPLANATION: Final = Attribute(LogRecord.ATTRIBUTES_FIELD_NUMBER, EVALUATION_EXPLANATION)


class Encoded(NamedTuple):
    """The spans and log records of one verdict, each an encoded message."""

    spans: list[bytes]
    events: list[bytes]


class VerdictEncoder:
    """Encodes verdicts as spans and events."""

    def __init__(
        self,
        providers: Mapping[str, str],
        *,
        models: Mapping[str, str] | None = None,
        explain: Callable[[Verdict, Score], str | None] = lambda *_: None,
        is_child: bool = False,
    ) -> None:
        """Prepare the encoder; ``providers`` and, for labels, the requested ``models`` are by judge model.

        ``explain`` returns the rationale of a score as it may be sent. With ``is_child`` the evaluation's span is a
        child of the judged span, if that span has ids in W3C form.
        """
        self._is_child = is_child
        self._shared = _SharedParts(providers, models or {})
        self._explain = explain

    def encode(self, verdict: Verdict) -> Encoded:
        """Encode the evaluation's span, its calls' spans, and an event per score; an error if a value does not fit."""
        trace = _SPAN_TRACE + int(verdict.evaluation_id, 16).to_bytes(_TRACE_ID_BYTES, "big")
        root = _span_id(verdict.evaluation_id)
        judged = _encode_judged_span(verdict)
        if judged is not None and self._is_child:
            trace = _SPAN_TRACE + bytes.fromhex(verdict.trace_id)
        calls = [self._call(verdict, number, call, trace, root) for number, call in enumerate(verdict.calls)]
        return Encoded([self._evaluation(verdict, trace, root, judged), *calls], self._events(verdict, judged))

    def _evaluation(self, verdict: Verdict, trace: bytes, root: bytes, judged: "_JudgedSpan | None") -> bytes:
        parts = [
            trace,
            _SPAN_SPAN,
            root,
            _times(verdict.started_at, verdict.duration_s),
            self._shared.evaluation(_EvaluationKey(*_evaluation_fields(verdict))),
            _EVALUATION_ID.text(verdict.evaluation_id),
            _TRACE_ID.text(verdict.trace_id),
        ]
        if judged is not None:
            parts.append(judged.parent if self._is_child else judged.link)
        if verdict.environment is not None:
            parts.append(_ENVIRONMENT.text(verdict.environment))
        if verdict.response_id is not None:
            parts.append(_RESPONSE_ID.text(verdict.response_id))
        if verdict.cost_usd is not None:
            parts.append(_COST_USD.double(verdict.cost_usd))
        for number, score in enumerate(verdict.scores):
            parts.append(self._annotation(verdict, number, score))
        return b"".join(parts)

    def _annotation(self, verdict: Verdict, number: int, score: Score) -> bytes:
        judge = (verdict.judge, verdict.judge_version, verdict.judge_model)
        annotation = self._shared.annotation(_ScoreKey(number, *judge, score.metric, score.label))
        fields = annotation.shared + annotation.score.double(score.value)
        explanation = self._explain(verdict, score)
        return fields + annotation.explanation.text(explanation) if explanation else fields

    def _call(self, verdict: Verdict, number: int, call: Call, trace: bytes, root: bytes) -> bytes:
        parts = [
            trace,
            _SPAN_SPAN,
            _span_id(f"{verdict.evaluation_id} call {number}"),
            _SPAN_PARENT,
            root,
            _times(call.started_at, call.duration_s),
            self._shared.call(verdict.judge_model, call.status, call.finish_reason),
            _INPUT_TOKENS.integer(call.input_tokens),
            _OUTPUT_TOKENS.integer(call.output_tokens),
        ]
        if call.response_model is not None:
            parts.append(_RESPONSE_MODEL.text(call.response_model))
        if call.response_id is not None:
            parts.append(_RESPONSE_ID.text(call.response_id))
        return b"".join(parts)

    def _events(self, verdict: Verdict, judged: "_JudgedSpan | None") -> list[bytes]:
        """Encode one event per score, or per metric without any, in the context of the judged span."""
        ended = nanoseconds(verdict.started_at + verdict.duration_s)
        common = _EVENT_TIME + ended + _EVENT_OBSERVED + ended
        if judged is not None:
            common += judged.context
        if verdict.response_id is not None:
            common += _EVENT_RESPONSE_ID.text(verdict.response_id)
        # A metric may be scored twice; its last score is exported, as in the metrics.
        scored = {score.metric: score for score in verdict.scores}
        if scored:
            events = []
            for score in scored.values():
                event = self._shared.event(verdict.judge, score.metric, score.label, None)
                explanation = self._explain(verdict, score)
                own = _EVENT_EXPLANATION.text(explanation) if explanation else b""
                events.append(common + event + _EVENT_SCORE.double(score.value) + own)
            return events
        label = verdict.outcome if verdict.reason is None else None
        return [common + self._shared.event(verdict.judge, metric, label, verdict.reason) for metric in verdict.metrics]


class _JudgedSpan(NamedTuple):
    """The judged span, encoded as a link of the evaluation's span, as its parent, and as the context of its events."""

    link: bytes
    parent: bytes
    context: bytes


def _encode_judged_span(verdict: Verdict) -> _JudgedSpan | None:
    """Encode the judged span; None if the trace has no ids in W3C form."""
    if W3C_TRACE_ID.fullmatch(verdict.trace_id) is None or W3C_SPAN_ID.fullmatch(verdict.span_id or "") is None:
        return None
    trace_id, span_id = bytes.fromhex(verdict.trace_id), bytes.fromhex(verdict.span_id or "")
    link = encode_field(Span.LINKS_FIELD_NUMBER, _LINK_TRACE + trace_id + _LINK_SPAN + span_id + _LINK_REMOTE)
    return _JudgedSpan(link, _SPAN_PARENT + span_id, _EVENT_TRACE + trace_id + _EVENT_SPAN + span_id + _EVENT_SAMPLED)


def _span_id(seed: str) -> bytes:
    """Derive an id that is the same at every export."""
    return hashlib.blake2b(seed.encode(), digest_size=_SPAN_ID_BYTES).digest()


def _times(started_at: float, duration_s: float) -> bytes:
    return _SPAN_START + nanoseconds(started_at) + _SPAN_END + nanoseconds(started_at + duration_s)
