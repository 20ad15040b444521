"""Base of the watches: parts of the active monitor that run at an interval and show gauges."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import Gauge

from worker.core.storage.client import Store

Sample = tuple[Gauge, tuple[str, ...], float]
"""A gauge with its labels and its value."""
_RETRY_S: Final = 60.0


class Watch(ABC):
    """Runs when it is due, and shows gauges whose label sets come and go; a label set belongs to one watch.

    Attributes:
        every_s: The interval.
    """

    every_s: float = 60.0

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._next_run = 0.0
        self._shown: set[tuple[Gauge, tuple[str, ...]]] = set()

    def run_due(self) -> None:
        """Run if the interval has passed; called every second or two.

        Raises:
            StoreError: Redis did not answer; the gauges stay as they are, and it is safe to call again.
        """
        now = self._clock()
        if now >= self._next_run:
            # A run that fails waits as well: it must not keep the watches behind it from theirs.
            self._next_run = now + min(_RETRY_S, self.every_s)
            self._next_run = now if self.run(now) else now + self.every_s

    @abstractmethod
    def run(self, now: float) -> bool | None:
        """Do the work and show the gauges; return True if the rest of the work is for a run that follows at once.

        Args:
            now: The time by the clock of the watch.

        Raises:
            StoreError: Redis did not answer.
        """

    def show(self, samples: Iterable[Sample]) -> None:
        """Set these gauges, and remove all label sets that were shown before and are not among them."""
        shown = set()
        for gauge, labels, value in samples:
            gauge.labels(*labels).set(value)
            shown.add((gauge, labels))
        for gauge, labels in self._shown - shown:
            gauge.remove(*labels)
        self._shown = shown

    def clear(self) -> None:
        """Remove all gauges, and be due at once: another worker is the active monitor."""
        self._next_run = 0.0
        self.show(())
