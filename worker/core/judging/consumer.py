"""Judge batches in shifts: a running Celery task fetches batches of one judge model and completes them.

A shift leases ready batches as the model's prefetch window has capacity and submits them to the process's event loop,
where all evaluations run concurrently. It completes each batch when its evaluations have ended. Nothing is judged while
no shift runs.

At most two shifts of a model run in one process: the current one fetches, a former one waits for its last slow calls.
A message that arrives while the current shift is young makes it look again, and starts no other.
"""

import asyncio
import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

import structlog

from judges.core.model import CallTotals
from worker.core.config.settings import Settings
from worker.core.judging.evaluator import BatchEvaluator
from worker.core.judging.fetching import (
    FAULT_PARKING_S,
    BatchFetcher,
    Completion,
    LeasedBatch,
    Limits,
    NoEndpoint,
    PrefetchWindow,
    Slots,
)
from worker.core.queue.leases import RENEW_S, HeldLeases, Leases
from worker.core.queue.ledger import Ledger
from worker.core.queue.notify import Notifier
from worker.core.storage.client import Store, StoreError
from worker.core.telemetry.health import Pulse
from worker.core.telemetry.service import EventLoopThread, LoopEndedError

log = structlog.get_logger("tracejudge.judging")
# Batches leased by one script call.
_MAX_FETCHED: Final = 8
_MAX_GIVEN_UP: Final = 20
_MAX_SHIFTS: Final = 2
# A shift outlives `shift_s` by this much until its successor begins, whose message another worker may have received.
_HANDOVER_S: Final = 1.0
# Between two looks for batches that no message announced.
_LOOK_AGAIN_S: Final = 0.05
_NOTIFY_EVERY_S: Final = 0.5
# The leases of an event loop that has been blocked for so long are not renewed: another worker judges its batches.
LOOP_STALLED_S: Final = 10.0
_CANCEL_S: Final = 1.0


class QueueStatus(Protocol):
    """Whether this worker consumes the queue of a label now."""

    def __call__(self, label: str, *, needs_broker: bool = True) -> bool:
        """Return whether the queue is consumed; False without a connection to the broker if that is needed."""
        ...


class _Unconfigured(NoEndpoint):
    """The limits of a judge model that is not configured here: nothing may be called."""

    blocked_for_s = 1.0


class Shift:
    """One running task: the batches that it has fetched, and counts of their outcomes."""

    def __init__(self, windows: Sequence[PrefetchWindow]) -> None:
        self.windows = windows
        self.began_at = time.monotonic()
        # Those for whose judge model batches may be ready.
        self.windows_to_look_at = set(windows)
        self.in_progress: dict[LeasedBatch, None] = {}
        self.looked_at = 0.0
        self.notified_at = 0.0
        self.ended: deque[tuple[LeasedBatch, Callable[[], None]]] = deque()
        self._changed = threading.Event()
        self._is_in_wait = False
        self._outcomes: Counter[str] = Counter()
        self._batches = self._calls = self._tokens = 0
        self._usd = 0.0

    @property
    def seconds(self) -> float:
        """For how long it has been running."""
        return time.monotonic() - self.began_at

    @property
    def has_capacity(self) -> bool:
        """Whether more batches may be fetched, of those that may be ready."""
        return any(window.capacity() for window in tuple(self.windows_to_look_at))

    @property
    def is_waiting(self) -> bool:
        """Whether its thread waits, and nothing has changed meanwhile; any thread may ask."""
        return self._is_in_wait and not self._changed.is_set()

    def wake(self) -> None:
        """End its wait; called from any thread."""
        self._changed.set()

    def wait(self) -> None:
        """Wait until something has changed, or for a moment."""
        self._is_in_wait = True
        # Circuits and brokers open and close without waking a shift, and the event loop may die.
        self._changed.wait(0.5)
        self._is_in_wait = False
        self._changed.clear()

    def add(self, leased: Sequence[LeasedBatch]) -> None:
        """Add fetched batches."""
        self.in_progress.update(dict.fromkeys(leased))
        self._batches += len(leased)

    def end(self, leased: LeasedBatch, complete: Callable[[], None]) -> None:
        """Hand a batch whose evaluations have ended, and how to complete it, to the shift's thread."""
        self.ended.append((leased, complete))
        self.wake()

    def count(self, outcome: str, before: CallTotals, after: CallTotals) -> None:
        """Count an evaluation with its calls and cost before and after this round; called in the event loop."""
        self._outcomes[outcome] += 1
        self._calls += after.calls - before.calls
        self._tokens += after.input_tokens - before.input_tokens + after.output_tokens - before.output_tokens
        self._usd += (after.cost_usd or 0.0) - (before.cost_usd or 0.0)

    def report(self) -> dict[str, Any]:
        """Return counts: batches, evaluations by outcome, calls, tokens and cost."""
        counts = {"batches": self._batches, "calls": self._calls, "tokens": self._tokens}
        return {**counts, "evaluations": dict(self._outcomes), "usd": round(self._usd, 6)}


