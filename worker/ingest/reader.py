"""The ingest thread: read, sample, put into batches, wake a judge; and take over what a dead reader left."""

import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
import structlog

from judges.judge import Judge
from worker.consumers import leave
from worker.ingest.counting import Answer, Counting
from worker.ingest.draft import Plan
from worker.ingest.entries import read_entry
from worker.ingest.plan import Planner
from worker.keys import INGEST_GROUP
from worker.metrics import Metrics
from worker.pressure import Bounds, Pressure
from worker.settings import Settings
from worker.stage import Stage
from worker.store import Entry, Store, StoreError

__all__ = ["Ingest"]

log = structlog.get_logger("tracejudge.ingest")

_READ_COUNT: Final = 1_000
_FIRST_READ_COUNT: Final = 32
_READ_BYTES: Final = 32 * 1024 * 1024
"""About how much is read at once: entries may be megabytes each, and all of them pass through one script call."""
_STEP_WORK: Final = 4_000
_CHOSEN_WORK: Final = 20
"""What a chosen trace costs Redis against one that ends here; it serves nobody else while a script runs."""
_BLOCK_MS: Final = 1000
_STALE_MS: Final = 10_000
"""Entries are dealt with within milliseconds; who has held one that long is dead or cut off."""
_CLAIM_EVERY_S: Final = 3.0
_PRESSURE_PAUSE_S: Final = 0.2
_TALE_EVERY_S: Final = 60.0


class Ingest(Stage):
    """Moves entries from the stream into batches, exactly once each."""

    role = "ingest"

    def __init__(
        self,
        settings: Settings,
        store: Store,
        metrics: Metrics,
        *,
        wake: Callable[[str], None],
        pressure: Pressure,
        judges: Mapping[str, Judge] | None = None,
    ) -> None:
        """Prepare the thread; ``start`` begins.

        Args:
            wake: Sends the wake-up for a batch; may fail, since the sweeper sends another.
            pressure: Tells when reading pauses and what is shed, and is told what waits after each choice.
            judges: By name; those of the settings unless given.
        """
        super().__init__("ingest")
        self._settings = settings
        self._store = store
        self._counting = Counting(settings, metrics)
        self._planner = Planner(settings, store.keys, judges)
        self._wake = wake
        self._pressure = pressure
        self._told = Bounds(paused=False, shed=frozenset())
        self._told_pause = False
        self._next_tale = 0.0
        self._consumer = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        self._read_count = _FIRST_READ_COUNT
        self._next_claim = 0.0

    def prepare(self) -> None:
        """Make the consumer group."""
        self._store.make_group(self._store.keys.traces, INGEST_GROUP)

    def turn(self) -> None:
        """Read once and deal with all of it."""
        bounds = self._pressure.bounds
        self._tell(bounds)
        if bounds.paused:
            self.stopping.wait(_PRESSURE_PAUSE_S)
            return
        entries = self._stale() + self._store.read_group(
            self._store.keys.traces, INGEST_GROUP, self._consumer, count=self._read_count, block_ms=_BLOCK_MS
        )
        if entries:
            sizes = list(map(_size, entries))
            chosen = sum(map(self.take, _parts(entries, sizes)))
            self._read_count = _next_count(self._read_count, sizes, chosen)

    def take(self, entries: Sequence[Entry]) -> int:
        """Put entries into the books and batches, wake a judge for each batch, and return how many traces are chosen.

        Raises:
            StoreError: The stage ends before Redis answers; the entries stay pending and are claimed later.
        """
        max_bytes = self._settings.max_trace_bytes
        plan = self._planner.plan((read_entry(entry, max_bytes) for entry in entries), self._pressure.bounds.shed)
        answer = self._choose(plan)
        if answer.made:
            # At once: until Redis is measured again, a second's worth of work would be chosen past the bound.
            self._pressure.hear_waiting(answer.waiting)
        self._counting.count(plan, answer)
        for batch_id in answer.made:
            self._wake(batch_id)
        return len(plan.traces)

    def stop(self, timeout_s: float) -> bool:
        """Stop the thread; when it has ended and left nothing behind, take its name out of the group."""
        ended = super().stop(timeout_s)
        if ended:
            leave(self._store, self._store.keys.traces, INGEST_GROUP, self._consumer)
        return ended

    def _choose(self, plan: Plan) -> Answer:
        """Run the script until Redis answers: it may be repeated, and giving up would leave the entries hanging."""
        while True:
            try:
                return msgspec.json.decode(self._store.run("choose", plan.keys, plan.arguments), type=Answer)
            except StoreError as error:
                if self.stopping.is_set():
                    raise
                self.stumbled(error)

    def _stale(self) -> list[Entry]:
        if time.monotonic() < self._next_claim:
            return []
        self._next_claim = time.monotonic() + _CLAIM_EVERY_S
        return self._store.claim_stale(
            self._store.keys.traces, INGEST_GROUP, self._consumer, idle_ms=_STALE_MS, count=self._read_count
        )

    def _tell(self, bounds: Bounds) -> None:
        """Say once when reading pauses, and when choosing for a judge model ends or begins again."""
        before, self._told = self._told, bounds
        if bounds.paused != before.paused:
            self._tell_of_pause(paused=bounds.paused)
        for judge_model in sorted(bounds.shed - before.shed):
            log.warning("evaluations are shed", judge_model=judge_model, reason="it is away, and too much work waits")
        for judge_model in sorted(before.shed - bounds.shed):
            log.info("evaluations are chosen again", judge_model=judge_model)

    def _tell_of_pause(self, *, paused: bool) -> None:
        """Name who is slow; at its bound a model may have reading pause and go on many times a minute."""
        now = time.monotonic()
        if paused and now >= self._next_tale:
            self._next_tale, self._told_pause = now + _TALE_EVERY_S, True
            reason = "max_waiting_bytes of their work are unfinished"
            log.warning("reading pauses", judge_models=sorted(self._pressure.slow), reason=reason)
        elif not paused and self._told_pause:
            self._told_pause = False
            log.info("reading goes on")


def _next_count(count: int, sizes: Sequence[int], chosen: int) -> int:
    """Read twice as many entries next time, as long as so many of their kind stay within the bounds of one read."""
    by_bytes = _READ_BYTES * len(sizes) // max(1, sum(sizes))
    by_work = _STEP_WORK * len(sizes) // (len(sizes) + _CHOSEN_WORK * chosen)
    return max(1, min(2 * count, by_bytes, by_work, _READ_COUNT))


def _parts(entries: Sequence[Entry], sizes: Sequence[int]) -> Iterator[Sequence[Entry]]:
    """Divide what was read into parts that one script call may hold, whatever came after the small entries."""
    first = filled = 0
    for place, size in enumerate(sizes):
        if place > first and filled + size > _READ_BYTES:
            yield entries[first:place]
            first, filled = place, 0
        filled += size
    yield entries[first:]


def _size(entry: Entry) -> int:
    return sum(map(len, (entry[1] or {}).values()))
