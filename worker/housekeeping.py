"""Once a second: trim the stream to its caps, and set the gauges that tell where the pipeline stands."""

import time
from collections.abc import Callable, Mapping
from typing import Final

from worker.books import Caps, measure
from worker.circuits import Circuits
from worker.consumers import retire
from worker.keys import INGEST_GROUP
from worker.metrics import Metrics
from worker.pressure import Pressure
from worker.settings import Settings
from worker.stage import Stage
from worker.store import Store

__all__ = ["Housekeeping"]

_EVERY_S: Final = 1.0
_STALLED_S: Final = 60.0
_RETIRE_EVERY_S: Final = 60.0
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
        progress: Mapping[str, Callable[[], float]],
        pressure: Pressure,
        circuits: Callable[[], Mapping[str, bool]],
    ) -> None:
        """Prepare the thread; ``start`` begins.

        Args:
            groups: The exporters of the outbox.
            progress: By role, when it last made progress, on the steady clock.
            pressure: Is told each second what waits, and which judge models are dead.
            circuits: Whether the circuit of each judge model is open here; nothing where this worker does not judge.
        """
        super().__init__("housekeeping")
        self._settings = settings
        self._store = store
        self._metrics = metrics
        self._groups = groups
        self._progress = progress
        self._pressure = pressure
        self._retires_at = 0.0
        self._circuits = Circuits(store, circuits)

    def prepare(self) -> None:
        """Nothing to prepare."""

    def turn(self) -> None:
        """Look once, then wait."""
        self._show_readiness()
        settings, metrics = self._settings, self._metrics
        # By Redis' clock, which made the ids: a worker whose own runs ahead would throw the whole stream away.
        seconds, _ = self._store.call(lambda client: client.time())
        oldest = f"{int((seconds - settings.retention) * 1000)}-0"
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
        self._retire_consumers()
        self.stopping.wait(_EVERY_S)

    def stumbled(self, error: Exception) -> None:
        """Show that nothing moves also while Redis is away."""
        self._show_readiness()
        super().stumbled(error)

    def _retire_consumers(self) -> None:
        """Take the names of dead workers out of the groups."""
        if time.monotonic() < self._retires_at:
            return
        self._retires_at = time.monotonic() + _RETIRE_EVERY_S
        keys = self._store.keys
        readers = ((keys.traces, INGEST_GROUP), *((keys.verdicts, group) for group in self._groups))
        for stream, group in readers:
            retire(self._store, stream, group)

    def _show_readiness(self) -> None:
        for role, progressed_at in self._progress.items():
            self._metrics.ready.labels(role).set(time.monotonic() - progressed_at() < _STALLED_S)
