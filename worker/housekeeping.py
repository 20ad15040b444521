"""Once a second: trim the stream to its caps, and set the gauges that tell where the pipeline stands."""

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Final

from worker.circuits import Circuits
from worker.consumers import retire
from worker.dead.cutting import cut
from worker.keys import INGEST_GROUP
from worker.leases import LEASE_MS
from worker.measure import Caps, measure
from worker.metrics import Metrics
from worker.presence import Presence
from worker.pressure import Pressure
from worker.readiness import Readiness
from worker.settings import Settings
from worker.stage import Stage
from worker.standing import marks
from worker.store import Store, StoreError

__all__ = ["Housekeeping"]

_EVERY_S: Final = 1.0
_TIDY_EVERY_S: Final = 60.0
_SET_BACK_MS: Final = 1_000
"""A clock that goes back by less was trimmed, and not set."""
_MEAN_AGE_MS: Final = 900
"""What an entry takes is found out once a second by one of the workers: Redis looks at all of them for it."""


class Housekeeping(Stage):
    """Keeps the streams within their caps and the gauges up to date."""

    role = "housekeeping"

    def __init__(
        self,
        settings: Settings,
        store: Store,
        metrics: Metrics,
        *,
        groups: tuple[str, ...],
        readiness: Readiness,
        room: Callable[[], Mapping[str, bool]],
        pressure: Pressure,
        circuits: Circuits,
    ) -> None:
        """Prepare the thread; ``start`` begins.

        Args:
            groups: The exporters of the outbox.
            readiness: Is told each second where those stand who take from streams and ready batches.
            room: Whether more batches of each judge model may be taken here; nothing where this worker does not judge.
            pressure: Is told each second what waits, and which judge models are dead.
            circuits: The exchange of how circuits stand.
        """
        super().__init__("housekeeping")
        self._settings = settings
        self._store = store
        self._metrics = metrics
        self._groups = groups
        self._readiness = readiness
        self._room = room
        self._presence = Presence(store)
        self._pressure = pressure
        self._tidies_at = 0.0
        self._circuits = circuits

    def prepare(self) -> None:
        """Nothing to prepare."""

    def turn(self) -> None:
        """Look once, then wait."""
        settings, metrics = self._settings, self._metrics
        oldest = f"{self._now_ms() - int(settings.retention * 1000)}-0"
        caps = Caps(oldest, settings.max_stream_bytes, settings.max_stream, _MEAN_AGE_MS)
        dead = self._circuits.exchange()
        found = measure(self._store, caps, groups=self._groups, tell=True, dead_models=sorted(dead))
        self._pressure.hear_dead(dead)
        self._pressure.hear_waiting(found.waiting)
        metrics.stream_lag.set(found.traces.lag)
        metrics.stream_oldest.set(found.traces.oldest_ms / 1000)
        metrics.stream_capacity.set(found.capacity)
        metrics.cut_off.inc(found.traces.newly_cut)
        metrics.batches_waiting.set(found.batches - found.parked)
        metrics.batches_parked.set(found.parked)
        metrics.dead_letters.set(found.dead)
        for exporter, position in found.outbox.items():
            metrics.outbox_lag.labels(exporter).set(position.lag)
            metrics.outbox_cut_off.labels(exporter).inc(position.newly_cut)
        self._once_a_minute()
        self._tell_progress()
        self.stopping.wait(_EVERY_S)

    def _tell_progress(self) -> None:
        """Tell readiness where takers stand, and other processes how the roles fare here."""
        paused = ("ingest",) if self._pressure.bounds.paused else ()
        self._readiness.hear(marks(self._store, self._groups, self._room()), paused)
        self._presence.tell({state.role: state.ready for state in self._readiness.roles()})

    def stop(self, timeout_s: float) -> bool:
        """End the thread, and say that this worker is gone."""
        ended = super().stop(timeout_s)
        with contextlib.suppress(StoreError):
            self._presence.leave()
        return ended

    def _now_ms(self) -> int:
        """Ask for Redis' time, which made the ids: by a clock that runs ahead the whole stream would be thrown away."""
        keys = self._store.keys
        names = (keys.clock, keys.leases, keys.feedback, keys.traces, keys.verdicts)
        return int(self._store.run("clock", names, (LEASE_MS, _SET_BACK_MS)))

    def _once_a_minute(self) -> None:
        """Take the names of dead workers out of the groups, and cut the dead letters to their bounds."""
        if time.monotonic() < self._tidies_at:
            return
        self._tidies_at = time.monotonic() + _TIDY_EVERY_S
        keys = self._store.keys
        readers = ((keys.traces, INGEST_GROUP), *((keys.verdicts, group) for group in self._groups))
        for stream, group in readers:
            retire(self._store, stream, group)
        self._metrics.dead_cut_off.inc(cut(self._store, self._settings))
