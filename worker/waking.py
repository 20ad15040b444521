"""Send wake-ups from a thread of their own: a broker that hangs takes ten seconds a message, and ingest has no time.

A wake-up that is lost costs at most a second, for each worker looks once a second by itself. So the queue is short,
and what does not fit is dropped.
"""

import queue
from collections.abc import Callable
from typing import Final

import structlog
from kombu.exceptions import KombuError

from worker.stage import Stage

__all__ = ["Waking"]

log = structlog.get_logger("tracejudge.waking")

_MAX_WAITING: Final = 256
_LOOK_S: Final = 0.5


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
        """Send one wake-up, if there is one before long."""
        try:
            batch_id = self._waiting.get(timeout=_LOOK_S)
        except queue.Empty:
            return
        try:
            self._send(batch_id)
        except (KombuError, OSError) as error:
            self._lost(error)
        else:
            self._tell(away=False)

    def _lost(self, error: Exception) -> None:
        """Drop what waits as well: it is late already, and each would try the broker's patience anew."""
        self.dropped += 1
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
