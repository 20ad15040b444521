"""What became of one evaluation: scored, abstained, or unscored with a reason; never a zero for "no data".

``Assessment`` is what a judge found on a trace. ``Verdict`` is the assessment together with whose trace it
was, who judged it and how it was sampled: the entry of the outbox and the line of ``tracejudge evaluate``.
"""

import hashlib
from collections.abc import Mapping
from typing import Final, Literal, get_args

from msgspec import Struct, field

from tracejudge import Trace

__all__ = [
    "FINAL_REASONS",
    "PASSING_REASONS",
    "REASONS",
    "Assessment",
    "Call",
    "Origin",
    "Reason",
    "Score",
    "Verdict",
    "evaluation_id",
]

FinalReason = Literal[
    "missing_input",
    "input_too_long",
    "content_filter",
    "refusal",
    "truncated",
    "invalid_answer",
    "out_of_range",
    "over_budget",
    "bad_request",
    "judge_failed",
]
PassingReason = Literal[
    "timeout",
    "rate_limited",
    "judge_unavailable",
    "judge_rejected",
    "unknown_judge_version",
    "internal_error",
]
Reason = FinalReason | PassingReason
Outcome = Literal["scored", "abstained", "unscored"]
Origin = Literal["live", "late_feedback", "replay"]

FINAL_REASONS: Final[frozenset[str]] = frozenset(get_args(FinalReason))
"""Asking again would not help: such a verdict is written into the ledger."""
PASSING_REASONS: Final[frozenset[str]] = frozenset(get_args(PassingReason))
"""The cause may go away: the evaluation is parked and tried again, and at last becomes a dead letter."""
REASONS: Final[tuple[str, ...]] = (*get_args(FinalReason), *get_args(PassingReason))


class Score(Struct, frozen=True, omit_defaults=True):
    """One metric of one verdict.

    Attributes:
        metric: Name of the metric within its judge.
        value: 0..1, where 1 is good (but for descriptive metrics, which have no good direction).
        raw: The rating as the judge gave it, on its own scale.
        passed: Absent where the judge has no pass rule.
    """

    metric: str
    value: float
    raw: float | str | None = None
    label: str | None = None
    passed: bool | None = None
    rationale: str | None = None


class Call(Struct, frozen=True, omit_defaults=True):
    """One request to the judge model. ``status`` is ``ok`` or the reason it failed for."""

    started_at: float
    duration_s: float
    status: str
    input_tokens: int = 0
    output_tokens: int = 0
    response_id: str | None = None
    response_model: str | None = None
    finish_reason: str | None = None


class Assessment(Struct, frozen=True, omit_defaults=True):
    """What a judge found on one trace."""

    outcome: Outcome
    reason: Reason | None = None
    scores: tuple[Score, ...] = ()
    rationale: str | None = None
    details: Mapping[str, object] = field(default_factory=dict)
    calls: tuple[Call, ...] = ()
    note: str | None = None
    """Why there is no score, in a sentence of ours that holds no text of the trace."""
    retry_after_s: float | None = None
    """How long the endpoint asked us to wait; only with a passing reason."""

    @property
    def is_final(self) -> bool:
        """Tell whether this stands for good, or is to be tried again."""
        return self.outcome != "unscored" or self.reason in FINAL_REASONS


class Verdict(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An assessment with everything a reader of the outbox needs; version 1 of the entry."""

    evaluation_id: str
    origin: Origin = "live"
    outcome: Outcome
    reason: Reason | None = None
    note: str | None = None
    scores: tuple[Score, ...] = ()
    metrics: tuple[str, ...]
    rationale: str | None = None
    details: Mapping[str, object] = field(default_factory=dict)
    trace_id: str
    span_id: str | None = None
    response_id: str | None = None
    session_id: str | None = None
    user_id: str | None = None
    """Keyed hash of the end user's id, never the id itself."""
    service: str
    environment: str | None = None
    release: str | None = None
    name: str | None = None
    model: str | None = None
    judge: str
    judge_version: str
    judge_model: str
    probability: float = 1.0
    weight: float = 1.0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    """Absent where no price is configured: unknown is not free."""
    attempts: int = 0
    """Requests sent to the judge model, the failed ones included."""
    calls: tuple[Call, ...] = ()
    trace_ended_at: float | None = None
    started_at: float
    duration_s: float


def evaluation_id(
    trace: Trace, publication_id: str, *, judge: str, version: str, judge_model: str, repeat: int = 0
) -> str:
    """Name one evaluation: the same trace, judge, version and model always give the same 32 hex digits."""
    parts = (trace.trace_id, trace.span_id or "", publication_id, judge, version, judge_model, str(repeat))
    # Each part with its length: no choice of texts can make two different evaluations one.
    payload = "".join(f"{len(part)}:{part};" for part in parts)
    return hashlib.blake2b(payload.encode(), digest_size=16).hexdigest()
