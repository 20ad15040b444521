"""Where the times of a limit come from, and the one timer that it sets."""

import asyncio
import random
import time
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["Alarm", "Timing"]


class Timing(NamedTuple):
    """Where times come from: a steady count of seconds, seconds since the epoch, a draw between two bounds."""

    steady: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    draw: Callable[[float, float], float] = random.uniform


class Alarm:
    """One timer of the running event loop, which rings at the earliest time that was asked for."""

    def __init__(self, ring: Callable[[], object]) -> None:
        """Take what is called then; the alarm is off by that time."""
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self._at = 0.0

    @property
    def is_set(self) -> bool:
        """Tell whether it is going to ring."""
        return self._timer is not None

    def set(self, at: float | None, now: float) -> None:
        """Ring at ``at`` at the latest, in steady seconds; None turns it off."""
        if self._timer is not None:
            if at is not None and self._at <= at:
                return
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._at = at
            self._timer = asyncio.get_running_loop().call_later(max(0.0, at - now), self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._ring()
