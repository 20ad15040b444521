"""Match a pattern within the budget of one search, whatever else the process computes meanwhile."""

from collections.abc import Iterator
from typing import Final, Protocol

from judges.trace_tools.budget import Budget
from judges.trace_tools.patterns import Place

__all__ = ["Matching", "Places", "SlowPatternError"]

_FIRST_TRY_S: Final = 0.1
_PART_CHARS: Final = 2_000
_REACH_CHARS: Final = 4_000
"""What a match may see behind the part it begins in."""
_SLOW_S: Final = 0.08
"""CPU of this thread for one part; words take a thousandth of it."""


class Places(Protocol):
    """A pattern."""

    def places(self, text: str, within: Place, timeout_s: float) -> list[Place]:
        """Find matches, or raise TimeoutError after so much CPU of the process."""
        ...


class SlowPatternError(Exception):
    """The pattern takes too long even for a short text."""


class Matching:
    """A pattern at work; a text is taken whole, and part by part once that took too long."""

    def __init__(self, pattern: Places, budget: Budget) -> None:
        self._pattern = pattern
        self._budget = budget
        self._is_patient = False

    def places(self, text: str, start: int) -> list[Place]:
        """Find where matches stand behind a place of a text, in order.

        Raises:
            SlowPatternError: The pattern takes too long for a part of the text.
            OutOfTimeError: The budget is spent.
        """
        if not self._is_patient:
            try:
                return self._found(text, Place(start, len(text)), _FIRST_TRY_S)
            except TimeoutError:
                self._is_patient = True
        return list(self._by_parts(text, start))

    def _by_parts(self, text: str, start: int) -> Iterator[Place]:
        while start < len(text):
            behind = start + _PART_CHARS
            begun = [place for place in self._tried(text, start, behind + _REACH_CHARS) if place.start < behind]
            yield from begun
            start = max(behind, begun[-1].end) if begun else behind

    def _tried(self, text: str, start: int, end: int) -> list[Place]:
        """Match a part, again and for longer where others took the time: the library counts all threads as one."""
        timeout_s = _FIRST_TRY_S
        while True:
            self._budget.check()
            before_s = self._budget.matching.spent_s
            try:
                return self._found(text, Place(start, min(end, len(text))), timeout_s)
            except TimeoutError:
                if self._budget.matching.spent_s - before_s >= _SLOW_S:
                    raise SlowPatternError from None
            timeout_s *= 2

    def _found(self, text: str, within: Place, timeout_s: float) -> list[Place]:
        # Never longer than is left on the wall: alone, a thread needs as much of it as of CPU.
        most_s = max(0.0, min(timeout_s, self._budget.left_on_the_wall_s))
        try:
            with self._budget.matching:
                return self._pattern.places(text, within, most_s)
        except MemoryError:
            raise SlowPatternError from None
