"""Fetch batches: how many a judge model has capacity for, their leases, and the evaluations left to judge.

Fetched evaluations wait in memory for a free slot, which is quicker than asking Redis when a slot is free. Not much
more is fetched than the slots can use: another worker may have free slots.
"""

import random
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import filterfalse
from typing import Final

import structlog

from judges.core.backoff import backoff_s
from judges.core.model import CallTotals
from judges.endpoints.limiter import EndpointLimiter
from worker.core.config.graders import queue_label
from worker.core.judging.evaluator import UnfinishedEvaluation
from worker.core.queue.batch import Batch, BatchError, count_evaluations, decode_batch, made_at_ms, without_evaluations
from worker.core.queue.leases import Lease, Leases
from worker.core.queue.ledger import Ledger

_MIN_PARKING_S: Final = 1.0
_CALLS_PER_ROUND: Final = 4
# This is longer than the sweeper's interval, so that batches due when a probe may begin are ready.
_AFTER_PROBE_S: Final = 2.0
# A fault of our own hardly passes by itself, and each try may be paid for.
FAULT_PARKING_S: Final = 60.0
log = structlog.get_logger("tracejudge.judging")
_MAX_BYTES: Final = 64 * 1024 * 1024
# Evaluations per call in flight that may wait for another attempt without using a slot.
_MAX_BACKING_OFF_PER_CALL: Final = 16
# Batches that are prefetched behind the calls in flight.
_READY_BATCHES: Final = 2


class NoEndpoint:
    """The limits of judges that call no endpoint: a fixed number of evaluations at a time."""

    blocked_for_s = 0.0
    open_for_s = 0.0
    backing_off = 0

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def close(self) -> None:
        """Nothing to close."""


Limits = EndpointLimiter | NoEndpoint


class Slots:
    """The slots of one judge model, shared by one window for each partition. Safe to share between threads."""

    def __init__(self, windows: int = 1) -> None:
        self.windows = windows
        self.lock = threading.Lock()
        self.evaluations = 0
        self._on_release: list[Callable[[], None]] = []

    def on_release(self, call: Callable[[], None]) -> None:
        """Call a function after each evaluation: any window that has work may use its slot."""
        self._on_release.append(call)

    def report_release(self) -> None:
        """Report that an evaluation has ended."""
        for call in self._on_release:
            call()


