"""Join what a judge found with whose trace it was and how it was chosen."""

import hashlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from judges.models.model import Price
from judges.verdict import Assessment, Call, Verdict
from worker.batches import Evaluation, Item

__all__ = ["NO_PRICE", "hashed_user", "make_verdict"]

NO_PRICE: Final = Price(input=0.0, output=0.0)
"""What a combined verdict costs: those that it combines bear what was paid."""


def make_verdict(
    assessment: Assessment,
    item: Item,
    evaluation: Evaluation,
    *,
    metrics: tuple[str, ...],
    judge_model: str,
    price: Price | None,
    user_key: str,
    started_at: float,
    duration_s: float,
    earlier_calls: int = 0,
) -> Verdict:
    """Make the entry of the outbox.

    Args:
        user_key: Key of the hash that stands for the end user's id.
        earlier_calls: How often the judge model was asked for this evaluation in earlier rounds.
    """
    trace, calls = item.trace, assessment.calls
    usage = _usage(calls)
    return Verdict(
        evaluation_id=evaluation.id,
        origin=evaluation.origin,
        outcome=assessment.outcome,
        reason=assessment.reason,
        note=assessment.note,
        scores=assessment.scores,
        metrics=metrics,
        rationale=assessment.rationale,
        details=assessment.details,
        trace_id=trace.trace_id,
        span_id=trace.span_id,
        response_id=trace.response_id,
        session_id=trace.session_id,
        user_id=hashed_user(trace.user_id, user_key),
        service=trace.service,
        environment=trace.environment,
        release=trace.release,
        name=trace.name,
        model=trace.model,
        judge=evaluation.judge,
        judge_version=evaluation.version,
        judge_model=judge_model,
        probability=evaluation.probability,
        # Who complains later is no sample of anything; all other origins were chosen by a known probability.
        weight=0.0 if evaluation.origin == "late_feedback" else 1 / evaluation.probability,
        # Absent, as nothing else is known to be the whole.
        input_tokens=usage.input_tokens if usage else 0,
        output_tokens=usage.output_tokens if usage else 0,
        cost_usd=price.cost_usd(*usage) if price and usage else None,
        attempts=earlier_calls + len(calls),
        calls=calls,
        trace_ended_at=trace.ended_at,
        started_at=started_at,
        duration_s=duration_s,
    )


class _Usage(NamedTuple):
    input_tokens: int
    output_tokens: int


def _usage(calls: Sequence[Call]) -> _Usage | None:
    """Add up what calls took; nothing where one was answered and its endpoint says no tokens: unknown is not free."""
    if any(call.status == "ok" and not call.input_tokens and not call.output_tokens for call in calls):
        return None
    return _Usage(sum(call.input_tokens for call in calls), sum(call.output_tokens for call in calls))


def hashed_user(user_id: str | None, key: str) -> str | None:
    """Give what stands for an end user in verdicts; None where there is none."""
    if user_id is None:
        return None
    return hashlib.blake2b(user_id.encode("utf-8", "surrogatepass"), key=key.encode(), digest_size=8).hexdigest()
