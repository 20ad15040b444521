"""Join what a judge found with whose trace it was and how it was chosen."""

import hashlib
from collections.abc import Sequence
from typing import Final

from judges.models.model import Price
from judges.verdict import Assessment, Call, Verdict
from worker.batches import Evaluation, Item

__all__ = ["make_verdict"]

_MILLION: Final = 1_000_000


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
) -> Verdict:
    """Make the entry of the outbox.

    Args:
        user_key: Key of the hash that stands for the end user's id.
    """
    trace, calls = item.trace, assessment.calls
    input_tokens, output_tokens = (sum(call.input_tokens for call in calls), sum(call.output_tokens for call in calls))
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
        user_id=_hashed(trace.user_id, user_key),
        service=trace.service,
        environment=trace.environment,
        release=trace.release,
        name=trace.name,
        model=trace.model,
        judge=evaluation.judge,
        judge_version=evaluation.version,
        judge_model=judge_model,
        probability=evaluation.probability,
        weight=1 / evaluation.probability if evaluation.origin == "live" else 0.0,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cost_usd=_cost(calls, price),
        attempts=len(calls),
        calls=calls,
        trace_ended_at=trace.ended_at,
        started_at=started_at,
        duration_s=duration_s,
    )


def _cost(calls: Sequence[Call], price: Price | None) -> float | None:
    if price is None:
        return None
    return sum(call.input_tokens * price.input + call.output_tokens * price.output for call in calls) / _MILLION


def _hashed(user_id: str | None, key: str) -> str | None:
    if user_id is None:
        return None
    return hashlib.blake2b(user_id.encode("utf-8", "surrogatepass"), key=key.encode(), digest_size=8).hexdigest()
