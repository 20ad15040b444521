"""Whether more work may be chosen, and for which judge models.

Slow and dead are different things. A model that is slow but healthy holds reading up once its unfinished work passes
the bound: the stream is the buffer, and nothing is lost. For one whose circuit is open that would stop all others
too; so its further evaluations are shed, and `replay` brings them back.
"""

import threading
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

__all__ = ["Bounds", "Pressure"]

_SURELY_DEAD_S: Final = 10.0
"""A slow model's circuit may open for a moment; reading must not throw its whole backlog away in that moment."""


class Bounds(NamedTuple):
    """What ingest may do now."""

    paused: bool
    shed: frozenset[str]


class Pressure:
    """Unfinished work by judge model, as last heard. Safe to share between threads."""

    def __init__(self, max_waiting_bytes: int, judge_models: Collection[str]) -> None:
        """Take the bound for each judge model, and those that are chosen for: others add no work, whatever waits."""
        self._max_waiting_bytes = max_waiting_bytes
        self._judge_models = frozenset(judge_models)
        self._lock = threading.Lock()
        self._waiting: Mapping[str, int] = {}
        self._dead: Mapping[str, float] = {}
        self._slow: frozenset[str] = frozenset()
        self._bounds = Bounds(paused=False, shed=frozenset())
        self.slow: frozenset[str] = frozenset()
        """The judge models for whose sake reading pauses."""

    @property
    def bounds(self) -> Bounds:
        """What holds now."""
        return self._bounds

    def hear_waiting(self, waiting: Mapping[str, int]) -> None:
        """Take bytes of unfinished work by judge model."""
        with self._lock:
            self._waiting = waiting
            self._decide()

    def hear_dead(self, dead: Mapping[str, float]) -> None:
        """Take for how many seconds judge models have been dead: their circuit is open wherever they are asked."""
        with self._lock:
            self._dead = dead
            self._decide()

    def _decide(self) -> None:
        waiting = {name: size for name, size in self._waiting.items() if name in self._judge_models}
        over = frozenset(name for name, size in waiting.items() if size > self._max_waiting_bytes)
        # Slow is what passed the bound alive, until it is below again.
        self._slow = (self._slow & over) | (over - self._dead.keys())
        shed = {name for name in over & self._dead.keys() if self._is_dead(name)}
        self.slow = over - shed
        self._bounds = Bounds(paused=bool(self.slow), shed=frozenset(shed))

    def _is_dead(self, name: str) -> bool:
        return name not in self._slow or self._dead[name] >= _SURELY_DEAD_S
