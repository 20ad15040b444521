"""Whether more work may be chosen, and for which judge models.

Slow and dead are different things. A model that is slow but healthy holds reading up once its unfinished work passes
the bound: the stream is the buffer, and nothing is lost. For one whose circuit is open that would stop all others
too; so its further evaluations are shed, and `replay` brings them back.
"""

import threading
from collections.abc import Collection, Mapping
from typing import NamedTuple

__all__ = ["Bounds", "Pressure"]


class Bounds(NamedTuple):
    """What ingest may do now."""

    paused: bool
    shed: frozenset[str]


class Pressure:
    """Unfinished work by judge model, as last heard. Safe to share between threads."""

    def __init__(self, max_waiting_bytes: int) -> None:
        """Take the bound that holds for each judge model."""
        self._max_waiting_bytes = max_waiting_bytes
        self._lock = threading.Lock()
        self._waiting: Mapping[str, int] = {}
        self._dead: frozenset[str] = frozenset()
        self._bounds = Bounds(paused=False, shed=frozenset())

    @property
    def bounds(self) -> Bounds:
        """What holds now."""
        return self._bounds

    def hear_waiting(self, waiting: Mapping[str, int]) -> None:
        """Take bytes of unfinished work by judge model."""
        with self._lock:
            self._update(waiting, self._dead)

    def hear_dead(self, judge_models: Collection[str]) -> None:
        """Take which judge models have an open circuit in every worker that asks them."""
        with self._lock:
            self._update(self._waiting, frozenset(judge_models))

    def _update(self, waiting: Mapping[str, int], dead: frozenset[str]) -> None:
        self._waiting, self._dead = waiting, dead
        over = {name for name, size in waiting.items() if size > self._max_waiting_bytes}
        self._bounds = Bounds(paused=bool(over - dead), shed=frozenset(over & dead))