class JudgingConsumer:
    """The judging of one process, of the batches of one partition."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        evaluator: BatchEvaluator,
        ledger: Ledger,
        *,
        limits: Mapping[str, Limits],
        notifier: Notifier,
        serves: QueueStatus = lambda _label, needs_broker=True: True,  # noqa: ARG005 - the protocol's signature
        slots: Mapping[str, Slots] | None = None,
        loop: EventLoopThread | None = None,
    ) -> None:
        """Make the windows of all judge models. Consumers may share slots, and an event loop that outlives them."""
        self._notifier = notifier
        self._serves = serves
        self._settings = settings
        # The leases of its batches, of which ``held_leases`` are in progress here.
        self.leases = Leases(store, tries_ttl_s=settings.ledger_ttl_s)
        self._completion = Completion(self.leases, ledger, settings.give_up_after)
        self._evaluator = evaluator
        # The prefetch windows by judge model.
        self.windows = {
            name: PrefetchWindow(name, limit, settings.batch_size, None if slots is None else slots[name])
            for name, limit in limits.items()
        }

        def wake(window: PrefetchWindow) -> None:
            """Wake the current shift if a window has capacity for what may be ready."""
            current = self._current.get(window.label)
            if current is not None and window in current.windows_to_look_at and window.capacity() > 0:
                current.wake()

        for window in self.windows.values():
            window.slots.on_release(partial(wake, window))
        self._owns_loop = loop is None
        self.loop = loop or EventLoopThread("tracejudge-judging")  # The event loop in which evaluations run.
        self.held_leases = HeldLeases(self.leases, lambda task: self.loop.call(task.cancel))
        self._fetcher = BatchFetcher(self.leases, ledger)
        self._lock = threading.RLock()
        self._current: dict[str, Shift] = {}
        self._running: dict[str, list[Shift]] = {}
        self._started = self._stopping = self._ended = False
        self.hurried = False  # Whether a stop has no time left for work in progress.
        self.progressed_at = time.monotonic()

    @property
    def held(self) -> int:
        """How many batches are in progress here."""
        return len(self.held_leases)

    @property
    def running(self) -> list[Shift]:
        """The running shifts; any thread may ask."""
        with self._lock:
            return [shift for shifts in self._running.values() for shift in shifts]

    @property
    def pulse(self) -> Pulse:
        """The health of the event loop; any thread may ask."""
        return Pulse(self.progressed_at, has_ended=self._started and not self._stopping and not self._loop_is_well)

    @property
    def _loop_is_well(self) -> bool:
        return self.loop.running and time.monotonic() - self.progressed_at < LOOP_STALLED_S

    @property
    def _has_peers(self) -> bool:
        return self._notifier.workers > 1

    def circuits(self) -> dict[str, float | None]:
        """Return for how many seconds each judge model's circuit has been open here; None while that is unknown."""
        return {name: window.limits.open_for_s for name, window in self.windows.items()}

    def healthy_models(self) -> list[str]:
        """Return the judge models whose circuit is closed."""
        return [name for name, open_for_s in self.circuits().items() if open_for_s == 0]

    def models_to_probe(self) -> list[str]:
        """Return the judge models whose circuit is not known to be closed, and whose endpoint may be called now."""
        return [name for name, open_for_s in self.circuits().items() if open_for_s != 0 and not self._is_blocked(name)]

    def capacity(self) -> dict[str, bool]:
        """Return whether more batches of each judge model may be fetched here; the broker may be away."""
        return {
            name: window.capacity() > 0 and self._serves(window.label, needs_broker=False)
            for name, window in self.windows.items()
        }

    def shifts(self) -> dict[str, list[dict[str, Any]]]:
        """Return the running shifts by queue label, with the ids of their batches; any thread may ask."""
        with self._lock:
            running = {label: list(shifts) for label, shifts in self._running.items() if shifts}
        return {
            label: [
                {
                    "seconds": round(shift.seconds, 1),
                    "batches": [leased.lease.batch_id for leased in tuple(shift.in_progress)],
                }
                for shift in shifts
            ]
            for label, shifts in running.items()
        }

    def start(self) -> None:
        """Start the event loop and the renewal of leases."""
        self._started = True
        self.progressed_at = time.monotonic()
        if self._owns_loop:
            self.loop.start()
        self.loop.submit(self._beat())
        self.loop.submit(self._renew())

    def run(self, label: str) -> dict[str, Any] | None:
        """Judge ready batches of a queue label for some seconds, and wait until all that were fetched have ended.

        Returns counts, or None if a running shift does the work. Nothing is raised: after any error the batches stay
        in Redis, and the sweeper finds them.
        """
        shift = self._begin(label)
        if shift is None:
            return None
        try:
            self._fetch_while_current(label, shift)
            while shift.in_progress and self.loop.running and not self._ended:
                shift.wait()
                self._complete_ended(shift)
        finally:
            # Give batches back even if the thread is ended from outside, because no thread would complete them.
            self._abandon(shift)
            with self._lock:
                self._running[label].remove(shift)
                if self._current.get(label) is shift:
                    del self._current[label]
        report = shift.report()
        if report["batches"]:
            log.info("shift ended", model=label, seconds=round(shift.seconds, 2), **report)
        return report

    def renew_overdue(self) -> None:
        """Renew leases whose renewal is long overdue, unless the event loop is blocked."""
        if self._loop_is_well:
            self.held_leases.renew_overdue()

    def should_notify(self, judge_model: str, oldest_ms: int, open_circuits: Mapping[str, float]) -> bool:
        """Return whether a message should be sent for a judge model with ready batches, the oldest made at that time.

        ``open_circuits`` are those that are open in every worker. A shift can only give up the batches of such a model.
        """
        return not (judge_model in open_circuits and self._is_blocked(judge_model)) or oldest_ms < self._too_old_ms()

    def give_up(self, judge_model: str) -> None:
        """Make dead letters of the batches that are too old, for a judge model that no worker has configured."""
        window = PrefetchWindow(judge_model, _Unconfigured(1), self._settings.batch_size)
        shift = Shift([window])
        try:
            self._give_up(shift, window)
            while shift.in_progress and self.loop.running and not self._stopping:
                shift.wait()
                self._complete_ended(shift)
        finally:
            self._abandon(shift)

    def stop(self, grace_s: float) -> None:
        """Stop fetching and calling, wait ``grace_s`` for calls in flight, release the rest, and end the loop."""
        # Calls in flight are paid for, so they are worth waiting for. Evaluations that wait for a permit are another
        # worker's as soon as their batch is released.
        if self._stopping:
            return
        self._stopping = True
        for window in self.windows.values():
            self.loop.call(window.limits.close)
        self._wake_all()
        self._wait_while(lambda: self.held > 0 and not self.hurried, grace_s)
        self.held_leases.cancel_all()
        self._wait_while(lambda: self.held_leases.is_busy, _CANCEL_S)
        with contextlib.suppress(TimeoutError, LoopEndedError):
            # Without Redis the last verdicts cannot be written; their batches stay, and are judged again.
            self.loop.wait(self._evaluator.aclose(), timeout_s=0.3 if self.hurried else 2.0)
        self._ended = True
        self._wake_all()
        if self._owns_loop:
            self.loop.stop()

    def hurry(self) -> None:
        """End the wait of a running stop for batches in progress; any thread or signal handler may call it."""
        self.hurried = True

    def _is_blocked(self, judge_model: str) -> bool:
        window = self.windows.get(judge_model)
        return window is not None and window.is_blocked

    def has_shift(self, label: str) -> bool:
        """Return whether a shift of a queue label runs that no message would replace by another."""
        current = self._current.get(label)
        if current is None or self._stopping:
            return False
        return current.seconds < self._settings.shift_s or len(self._running[label]) >= _MAX_SHIFTS

    def look_again(self, label: str) -> bool:
        """Make the running shift of a queue label look for ready batches; False if there is none."""
        with self._lock:
            is_running = self.has_shift(label)
            if is_running:
                current = self._current[label]
                current.windows_to_look_at.update(current.windows)
                current.wake()
            return is_running

    def _begin(self, label: str) -> Shift | None:
        windows = [window for window in self.windows.values() if window.label == label]
        with self._lock:
            if self._stopping or not self._started or not windows or self.look_again(label):
                return None
            running, current = self._running.setdefault(label, []), self._current.get(label)
            if len(running) >= _MAX_SHIFTS:
                return None
            shift = self._current[label] = Shift(windows)
            running.append(shift)
        if current is not None:
            current.wake()
        return shift

    def _fetch_while_current(self, label: str, shift: Shift) -> None:
        """Fetch until a successor takes over, no work is left, or judging has to end."""
        while self._current.get(label) is shift:
            if self._stopping or not self.loop.running or not self._serves(label):
                break
            # Fetch before completing, because free slots wait for batches, and nothing waits for a completed one.
            self._fetch(shift)
            self._complete_ended(shift)
            if self._is_idle(label, shift):
                return
            if self._may_hand_over(label, shift) or (self._has_peers and not shift.has_capacity):
                self._notify(label, shift)
            # Batches that may be ready wait for the successor, if one begins soon.
            if self._may_hand_over(label, shift, _HANDOVER_S if shift.windows_to_look_at else 0.0):
                break
            if not shift.has_capacity:
                shift.wait()
        with self._lock:
            was_current = self._current.get(label) is shift
            if was_current:
                del self._current[label]
        # Without peers a message would only come back to this worker, which does not serve the queue now.
        if was_current and not self._stopping and (self._serves(label) or self._has_peers):
            self._notify(label, shift)

    def _is_idle(self, label: str, shift: Shift) -> bool:
        """Return whether nothing is in progress or can be fetched; from then on a message starts a new shift."""
        if shift.in_progress:
            return False
        with self._lock:
            waits_for_capacity = not all(window.is_blocked for window in shift.windows_to_look_at)
            if waits_for_capacity or self._current.get(label) is not shift:
                return False
            del self._current[label]
            return True

    def _may_hand_over(self, label: str, shift: Shift, after_s: float = 0.0) -> bool:
        """Return whether a shift has run for ``shift_s`` and ``after_s`` more, and a successor may begin here."""
        return shift.seconds > self._settings.shift_s + after_s and len(self._running[label]) < _MAX_SHIFTS

    def _notify(self, label: str, shift: Shift) -> None:
        """Send a message if batches may be left, for a successor or for another worker that has capacity."""
        if shift.windows_to_look_at and time.monotonic() - shift.notified_at > _NOTIFY_EVERY_S:
            shift.notified_at = time.monotonic()
            self._notifier.notify(label)

    def _fetch(self, shift: Shift) -> None:
        """Fetch as capacity allows. After an error the batches are left to the sweeper."""
        for window in tuple(shift.windows_to_look_at):
            try:
                if (count := min(window.capacity(), _MAX_FETCHED)) > 0:
                    # Discard it before asking Redis: a message that arrives meanwhile adds it again.
                    shift.windows_to_look_at.discard(window)
                    if self._lease(shift, window, count) == count:
                        shift.windows_to_look_at.add(window)
                elif window.is_blocked:
                    self._give_up(shift, window)
            except StoreError as error:
                log.warning("batches left to the sweeper", judge_model=window.judge_model, error=str(error))
                shift.windows_to_look_at.discard(window)
            except Exception as error:  # noqa: BLE001 - Celery would log the text of the error, which may quote a trace
                kind = type(error).__name__
                log.error("unexpected error", judge_model=window.judge_model, error=kind)  # noqa: TRY400
                shift.windows_to_look_at.discard(window)

    def _give_up(self, shift: Shift, window: PrefetchWindow) -> None:
        """Fetch batches that are too old to wait for a blocked endpoint, which then become dead letters."""
        for _ in range(_MAX_GIVEN_UP):
            if not window.is_blocked or not window.has_memory:
                return
            if self._lease(shift, window, _MAX_FETCHED, self._too_old_ms()) < _MAX_FETCHED:
                return

    def _too_old_ms(self) -> int:
        return int((time.time() - self._settings.give_up_after) * 1000)

    def _lease(self, shift: Shift, window: PrefetchWindow, limit: int, made_before_ms: int | None = None) -> int:
        with self.held_leases.acquiring():
            if self._stopping:
                return 0
            shift.looked_at = time.monotonic()
            count, leased = self._fetcher.fetch(window, limit, made_before_ms=made_before_ms)
            shift.add(leased)
            for batch in leased:
                self.held_leases.add(batch.lease)
                self.loop.call(partial(self._submit, shift, batch))
        return count

    def _submit(self, shift: Shift, leased: LeasedBatch) -> None:
        task = asyncio.get_running_loop().create_task(self._judge(shift, leased))
        if not self.held_leases.begin(leased.lease, task):
            # It was cancelled before its first step, so nothing of it runs.
            leased.release()
            shift.end(leased, partial(self.leases.put_back, leased.lease))

    async def _judge(self, shift: Shift, leased: LeasedBatch) -> None:
        """Evaluate a batch, and choose how it is completed."""
        window = leased.window

        def release_one() -> None:
            leased.release(1)
            window.slots.report_release()

        complete: Callable[[], None]
        try:
            unfinished = await self._evaluator.run(leased.batch, leased.tries, release_one, shift.count)
            if self._stopping:
                # Another worker need not wait, because only the stop turned the evaluations away.
                complete = partial(self._completion.release, leased, unfinished)
            else:
                blocked_for_s = window.limits.blocked_for_s
                complete = partial(self._completion.finish_or_park, leased, unfinished, blocked_for_s=blocked_for_s)
        except asyncio.CancelledError:
            # At shutdown or after a lost lease. Then `put_back` changes nothing, because it checks the holder.
            complete = partial(self.leases.put_back, leased.lease)
        except Exception as error:  # noqa: BLE001 - the text of an unexpected error may quote a trace
            log.error("unexpected error", batch=leased.batch.id, error=type(error).__name__)  # noqa: TRY400
            complete = partial(self.leases.put_back, leased.lease, delay_s=FAULT_PARKING_S)
        leased.release()
        shift.end(leased, complete)

    def _complete_ended(self, shift: Shift) -> None:
        while shift.ended:
            leased, complete = shift.ended.popleft()
            try:
                complete()
            except StoreError as error:
                log.warning("batch left to the sweeper", batch=leased.batch.id, error=str(error))
            except Exception as error:  # noqa: BLE001 - the text of an unexpected error may quote a trace
                log.error("unexpected error", batch=leased.batch.id, error=type(error).__name__)  # noqa: TRY400
                with contextlib.suppress(StoreError):
                    # Park it, or it is judged and paid for again and again.
                    self.leases.put_back(leased.lease, delay_s=FAULT_PARKING_S)
            finally:
                self.held_leases.remove(leased.lease)
            shift.in_progress.pop(leased, None)
            if time.monotonic() - shift.looked_at > _LOOK_AGAIN_S:
                shift.windows_to_look_at.update(shift.windows)

    def _abandon(self, shift: Shift) -> None:
        """Let the leases of batches lapse that the shift does not complete."""
        for leased in tuple(shift.in_progress):
            self.held_leases.abandon(leased.lease)
            if not self.loop.running:
                leased.release()

    def _wake_all(self) -> None:
        for shift in self.running:
            shift.wake()

    def _wait_while(self, condition: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while condition() and self._loop_is_well and time.monotonic() < deadline:
            time.sleep(0.02)

    async def _beat(self) -> None:
        while True:
            self.progressed_at = time.monotonic()
            await asyncio.sleep(1.0)

    async def _renew(self) -> None:
        while not self._stopping or self.held_leases:
            await asyncio.sleep(RENEW_S)
            try:
                await asyncio.to_thread(self.held_leases.renew)
            except Exception as error:  # noqa: BLE001 - were this to end, all leases would lapse unnoticed
                log.warning("leases not renewed", error=type(error).__name__)
