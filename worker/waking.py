"""Send wake-ups from a thread of their own: a broker that hangs takes ten seconds a message, and ingest has no time.

A wake-up that is lost costs at most a second, for each worker looks once a second by itself. So the queue is short,
and what does not fit is dropped.
"""

import queue
from collections.abc import Callable
from typing import Final

import structlog
from kombu.exceptions import KombuError

from worker.batches import mark_of
from worker.stage import Stage

__all__ = ["Waking"]

log = structlog.get_logger("tracejudge.waking")

_MAX_WAITING: Final = 256
_LOOK_S: Final = 0.5
_GATHER_S: Final = 0.01
"""A message costs Celery about a millisecond of CPU at either end, more than an evaluation."""


class Waking(Stage):
    """Takes batch ids from any thread, and sends a wake-up for each while the broker bears it."""

    role = "ingest"

    def __init__(self, send: Callable[[str], None]) -> None:
        """Prepare the thread; ``start`` begins.

        Args:
            send: Sends the wake-up for a batch; raises KombuError or OSError when the broker is away.
        """
        super().__init__("waking")
        self._send = send
        self._waiting: queue.Queue[str] = queue.Queue(_MAX_WAITING)
        self._away = False
        self.dropped = 0
        """Wake-ups that were never sent."""

    def wake(self, batch_id: str) -> None:
        """Have a wake-up sent soon, or not at all; returns at once."""
        try:
            self._waiting.put_nowait(batch_id)
        except queue.Full:
            self.dropped += 1

    def prepare(self) -> None:
        """Nothing to prepare."""

    def turn(self) -> None:
        """Send one wake-up for each judge model that has work, if there is any before long."""
        gathered = self._gathered()
        for place, batch_id in enumerate(gathered):
            try:
                self._send(batch_id)
            except (KombuError, OSError) as error:
                self._lost(error, len(gathered) - place)
                return
            self._tell(away=False)
        self.stopping.wait(_GATHER_S)

    def _gathered(self) -> list[str]:
        """Take what waits, but of each judge model only the first: who hears it takes all that there is room for."""
        try:
            first = self._waiting.get(timeout=_LOOK_S)
        except queue.Empty:
            return []
        gathered = {mark_of(first) or first: first}
        while not self._waiting.empty():
            batch_id = self._waiting.get_nowait()
            gathered.setdefault(mark_of(batch_id) or batch_id, batch_id)
        return list(gathered.values())

    def _lost(self, error: Exception, unsent: int) -> None:
        """Drop what waits as well: it is late already, and each would try the broker's patience anew."""
        self.dropped += unsent
        while not self._waiting.empty():
            self._waiting.get_nowait()
            self.dropped += 1
        self._tell(away=True, error=type(error).__name__)

    def _tell(self, *, away: bool, **fields: str) -> None:
        """Say once that wake-ups are lost, and once that they are sent again."""
        if away and not self._away:
            log.warning("wake-ups are lost, workers find batches once a second", **fields)
        elif self._away and not away:
            log.info("wake-ups are sent again", dropped=self.dropped)
        self._away = away
