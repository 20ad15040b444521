"""A verdict as OpenTelemetry: the evaluation's span, one span per call of the judge model, one event per score.

All ids come from the evaluation id, so a verdict that is sent twice is the same spans. Texts of traces are on none
of them; rationales, which may quote a trace, only when the configuration says so, and redacted as `[redact]` says.

Spans and events leave here encoded: this module adds what is of one verdict alone to what `worker.export.shared`
keeps. The tests compare all of it, attribute by attribute, with what the SDK's encoder makes.
"""

import hashlib
from collections.abc import Mapping
from typing import Final, NamedTuple

from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span, SpanFlags

from judges.verdict import Call, Score, Verdict
from worker.export import conventions as name
from worker.export.shared import Evaluating, Scoring, Shared
from worker.export.wire import Attribute, delimited, delimited_prefix, fixed64_prefix, nanoseconds
from worker.redaction import Redaction

__all__ = ["Encoded", "Telemetry"]

_TRACE_ID_BYTES: Final = 16
_SPAN_ID_BYTES: Final = 8

_SPAN_TRACE: Final = delimited_prefix(Span.TRACE_ID_FIELD_NUMBER, _TRACE_ID_BYTES)
_SPAN_SPAN: Final = delimited_prefix(Span.SPAN_ID_FIELD_NUMBER, _SPAN_ID_BYTES)
_SPAN_PARENT: Final = delimited_prefix(Span.PARENT_SPAN_ID_FIELD_NUMBER, _SPAN_ID_BYTES)
_SPAN_START: Final = fixed64_prefix(Span.START_TIME_UNIX_NANO_FIELD_NUMBER)
_SPAN_END: Final = fixed64_prefix(Span.END_TIME_UNIX_NANO_FIELD_NUMBER)
_LINK_TRACE: Final = delimited_prefix(Span.Link.TRACE_ID_FIELD_NUMBER, _TRACE_ID_BYTES)
_LINK_SPAN: Final = delimited_prefix(Span.Link.SPAN_ID_FIELD_NUMBER, _SPAN_ID_BYTES)
_LINK_REMOTE: Final = Span.Link(
    flags=SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK | SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK
).SerializeToString()
_EVENT_TIME: Final = fixed64_prefix(LogRecord.TIME_UNIX_NANO_FIELD_NUMBER)
_EVENT_OBSERVED: Final = fixed64_prefix(LogRecord.OBSERVED_TIME_UNIX_NANO_FIELD_NUMBER)
_EVENT_TRACE: Final = delimited_prefix(LogRecord.TRACE_ID_FIELD_NUMBER, _TRACE_ID_BYTES)
_EVENT_SPAN: Final = delimited_prefix(LogRecord.SPAN_ID_FIELD_NUMBER, _SPAN_ID_BYTES)
_EVENT_SAMPLED: Final = LogRecord(flags=1).SerializeToString()

_EVALUATION_ID: Final = Attribute(Span.ATTRIBUTES_FIELD_NUMBER, name.EVALUATION_ID)
_TRACE_ID: Final = Attribute(Span.ATTRIBUTES_FIELD_NUMBER, name.TRACE_ID)
_ENVIRONMENT: Final = Attribute(Span.ATTRIBUTES_FIELD_NUMBER, name.ENVIRONMENT)
_RESPONSE_MODEL: Final = Attribute(Span.ATTRIBUTES_FIELD_NUMBER, name.RESPONSE_MODEL)
_COST_USD: Final = Attribute(Span.ATTRIBUTES_FIELD_NUMBER, name.COST_USD)
_RESPONSE_ID: Final = Attribute(Span.ATTRIBUTES_FIELD_NUMBER, name.RESPONSE_ID)
_INPUT_TOKENS: Final = Attribute(Span.ATTRIBUTES_FIELD_NUMBER, name.INPUT_TOKENS)
_OUTPUT_TOKENS: Final = Attribute(Span.ATTRIBUTES_FIELD_NUMBER, name.OUTPUT_TOKENS)
_EVENT_RESPONSE_ID: Final = Attribute(LogRecord.ATTRIBUTES_FIELD_NUMBER, name.RESPONSE_ID)
_EVENT_SCORE: Final = Attribute(LogRecord.ATTRIBUTES_FIELD_NUMBER, name.EVALUATION_SCORE_VALUE)
_EVENT_EXPLANATION: Final = Attribute(LogRecord.ATTRIBUTES_FIELD_NUMBER, name.EVALUATION_EXPLANATION)


class Encoded(NamedTuple):
    """One verdict: spans and log records, each an encoded message of its own."""

    spans: list[bytes]
    events: list[bytes]


