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
    "MEANINGS",
    "PASSING_REASONS",
    "REASONS",
    "Assessment",
    "Call",
    "Origin",
    "Outcome",
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
MEANINGS: Final[Mapping[Reason, str]] = {
    "missing_input": "The trace lacks what the judge needs, or brings two references that exclude each other.",
    "input_too_long": "The trace is longer than the model takes, and no allowed cut makes it fit.",
    "content_filter": "The endpoint's filter withheld the answer or refused the request.",
    "refusal": "The model declined to answer.",
    "truncated": "The answer was cut off at the token limit.",
    "invalid_answer": "The answer cannot be read, also after one repair request.",
    "out_of_range": "The answer can be read and stands outside of what was offered.",
    "over_budget": "The budget for judge calls is used up.",
    "bad_request": "The endpoint takes our requests, but not this one (another 4xx).",
    "judge_failed": "A judge in code raised an error or took too long; or a panel found verdicts without kept scores.",
    "timeout": "No whole answer in time.",
    "rate_limited": "The endpoint asks for fewer requests (429).",
    "judge_unavailable": "No connection, or the endpoint fails by itself (408, 5xx).",
    "judge_rejected": "The endpoint does not let us in (401, 402, 403, 404, quota): the operator must act.",
    "unknown_judge_version": "No worker here has this version of the judge, as during an upgrade.",
    "internal_error": "A fault of ours.",
}
REASONS: Final[tuple[Reason, ...]] = (*get_args(FinalReason), *get_args(PassingReason))


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
    """An assessment with everything a reader of the outbox needs; version 1 of the entry.

    Attributes:
        evaluation_id: The same trace, judge, judge version and judge model always bear the same.
        origin: `live`, `late_feedback` or `replay`; only `live` feeds metrics and alerts.
        outcome: `scored`, `abstained` or `unscored`.
        reason: Why there is no score; only where unscored.
        note: The reason in a sentence that holds no text of the trace.
        scores: One per metric; `value` is 0..1, `raw` the rating on the judge's own scale.
        metrics: The metrics of the judge, also where there is no score.
        rationale: The judge's reasons.
        details: What else the judge found: sentences, keys, excerpts, counts.
        trace_id: Whose verdict it is.
        span_id: The judged span.
        response_id: The provider's id of the judged response.
        session_id: The conversation.
        user_id: Keyed hash of the end user's id, never the id itself.
        service: Who published the trace.
        environment: Its deployment.
        release: Its version.
        name: Its operation.
        model: The model that answered.
        judge: Who judged.
        judge_version: Hash of prompt, answer form, scoring and settings.
        judge_model: Which model judged.
        probability: How likely this trace was to be judged.
        weight: 1 / probability for live traffic, 0 for late feedback.
        input_tokens: Of all calls together.
        output_tokens: Of all calls together.
        cost_usd: Absent where no price is configured, or an endpoint does not report its tokens: unknown is not free.
        attempts: Requests sent to the judge model, the failed ones included.
        calls: Each of them with its status, times and tokens.
        trace_ended_at: When the judged call ended; seconds since the epoch.
        started_at: When this evaluation began; seconds since the epoch.
        duration_s: How long it took.
    """

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
    attempts: int = 0
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
