"""What one search may cost: in CPU of its own thread for its two kinds of work, and in time on the wall.

Where many searches run in one process, the time on the wall and the CPU of the process say nothing of a single one.
"""

import time
from collections.abc import Callable
from typing import Final, NamedTuple

__all__ = ["CLOCKS", "Account", "Budget", "Clocks", "OutOfTimeError"]

_MATCHING_S: Final = 0.5
_PREPARING_S: Final = 0.4
"""To write spans and to read their escapes: done once, kept for later searches, and no fault of the pattern."""
_WALL_S: Final = 2.0
"""On a machine with nothing else to do the two above end a search in less than a second."""


class Clocks(NamedTuple):
    """What time is read from, in seconds: CPU of this thread, and a clock that never goes back."""

    cpu: Callable[[], float] = time.thread_time
    wall: Callable[[], float] = time.monotonic


CLOCKS: Final = Clocks()


class OutOfTimeError(Exception):
    """The search is to end here; what it found is good."""


class Account:
    """CPU that one kind of work may take; counts while it is entered."""

    def __init__(self, limit_s: float, cpu: Callable[[], float]) -> None:
        self._limit_s = limit_s
        self._cpu = cpu
        self._began_at = 0.0
        self.spent_s = 0.0

    def __enter__(self) -> None:
        self._began_at = self._cpu()

    def __exit__(self, *_: object) -> None:
        self.spent_s += self._cpu() - self._began_at

    @property
    def is_over(self) -> bool:
        """Whether all of it is spent."""
        return self.spent_s >= self._limit_s


class Budget:
    """What is left for one search. It begins when it is made."""

    def __init__(self, clocks: Clocks = CLOCKS) -> None:
        self.matching: Final = Account(_MATCHING_S, clocks.cpu)
        self.preparing: Final = Account(_PREPARING_S, clocks.cpu)
        self._wall = clocks.wall
        self._ends_at = clocks.wall() + _WALL_S

    @property
    def left_on_the_wall_s(self) -> float:
        """Time until the search is to end whatever it did."""
        return self._ends_at - self._wall()

    def check(self) -> None:
        """Look whether the search may go on.

        Raises:
            OutOfTimeError: It may not.
        """
        if self.matching.is_over or self.preparing.is_over or self.left_on_the_wall_s <= 0:
            raise OutOfTimeError