class Telemetry:
    """Makes spans and events."""

    def __init__(
        self, providers: Mapping[str, str], *, explanations: bool = False, redaction: Redaction | None = None
    ) -> None:
        """Take the provider of each judge model, whether rationales go along, and what is taken out of them before."""
        self._shared = Shared(providers)
        self._explanations = explanations
        self._redaction = redaction

    def encode(self, verdict: Verdict) -> Encoded:
        """Make the evaluation's span and below it those of its calls; and one event per score.

        Raises:
            ValueError, OverflowError, struct.error: An id or a number of the verdict is none that OpenTelemetry has.
        """
        trace = _SPAN_TRACE + int(verdict.evaluation_id, 16).to_bytes(_TRACE_ID_BYTES, "big")
        root = _span_id(verdict.evaluation_id)
        judged = _judged(verdict)
        calls = [self._call(verdict, number, call, trace, root) for number, call in enumerate(verdict.calls)]
        return Encoded([self._evaluation(verdict, trace, root, judged), *calls], self._events(verdict, judged))

    def _evaluation(self, verdict: Verdict, trace: bytes, root: bytes, judged: "_Judged | None") -> bytes:
        evaluating = Evaluating(
            verdict.judge,
            verdict.judge_version,
            verdict.judge_model,
            verdict.origin,
            verdict.outcome,
            verdict.reason,
            verdict.service,
            verdict.probability,
        )
        parts = [
            trace,
            _SPAN_SPAN,
            root,
            _times(verdict.started_at, verdict.duration_s),
            self._shared.evaluation(evaluating),
            _EVALUATION_ID.text(verdict.evaluation_id),
            _TRACE_ID.text(verdict.trace_id),
        ]
        if judged is not None:
            parts.append(judged.link)
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
        annotation = self._shared.annotation(Scoring(number, *judge, score.metric, score.label))
        encoded = annotation.shared + annotation.score.double(score.value)
        explanation = self._explanation(verdict, score)
        return encoded + annotation.explanation.text(explanation) if explanation else encoded

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

    def _events(self, verdict: Verdict, judged: "_Judged | None") -> list[bytes]:
        """Make one event per score, or per metric where there is none, in the context of the judged span."""
        ended = nanoseconds(verdict.started_at + verdict.duration_s)
        common = _EVENT_TIME + ended + _EVENT_OBSERVED + ended
        if judged is not None:
            common += judged.context
        if verdict.response_id is not None:
            common += _EVENT_RESPONSE_ID.text(verdict.response_id)
        # The last of a metric's scores stands for it.
        scored = {score.metric: score for score in verdict.scores}
        if scored:
            return [common + self._result(verdict, score) for score in scored.values()]
        label = verdict.outcome if verdict.reason is None else None
        return [common + self._shared.event(verdict.judge, metric, label, verdict.reason) for metric in verdict.metrics]

    def _result(self, verdict: Verdict, score: Score) -> bytes:
        encoded = self._shared.event(verdict.judge, score.metric, score.label, None) + _EVENT_SCORE.double(score.value)
        explanation = self._explanation(verdict, score)
        return encoded + _EVENT_EXPLANATION.text(explanation) if explanation else encoded

    def _explanation(self, verdict: Verdict, score: Score) -> str | None:
        explanation = (score.rationale or verdict.rationale) if self._explanations else None
        return self._redaction.text(explanation) if explanation and self._redaction else explanation


class _Judged(NamedTuple):
    """The span that was judged: as a link of the evaluation's span, and as the context of its events."""

    link: bytes
    context: bytes


def _judged(verdict: Verdict) -> _Judged | None:
    """Find the span that was judged; None when the trace does not bear ids of W3C form."""
    if (
        name.W3C_TRACE_ID.fullmatch(verdict.trace_id) is None
        or name.W3C_SPAN_ID.fullmatch(verdict.span_id or "") is None
    ):
        return None
    trace_id, span_id = bytes.fromhex(verdict.trace_id), bytes.fromhex(verdict.span_id or "")
    link = delimited(Span.LINKS_FIELD_NUMBER, _LINK_TRACE + trace_id + _LINK_SPAN + span_id + _LINK_REMOTE)
    return _Judged(link, _EVENT_TRACE + trace_id + _EVENT_SPAN + span_id + _EVENT_SAMPLED)


def _span_id(seed: str) -> bytes:
    """Derive an id that is the same at every export; an all-zero id, which is invalid, is left to chance."""
    return hashlib.blake2b(seed.encode(), digest_size=_SPAN_ID_BYTES).digest()


def _times(started_at: float, duration_s: float) -> bytes:
    return _SPAN_START + nanoseconds(started_at) + _SPAN_END + nanoseconds(started_at + duration_s)
