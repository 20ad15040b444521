"""How a batch ends: finished, parked for reasons that may pass, or in dead letters after too long."""

import time
from collections.abc import Mapping, Sequence
from typing import Final

import structlog

from judges.core.backoff import backoff_s
from judges.core.model import CallTotals
from worker.core.judging.evaluator import UnfinishedEvaluation
from worker.core.judging.fetching import LeasedBatch, hand_back_delay_s
from worker.core.queue.batch import Batch
from worker.core.queue.leases import Lease, Leases
from worker.core.queue.ledger import Ledger

log = structlog.get_logger("tracejudge.judging")
_MIN_PARKING_S: Final = 1.0
_CALLS_PER_ROUND: Final = 4
# This is longer than the sweeper's interval, so that batches due when a probe may begin are ready.
_AFTER_PROBE_S: Final = 2.0
# A fault of our own hardly passes by itself, and each try may be paid for.
FAULT_PARKING_S: Final = 60.0


class Completion:
    """Completes the batches of one process."""

    def __init__(self, leases: Leases, ledger: Ledger, give_up_after_s: float) -> None:
        """Turn evaluations that are older than ``give_up_after_s`` into dead letters."""
        self._leases = leases
        self._ledger = ledger
        self._give_up_after_s = give_up_after_s

    def finish_or_park(
        self, leased: LeasedBatch, unfinished: Sequence[UnfinishedEvaluation], *, blocked_for_s: float = 0.0
    ) -> None:
        """Remove a batch that is done; park another, or add dead letters for evaluations that are too old.

        ``unfinished`` are its evaluations without a final verdict; the endpoint may be called in ``blocked_for_s``.
        """
        batch = leased.batch
        age_s = time.time() - batch.created_at
        left_s = self._give_up_after_s - age_s
        if left_s < 0 and (too_old := [result for result in unfinished if not result.is_waiting]):
            # A panel waits for its members, which have to be given up before it.
            self._ledger.add_dead_letter([result.dead_letter(batch) for result in too_old], batch.id)
            _log("evaluations given up, see: tracejudge dead list", batch, too_old)
            unfinished = [result for result in unfinished if result.is_waiting]
        if not unfinished:
            self._leases.finish(batch.id, batch.judge_model)
            return
        called, delay_s = _spent_on_called(unfinished, leased.tries), parking_s(unfinished, age_s)
        if called and blocked_for_s > 0:
            # This request may always fail, and its batch may be the oldest, so another batch should be the next probe.
            skipped = self._skipped_probes(leased.lease, unfinished, called)
            delay_s = max(delay_s, skipped * blocked_for_s + _AFTER_PROBE_S)
        if left_s >= 0:
            # The last try is when it is time to give up, however long the endpoint asked us to wait.
            delay_s = min(delay_s, max(_MIN_PARKING_S, left_s))
        if failures := [result for result in unfinished if not result.is_waiting]:
            _log("batch parked", batch, failures, seconds=round(delay_s, 1))
        self._leases.put_back(leased.lease, delay_s=delay_s, tries=called)

    def release(self, leased: LeasedBatch, unfinished: Sequence[UnfinishedEvaluation]) -> None:
        """Remove a batch that is done; let another worker lease it at once if it is not."""
        if unfinished:
            self._leases.put_back(leased.lease, tries=_spent_on_called(unfinished, leased.tries))
        else:
            self._leases.finish(leased.batch.id, leased.batch.judge_model)

    def _skipped_probes(
        self, lease: Lease, unfinished: Sequence[UnfinishedEvaluation], called: Mapping[str, CallTotals]
    ) -> int:
        """Return how many probes of other batches go first: the more, the more often the endpoint rejected this one.

        An endpoint that rejects a few requests only must be probed with others; if none is ready, with the same.
        """
        rejected = [result for result in unfinished if result.assessment.reason == "judge_rejected"]
        calls = max(
            (called[result.evaluation.id].calls for result in rejected if result.evaluation.id in called), default=1
        )
        # At most eight probes of other batches go first, however often the endpoint rejected this one.
        return min(8, calls) if calls > 1 and self._leases.has_ready(lease) else 1


def parking_s(unfinished: Sequence[UnfinishedEvaluation], age_s: float) -> float:
    """Return how long a batch waits for its next round.

    It waits as long as the endpoint or its limiter asks. Where neither does, the endpoint serves others and these
    evaluations fail by themselves: each round is paid for, so the delays double. Evaluations for another version, or
    that failed by a fault of ours, shorten no delay; their own delays count if nothing else is left.
    """
    delays_s = [result.assessment.retry_after_s for result in unfinished if result.assessment.retry_after_s is not None]
    if delays_s:
        return max(_MIN_PARKING_S, *delays_s)
    faulty = [result.assessment.reason == "internal_error" for result in unfinished]
    attempts = [
        result.verdict.attempts
        for result, is_faulty in zip(unfinished, faulty, strict=True)
        if result.verdict.attempts and not is_faulty
    ]
    if attempts:
        return backoff_s(min(attempts) // _CALLS_PER_ROUND, _MIN_PARKING_S, longest_s=600.0)
    return max(FAULT_PARKING_S, age_s) if all(faulty) else hand_back_delay_s(age_s)


def _spent_on_called(
    unfinished: Sequence[UnfinishedEvaluation], tries: Mapping[str, CallTotals]
) -> dict[str, CallTotals]:
    """Return calls and cost of all rounds, by evaluation id, of the evaluations that made calls in this round."""
    return {
        result.evaluation.id: result.spent
        for result in unfinished
        if result.spent.calls > tries.get(result.evaluation.id, CallTotals()).calls
    }


def _log(event: str, batch: Batch, unfinished: Sequence[UnfinishedEvaluation], **more: object) -> None:
    log.warning(
        event,
        batch=batch.id,
        judge_model=batch.judge_model,
        evaluations=len(unfinished),
        reasons=sorted({str(result.assessment.reason) for result in unfinished}),
        notes=sorted({result.assessment.note or "" for result in unfinished}),
        **more,
    )
