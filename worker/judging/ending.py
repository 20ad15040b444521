"""How a batch ends: removed, parked for what may pass, or buried for what has been tried for too long."""

import random
import time
from collections.abc import Mapping, Sequence
from typing import Final

import structlog

from worker.batches import Batch
from worker.judging.evaluations import Unfinished
from worker.leases import Held, Leases
from worker.ledger import Ledger

__all__ = ["FAULT_PARKING_S", "Ending", "handed_back_s", "parking_s"]

log = structlog.get_logger("tracejudge.judging")

_MIN_PARKING_S: Final = 1.0
_MAX_PARKING_S: Final = 600.0
_CALLS_PER_ROUND: Final = 4
_MAX_DOUBLINGS: Final = 20
_MAX_HAND_BACK_S: Final = 30.0
_HAND_BACK_SHARE: Final = 0.25
_AFTER_OTHERS_S: Final = 2.0
"""Longer than a sweeper's turn: what is due when a probe may begin is ready before."""
FAULT_PARKING_S: Final = 60.0
"""A fault of ours hardly passes by itself, and each try may be paid for."""


class Ending:
    """Ends batches of one process."""

    def __init__(self, leases: Leases, ledger: Ledger, give_up_after_s: float) -> None:
        """Take after how long an evaluation that cannot be made becomes a dead letter."""
        self._leases = leases
        self._ledger = ledger
        self._give_up_after_s = give_up_after_s

    def close(
        self,
        held: Held,
        batch: Batch,
        unfinished: Sequence[Unfinished],
        tries: Mapping[str, int],
        *,
        closed_for_s: float = 0.0,
    ) -> None:
        """Remove a batch that is done; else park it, or bury what has been tried for too long.

        Args:
            tries: Calls before this round, by evaluation id.
            closed_for_s: Seconds until the endpoint may be asked again.

        Raises:
            StoreError: Redis did not answer; the lease lapses then, and what is in the ledger is not judged again.
        """
        age_s = time.time() - batch.created_at
        left_s = self._give_up_after_s - age_s
        if left_s < 0:
            unfinished = self._bury(batch, unfinished)
        if not unfinished:
            self._leases.finish(batch.id, batch.judge_model)
            return
        made, delay_s = _made(unfinished, tries), parking_s(unfinished, age_s)
        if made and closed_for_s > 0:
            # It may always fail, and is perhaps the oldest: another batch is to be the next probe.
            delay_s = max(delay_s, closed_for_s + _AFTER_OTHERS_S)
        if left_s >= 0:
            # However long the endpoint asked us to wait: a last try, when it is time to give up.
            delay_s = min(delay_s, max(_MIN_PARKING_S, left_s))
        if tried := [one for one in unfinished if not one.waits]:
            _log("batch parked", batch, tried, seconds=round(delay_s, 1))
        self._leases.put_back(held, delay_s=delay_s, tries=made)

    def _bury(self, batch: Batch, unfinished: Sequence[Unfinished]) -> list[Unfinished]:
        """Give up all but what waits for others, which have to be given up first; return that."""
        over = [one for one in unfinished if not one.waits]
        if over:
            self._ledger.bury([one.letter(batch) for one in over])
            _log("evaluations given up, see: tracejudge dead list", batch, over)
        return [one for one in unfinished if one.waits]

    def hand_on(self, held: Held, batch: Batch, unfinished: Sequence[Unfinished], tries: Mapping[str, int]) -> None:
        """Remove a batch that is done; else let another worker take it at once.

        Raises:
            StoreError: Redis did not answer; the lease lapses then.
        """
        if unfinished:
            self._leases.put_back(held, tries=_made(unfinished, tries))
        else:
            self._leases.finish(batch.id, batch.judge_model)


def parking_s(unfinished: Sequence[Unfinished], age_s: float) -> float:
    """Say how long a batch waits for its next round.

    As long as the endpoint, or the gate before it, asks for. Where neither does, the endpoint serves others and these
    evaluations fail by themselves: each round is paid for, so the waits double. What another worker has to do, or we
    have to mend, brings nothing forward; its own waits count where nothing else is left.
    """
    asked = [one.assessment.retry_after_s for one in unfinished if one.assessment.retry_after_s is not None]
    if asked:
        return max(_MIN_PARKING_S, *asked)
    tried = [one.verdict.attempts for one in unfinished if one.verdict.attempts and not _is_ours(one)]
    if tried:
        return min(_MAX_PARKING_S, _MIN_PARKING_S * 2.0 ** min(min(tried) // _CALLS_PER_ROUND, _MAX_DOUBLINGS))
    return max(FAULT_PARKING_S, age_s) if all(map(_is_ours, unfinished)) else handed_back_s(age_s)


def _is_ours(one: Unfinished) -> bool:
    return one.assessment.reason == "internal_error"


def _made(unfinished: Sequence[Unfinished], tries: Mapping[str, int]) -> dict[str, int]:
    """Count the calls of this round, by evaluation id."""
    made = {one.evaluation.id: one.verdict.attempts - tries.get(one.evaluation.id, 0) for one in unfinished}
    return {name: calls for name, calls in made.items() if calls}


def handed_back_s(age_s: float) -> float:
    """Say how long a batch waits that only another version of the worker can finish.

    Whoever looks first when it is due takes it, we as well as the one who knows it. Workers look in the same rhythm, so
    the wait is by chance: else the same one could be first for ever. And short while it is young, since some rounds may
    be needed.
    """
    most = min(_MAX_HAND_BACK_S, max(_MIN_PARKING_S, age_s * _HAND_BACK_SHARE))
    return most * random.uniform(0.5, 1.0)  # noqa: S311 - no secret


def _log(event: str, batch: Batch, unfinished: Sequence[Unfinished], **more: object) -> None:
    log.warning(
        event,
        batch=batch.id,
        judge_model=batch.judge_model,
        evaluations=len(unfinished),
        reasons=sorted({str(one.assessment.reason) for one in unfinished}),
        notes=sorted({one.assessment.note or "" for one in unfinished}),
        **more,
    )
