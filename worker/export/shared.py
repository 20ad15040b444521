"""What spans and events share with others of their kind: made and encoded once, by protobuf's own messages.

Nothing here is of one verdict alone: such a value would push out the others. Nor is a text that somebody else chose,
which has no bound.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import SEVERITY_NUMBER_INFO, LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span, SpanFlags, Status

from worker.export import conventions as name
from worker.export.wire import Attribute
from worker.exported_names import exported_name

__all__ = ["Annotation", "Evaluating", "Scoring", "Shared", "key_values"]

_KEPT: Final = 4096
_LOCAL: Final = SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
_VERSION_DIGITS: Final = 8

_OWN: Final = ("score", "explanation")
_BY_CODE: Final = frozenset({"lexical", "code"})

Value = str | float | tuple[str, ...]


class Evaluating(NamedTuple):
    """What many evaluations have in common."""

    judge: str
    judge_version: str
    judge_model: str
    origin: str
    outcome: str
    reason: str | None
    service: str
    probability: float


class Scoring(NamedTuple):
    """What many scores have in common. ``number`` is the score's place in its verdict."""

    number: int
    judge: str
    judge_version: str
    judge_model: str
    metric: str
    label: str | None


class Annotation(NamedTuple):
    """One result on an evaluation's span: what it shares with others, and the keys of what it does not."""

    shared: bytes
    score: Attribute
    explanation: Attribute


class Shared:
    """The shared parts, under one configuration."""

    def __init__(self, providers: Mapping[str, str]) -> None:
        """Take the provider of each judge model."""
        self._providers = providers
        self.evaluation = lru_cache(_KEPT)(_evaluation)
        self.annotation = lru_cache(_KEPT)(self._annotation)
        self.call = lru_cache(_KEPT)(self._call)
        self.event = lru_cache(_KEPT)(_event)

    def _annotation(self, scoring: Scoring) -> Annotation:
        number, judge, judge_version, judge_model, metric, label = scoring
        attributes: dict[str, Value | None] = {
            "name": exported_name(judge, metric),
            "label": label,
            "annotator_kind": "CODE" if self._providers.get(judge_model) in _BY_CODE else "LLM",
            "identifier": f"{judge}@{judge_version[:_VERSION_DIGITS]}/{judge_model}",
        }
        named = {name.RESULT.format(number, key): value for key, value in attributes.items()}
        own = [Attribute(Span.ATTRIBUTES_FIELD_NUMBER, name.RESULT.format(number, key)) for key in _OWN]
        return Annotation(Span(attributes=key_values(named)).SerializeToString(), *own)

    def _call(self, judge_model: str, status: str, finish_reason: str | None) -> bytes:
        attributes: dict[str, Value | None] = {
            name.OPERATION_NAME: "chat",
            name.PROVIDER_NAME: self._providers.get(judge_model, "_OTHER"),
            name.REQUEST_MODEL: judge_model,
            name.FINISH_REASONS: (finish_reason,) if finish_reason else None,
            name.ERROR_TYPE: None if status == "ok" else status,
        }
        kind = Span.SpanKind.SPAN_KIND_CLIENT
        return _span(f"chat {judge_model}", kind, attributes, failed=status != "ok")


def _evaluation(evaluating: Evaluating) -> bytes:
    attributes: dict[str, Value | None] = {
        name.SPAN_KIND: name.EVALUATOR,
        name.ORIGIN: evaluating.origin,
        name.OUTCOME: evaluating.outcome,
        name.SERVICE: evaluating.service,
        name.JUDGE: evaluating.judge,
        name.JUDGE_VERSION: evaluating.judge_version,
        name.JUDGE_MODEL: evaluating.judge_model,
        name.PROBABILITY: evaluating.probability,
        name.ERROR_TYPE: evaluating.reason,
    }
    kind = Span.SpanKind.SPAN_KIND_INTERNAL
    return _span(f"evaluate {evaluating.judge}", kind, attributes, failed=evaluating.outcome == "unscored")


def _event(judge: str, metric: str, label: str | None, error_type: str | None) -> bytes:
    attributes: dict[str, Value | None] = {
        name.EVALUATION_NAME: exported_name(judge, metric),
        name.EVALUATION_SCORE_LABEL: label,
        name.ERROR_TYPE: error_type,
    }
    return LogRecord(
        severity_number=SEVERITY_NUMBER_INFO,
        event_name=name.EVENT_EVALUATION_RESULT,
        body=AnyValue(),
        attributes=key_values(attributes),
    ).SerializeToString()


def _span(title: str, kind: Span.SpanKind.ValueType, attributes: Mapping[str, Value | None], *, failed: bool) -> bytes:
    code = Status.StatusCode.STATUS_CODE_ERROR if failed else Status.StatusCode.STATUS_CODE_UNSET
    return Span(
        name=title, kind=kind, flags=_LOCAL, status=Status(code=code), attributes=key_values(attributes)
    ).SerializeToString()


def key_values(attributes: Mapping[str, Value | None]) -> list[KeyValue]:
    """Make protobuf's attributes; what is None is left out."""
    return [KeyValue(key=key, value=_any(value)) for key, value in attributes.items() if value is not None]


def _any(value: Value) -> AnyValue:
    if isinstance(value, str):
        return AnyValue(string_value=value)
    if isinstance(value, tuple):
        return AnyValue(array_value=ArrayValue(values=[AnyValue(string_value=each) for each in value]))
    return AnyValue(double_value=value)
