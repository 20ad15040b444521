"""Take batches: their leases, what they hold, and what of it is left to judge."""

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import structlog

from worker.batches import Batch, BatchError, count, decode, made_at_ms, without
from worker.judging.ending import handed_back_s
from worker.judging.lane import Lane
from worker.leases import Held, Leases, Taken
from worker.ledger import Ledger

__all__ = ["Taker", "Work"]

log = structlog.get_logger("tracejudge.judging")


class Work(NamedTuple):
    """A batch that is being judged, without the evaluations that were finished before.

    ``tries`` are the calls of earlier rounds by evaluation id, ``bytes_each`` what an evaluation takes in memory.
    """

    lane: Lane
    held: Held
    batch: Batch
    tries: Mapping[str, int]
    bytes_each: int

    @property
    def evaluations(self) -> int:
        """How many there are."""
        return count(self.batch)


class Taker:
    """Takes batches for the lanes of one process."""

    def __init__(self, leases: Leases, ledger: Ledger, process: str) -> None:
        """Take the name of the process, which is a part of its leases' holders."""
        self._leases = leases
        self._ledger = ledger
        self._process = process

    def take(self, lane: Lane, limit: int, *, made_before_ms: int | None = None) -> tuple[int, list[Work]]:
        """Take up to ``limit`` batches that are ready, the oldest first: how many were there, and what is to be judged.

        Raises:
            StoreError: Redis did not answer; what was taken is ready again when its lease has lapsed.
        """
        holder = f"{self._process}-{secrets.token_hex(4)}"
        taken = self._leases.take(lane.judge_model, holder, limit, made_before_ms=made_before_ms)
        works = [work for one in taken if (work := self._opened(lane, one)) is not None]
        return len(taken), self._without_finished(works)

    def _opened(self, lane: Lane, taken: Taken) -> Work | None:
        try:
            batch = decode(taken.payload)
        except BatchError as error:
            # Another version of the worker wrote it, and will read it.
            log.warning("batch handed back", batch=taken.held.batch_id, error=str(error))
            age_s = time.time() - made_at_ms(taken.held.batch_id) / 1000
            self._leases.put_back(taken.held, delay_s=handed_back_s(age_s))
            return None
        return Work(lane, taken.held, batch, taken.tries, len(taken.payload) // max(1, count(batch)))

    def _without_finished(self, works: Sequence[Work]) -> list[Work]:
        ids = [evaluation.id for work in works for item in work.batch.items for evaluation in item.evaluations]
        finished = self._ledger.already_finished(ids)
        return [work._replace(batch=without(work.batch, finished)) for work in works]
