"""Wake batches whose time has come: the wake-up was lost, the holder is dead, or the parking is over."""

from collections.abc import Callable
from typing import Final

from worker.leases import Leases
from worker.stage import Stage
from worker.store import Store

__all__ = ["Sweeper"]

_EVERY_S: Final = 1.0
_MAX_AT_ONCE: Final = 200


class Sweeper(Stage):
    """Sends due batches again, as many as this process has free hands.

    Were due batches sent without regard to that, a full queue would grow by the same wake-ups over and over. A
    process with free hands has an empty queue, so what is due then was really lost.
    """

    role = "judge"

    def __init__(self, store: Store, *, wake: Callable[[str], None], free: Callable[[], int]) -> None:
        """Take how to wake a judge, and how many batches could run right now."""
        super().__init__("sweeper")
        self._leases = Leases(store)
        self._wake = wake
        self._free = free

    def prepare(self) -> None:
        """Nothing to prepare."""

    def turn(self) -> None:
        """Look once, then wait."""
        free = min(self._free(), _MAX_AT_ONCE)
        if free:
            for batch_id in self._leases.due(free):
                self._wake(batch_id)
        self.stopping.wait(_EVERY_S)
