"""Once a second: trim the stream to its caps, and set the gauges that tell where the pipeline stands."""

import time
from collections.abc import Callable, Mapping
from typing import Final

from worker.books import Caps, measure
from worker.metrics import Metrics
from worker.settings import Settings
from worker.stage import Stage
from worker.store import Store

__all__ = ["Housekeeping"]

_EVERY_S: Final = 1.0
_STALLED_S: Final = 60.0


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
    ) -> None:
        """Prepare the thread; ``start`` begins.

        Args:
            groups: The exporters of the outbox.
            progress: By role, when it last made progress, on the steady clock.
        """
        super().__init__("housekeeping")
        self.waiting_bytes = 0
        self._settings = settings
        self._store = store
        self._metrics = metrics
        self._groups = groups
        self._progress = progress

    def prepare(self) -> None:
        """Nothing to prepare."""

    def turn(self) -> None:
        """Look once, then wait."""
        self._show_readiness()
        settings, metrics = self._settings, self._metrics
        # By Redis' clock, which made the ids: a worker whose own runs ahead would throw the whole stream away.
        seconds, _ = self._store.call(lambda client: client.time())
        oldest = f"{int((seconds - settings.retention) * 1000)}-0"
        caps = Caps(oldest, settings.max_stream_bytes, settings.max_stream)
        found = measure(self._store, caps, groups=self._groups, tell=True)
        self.waiting_bytes = found.waiting_bytes
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
        self.stopping.wait(_EVERY_S)

    def stumbled(self, error: Exception) -> None:
        """Show that nothing moves also while Redis is away."""
        self._show_readiness()
        super().stumbled(error)

    def _show_readiness(self) -> None:
        for role, progressed_at in self._progress.items():
            self._metrics.ready.labels(role).set(time.monotonic() - progressed_at() < _STALLED_S)
