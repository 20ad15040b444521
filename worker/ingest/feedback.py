"""Late feedback: gathered for a while, then its traces are sought in one pass over the stream and judged.

Ingest has moved the feedback from the stream into a set of its own and acknowledged it there; it stays in that set
until the script that deals with it takes it out. So a worker may die at any moment: another makes the pass again.

What would be judged by a model that is away, while too much of its work waits, is postponed from pass to pass: it is
pulled in once the model is back, or not found any more when the stream's caps have cut its trace off meanwhile.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from operator import gt
from typing import Final, NamedTuple

import structlog

from judges.judge import Judge
from worker.ingest.gathered import Gathered, Member
from worker.ingest.plan import Planner
from worker.ingest.pull import Puller, Sought
from worker.ingest.search import Search
from worker.metrics import Metrics
from worker.pressure import Pressure
from worker.settings import Settings
from worker.stage import Stage
from worker.store import Store

__all__ = ["LateFeedbackPasses"]

log = structlog.get_logger("tracejudge.ingest")

_LOOK_EVERY_S: Final = 1.0
_PIECE_PAUSE_S: Final = 0.005
"""Between two pieces, so that a pass never holds up who reads and judges."""
_PRESSURE_PAUSE_S: Final = 0.2


class _Size(NamedTuple):
    """What makes one script call large."""

    complaints: int
    publications: int
    payload_bytes: int


_PART: Final = _Size(complaints=500, publications=200, payload_bytes=8 * 1024 * 1024)


class _Pass:
    """One pass under way: seek first, then deal with one part after another."""

    def __init__(self, store: Store, members: list[Member]) -> None:
        self.began_at = time.monotonic()
        self.outcomes: dict[str, int] = {}
        self.part: list[Sought] | None = None
        self._about: dict[str, list[Member]] = {}
        for member in members:
            self._about.setdefault(member.complaint.trace_id, []).append(member)
        self.search = Search(store, self._about)
        self.seeking = True
        self._parts = self._divide()

    def advance(self) -> None:
        """Go on to the next part; None is behind the last one."""
        self.part = next(self._parts, None)

    def count(self, outcome: str, amount: int) -> None:
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + amount

    def _divide(self) -> Iterator[list[Sought]]:
        """Divide the complaints into parts that one script call may hold; one trace is never divided."""
        part: list[Sought] = []
        filled = _Size(0, 0, 0)
        for trace_id, members in self._about.items():
            sought = Sought(trace_id, members, self.search.found(trace_id))
            size = _Size(len(members), len(sought.found), sum(one.size for one in sought.found))
            filled = _Size(*map(sum, zip(filled, size, strict=True)))
            if part and any(map(gt, filled, _PART)):
                yield part
                part, filled = [], size
            part.append(sought)
        if part:
            yield part


class LateFeedbackPasses(Stage):
    """Makes the passes of one worker; of several workers one at a time."""

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
            pressure: Tells when nothing more is chosen, and for which judge models.
            judges: By name; those of the settings unless given.
        """
        super().__init__("late-feedback")
        self._settings = settings
        self._store = store
        self._metrics = metrics
        self._gathered = Gathered(store, settings.late_feedback_wait)
        self._puller = Puller(settings, store, Planner(settings, store.keys, judges))
        self._wake = wake
        self._pressure = pressure
        self._look_every_s = min(_LOOK_EVERY_S, settings.late_feedback_wait)
        self._pass: _Pass | None = None

    def prepare(self) -> None:
        """Nothing to prepare."""

    def turn(self) -> None:
        """Look whether a pass is due, or make one piece of it."""
        if self._pass is None:
            self._pass = self._begin()
            if self._pass is None:
                self.stopping.wait(self._look_every_s)
        elif not self._gathered.hold():
            # We were away for longer than the lease, and another worker makes the pass again from its beginning.
            self._pass = None
        elif self._pass.seeking:
            self._seek(self._pass)
        elif self._pass.part is None:
            self._end(self._pass)
        elif self._pressure.bounds.paused:
            self.stopping.wait(_PRESSURE_PAUSE_S)
        else:
            self._deal(self._pass, self._pass.part)

    def _begin(self) -> _Pass | None:
        if not self._gathered.due() or not self._gathered.hold():
            return None
        return _Pass(self._store, self._gathered.all())

    def _seek(self, current: _Pass) -> None:
        current.seeking = current.search.step()
        if current.seeking:
            self.stopping.wait(_PIECE_PAUSE_S)
        else:
            current.advance()

    def _deal(self, current: _Pass, part: list[Sought]) -> None:
        pulled = self._puller.pull(part, self._pressure.bounds.shed)
        if pulled.later:
            self._gathered.postpone([raw.encode() for raw in pulled.later])
        current.advance()
        for outcome, amount in pulled.outcomes.items():
            self._metrics.late_feedback.labels(outcome).inc(amount)
            current.count(outcome, amount)
        for batch_id in pulled.made:
            self._wake(batch_id)

    def _end(self, current: _Pass) -> None:
        seconds = round(time.monotonic() - current.began_at, 2)
        log.info("late feedback sought", entries=current.search.read, seconds=seconds, **current.outcomes)
        self._pass = None
        self._gathered.release()
