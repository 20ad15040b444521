"""The time of an exploration: no round is begun after which the verdict might come too late."""

import math
from typing import Final

from judges.deadline import Deadline

__all__ = ["Pace"]

_ROUNDS_KEPT: Final = 3
"""So many times the longest round are kept: for a round, for the verdict after it, and for one that takes longer."""


class Pace:
    """How long rounds take, against the time that is left."""

    def __init__(self, deadline: Deadline | None) -> None:
        """Take the deadline; without one there is time enough."""
        self._deadline = deadline
        self._left_s = self._time_left_s()
        self._longest_s = 0.0

    def is_late(self) -> bool:
        """Tell whether the verdict is to be asked for now. Called before each round, and at no other time."""
        left_s = self._time_left_s()
        if math.isfinite(left_s):
            self._longest_s = max(self._longest_s, self._left_s - left_s)
        self._left_s = left_s
        return left_s < _ROUNDS_KEPT * self._longest_s

    def _time_left_s(self) -> float:
        return math.inf if self._deadline is None else self._deadline.left_s
