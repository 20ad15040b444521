"""One judge model's share of a worker process: what was taken for it and is not finished, and how much more may be.

What is taken waits for slots here, so that a slot that comes free is filled at once; but not much more than that is
taken, since another worker may have free hands, and since all of it is in memory.
"""

import threading
from typing import Final, Protocol

__all__ = ["Lane", "Limits", "NoEndpoint"]

_MAX_BYTES: Final = 64 * 1024 * 1024
_READY_BATCHES: Final = 2
"""How many batches lie ready behind the calls under way: a slot is filled sooner than Redis can be asked."""


class Limits(Protocol):
    """What judging wants of the gate to an endpoint; properties are read from any thread."""

    @property
    def limit(self) -> int:
        """How many calls may be in flight."""
        ...

    @property
    def closed_for_s(self) -> float:
        """Seconds until a call may begin; 0 when one may now."""
        ...

    @property
    def open_for_s(self) -> float | None:
        """For how long the circuit has been open, 0 while it is closed; None while nothing is known."""
        ...

    def shut(self) -> None:
        """Let no call begin any more; called in the event loop."""
        ...


class NoEndpoint:
    """The limits of those who ask no endpoint: always open, and never many at a time."""

    closed_for_s = 0.0
    open_for_s = 0.0

    def __init__(self, limit: int) -> None:
        """Take how many evaluations may be under way."""
        self.limit = limit

    def shut(self) -> None:
        """Nothing to shut."""


class Lane:
    """Counts the evaluations of one judge model that this process holds. Safe to share between threads."""

    def __init__(self, judge_model: str, limits: Limits, batch_size: int) -> None:
        """Begin empty."""
        self.judge_model = judge_model
        self.limits = limits
        self.dry = False
        """Whether nothing was ready when it was last asked for."""
        self._batch_size = batch_size
        self._lock = threading.Lock()
        self._evaluations = 0
        self._bytes = 0
        # How large they are is not known yet: one batch is taken to see.
        self._bytes_each = _MAX_BYTES / batch_size
        self._busy = self._again = False

    @property
    def has_memory(self) -> bool:
        """Tell whether what is held leaves memory for more."""
        return self._bytes < _MAX_BYTES

    def room(self) -> int:
        """Say how many batches more may be taken now."""
        free_bytes = _MAX_BYTES - self._bytes
        if self.limits.closed_for_s > 0 or free_bytes <= 0:
            return 0
        limit = self.limits.limit
        left = limit + min(limit, _READY_BATCHES * self._batch_size) - self._evaluations
        # A part of a batch is room for a whole one only where slots would stay empty.
        for_slots = max(left // self._batch_size, int(self._evaluations < limit))
        return min(for_slots, max(1, int(free_bytes / (self._bytes_each * self._batch_size))))

    def wants(self) -> bool:
        """Tell whether there is room that nobody is filling, and something to fill it with."""
        return not self.dry and not self._busy and self.room() > 0

    def enter(self, evaluations: int, size: int) -> None:
        """Count what was taken; ``size`` in bytes."""
        with self._lock:
            self._evaluations += evaluations
            self._bytes += size
            if evaluations:
                self._bytes_each = max(1.0, size / evaluations)

    def leave(self, evaluations: int, size: int) -> None:
        """Count what has ended."""
        with self._lock:
            self._evaluations -= evaluations
            self._bytes -= size

    def begin(self) -> bool:
        """Become the one that takes batches; False when somebody is at it, who then hears of it at the end."""
        with self._lock:
            self._again = self._busy
            self._busy = True
            return not self._again

    def end(self) -> bool:
        """Stop taking batches; True when somebody asked meanwhile."""
        with self._lock:
            was_asked, self._busy, self._again = self._again, False, False
            return was_asked