class PrefetchWindow:
    """Counts the evaluations of one judge model that this process holds. Safe to share between threads.

    All windows of a judge model together hold as much as a single one may; each may hold its share in any case, so that
    the backlog of one partition does not keep out the work of another.
    """

    def __init__(self, judge_model: str, limits: Limits, batch_size: int, slots: Slots | None = None) -> None:
        self.judge_model = judge_model
        self.label = queue_label(judge_model)
        self.limits = limits
        self.slots = slots or Slots()
        self._batch_size = batch_size
        self.evaluations = 0
        self._max_bytes = _MAX_BYTES // self.slots.windows
        self._bytes = 0
        # The size of an evaluation is not known before one batch was fetched.
        self._bytes_each = self._max_bytes / batch_size

    @property
    def has_memory(self) -> bool:
        """Whether the evaluations held leave memory for more."""
        return self._bytes < self._max_bytes

    @property
    def is_blocked(self) -> bool:
        """Whether the endpoint must not be called now, not even by a probe."""
        return self.limits.blocked_for_s > 0

    def capacity(self) -> int:
        """Return how many more batches may be fetched now."""
        free_bytes = self._max_bytes - self._bytes
        if self.is_blocked or free_bytes <= 0:
            return 0
        limit = self.limits.limit
        # An evaluation that waits for another attempt uses no slot, up to a number: the others use theirs.
        backed_off = min(self.limits.backing_off, _MAX_BACKING_OFF_PER_CALL * limit)
        prefetched = min(limit, _READY_BATCHES * self._batch_size)
        left = limit + prefetched - (self.slots.evaluations - backed_off)
        # A part of a batch is capacity for a whole one only if slots would stay empty.
        has_own_slots = (self.evaluations * self.slots.windows) - backed_off < limit
        for_slots = max(left // self._batch_size, int(has_own_slots))
        return min(for_slots, max(1, int(free_bytes / (self._bytes_each * self._batch_size))))

    def acquire(self, evaluations: int, size: int) -> None:
        """Count fetched evaluations; ``size`` in bytes."""
        with self.slots.lock:
            self.slots.evaluations += evaluations
            self.evaluations += evaluations
            self._bytes += size
            if evaluations:
                self._bytes_each = max(1.0, size / evaluations)

    def release(self, evaluations: int, size: int) -> None:
        """Count evaluations that have ended."""
        with self.slots.lock:
            self.slots.evaluations -= evaluations
            self.evaluations -= evaluations
            self._bytes -= size


@dataclass(eq=False)
class LeasedBatch:
    """A batch judged here, without finished evaluations, with their earlier ``tries`` and memory each in bytes."""

    window: PrefetchWindow
    lease: Lease
    batch: Batch
    tries: Mapping[str, CallTotals]
    bytes_each: int

    def __post_init__(self) -> None:
        self._left = count_evaluations(self.batch)
        self.window.acquire(self._left, self._left * self.bytes_each)

    def release(self, evaluations: int | None = None) -> None:
        """Release the capacity of evaluations that have ended, by default of all that are left."""
        ended = self._left if evaluations is None else evaluations
        self._left -= ended
        self.window.release(ended, ended * self.bytes_each)


class BatchFetcher:
    """Fetches batches for one process."""

    def __init__(self, leases: Leases, ledger: Ledger) -> None:
        self._leases = leases
        self._ledger = ledger
        # The holder of each lease contains it, so that two processes never hold one under the same name.
        self._process = secrets.token_hex(4)

    def fetch(
        self, window: PrefetchWindow, limit: int, *, made_before_ms: int | None = None
    ) -> tuple[int, list[LeasedBatch]]:
        """Lease up to ``limit`` ready batches, the oldest first; return how many were found, and those to judge."""
        taken = self._leases.take(
            window.judge_model,
            f"{self._process}-{secrets.token_hex(4)}",
            limit,
            made_before_ms=made_before_ms,
            # While the circuit is open the next call is the probe, and an untried request is the better one.
            untried_first=bool(window.limits.open_for_s),
        )
        readable: list[tuple[Lease, bytes, Mapping[str, CallTotals], Batch]] = []
        for lease, payload, tries in taken:
            try:
                readable.append((lease, payload, tries, decode_batch(payload)))
            except BatchError as error:
                # A worker of another version wrote it, and will read it.
                log.warning("batch handed back", batch=lease.batch_id, error=str(error))
                self._leases.put_back(lease, delay_s=hand_back_delay_s(time.time() - made_at_ms(lease.batch_id) / 1000))
        finished = self._ledger.already_finished([batch for *_, batch in readable])
        leased = [
            LeasedBatch(
                *(window, lease, without_evaluations(batch, ended), tries),
                len(payload) // max(1, count_evaluations(batch)),
            )
            for (lease, payload, tries, batch), ended in zip(readable, finished, strict=True)
        ]
        return len(taken), leased


def hand_back_delay_s(age_s: float) -> float:
    """Return how long a batch waits that only a worker of another version can finish."""
    # Any worker may lease it when it is due, this one too, and all sweep in the same rhythm: the delay is random so
    # that not the same worker wins each time. It is short while the batch is young, since several rounds may be needed.
    most = min(30.0, max(1.0, age_s * 0.25))
    return most * random.uniform(0.5, 1.0)  # noqa: S311 - no secret


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
        """Remove a batch that is done; park another, or add dead letters for evaluations that are too old or refused.

        ``unfinished`` are its evaluations without a final verdict; the endpoint may be called in ``blocked_for_s``.
        """
        batch = leased.batch
        age_s = time.time() - batch.created_at
        left_s = self._give_up_after_s - age_s

        def is_over(result: UnfinishedEvaluation) -> bool:
            # A panel waits for its members, which have to be given up before it.
            return result.is_refused or (left_s < 0 and not result.is_waiting)

        if given_up := [*filter(is_over, unfinished)]:
            self._ledger.add_dead_letter([result.dead_letter(batch) for result in given_up], batch.id)
            _log("evaluations given up, see: tracejudge dead list", batch, given_up)
            unfinished = [*filterfalse(is_over, unfinished)]
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
        """Return how many probes of other batches go first: the more, the more often the endpoint rejected this one."""
        # An endpoint that rejects a few requests only must be probed with others; if none is ready, with the same.
        rejected = [result for result in unfinished if result.assessment.reason == "judge_rejected"]
        calls = max(
            (called[result.evaluation.id].calls for result in rejected if result.evaluation.id in called), default=1
        )
        # At most eight probes of other batches go first, however often the endpoint rejected this one.
        return min(8, calls) if calls > 1 and self._leases.has_ready(lease) else 1


def parking_s(unfinished: Sequence[UnfinishedEvaluation], age_s: float) -> float:
    """Return how long a batch waits for its next round."""
    # It waits as long as the endpoint or its limiter asks. Where neither does, the endpoint serves others and these
    # evaluations fail by themselves: each round is paid for, so the delays double. Evaluations for another version, or
    # that failed by a fault of ours, shorten no delay; their own delays count if nothing else is left.
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
