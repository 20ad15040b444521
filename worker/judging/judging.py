"""Judge batches: a lease first, then all evaluations on the process's one event loop.

Batches of a judge model are taken while its lane has room, whoever gives the word: a message, a slot that came free, or
the sweeper. No thread waits for a batch, and no batch for the slowest of another. What is final goes into the ledger,
what may pass is put back for later, and what could not be made for too long becomes a dead letter.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple

import structlog

from worker.batches import Batch, BatchError, count, decode, mark, without
from worker.judging.ending import FAULT_PARKING_S, Ending
from worker.judging.evaluations import Evaluations
from worker.judging.holdings import Holdings
from worker.judging.lane import Lane, Limits
from worker.judging.loop import LoopEndedError, LoopThread
from worker.leases import RENEW_S, Held, Leases, Taken
from worker.ledger import Ledger
from worker.settings import Settings
from worker.store import Store, StoreError

__all__ = ["Judging"]

log = structlog.get_logger("tracejudge.judging")

_THREADS: Final = 3
_AT_ONCE: Final = 8
"""Batches taken by one script call."""
_GIVEN_UP_AT_ONCE: Final = 20
_CANCEL_S: Final = 1.0
_HAND_BACK_S: Final = 30.0
_CLOSE_S: Final = 2.0
_HURRIED_CLOSE_S: Final = 0.3


class _Work(NamedTuple):
    """A batch that is being judged, without the evaluations that were finished before."""

    lane: Lane
    held: Held
    batch: Batch
    tries: Mapping[str, int]
    bytes_each: int

    @property
    def evaluations(self) -> int:
        return count(self.batch)


class Judging:
    """The judging of one process."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        evaluations: Evaluations,
        ledger: Ledger,
        gates: Mapping[str, Limits],
    ) -> None:
        """Prepare; ``start`` begins.

        Args:
            gates: The gate to the endpoint of each judge model.
        """
        self._settings = settings
        self._leases = Leases(store, tries_ttl_s=settings.ledger_ttl_s)
        self._ledger = ledger
        self._ending = Ending(self._leases, ledger, settings.give_up_after)
        self._evaluations = evaluations
        self._lanes = {name: Lane(name, gate, settings.batch_size) for name, gate in gates.items()}
        self._by_mark = {mark(name): lane for name, lane in self._lanes.items()}
        self._loop = LoopThread("tracejudge-judging")
        # What waits for Redis waits here, so that the loop never does.
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="tracejudge-judging")
        self._holdings = Holdings(self._leases, lambda task: self._loop.call(task.cancel))
        self._gates = gates
        self._process = secrets.token_hex(4)
        self._stopping = False
        self._hurried = False
        self._started = False
        self.progressed_at = time.monotonic()

    @property
    def held(self) -> int:
        """How many batches are under way here."""
        return len(self._holdings)

    @property
    def circuits(self) -> dict[str, bool]:
        """Whether the circuit of each judge model is open, as this process sees it."""
        return {name: lane.limits.circuit_open for name, lane in self._lanes.items()}

    def start(self) -> None:
        """Start the loop and the renewal of leases."""
        self._started = True
        self._loop.start()
        self._loop.submit(self._renew())

    def run(self, batch_id: str) -> None:
        """Hear that a batch is ready: take the oldest of its judge model while there is room.

        Nothing is raised: whatever goes wrong, the batches stay in Redis and the sweeper finds them.
        """
        lane = self._by_mark.get(batch_id.split("-", 2)[1] if batch_id.count("-") > 1 else "")
        if lane is not None:
            self._serve(lane)

    def sweep(self) -> None:
        """Make ready what is due, and take what there is room for, of all judge models.

        Raises:
            StoreError: Redis did not answer.
        """
        if self._stopping or not self._started:
            return
        # Else we would sweep our own batches, and judge them twice.
        self._holdings.renew_overdue()
        self._leases.sweep(self._lanes)
        for lane in self._lanes.values():
            self._serve(lane)
            if lane.limits.closed_for_s > 0:
                self._give_up(lane)

    def stop(self, grace_s: float) -> None:
        """Take nothing new and begin no call; wait ``grace_s`` for calls under way; give back the rest; end the loop.

        Calls under way are paid for, so they are worth waiting for; what waits for its turn is another worker's as soon
        as its batch is back.
        """
        if self._stopping:
            return
        self._stopping = True
        for gate in self._gates.values():
            self._loop.call(gate.shut)
        self._until_nothing_is_held(grace_s, unless=lambda: self._hurried)
        self._holdings.cancel_all()
        self._until_nothing_is_held(_CANCEL_S)
        with contextlib.suppress(TimeoutError, LoopEndedError):
            # Without Redis the last verdicts cannot be written; their batches stay, and are judged again.
            self._loop.wait(self._evaluations.aclose(), timeout_s=_HURRIED_CLOSE_S if self._hurried else _CLOSE_S)
        self._loop.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def hurry(self) -> None:
        """Let a stop that is waiting for running batches wait no longer; any thread or signal handler may call it."""
        self._hurried = True

    def _until_nothing_is_held(self, seconds: float, unless: Callable[[], bool] = bool) -> None:
        deadline = time.monotonic() + seconds
        while self._holdings and time.monotonic() < deadline and not unless():
            time.sleep(0.02)

    def _serve(self, lane: Lane) -> None:
        """Fill a lane; one thread at a time does it, and looks once more for whoever asks meanwhile."""
        while lane.begin():
            self._fill(lane)
            while not lane.end():
                self._fill(lane)
            # What came free after the last look found nobody to ask, for somebody was at it.
            if self._stopping or not lane.wants():
                return

    def _fill(self, lane: Lane) -> None:
        lane.dry = False
        try:
            while not self._stopping and (room := min(lane.room(), _AT_ONCE)):
                if self._take(lane, room) < room:
                    lane.dry = True
                    return
        except StoreError as error:
            lane.dry = True
            log.warning("batches left to the sweeper", judge_model=lane.judge_model, error=str(error))
        except Exception as error:  # noqa: BLE001 - Celery would log the text of the error, which may quote a trace
            lane.dry = True
            log.error("unforeseen error", judge_model=lane.judge_model, error=type(error).__name__)  # noqa: TRY400

    def _give_up(self, lane: Lane) -> None:
        """Take what is too old to wait for a closed gate: it is turned away there, and becomes dead letters."""
        too_old_ms = int((time.time() - self._settings.give_up_after) * 1000)
        for _ in range(_GIVEN_UP_AT_ONCE):
            if self._take(lane, _AT_ONCE, made_before_ms=too_old_ms) < _AT_ONCE:
                return

    def _take(self, lane: Lane, count: int, made_before_ms: int | None = None) -> int:
        holder = f"{self._process}-{secrets.token_hex(4)}"
        taken = self._leases.take(lane.judge_model, holder, count, made_before_ms=made_before_ms)
        works = [work for one in taken if (work := self._opened(lane, one)) is not None]
        for work in self._without_finished(works):
            lane.enter(work.evaluations, work.evaluations * work.bytes_each)
            self._holdings.add(work.held)
            self._loop.call(partial(self._begin, work))
        return len(taken)

    def _opened(self, lane: Lane, taken: Taken) -> _Work | None:
        try:
            batch = decode(taken.payload)
        except BatchError as error:
            # Another version of the worker wrote it, and will read it.
            log.warning("batch handed back", batch=taken.held.batch_id, error=str(error))
            self._leases.put_back(taken.held, delay_s=_HAND_BACK_S)
            return None
        return _Work(lane, taken.held, batch, taken.tries, len(taken.payload) // max(1, count(batch)))

    def _without_finished(self, works: Sequence[_Work]) -> list[_Work]:
        ids = [evaluation.id for work in works for item in work.batch.items for evaluation in item.evaluations]
        finished = self._ledger.already_finished(ids)
        return [work._replace(batch=without(work.batch, finished)) for work in works]

    def _begin(self, work: _Work) -> None:
        self._holdings.begin(work.held, asyncio.get_running_loop().create_task(self._judge(work)))

    async def _judge(self, work: _Work) -> None:
        """Judge a batch from first to last."""
        left = work.evaluations

        def ended() -> None:
            nonlocal left
            left -= 1
            self._leave(work, 1)

        put_back = partial(self._leases.put_back, work.held)
        try:
            unfinished = await self._evaluations.run(work.batch, work.tries, ended)
            # Stopping, we turned evaluations away ourselves: that is no reason for another worker to wait.
            end = self._ending.hand_on if self._stopping else self._ending.close
            last = partial(end, work.held, work.batch, unfinished, work.tries)
        except asyncio.CancelledError:
            # At shutdown, or the lease is lost: then this changes nothing, for it needs the lease.
            last = put_back
        except Exception as error:  # noqa: BLE001 - the text of an unforeseen error may quote a trace
            log.error("unforeseen error", batch=work.batch.id, error=type(error).__name__)  # noqa: TRY400
            last = partial(put_back, delay_s=FAULT_PARKING_S)
        self._leave(work, left)
        # Not waited for: who cancels the task must not cancel its end.
        self._threads.submit(self._end, work, last)

    def _leave(self, work: _Work, evaluations: int) -> None:
        """Give room back; whoever gives the last of a batch's back has others taken."""
        lane = work.lane
        lane.leave(evaluations, evaluations * work.bytes_each)
        if not self._stopping and lane.wants():
            self._threads.submit(self._refill, lane)

    def _refill(self, lane: Lane) -> None:
        """Fill a lane unless that was done meanwhile: of the many that leave at once, each submits this."""
        if lane.wants():
            self._serve(lane)

    def _end(self, work: _Work, last: Callable[[], None]) -> None:
        try:
            last()
        except StoreError as error:
            log.warning("batch left to the sweeper", batch=work.batch.id, error=str(error))
        except Exception as error:  # noqa: BLE001 - the text of an unforeseen error may quote a trace
            log.error("unforeseen error", batch=work.batch.id, error=type(error).__name__)  # noqa: TRY400
            with contextlib.suppress(StoreError):
                # Else it would be judged, and paid for, over and over.
                self._leases.put_back(work.held, delay_s=FAULT_PARKING_S)
        finally:
            self._holdings.remove(work.held)

    async def _renew(self) -> None:
        while not self._stopping or self._holdings:
            await asyncio.sleep(RENEW_S)
            self.progressed_at = time.monotonic()
            try:
                await asyncio.to_thread(self._holdings.renew)
            except Exception as error:  # noqa: BLE001 - were this to end, all leases would lapse unseen
                log.warning("leases not renewed", error=type(error).__name__)
