"""Judge batches: a lease first, then all evaluations at once on the process's one event loop.

Celery's threads only wait here; the calls, however many, are coroutines. What is final goes into the ledger, what
may pass is put back for later, and what could not be made for too long becomes a dead letter.
"""

import asyncio
import contextlib
import secrets
import threading
import time
from typing import Final

import structlog

from worker.batches import Batch, BatchError, decode
from worker.judging.evaluations import Evaluations, Unfinished
from worker.judging.loop import LoopEndedError, LoopThread
from worker.leases import RENEW_S, Held, Leases
from worker.ledger import Ledger
from worker.settings import Settings
from worker.store import Store, StoreError

__all__ = ["Judging"]

log = structlog.get_logger("tracejudge.judging")

_MIN_PARKING_S: Final = 1.0
_MAX_PARKING_S: Final = 20.0
"""Parked work goes on at most this long after its cause is gone."""
_CANCEL_S: Final = 2.0
_HAND_BACK_S: Final = 30.0
_FAULT_PARKING_S: Final = 60.0
"""A fault of ours hardly passes by itself, and each try may be paid for."""


class Judging:
    """The judging of one process."""

    def __init__(self, settings: Settings, store: Store, evaluations: Evaluations, ledger: Ledger) -> None:
        """Prepare; ``start`` begins."""
        self._settings = settings
        self._leases = Leases(store)
        self._ledger = ledger
        self._evaluations = evaluations
        self._loop = LoopThread("tracejudge-judging")
        self._process = secrets.token_hex(4)
        self._lock = threading.Lock()
        self._held: dict[str, tuple[Held, asyncio.Task[list[Unfinished]] | None]] = {}
        self._stopping = False
        self._hurried = False
        self._started = False
        self._threads = settings.threads
        self.progressed_at = time.monotonic()

    @property
    def free(self) -> int:
        """How many more batches could be judged at once."""
        return max(0, self._threads - len(self._held))

    def start(self, threads: int) -> None:
        """Start the loop and the renewal of leases.

        Args:
            threads: Size of the pool whose threads call ``run``.
        """
        self._threads = threads
        self._started = True
        self._loop.start()
        self._loop.submit(self._renew())

    def run(self, batch_id: str) -> None:
        """Judge one batch from first to last; called by a thread of the pool, which waits here.

        A batch that is finished, parked or held by another is left alone. Nothing is raised: whatever goes wrong,
        the batch stays in Redis and the sweeper finds it.
        """
        if self._stopping or not self._started:
            return
        held = Held(batch_id, f"{self._process}-{secrets.token_hex(4)}")
        try:
            payload = self._leases.take(held)
            if payload is None:
                return
            self._judge(held, payload)
        except StoreError as error:
            log.warning("batch left to the sweeper", batch=batch_id, error=str(error))
        except Exception as error:  # noqa: BLE001 - Celery would log the text of the error, which may quote a trace
            log.error("unforeseen error", batch=batch_id, error=type(error).__name__)  # noqa: TRY400
            self._put_off(held)

    def stop(self, grace_s: float) -> None:
        """Take no new batch, let running ones finish for ``grace_s``, give back the rest, end the loop."""
        self._stopping = True
        deadline = time.monotonic() + grace_s
        while self._held and time.monotonic() < deadline and not self._hurried:
            time.sleep(0.05)
        for _, task in list(self._held.values()):
            if task is not None:
                self._loop.call(task.cancel)
        deadline = time.monotonic() + _CANCEL_S
        while self._held and time.monotonic() < deadline:
            time.sleep(0.02)
        with contextlib.suppress(TimeoutError, LoopEndedError):
            # Without Redis the last verdicts cannot be written; their batches stay, and are judged again.
            self._loop.wait(self._evaluations.aclose(), timeout_s=2)
        self._loop.stop()

    def hurry(self) -> None:
        """Let a stop that is waiting for running batches wait no longer; any thread or signal handler may call it."""
        self._hurried = True

    def _put_off(self, held: Held) -> None:
        """Keep a batch that fails by a fault of ours from being judged, and paid for, over and over."""
        with contextlib.suppress(StoreError):
            self._leases.put_back(held, delay_s=_FAULT_PARKING_S, park=True)

    def _judge(self, held: Held, payload: bytes) -> None:
        try:
            batch = decode(payload)
        except BatchError as error:
            # Another version of the worker wrote it, and will read it.
            log.warning("batch handed back", batch=held.batch_id, error=str(error))
            self._leases.put_back(held, delay_s=_HAND_BACK_S, park=True)
            return
        ids = [evaluation.id for item in batch.items for evaluation in item.evaluations]
        finished = self._ledger.already_finished(ids)
        with self._lock:
            self._held[held.batch_id] = (held, None)
        try:
            unfinished = self._loop.wait(self._evaluate(held, batch, finished))
        except (asyncio.CancelledError, LoopEndedError):
            # Cancelled at shutdown, or the lease is lost: then this changes nothing, for it needs the lease.
            self._leases.put_back(held, delay_s=0, park=False)
            return
        finally:
            with self._lock:
                self._held.pop(held.batch_id, None)
        self._close(held, batch, unfinished)

    async def _evaluate(self, held: Held, batch: Batch, finished: set[str]) -> list[Unfinished]:
        task = asyncio.ensure_future(self._evaluations.run(batch, finished))
        self._held[held.batch_id] = (held, task)
        return await task

    def _close(self, held: Held, batch: Batch, unfinished: list[Unfinished]) -> None:
        """Remove a batch that is done; else park it, or bury what has been tried for too long."""
        age_s = time.time() - batch.created_at
        if unfinished and age_s > self._settings.give_up_after:
            self._ledger.bury([one.letter(batch) for one in unfinished])
            unfinished = []
        if not unfinished:
            self._leases.finish(batch.id, batch.judge_model)
            return
        asked_s = max(one.assessment.retry_after_s or 0.0 for one in unfinished)
        # Half the age again: the waits double by themselves, without a counter that could be lost.
        delay_s = max(asked_s, min(_MAX_PARKING_S, max(_MIN_PARKING_S, age_s / 2)))
        if all(one.assessment.reason == "internal_error" for one in unfinished):
            delay_s = max(_FAULT_PARKING_S, age_s)
        # However long the endpoint asked us to wait: a last try, when it is time to give up.
        delay_s = min(delay_s, max(_MIN_PARKING_S, self._settings.give_up_after - age_s))
        reasons = sorted({str(one.assessment.reason) for one in unfinished})
        log.warning(
            "batch parked",
            batch=batch.id,
            judge_model=batch.judge_model,
            evaluations=len(unfinished),
            reasons=reasons,
            notes=sorted({one.assessment.note or "" for one in unfinished}),
            seconds=round(delay_s, 1),
        )
        self._leases.put_back(held, delay_s=delay_s, park=True)

    async def _renew(self) -> None:
        """Renew all leases of the process; what is no longer ours is not judged further."""
        while not self._stopping or self._held:
            await asyncio.sleep(RENEW_S)
            self.progressed_at = time.monotonic()
            with self._lock:
                held = [lease for lease, _ in self._held.values()]
            try:
                lost = await asyncio.to_thread(self._leases.renew, held)
            except Exception as error:  # noqa: BLE001 - were this to end, all leases would lapse unseen
                log.warning("leases not renewed", error=type(error).__name__)
                continue
            for batch_id in lost:
                _, task = self._held.get(batch_id, (None, None))
                if task is not None:
                    log.warning("lease lost", batch=batch_id)
                    task.cancel()
