"""Judge batches: a lease first, then all evaluations on the process's one event loop.

Batches of a judge model are taken while its lane has room, whoever gives the word: a message, a slot that came free, or
the sweeper. No thread waits for a batch, and no batch for the slowest of another. What is final goes into the ledger,
what may pass is put back for later, and what could not be made for too long becomes a dead letter.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

import structlog

from worker.batches import mark, mark_of
from worker.judging.ending import FAULT_PARKING_S, Ending
from worker.judging.evaluations import Evaluations
from worker.judging.holdings import Holdings
from worker.judging.lane import Lane, Limits
from worker.judging.loop import LoopEndedError, LoopThread
from worker.judging.taking import Taker, Work
from worker.leases import RENEW_S, Leases
from worker.ledger import Ledger
from worker.readiness import Pulse
from worker.settings import Settings
from worker.store import Store, StoreError

__all__ = ["Judging"]

log = structlog.get_logger("tracejudge.judging")

_THREADS: Final = 2
_AT_ONCE: Final = 8
"""Batches taken by one script call."""
_GIVEN_UP_AT_ONCE: Final = 20
_CANCEL_S: Final = 1.0
_CLOSE_S: Final = 2.0
_HURRIED_CLOSE_S: Final = 0.3


class _Nobody:
    """The gate to the endpoint of a judge model that is not configured here."""

    limit = 1
    closed_for_s = 1.0
    open_for_s = None

    def shut(self) -> None:
        """Nothing to shut."""


_NOBODY: Final = _Nobody()


class Judging:
    """The judging of one process."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        evaluations: Evaluations,
        ledger: Ledger,
        *,
        gates: Mapping[str, Limits],
        asked: Callable[[], frozenset[str] | None] = lambda: None,
    ) -> None:
        """Prepare; ``start`` begins.

        Args:
            gates: The gate to the endpoint of each judge model.
            asked: The judge models that some worker is there for; None while that is not known.
        """
        self._asked = asked
        self._settings = settings
        self._leases = Leases(store, tries_ttl_s=settings.ledger_ttl_s)
        self._ledger = ledger
        self._ending = Ending(self._leases, ledger, settings.give_up_after)
        self._evaluations = evaluations
        self._lanes = {name: Lane(name, gate, settings.batch_size) for name, gate in gates.items()}
        self._by_mark = {mark(name): lane for name, lane in self._lanes.items()}
        self._loop = LoopThread("tracejudge-judging")
        # What waits for Redis waits here, so that the loop never does; and no end waits for who takes more.
        self._takers = ThreadPoolExecutor(_THREADS, thread_name_prefix="tracejudge-taking")
        self._enders = ThreadPoolExecutor(_THREADS, thread_name_prefix="tracejudge-ending")
        self._holdings = Holdings(self._leases, lambda task: self._loop.call(task.cancel))
        self._taker = Taker(self._leases, ledger, secrets.token_hex(4))
        self._stopping = False
        self.hurried = False
        """Whether a stop has no time left for what is under way."""
        self._started = False
        self.progressed_at = time.monotonic()

    @property
    def held(self) -> int:
        """How many batches are under way here."""
        return len(self._holdings)

    @property
    def circuits(self) -> dict[str, float | None]:
        """For how many seconds the circuit of each judge model has been open here; None while nothing is known."""
        return {name: lane.limits.open_for_s for name, lane in self._lanes.items()}

    @property
    def room(self) -> dict[str, bool]:
        """Whether more batches of each judge model may be taken here now."""
        return {name: lane.room() > 0 for name, lane in self._lanes.items()}

    @property
    def pulse(self) -> Pulse:
        """How the event loop fares; any thread may ask."""
        return Pulse(self.progressed_at, dead=self._started and not self._stopping and not self._loop.running)

    def start(self) -> None:
        """Start the loop and the renewal of leases."""
        self._started = True
        self._loop.start()
        self._loop.submit(self._renew())

    def run(self, batch_id: str) -> None:
        """Hear that a batch is ready: take the oldest of its judge model while there is room.

        Nothing is raised: whatever goes wrong, the batches stay in Redis and the sweeper finds them.
        """
        lane = self._by_mark.get(mark_of(batch_id))
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
        for name in self._orphans():
            # Of a model that was taken out of the configuration: nobody else would ever end it.
            self._leases.sweep([name])
            self._give_up(Lane(name, _NOBODY, self._settings.batch_size))

    def stop(self, grace_s: float) -> None:
        """Take nothing new and begin no call; wait ``grace_s`` for calls under way; give back the rest; end the loop.

        Calls under way are paid for, so they are worth waiting for; what waits for its turn is another worker's as soon
        as its batch is back.
        """
        if self._stopping:
            return
        self._stopping = True
        for lane in self._lanes.values():
            self._loop.call(lane.limits.shut)
        _wait_while(lambda: self.held > 0 and not self.hurried, grace_s)
        self._holdings.cancel_all()
        _wait_while(lambda: self._holdings.awaited, _CANCEL_S)
        with contextlib.suppress(TimeoutError, LoopEndedError):
            # Without Redis the last verdicts cannot be written; their batches stay, and are judged again.
            self._loop.wait(self._evaluations.aclose(), timeout_s=_HURRIED_CLOSE_S if self.hurried else _CLOSE_S)
        self._loop.stop()
        for pool in (self._takers, self._enders):
            pool.shutdown(wait=False, cancel_futures=True)

    def hurry(self) -> None:
        """Let a stop that is waiting for running batches wait no longer; any thread or signal handler may call it."""
        self.hurried = True

    def _serve(self, lane: Lane) -> None:
        """Take once for a lane. Whoever sees afterwards that there is room for more queues up behind other lanes."""
        if not lane.begin():
            return
        try:
            # Whether there is more is found out by asking for more.
            lane.dry = (room := min(lane.room(), _AT_ONCE)) > 0 and self._take(lane, room) == 0
        except StoreError as error:
            lane.dry = True
            log.warning("batches left to the sweeper", judge_model=lane.judge_model, error=str(error))
        except Exception as error:  # noqa: BLE001 - Celery would log the text of the error, which may quote a trace
            lane.dry = True
            log.error("unforeseen error", judge_model=lane.judge_model, error=type(error).__name__)  # noqa: TRY400
        was_asked = lane.end()
        if not self._stopping and (was_asked or lane.wants()):
            self._takers.submit(self._serve, lane)

    def _give_up(self, lane: Lane) -> None:
        """Take what is too old to wait for a closed gate: it is turned away there, and becomes dead letters."""
        too_old_ms = int((time.time() - self._settings.give_up_after) * 1000)
        for _ in range(_GIVEN_UP_AT_ONCE):
            if not lane.has_memory or self._take(lane, _AT_ONCE, too_old_ms) < _AT_ONCE:
                return

    def _orphans(self) -> frozenset[str]:
        """Name the judge models that have work waiting and no worker that asks them."""
        asked = self._asked()
        return frozenset() if asked is None else self._leases.judge_models() - asked - self._lanes.keys()

    def _take(self, lane: Lane, limit: int, made_before_ms: int | None = None) -> int:
        with self._holdings.taking():
            if self._stopping:
                return 0
            found, works = self._taker.take(lane, limit, made_before_ms=made_before_ms)
            for work in works:
                lane.enter(work.evaluations, work.evaluations * work.bytes_each)
                self._holdings.add(work.held)
                self._loop.call(partial(self._begin, work))
        return found

    def _begin(self, work: Work) -> None:
        self._holdings.begin(work.held, asyncio.get_running_loop().create_task(self._judge(work)))

    async def _judge(self, work: Work) -> None:
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
            close = partial(self._ending.close, closed_for_s=work.lane.limits.closed_for_s)
            last = partial(
                self._ending.hand_on if self._stopping else close, work.held, work.batch, unfinished, work.tries
            )
        except asyncio.CancelledError:
            # At shutdown, or the lease is lost: then this changes nothing, for it needs the lease.
            last = put_back
        except Exception as error:  # noqa: BLE001 - the text of an unforeseen error may quote a trace
            log.error("unforeseen error", batch=work.batch.id, error=type(error).__name__)  # noqa: TRY400
            last = partial(put_back, delay_s=FAULT_PARKING_S)
        self._leave(work, left)
        # Not waited for: who cancels the task must not cancel its end.
        self._enders.submit(self._end, work, last)

    def _leave(self, work: Work, evaluations: int) -> None:
        """Give room back, and have it filled."""
        lane = work.lane
        lane.leave(evaluations, evaluations * work.bytes_each)
        if not self._stopping and lane.wants():
            self._takers.submit(self._refill, lane)

    def _refill(self, lane: Lane) -> None:
        """Fill a lane unless that was done meanwhile: of the many that leave at once, each submits this."""
        if lane.wants():
            self._serve(lane)

    def _end(self, work: Work, last: Callable[[], None]) -> None:
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


def _wait_while(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while condition() and time.monotonic() < deadline:
        time.sleep(0.02)
